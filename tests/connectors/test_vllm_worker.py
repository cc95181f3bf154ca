"""The worker's half of the vLLM connector on a GPU, or what stands for one: what a step computes is
stored as it was, whatever the next step does, and loaded to the bit, whoever had the pages before.

vLLM itself is not here: see `vllm_worker.py`. On a GPU its stream does late what it is told, and
layers are CUDA graphs; elsewhere a stream stands in that does nothing until it is waited for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch

from tests.connectors.behind import GPU, Computing, default_stream
from tests.connectors.without_vllm import standing_in
from tests.gpu import DEVICE
from tests.lending import lending, stand_in
from tests.nodes import NodeProcess, eventually, running

with standing_in():
    from kvstore.engine.connectors.vllm import worker as module
    from kvstore.engine.connectors.vllm.caches import GroupCache
    from kvstore.engine.connectors.vllm.messages import Compare, Step
    from tests.connectors.vllm_worker import BLOCK, BLOCKS, KINDS, PAGE, TOKENS, Prompt, Worker

# How blocks go, and by whom: see `kvstore.transfer.reached`, `staged` and `lent`. What is followed
# is in DRAM, whatever the node lends.
WAYS = {"straight": {"Straight"}, "pinned": {"Staging"}, "lent": {"Resident", "Staging"}}
SLOW = 100  # steps that take a second together, on a GPU
SIZES = {"dram": "256MiB", "slab": "8MiB"}


@dataclass
class Pool:
    """A node, and what engines use of the device by whose default stream they compute."""

    node: NodeProcess
    default: Any
    moved: set[str]  # by whom blocks were


@pytest.fixture(scope="module", params=WAYS)
def pool(request: pytest.FixtureRequest) -> Iterator[Pool]:
    """By one way alone, whatever the blocks' size."""
    from kvstore.client import memory
    from kvstore.kernels.gpu import resident, staging, straight
    from kvstore.transfer import reached

    moved: set[str] = set()
    node = lending("256MiB", **SIZES) if request.param == "lent" else running(**SIZES)
    with pytest.MonkeyPatch.context() as change, node as process:
        stand_in(change)
        default = default_stream(change, module, GroupCache)
        change.setattr(reached, "RUN_BYTES_MIN", 0 if request.param == "straight" else 1 << 40)
        registered = reached.Reached._registered
        change.setattr(reached.Reached, "_registered", lambda *of: known(registered(*of)))
        made = staging.Staging(DEVICE)
        change.setattr(memory, "_staging", lambda _: made)
        for owner in (staging.Staging, straight.Straight, resident.Resident):
            for name in ("gathered", "scattered"):
                change.setattr(owner, name, noted(getattr(owner, name), owner.__name__, moved))
        yield Pool(process, default, moved)
        assert moved and moved <= WAYS[request.param], "another way than was meant"


def known(registered: Any) -> Any:
    """The node's memory, once the device has been told of all of it."""
    if registered is not None and registered._thread is not None:
        registered._thread.join()
    return registered


def noted(move: Callable[..., Any], name: str, moved: set[str]) -> Callable[..., Any]:
    def also(*what: Any) -> Any:
        moved.add(name)
        return move(*what)

    return also


@pytest.fixture
def worker_of(pool: Pool) -> Iterator[Callable[..., Worker]]:
    """Makes workers, closed at the end of the test."""
    made: list[Worker] = []

    def make(kind: str, how: str) -> Worker:
        computing = Computing("default" not in how, pool.default)
        made.append(Worker(KINDS[kind], pool.node.address, computing, "graphs" in how))
        return made[-1]

    yield make
    for one in made:
        one.close()


HOWS = ("told one by one", "graphs", "on the default stream")[: None if GPU else 1]
every_way_to_compute = pytest.mark.parametrize("how", HOWS)


def stored(worker: Worker, prompt: Prompt) -> None:
    """Wait until all of it is sealed."""
    chain = worker.chain(prompt)
    eventually(lambda: worker.client.match(chain).blocks == BLOCKS)


def loaded(worker: Worker, prompt: Prompt) -> None:
    """Go on with steps that compute nothing until its load is over."""

    def over() -> bool:
        worker.step(Step(0))
        return prompt.name in worker.received

    eventually(over)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("how", HOWS[:2])
def test_what_steps_compute_is_stored_as_it_was_and_loaded_to_the_bit(
    worker_of: Callable[..., Worker], kind: str, how: str
) -> None:
    """Its pages are another request's at once when it is over; so are those that it is loaded to
    until then, and who had them is not done with them."""
    first, prompt = worker_of(kind, how), Prompt.of(KINDS[kind], HOWS.index(how), 1)
    first.compute(prompt, 0, BLOCKS // 2)
    assert not first.sent
    first.compute(prompt, BLOCKS // 2, finished=True)
    first.overwrite(prompt.pages, slow=0)
    assert first.sent == {prompt.name}
    stored(first, prompt)

    second, there = worker_of(kind, how), prompt.elsewhere(2)
    second.overwrite(there.pages)
    second.load(there)
    loaded(second, there)
    assert second.holds(there)


@every_way_to_compute
def test_a_request_that_is_preempted_has_stored_what_it_computed(
    worker_of: Callable[..., Worker], how: str
) -> None:
    """The step after it computes another's tokens in its pages; and then it is loaded into those of
    that one, which is preempted in its turn."""
    worker = worker_of("NHD", how)
    prompt = Prompt.of(worker.kind, 10 + HOWS.index(how), 3)
    other = replace(Prompt.of(worker.kind, 20 + HOWS.index(how), 4), pages=prompt.pages)
    worker.compute(prompt)
    worker.compute(other)
    stored(worker, prompt)
    worker.load(prompt)
    loaded(worker, prompt)
    assert worker.holds(prompt)
    stored(worker, other)
    worker.load(other)
    loaded(worker, other)
    assert worker.holds(other)


@pytest.mark.parametrize("kind", ["NHD", "NHD, blocks outermost", "MLA"])
@every_way_to_compute
def test_a_prefill_is_followed_layer_by_layer(
    worker_of: Callable[..., Worker], kind: str, how: str
) -> None:
    first, second = worker_of(kind, how), worker_of(kind, how)
    prompt, name = Prompt.of(KINDS[kind], 30 + HOWS.index(how), 5), f"hand-off {kind} {how}"
    there = prompt.elsewhere(6)
    second.overwrite(there.pages)
    second.load(there, follow=name)
    first.compute(prompt, hand_off=name, finished=True)
    first.overwrite(prompt.pages, slow=0)
    loaded(second, there)
    assert second.holds(there)


def test_of_a_block_whose_beginning_vllm_has_the_rest_alone_is_written(
    worker_of: Callable[..., Worker],
) -> None:
    first, prompt = worker_of("HND", "default"), Prompt.of(KINDS["HND"], 40, 7)
    first.compute(prompt)
    stored(first, prompt)
    second, there, begin = worker_of("HND", "default"), prompt.elsewhere(8), BLOCK // 2
    second.overwrite(there.pages[begin // PAGE :])
    second.load(there, begin)
    loaded(second, there)
    assert second.holds(there, begin)


def test_a_load_waits_for_nothing_that_is_computed_behind_it(
    worker_of: Callable[..., Worker],
) -> None:
    """Where vLLM computes on the default stream, on which every thread is if nothing is said."""
    worker = worker_of("NHD", "default")
    prompts = [Prompt.of(worker.kind, number, 9) for number in (50, 51)]
    for one in prompts:
        worker.compute(one)
        stored(worker, one)
    for one in prompts:  # after the first no kernel is new to the device
        with worker.computing.current():
            go = worker.computing.held()
            worker.load(one)
            worker.computing.tell(int, SLOW)
            behind = worker.computing.moment()
            go()
        loaded(worker, one)
        late = behind.query()
        assert worker.holds(one)
    assert not late


def test_what_is_stored_is_compared_with_what_is_computed(
    worker_of: Callable[..., Worker],
) -> None:
    worker = worker_of("NHD", "default")
    prompt = Prompt.of(worker.kind, 60, 10)
    worker.compute(prompt)
    stored(worker, prompt)
    kept = replace(prompt, kv=torch.roll(prompt.kv, 1, 1))
    for one in (prompt, kept):
        compares = [Compare(prompt.name, (worker.part(one),))]
        worker.step(Step(0, compares=compares, tokens=TOKENS, prefill_tokens=TOKENS), one)
    right, wrong = (each.verdicts[prompt.name] for each in worker.reports if each.verdicts)
    assert (right.blocks, right.wrong, right.residual) == (BLOCKS, "", 0.0)
    assert "residual" in wrong.wrong
