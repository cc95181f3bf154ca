"""Decode steps that are recorded give the tokens that steps told anew give, whoever is in them.

On a GPU where there is one; else the kernels run in Triton's interpreter, and what is recorded are
the calls.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from kvstore.engine.batch import Span
from kvstore.engine.core import EngineCore, EngineSettings, Event, TokenEvent
from kvstore.engine.device import CPU, Device, Recording
from kvstore.engine.graphs import Graphs, rows_for, sizes
from kvstore.engine.hooks import NoHooks
from kvstore.engine.model import Model
from kvstore.engine.pages import BlockTable
from kvstore.engine.recording import Act, Recorded, Recorder
from kvstore.engine.reference import Reference
from kvstore.engine.sequence import Chunk, Request
from tests.engine.runs import CopyingPool, finish, prompt, request, run
from tests.engine.teams import teams
from tests.gpu import DEVICE


class Watched:
    """Records as another does, and notes how many rows each run has."""

    def __init__(self, inner: Recorder) -> None:
        self._inner = inner
        self.rows: list[int] = []  # of each recording run

    def record(self, act: Act) -> Recorded:
        return _Watched(self, self._inner.record(act))


class _Watched:
    def __init__(self, watched: Watched, inner: Recorded) -> None:
        self._watched, self._inner = watched, inner

    def replay(self) -> torch.Tensor:
        made = self._inner.replay()
        self._watched.rows.append(len(made))
        return made


@pytest.fixture(scope="module")
def device() -> Device:
    return Device.with_kernels(DEVICE)


@pytest.fixture(scope="module")
def eager(model_dir: Path, device: Device) -> Model:
    return Model.load(model_dir, device=device.without_graphs())


@pytest.fixture
def watched(device: Device) -> Watched:
    assert device.recording is not None
    return Watched(device.recording.recorder(DEVICE))


@pytest.fixture
def recorded(model_dir: Path, device: Device, watched: Watched) -> Model:
    assert device.recording is not None
    recording = replace(device.recording, recorder=lambda place: watched)
    return Model.load(model_dir, device=replace(device, recording=recording))


def pointers(graphs: Graphs) -> list[int]:
    rows = graphs.inputs.rows(2)
    tensors = (rows.tokens, rows.positions, rows.pages, rows.offsets, rows.logit_rows)
    return [one.data_ptr() for one in (*tensors, rows.facts, rows.block_tables)]


# -- which steps ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rows_max", "found"),
    [(1, [1]), (2, [1, 2]), (3, [1, 2, 3]), (8, [1, 2, 4, 8]), (48, [1, 2, 4, 8, 16, 32, 48])],
)
def test_there_is_a_recording_for_each_power_of_two_and_for_all(
    rows_max: int, found: list[int]
) -> None:
    assert sizes(rows_max) == found


def spans(*tokens: int, wants: bool = True) -> list[Span]:
    table: BlockTable = torch.zeros(9, dtype=torch.int32).numpy()
    return [Span([0] * count, 7, table, wants) for count in tokens]


def test_a_step_runs_in_the_smallest_recording_that_has_a_row_for_each() -> None:
    assert [rows_for(spans(*[1] * count), 12) for count in range(1, 13)] == [
        1, 2, 4, 4, 8, 8, 8, 8, 12, 12, 12, 12,
    ]  # fmt: skip


def test_a_step_with_part_of_a_prompt_is_none() -> None:
    assert rows_for(spans(1, 2, 1), 8) is None
    assert rows_for([*spans(1), *spans(1, wants=False)], 8) is None
    assert rows_for(spans(*[1] * 9), 8) is None


# -- tokens ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("page_tokens", [5, 64])
def test_sequences_that_join_and_leave_have_the_tokens_of_steps_told_anew_and_of_transformers(
    recorded: Model, eager: Model, watched: Watched, reference: Reference, page_tokens: int
) -> None:
    settings = EngineSettings(
        pages=200, page_tokens=page_tokens, max_batch_tokens=80, max_running=6
    )
    joins = {0: ((60, 12),), 2: ((1, 12), (64, 8)), 5: ((20, 5), (33, 9)), 6: ((5, 4),)}
    found = []
    for model in (recorded, eager):
        core, events = EngineCore(model, settings), list[Event]()
        for step in range(7):
            for length, new in joins.get(step, ()):
                core.add(request(prompt(length, seed=length), new, f"{length}"))
            events += core.step()
        found.append(finish(core, events))
    assert found[0] == found[1]
    for length, new in (one for some in joins.values() for one in some):
        assert found[0][f"{length}"] == reference.tokens(prompt(length, seed=length), new)
    assert set(watched.rows) == {1, 2, 4, 6}, "every recording ran"


@pytest.mark.parametrize("length", [60, 63, 64])
def test_a_sequence_goes_on_over_the_end_of_a_page(
    recorded: Model, watched: Watched, reference: Reference, length: int
) -> None:
    core, tokens = EngineCore(recorded, EngineSettings(pages=4, max_running=2)), prompt(length)
    assert run(core, tokens, 8) == reference.tokens(tokens, 8)
    assert watched.rows == [1] * 7, "all but the prompt's own step"


def test_a_prompt_whose_kv_came_from_a_pool_is_decoded_from_its_last_token_on(
    recorded: Model, watched: Watched, reference: Reference
) -> None:
    pool = CopyingPool()
    pool.core = core = EngineCore(recorded, EngineSettings(pages=8, max_running=2), pool)
    tokens = prompt(128)
    run(core, tokens)
    pool.offer, before = 128, len(watched.rows)
    assert run(core, tokens, 12) == reference.tokens(tokens, 12)
    assert len(watched.rows) == before + 12, "its last token too"


def test_what_is_said_of_tokens_is_what_a_step_told_anew_says(
    recorded: Model, eager: Model
) -> None:
    said = []
    for model in (recorded, eager):
        core, events = EngineCore(model, EngineSettings(pages=8, max_running=4)), list[Event]()
        for length in (9, 30):
            core.add(Request(str(length), tuple(prompt(length)), 5, ignore_eos=True, logprobs=3))
        while not core.idle:
            events += core.step()
        said.append([one.logprobs for one in events if isinstance(one, TokenEvent)])
    assert len(said[0]) == 10
    for mine, theirs in zip(*said, strict=True):
        assert mine is not None and theirs is not None
        assert mine.logprob == pytest.approx(theirs.logprob, abs=1e-4)
        assert [token for token, _ in mine.top] == [token for token, _ in theirs.top]


# -- memory ---------------------------------------------------------------------------------------


def test_inputs_are_written_where_they_were_recorded(recorded: Model) -> None:
    core = EngineCore(recorded, EngineSettings(pages=12, max_running=4))
    assert core.graphs is not None
    before = pointers(core.graphs)
    for length in (3, 70, 20):
        core.add(request(prompt(length), 6, str(length)))
    while not core.idle:
        core.step()
        assert pointers(core.graphs) == before


def test_rows_of_nobody_write_to_nobodys_page(recorded: Model, watched: Watched) -> None:
    core = EngineCore(recorded, EngineSettings(pages=12, page_tokens=8, max_running=4))
    for length in (3, 15, 8):
        core.add(request(prompt(length), 6, str(length)))
    core.step()
    touched = torch.zeros(core.cache.storage.shape[1:4:2], dtype=torch.bool)  # pages, tokens
    for one in core.scheduler.running.values():
        page, offset = divmod(one.computed_tokens, 8)
        touched[int(one.block_table[page]), offset] = True
    touched[core.cache.nobodys] = True
    before = core.cache.storage.cpu().clone()
    core.step()
    assert watched.rows == [4] and touched.sum() == 3 + 8
    after = core.cache.storage.cpu()
    changed = (before != after).any(-1).any(-1).any(2).any(0)
    assert not (changed & ~touched).any()
    assert changed[: core.cache.nobodys].sum() == 3


def test_what_is_in_nobodys_page_is_seen_by_nobody(recorded: Model, reference: Reference) -> None:
    core, tokens = EngineCore(recorded, EngineSettings(pages=4, max_running=4)), prompt(30)
    core.cache.storage[:, core.cache.nobodys] = torch.nan
    for name in "abc":
        core.add(request(tokens, 6, name))
    assert finish(core) == dict.fromkeys("abc", reference.tokens(tokens, 6))


# -- hooks ----------------------------------------------------------------------------------------


class Diary(NoHooks):
    """Writes down what it is told, and how many layers have the step's last token by then."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.core: EngineCore | None = None

    def _note(self, what: str, chunks: Sequence[Chunk]) -> None:
        assert self.core is not None
        if chunks[0].start >= chunks[0].sequence.prompt_len:
            page, offset = divmod(chunks[0].end - 1, 64)
            at = int(chunks[0].sequence.block_table[page])
            written = [bool(one[at, :, offset].all()) for one in self.core.cache.layers]
            self.lines.append(f"{what} {sum(written)}")

    def layer_starting(self, layer: int, chunks: Sequence[Chunk]) -> None:
        self._note(f"{layer} starting", chunks)

    def layer_done(self, layer: int, chunks: Sequence[Chunk]) -> None:
        self._note(f"{layer} done", chunks)

    def chunk_done(self, chunks: Sequence[Chunk]) -> None:
        self._note("over", chunks)


def test_hooks_hear_of_all_layers_before_any_is_touched_and_when_all_are_final(
    recorded: Model,
) -> None:
    diary = Diary()
    diary.core = EngineCore(recorded, EngineSettings(pages=4, max_running=2), diary)
    run(diary.core, prompt(5), 2)
    assert diary.lines == [
        *(f"{layer} starting 0" for layer in range(3)),
        *(f"{layer} done 3" for layer in range(3)),
        "over 3",
    ]


@pytest.mark.parametrize("at", ["layer_starting", "layer_done"])
def test_a_step_that_a_hook_cuts_short_can_be_run_again(
    recorded: Model, reference: Reference, monkeypatch: pytest.MonkeyPatch, at: str
) -> None:
    hooks, left = NoHooks(), iter([False] * 7 + [True])  # in the second step that decodes

    def fails(layer: int, chunks: Sequence[Chunk]) -> None:
        if next(left, False):
            raise OSError(f"{at} failed")

    monkeypatch.setattr(hooks, at, fails)
    core, tokens = EngineCore(recorded, EngineSettings(pages=4, max_running=2), hooks), prompt(30)
    core.add(request(tokens, 6))
    events = [*core.step(), *core.step()]
    with pytest.raises(OSError, match=at):
        core.step()
    assert finish(core, events) == {"r": reference.tokens(tokens, 6)}


# -- where nothing is recorded --------------------------------------------------------------------


class Refusing(Watched):
    """Records so many, and then has no memory."""

    def __init__(self, inner: Recorder, records: int) -> None:
        super().__init__(inner)
        self._left = iter(range(records))

    def record(self, act: Act) -> Recorded:
        if next(self._left, None) is None:
            raise RuntimeError("CUDA out of memory")
        return super().record(act)


@pytest.mark.parametrize("records", [0, 2])
def test_a_device_that_cannot_record_is_told_each_step_and_the_log_says_so_once(
    eager: Model,
    device: Device,
    watched: Watched,
    reference: Reference,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    records: int,
) -> None:
    assert device.recording is not None
    refusing = Refusing(watched, records)
    recording = Recording(device.recording.attention, lambda place: refusing)
    monkeypatch.setattr(eager, "device", replace(device, recording=recording))
    with caplog.at_level(logging.WARNING):
        core = EngineCore(eager, EngineSettings(pages=4, max_running=4))
        assert run(core, prompt(30), 6) == reference.tokens(prompt(30), 6)
    assert [one.getMessage() for one in caplog.records] == [
        "decode steps run without graphs: CUDA out of memory"
    ]
    assert core.graphs is None and not refusing.rows


def test_nothing_is_recorded_where_it_is_not_wanted_nor_on_the_cpu(
    eager: Model, model: Model
) -> None:
    assert CPU.recording is None
    assert [EngineCore(one, EngineSettings(pages=2)).graphs for one in (eager, model)] == [None] * 2


def test_a_rank_of_several_records_nothing(model_dir: Path, recorded: Model) -> None:
    rank = Model.load(model_dir, team=teams(2)[0], device=recorded.device)
    assert EngineCore(rank, EngineSettings(pages=2)).graphs is None
