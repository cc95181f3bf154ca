"""A LoRA adapter's KV is named by its weights, whatever it is called: engines that have the same
share it, and nobody gets that of another."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, TypeAlias

import pytest

from tests.connectors.vllm.engine import Adapter, Engine, Prompt, engine
from tests.connectors.vllm.models import adapter, prompt
from tests.nodes import NodeProcess

LENGTH = 3 * 64 + 10
LORA: dict[str, Any] = {"enable_lora": True, "max_loras": 1, "max_cpu_loras": 1}
TOKENS = [prompt(seed, LENGTH) for seed in range(900, 904)]


@pytest.fixture(scope="module")
def adapters(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    base = tmp_path_factory.mktemp("adapters")
    return {name: adapter(base / name, seed) for seed, name in enumerate(("one", "other"))}


Start: TypeAlias = Callable[..., Engine]


@pytest.fixture
def start(model: Callable[[str], Path], node: NodeProcess, tmp_path: Path) -> Iterator[Start]:
    """An engine of this name, on one node with the others, until the test is over."""
    with ExitStack() as engines:

        def started(name: str, **options: Any) -> Engine:
            told = {"node": node.address, **LORA, **options}
            return engines.enter_context(engine(model("llama"), tmp_path / name, **told))

        yield started


def under(path: Path, tokens: list[int], name: str = "a", in_place: bool = False) -> Prompt:
    return Prompt(tokens, adapter=Adapter(name, str(path), in_place))


def test_prompts_under_an_adapter_are_shared_by_those_who_have_its_weights_and_nobody_else(
    start: Start, adapters: dict[str, Path], tmp_path: Path
) -> None:
    one, other = adapters["one"], adapters["other"]
    copied = Path(shutil.copytree(one, tmp_path / "copied"))
    wanted = start("plain", node="").run(
        TOKENS[0], under(one, TOKENS[0]), under(other, TOKENS[0], "b")
    )
    assert len({tuple(tokens) for tokens in wanted.tokens}) == 3, "an adapter changes nothing"
    stored = start("first").run(TOKENS[0], under(one, TOKENS[0]), under(one, TOKENS[1]))
    assert stored.tokens[:2] == wanted.tokens[:2]
    second = start("second")
    # The first of an adapter is computed: only then are its weights known.
    assert second.run(under(copied, TOKENS[2], "called otherwise"), tokens=1).cached == [0]
    again = second.run(
        under(copied, TOKENS[0], "called otherwise"),
        under(copied, TOKENS[1], "called otherwise"),
        TOKENS[0],
    )
    assert again.cached == [192, 192, 0], "each is found, and none is another's"
    assert again.tokens == [wanted.tokens[1], stored.tokens[2], wanted.tokens[0]]
    second.run(under(other, TOKENS[3], "b"), tokens=1)
    apart = second.run(under(other, TOKENS[0], "b"))
    assert apart.cached == [0] and apart.tokens == wanted.tokens[2:]


def test_a_prompt_without_an_adapter_in_one_batch_with_one_is_nothing_wrong_to_others(
    start: Start, adapters: dict[str, Path]
) -> None:
    """On a CPU this vLLM computes it by that adapter."""
    wanted, first = start("plain", node="", enable_lora=False).run(TOKENS[0]), start("first")
    mixed = first.run(TOKENS[0], under(adapters["one"], TOKENS[1]), together=True)
    assert mixed.tokens[0] != wanted.tokens[0], "vLLM does it right now: keep what it computes"
    assert "requests with no LoRA adapter" in first.log
    assert start("second", enable_lora=False).run(TOKENS[0]).tokens == wanted.tokens


def test_ranks_of_one_engine_name_an_adapter_alike_and_as_one_rank_alone_does(
    start: Start, adapters: dict[str, Path]
) -> None:
    asked = under(adapters["one"], TOKENS[0])
    stored = start("first").run(asked)
    threads = {"VLLM_CPU_OMP_THREADS_BIND": "0|1"}
    ranks = start("ranks", tensor_parallel_size=2, environment=threads)
    ranks.run(under(adapters["one"], TOKENS[1]), tokens=1)
    found = ranks.run(asked)
    assert found.cached == [192] and found.tokens == stored.tokens


def test_weights_that_change_under_an_adapters_name_are_nobodys_until_vllm_forgets(
    start: Start, adapters: dict[str, Path], tmp_path: Path
) -> None:
    first = start("first")
    folder = Path(shutil.copytree(adapters["one"], tmp_path / "adapter"))
    first.run(under(folder, TOKENS[0]), under(folder, TOKENS[1]), tokens=1)
    before = first.figures()["saved_blocks"]
    assert before == 3, "the first is over before it has a name"
    shutil.rmtree(folder)
    shutil.copytree(adapters["other"], folder)
    first.run(under(adapters["one"], TOKENS[2], "b"), tokens=1)  # there is room for one of them
    changed = first.run(under(folder, TOKENS[3]), under(folder, TOKENS[3]), tokens=1)
    assert "whose weights changed" in first.log
    assert changed.cached == [0, 192], "by vLLM itself"
    for name, path in (("b", adapters["one"]), ("c", adapters["other"])):
        first.run(under(path, TOKENS[2], name), tokens=1)
        found = first.run(under(path, TOKENS[3], name), tokens=1)
        assert found.cached == [0], "it was stored as of the weights before, or after"
    assert first.figures()["saved_blocks"] > before, "others go on"


def test_an_adapter_that_is_loaded_in_place_is_left_to_vllm(
    start: Start, adapters: dict[str, Path]
) -> None:
    first, again = start("first"), under(adapters["one"], TOKENS[0], in_place=True)
    first.run(again, again, tokens=1)
    first.forget()
    assert first.run(again, tokens=1).cached == [0]
    assert "whose weights changed, or may" in first.log


def test_who_waits_under_a_path_whose_number_vllm_gives_to_another_stores_nothing_of_that(
    start: Start, adapters: dict[str, Path]
) -> None:
    """As where an adapter is loaded in place from a new path."""
    one, new = adapters["one"], under(adapters["other"], TOKENS[1], in_place=True)
    wanted = start("plain", node="").run(under(one, TOKENS[3]))
    first = start("first", max_num_seqs=1)
    first.run(under(one, TOKENS[0]), new, under(one, TOKENS[3]), together=True)
    # Nor when vLLM, which has KV of that as of the path, finds the weights of the path again.
    first.run(under(one, TOKENS[0], "b"), tokens=1)
    assert first.run(under(one, TOKENS[3])).cached == [192]
    second = start("second")
    second.run(under(one, TOKENS[2], "mine"), tokens=1)
    found = second.run(under(one, TOKENS[3], "mine"))
    assert found.cached == [0] and found.tokens == wanted.tokens


def test_a_hit_of_weights_that_vllm_no_longer_finds_is_computed_by_those_that_it_does(
    start: Start, adapters: dict[str, Path], tmp_path: Path
) -> None:
    one, other = adapters["one"], adapters["other"]
    folder = Path(shutil.copytree(one, tmp_path / "adapter"))
    wanted = start("plain", node="").run(under(other, TOKENS[3]))
    start("first").run(under(one, TOKENS[0]), under(one, TOKENS[3]), tokens=1)
    second = start("second")
    second.run(under(folder, TOKENS[1]), under(one, TOKENS[2], "b"), tokens=1)
    shutil.rmtree(folder)
    shutil.copytree(other, folder)
    found = second.run(under(folder, TOKENS[3]))
    assert found.tokens == wanted.tokens and found.cached == [0]
