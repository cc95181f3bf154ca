"""One rank's half by itself, with no node that answers: vLLM's worker goes on, and all is said."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from kvstore.client import KVGroup, KVSpec
from kvstore.engine.connectors.vllm import worker as module
from kvstore.engine.connectors.vllm.compare import NOTHING
from kvstore.engine.connectors.vllm.facts import Facts, GroupFacts
from kvstore.engine.connectors.vllm.loaded_adapters import LoadedAdapters
from kvstore.engine.connectors.vllm.messages import (
    Compare,
    Load,
    Loaded,
    Part,
    Report,
    Save,
    Step,
    Verdict,
)
from kvstore.engine.connectors.vllm.settings import Settings
from kvstore.engine.connectors.vllm.worker import WorkerSide
from tests.connectors.vllm.test_contents import Loader, asked
from tests.nodes import eventually

NOWHERE = "127.0.0.1:9"
PART = Part(group=0, first=0, hashes=(b"h" * 32,), parent=b"", pages=(1,), last_tokens=16)


def one_of(vllm_groups: int, window: int = 0) -> WorkerSide:
    """The worker of a vLLM that has so many groups, of which the pool keeps the first."""
    reuse = "window" if window else "chain"
    group = KVGroup((0,), 1, 8, block_tokens=16, reuse=reuse, window_tokens=window)
    spec = KVSpec(model="m", revision="r", dtype="float32", groups=(group,))
    kept = (GroupFacts(0, ("layer",), 16, 0, 1, True, window),)
    facts = Facts(spec, kept, "as it is", vllm_groups)
    pages = {"layer": torch.zeros(4, 1, 16, 16)}
    return WorkerSide(Settings(node=NOWHERE), facts, pages, "engine", 0, 1)


@pytest.fixture
def worker() -> Iterator[WorkerSide]:
    made = one_of(1)
    yield made
    made.close()


@pytest.mark.parametrize(
    ("vllm_groups", "window", "said"),
    [(1, 0, (set(), {1})), (2, 0, ({"a"}, set())), (1, 16, ({"a"}, set()))],
)
def test_what_failed_to_load_is_told_by_page_only_where_that_is_one_requests(
    vllm_groups: int, window: int, said: tuple[set[str], set[int]]
) -> None:
    """vLLM ends where it is told of pages and a draft has a group of its own, that we keep not; of
    what is before a window all have one page."""
    with closing(one_of(vllm_groups, window)) as worker:
        worker.begin(Step(1, loads=[Load("a", 0, 16, (PART,))]))
        worker.load()
        eventually(lambda: worker._loads._under_way == 0)
        _, received, failed = worker.ended()
        assert received == {"a"}
        assert (failed, worker.bad_pages()) == said


def test_nothing_is_stored_or_compared_for_who_computes_by_other_weights_now(
    worker: WorkerSide, monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded, began = LoadedAdapters(), list[Step]()
    monkeypatch.setattr(module, "LOADED", loaded)
    monkeypatch.setattr(worker._saves, "begin", began.append)
    monkeypatch.setattr(module, "compare", lambda *_: pytest.fail("it is of other weights"))
    model: Any = SimpleNamespace(id=1, loras={})
    for number, name in enumerate("ab", 1):
        loaded.note(asked(name, number=number), model, Loader, ())
    b, a = loaded.since(0)
    worker._adapters_told = 0
    worker.begin(Step(1))
    assert worker._report.adapters == (b, a), "as they were loaded, the last one first"
    loaded.note(asked("c", number=1), model, Loader, ())  # by the number of a
    saves = [Save("x", (PART,), adapter=a, finished=True), Save("y", (PART,), adapter=b)]
    worker.begin(Step(2, [], saves, [Compare("x", (PART,), a)]))
    assert [one.request for one in began[-1].saves] == ["y"]
    worker.save()
    sent, _, _ = worker.ended()
    assert sent == {"x"}, "its pages are given back"
    assert worker._report.verdicts == {"x": NOTHING}


def test_what_a_step_says_once_it_is_saved_is_said_with_the_next_where_vllm_asks_before(
    worker: WorkerSide, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "compare", lambda *_: NOTHING)
    monkeypatch.setattr(worker._saves, "end", lambda: (3, {"a": 2}))
    worker.begin(Step(1, compares=[Compare("a", (PART,))], prefill_tokens=64, tokens=64))
    worker.layer("layer")
    worker.ended()
    assert worker.report() is None, "asked before the step is saved, as with speculation"
    worker.save()
    worker.begin(Step(2))
    worker.save()
    report = worker.report()
    assert report is not None
    assert report.verdicts == {"a": NOTHING}
    assert (report.saved_blocks, report.late, report.prefill[0]) == (6, {"a": 2}, 64)
    assert worker.report() is None, "all is said once"


class Behind:
    """A moment of a GPU, which is some steps behind what it is told; each takes it 2 s."""

    told, done = 0, 0

    def __init__(self, _: object) -> None:
        self.at, Behind.told = Behind.told, Behind.told + 1

    @property
    def past(self) -> bool:
        return self.at < Behind.done

    def seconds_after(self, earlier: Behind) -> float:
        return 2.0 * (self.at - earlier.at)


def test_what_computing_takes_a_gpu_is_told_once_it_is_done(
    worker: WorkerSide, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "Moment", Behind)
    for tokens in (64, 96):
        worker.begin(Step(1, prefill_tokens=tokens, tokens=tokens))
        worker.layer("layer")
        worker.save()
    assert worker.report() is None, "its calls have returned, and nothing is computed yet"
    Behind.done = 2
    worker.begin(Step(3))
    worker.save()
    report = worker.report()
    assert report is not None and report.prefill == (64, 2.0)


def test_a_comparison_that_fails_unexpectedly_ends_no_worker(
    worker: WorkerSide, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_room(*_: object) -> None:
        raise RuntimeError("CUDA out of memory")

    monkeypatch.setattr(module, "compare", no_room)
    worker.begin(Step(1, compares=[Compare("a", (PART,))]))
    worker.save()
    report = worker.report()
    assert report is not None and report.verdicts == {"a": NOTHING}


def test_what_could_not_all_be_compared_proves_nothing_of_any_group(
    worker: WorkerSide, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of windows too: that the others' blocks agree says nothing of who computed these."""
    had = {0: 1, 1: 2}
    monkeypatch.setattr(worker, "_caches", (0, 1))
    monkeypatch.setattr(module, "compare", lambda group, _: Verdict(had[group], 1.0, 0.0, ""))
    both = Compare("a", (PART, replace(PART, group=1, hashes=2 * PART.hashes)))
    assert worker._compare(both).blocks == 3
    had[1] = 1
    assert worker._compare(both).blocks == 0


def test_of_what_several_ranks_compare_as_much_is_proven_as_all_of_them_had() -> None:
    had, lacked = (Report(verdicts={"a": Verdict(n, 1.0, 0.1 * n, "")}) for n in (2, 0))
    assert had.aggregate(lacked).verdicts == lacked.aggregate(had).verdicts
    assert had.aggregate(lacked).verdicts["a"] == Verdict(0, 1.0, 0.2, "")


@pytest.mark.parametrize(
    ("vllm_groups", "left"), [(1, Loaded(48, 32, 64, 0.5)), (2, Loaded(16, 0, 64, 0.5))]
)
def test_of_a_load_that_was_cut_short_nothing_counts_where_vllm_throws_all_of_it_away(
    monkeypatch: pytest.MonkeyPatch, vllm_groups: int, left: Loaded
) -> None:
    ended = {"cut": Loaded(48, 32, 64, 0.5), "whole": Loaded(64, 64, 64, 0.5)}
    with closing(one_of(vllm_groups)) as worker:
        monkeypatch.setattr(worker._loads, "finished", lambda _: dict(ended))
        assert worker.ended()[1] == {"cut", "whole"}
        report = worker.report()
    assert report is not None
    assert report.loaded == {"cut": left, "whole": ended["whole"]}
