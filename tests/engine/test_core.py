"""The loop keeps its word to hooks and callers: order, pages, aborts, and steps cut short."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from kvstore.engine.core import EngineCore, EngineSettings, FinishEvent, TokenEvent
from kvstore.engine.errors import RequestTooLong
from kvstore.engine.hooks import NoHooks
from kvstore.engine.model import Model
from kvstore.engine.reference import Reference
from kvstore.engine.sequence import Chunk, Finish
from kvstore.engine.sequence import Sequence as Running
from tests.engine.runs import finish, prompt, request, run


class Diary(NoHooks):
    """Writes down what it is told."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.core: EngineCore | None = None

    def admitted(self, sequence: Running) -> int | None:
        self.lines.append(f"admitted {sequence.id} with {len(sequence.block_table)} pages")
        return 0

    def chunk_started(self, chunks: Sequence[Chunk]) -> None:
        self.lines.append(f"started {_spans(chunks)}")
        assert all(c.sequence.computed_tokens == c.start for c in chunks)

    def layer_starting(self, layer: int, chunks: Sequence[Chunk]) -> None:
        self.lines.append(f"layer {layer} starting")
        assert self.core is not None
        for c in chunks:
            page, offset = divmod(c.end - 1, 64)
            assert not self.core.cache.layers[layer][c.sequence.block_table[page], :, offset].any()

    def layer_done(self, layer: int, chunks: Sequence[Chunk]) -> None:
        self.lines.append(f"layer {layer} done")
        assert self.core is not None
        for c in chunks:
            page, offset = divmod(c.end - 1, 64)
            assert self.core.cache.layers[layer][c.sequence.block_table[page], :, offset].all()

    def chunk_done(self, chunks: Sequence[Chunk]) -> None:
        self.lines.append(f"done {_spans(chunks)}")
        assert all(c.sequence.computed_tokens == c.end for c in chunks)

    def finished(self, sequence: Running) -> None:
        assert self.core is not None
        assert self.core.cache.allocator.table(sequence.id) is sequence.block_table
        assert sequence.finish is not None
        self.lines.append(f"finished {sequence.id} by {sequence.finish.value}")


def _spans(chunks: Sequence[Chunk]) -> str:
    return " ".join(f"{c.sequence.id}[{c.start},{c.end})" for c in chunks)


LAYERS = [f"layer {i} {what}" for i in range(3) for what in ("starting", "done")]


def test_hooks_are_told_in_order_and_before_the_pages_go(model: Model) -> None:
    diary = Diary()
    settings = EngineSettings(pages=8, max_batch_tokens=64, max_running=4)
    diary.core = EngineCore(model, settings, diary)
    run(diary.core, prompt(100), 2)
    assert diary.lines == [
        "admitted r with 2 pages",
        "started r[0,64)",
        *LAYERS,
        "done r[0,64)",
        "started r[64,100)",
        *LAYERS,
        "done r[64,100)",
        "started r[100,101)",
        *LAYERS,
        "done r[100,101)",
        "finished r by length",
    ]


def test_a_request_waits_while_the_cache_is_full_and_runs_when_pages_come_back(
    model: Model, reference: Reference
) -> None:
    core = EngineCore(model, EngineSettings(pages=3))
    long, short = prompt(110), prompt(20)
    core.add(request(long, name="long"))
    core.add(request(prompt(70), name="next"))
    core.add(request(short, name="short"))
    events = core.step()
    # The short one would fit, but it does not overtake.
    assert list(core.scheduler.running) == ["long"]
    outputs = finish(core, events)
    assert outputs["long"] == reference.tokens(long, 12)
    assert outputs["short"] == reference.tokens(short, 12)


def test_a_request_larger_than_the_cache_is_refused_rather_than_kept_waiting(
    model: Model,
) -> None:
    core = EngineCore(model, EngineSettings(pages=2))
    with pytest.raises(RequestTooLong):
        core.add(request(prompt(120), 9))
    assert run(core, prompt(120), 8)


def test_a_request_longer_than_the_models_positions_is_refused(model: Model) -> None:
    core = EngineCore(model, EngineSettings(pages=64))
    with pytest.raises(RequestTooLong, match="2048"):
        core.add(request(prompt(2040), 9))


def test_aborting_frees_the_pages_and_tells_the_hooks(model: Model, reference: Reference) -> None:
    diary = Diary()
    diary.core = core = EngineCore(model, EngineSettings(pages=8), diary)
    kept = prompt(30, seed=1)
    sequence = core.add(request(prompt(90), name="gone"))
    core.add(request(kept, name="kept"))
    events = core.step()
    assert core.abort("gone")
    assert sequence.finish is Finish.ABORT
    assert diary.lines[-1] == "finished gone by abort"
    assert core.cache.allocator.free == 7
    assert not core.abort("gone")
    assert finish(core, events) == {"kept": reference.tokens(kept, 12)}


def test_aborting_a_waiting_request_tells_nobody(model: Model) -> None:
    diary = Diary()
    core = EngineCore(model, EngineSettings(pages=8), diary)
    core.add(request(prompt(90)))
    assert core.abort("r")
    assert core.idle and not diary.lines


def test_a_token_and_the_finish_come_out_of_the_step_that_made_them(core: EngineCore) -> None:
    core.add(request(prompt(5), 1))
    first, last = core.step()
    assert isinstance(first, TokenEvent) and isinstance(last, FinishEvent)
    assert last.output == (first.token,) and last.reason is Finish.LENGTH
    assert core.idle and core.step() == []


class Faulty(NoHooks):
    """Raises once, at the named hook."""

    def __init__(self, at: str) -> None:
        self.at: str | None = at

    def _fail(self, here: str) -> None:
        if here == self.at:
            self.at = None
            raise OSError(f"{here} failed")

    def admitted(self, sequence: Running) -> int | None:
        self._fail("admitted")
        return 0

    def chunk_started(self, chunks: Sequence[Chunk]) -> None:
        self._fail("chunk_started")

    def layer_done(self, layer: int, chunks: Sequence[Chunk]) -> None:
        self._fail(f"layer_done {layer}")

    def chunk_done(self, chunks: Sequence[Chunk]) -> None:
        self._fail(f"chunk_done at {chunks[0].end}")

    def finished(self, sequence: Running) -> None:
        self._fail("finished")


@pytest.mark.parametrize(
    "at",
    [
        "admitted",
        "chunk_started",
        "layer_done 1",
        "chunk_done at 70",
        "chunk_done at 73",
        "finished",
    ],
)
def test_a_step_cut_short_by_a_hook_can_be_run_again(
    model: Model, reference: Reference, at: str
) -> None:
    core = EngineCore(model, EngineSettings(pages=4), Faulty(at))
    tokens = prompt(70)
    core.add(request(tokens, 4))
    events = []
    for _ in range(10):
        try:
            events += core.step()
        except OSError:
            core.cache.check()
    assert core.idle and core.cache.allocator.free == 4
    produced = [event.token for event in events if isinstance(event, TokenEvent)]
    assert produced == reference.tokens(tokens, 4)
    assert isinstance(events[-1], FinishEvent)


@pytest.mark.parametrize("at", ["chunk_done at 70", "finished"])
def test_a_request_of_the_id_of_one_that_was_aborted_hears_nothing_of_that(
    model: Model, reference: Reference, at: str
) -> None:
    core = EngineCore(model, EngineSettings(pages=4), Faulty(at))
    core.add(request(prompt(70, 2), 4))
    with pytest.raises(OSError, match=at):
        while not core.idle:
            core.step()
    core.abort("r")
    tokens = prompt(70)
    core.add(request(tokens, 4))
    events = []
    while not core.idle:
        events += core.step()
    produced = [event.token for event in events if isinstance(event, TokenEvent)]
    assert produced == reference.tokens(tokens, 4)
