"""Answers longer than what pages are reserved for: they take pages as they go on, and where none
are free the last to enter waits, and goes on later where it was."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace

import pytest

from kvstore.engine.core import EngineCore, EngineSettings, Event, FinishEvent, TokenEvent
from kvstore.engine.hooks import NoHooks
from kvstore.engine.measuring import Measuring
from kvstore.engine.model import Model
from kvstore.engine.reference import Reference
from kvstore.engine.scheduler import Limits, Scheduler
from kvstore.engine.sequence import Chunk
from kvstore.engine.sequence import Sequence as Running
from kvstore.engine.telling import Telling
from kvstore.telemetry import ENGINE, Telemetry
from tests.engine.runs import finish, prompt, request
from tests.engine.test_telling import Heard

# Room for 384 tokens. Each of two takes 2 pages for a prompt of 60 and the first of its answer, and
# would have 5.
SMALL = EngineSettings(pages=6, answer_tokens=64)
A, B, LONG = prompt(60, seed=1), prompt(60, seed=2), 200


class Diary(NoHooks):
    """Writes down who enters, gives way and ends, and what is computed of it."""

    def __init__(self, core: EngineCore) -> None:
        self._core = core
        self.lines: list[str] = []
        self.computed: list[tuple[str, int, int]] = []
        core.hooks = self

    def admitted(self, sequence: Running) -> int:
        self.lines.append(f"{sequence.id} enters with {len(sequence.tokens)} tokens")
        return 0

    def chunk_done(self, chunks: Sequence[Chunk]) -> None:
        self.computed += [(one.sequence.id, one.start, one.end) for one in chunks]

    def preempted(self, sequence: Running) -> None:
        table = self._core.cache.allocator.table(sequence.id)
        assert table is sequence.block_table
        self.lines.append(f"{sequence.id} gives way with {sequence.computed_tokens} computed")

    def finished(self, sequence: Running) -> None:
        self.lines.append(f"{sequence.id} ends")


def both_long(core: EngineCore) -> None:
    core.add(request(A, LONG, "a"))
    core.add(request(B, LONG, "b"))


def until_b_gives_way(core: EngineCore) -> list[Event]:
    events: list[Event] = []
    while (b := core.scheduler.find("b")) is not None and not b.gave_way:
        events += core.step()
    assert b is not None and b in core.scheduler.waiting
    return events


def test_of_two_long_answers_the_later_one_gives_way_and_both_are_right(
    model: Model, reference: Reference
) -> None:
    core = EngineCore(model, SMALL)
    diary = Diary(core)
    both_long(core)
    outputs = finish(core)
    assert outputs == {"a": reference.tokens(A, LONG), "b": reference.tokens(B, LONG)}
    assert diary.lines == [
        "a enters with 60 tokens",
        "b enters with 60 tokens",
        "b gives way with 192 computed",  # each has 3 pages, and a needs a 4th
        "a ends",
        "b enters with 193 tokens",
        "b ends",
    ]
    again = [one for one in diary.computed if one[0] == "b"][133:]
    assert again[0] == ("b", 0, 193), "in one step, whose token is the next of its answer"


def test_an_answer_for_which_there_are_pages_from_the_start_never_gives_way(
    model: Model, reference: Reference
) -> None:
    core = EngineCore(model, SMALL)
    diary = Diary(core)
    core.add(request(A, LONG, "long"))
    events = core.step()
    for number in range(4):
        core.add(request(prompt(60, seed=number + 2), 64, f"short {number}"))
    outputs = finish(core, events)
    assert outputs["long"] == reference.tokens(A, LONG)
    assert [line for line in diary.lines if "gives way" in line] == [
        "long gives way with 128 computed"
    ]


def test_who_gave_way_enters_before_those_that_are_due_when_it_is_or_later(model: Model) -> None:
    core = EngineCore(model, SMALL)
    diary = Diary(core)
    both_long(core)
    while not any("gives way" in line for line in diary.lines):
        core.step()
        if len(core.scheduler.waiting) == 0 and core.scheduler.find("later") is None:
            core.add(request(prompt(200, seed=3), 4, "later"))
    finish_order = [line.split(" ")[0] for line in _to_the_end(core, diary) if "enters" in line]
    assert finish_order == ["a", "b", "b", "later"]


def _to_the_end(core: EngineCore, diary: Diary) -> list[str]:
    while not core.idle:
        core.step()
    return diary.lines


def test_one_that_waits_again_can_be_aborted_and_the_hooks_hear_of_it(
    model: Model, reference: Reference
) -> None:
    core = EngineCore(model, SMALL)
    diary = Diary(core)
    both_long(core)
    events = until_b_gives_way(core)
    assert core.abort("b") and diary.lines[-1] == "b ends"
    assert core.cache.allocator.free == 2
    events = [one for one in events if one.request_id == "a"]
    assert finish(core, events) == {"a": reference.tokens(A, LONG)}


def test_who_still_prefills_gives_way_to_who_entered_before_it(
    model: Model, reference: Reference
) -> None:
    core = EngineCore(model, replace(SMALL, pages=5, max_batch_tokens=16, max_running=4))
    diary = Diary(core)
    core.add(request(A, LONG, "a"))
    events = []
    while (a := core.scheduler.find("a")) is None or len(a.tokens) < 124:
        events += core.step()
    later = prompt(120, seed=4)
    core.add(request(later, LONG, "b"))  # takes all pages that are left, and computes for long
    outputs = finish(core, events)
    assert outputs == {"a": reference.tokens(A, LONG), "b": reference.tokens(later, LONG)}
    assert diary.lines[1:4] == [
        "b enters with 120 tokens",
        "b gives way with 75 computed",
        "a ends",
    ]


def ousted(core: EngineCore) -> Running:
    """One that gave way while it still prefilled, to one that takes all that is left."""
    core.add(request(A, LONG, "a"))
    while (a := core.scheduler.find("a")) is None or len(a.tokens) < 124:
        core.step()
    b = core.add(request(prompt(120, seed=4), LONG, "b"))
    while not b.gave_way:
        core.step()
    assert b in core.scheduler.waiting and not b.output
    return b


FEW_STEPS = replace(SMALL, pages=5, max_batch_tokens=16, max_running=4)


def test_who_gave_way_before_its_first_token_is_passed_too(model: Model) -> None:
    core = EngineCore(model, FEW_STEPS)
    diary = Diary(core)
    ousted(core)
    core.add(request(prompt(20, seed=6), 4, "few"))
    _to_the_end(core, diary)
    assert next(line for line in diary.lines if line.endswith("ends")) == "few ends"


def test_one_that_is_aborted_after_it_gave_way_may_be_asked_for_again(model: Model) -> None:
    core, heard = EngineCore(model, FEW_STEPS), Heard()
    core.hooks = Telling(NoHooks(), heard)
    b = ousted(core)
    assert core.abort("b")
    core.add(b.request)
    while not core.idle:
        core.step()
    assert heard.said.count(("began", "b")) == 2 and heard.said.count(("ended", "b")) == 1


def test_the_time_that_it_waits_for_room_once_more_is_no_time_of_loading_or_prefilling(
    model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = iter(range(1_000_000))
    monkeypatch.setattr("kvstore.engine.measuring.time.monotonic", lambda: float(next(clock)))
    core, telemetry = EngineCore(model, FEW_STEPS), Telemetry(ENGINE)
    core.hooks = measuring = Measuring(NoHooks(), telemetry)
    for name in "ab":
        measuring.came(name)
    ousted(core)
    while not core.idle:
        core.step()
    # Of b's; what a waited and took is little, and a step looks at the clock a few times.
    waited, prefilled = (
        telemetry.times(f"{what}_seconds")[""].total for what in ("prompt_wait", "prefill")
    )
    assert waited > 10 * prefilled


@pytest.mark.parametrize("follows", [False, True])
def test_whose_prefix_is_still_landing_gives_way_and_lands_anew(
    model: Model, reference: Reference, follows: bool
) -> None:
    class Lands(Diary):
        asked = 0

        def admitted(self, sequence: Running) -> int | None:  # type: ignore[override]
            self.asked += sequence.id == "b"
            assert sequence.follows == (follows and sequence.id == "b" and not sequence.output)
            return None if sequence.id == "b" and self.asked < 40 else 0

    core = EngineCore(model, replace(SMALL, pages=5))
    diary = Lands(core)
    core.add(request(A, LONG, "a"))
    events = []
    while (a := core.scheduler.find("a")) is None or len(a.tokens) < 124:
        events += core.step()
    later = prompt(120, seed=5)
    core.add(replace(request(later, LONG, "b"), follows=follows))
    outputs = finish(core, events)
    assert outputs == {"a": reference.tokens(A, LONG), "b": reference.tokens(later, LONG)}
    assert "b gives way with 0 computed" in diary.lines
    assert not any(line.startswith("a gives way") for line in diary.lines)


def test_what_needs_few_pages_enters_while_one_that_gave_way_waits_for_many(
    model: Model, reference: Reference
) -> None:
    settings = replace(SMALL, pages=9, answer_tokens=128)
    core = EngineCore(model, settings)
    diary = Diary(core)
    core.add(request(A, 400, "a"))
    core.add(request(B, 400, "b"))
    events = until_b_gives_way(core)
    few, many = prompt(20, seed=6), prompt(20, seed=7)
    core.add(request(few, 4, "few"))
    core.add(request(many, 300, "many"))
    outputs = finish(core, events)
    for name, tokens, new in (("a", A, 400), ("b", B, 400), ("few", few, 4), ("many", many, 300)):
        assert outputs[name] == reference.tokens(tokens, new)
    order = [line.split()[0] for line in diary.lines if line.endswith("ends")]
    assert order[0] == "few" and order[1] == "a", "it waited for nobody"
    entered = [line.split()[0] for line in diary.lines if "enters" in line]
    assert entered.index("many") > entered.index("b", 2), "who may need more waits its turn"


def test_one_that_gave_way_is_put_before_none_that_begin_as_its_prompt_does(model: Model) -> None:
    core = EngineCore(model, SMALL)
    diary = Diary(core)
    core.add(replace(request(A, LONG, "a"), due=1.0))
    core.add(replace(request(B, LONG, "b"), due=1.0))
    until_b_gives_way(core)
    core.add(replace(request([*B, 5], 4, "next"), due=0.5))  # due before it, and it fits
    _to_the_end(core, diary)
    assert diary.lines.index("next ends") < diary.lines.index("a ends")


def test_each_time_that_it_gives_way_it_enters_with_more(model: Model) -> None:
    scheduler = Scheduler(Limits(answer_tokens=64, max_request_tokens=8_192))
    sequence = scheduler.add(request(A, 4_000))
    wanted = []
    for times in range(6):
        sequence.gave_way = times
        wanted.append(scheduler.room_on_entry(sequence) - len(A))
    assert wanted == [64, 128, 256, 512, 1_024, 1_024]


def test_tokens_go_on_where_they_were_and_its_prompts_share_of_the_pool_is_said_once(
    model: Model,
) -> None:
    class Had(NoHooks):
        """Some of a prompt, and later less of it."""

        def admitted(self, sequence: Running) -> int:
            return 0 if sequence.gave_way else 48

    core = EngineCore(model, SMALL, Had())
    both_long(core)
    events = []
    while not core.idle:
        events += core.step()
    of_b = [one for one in events if one.request_id == "b"]
    indexes = [one.index for one in of_b if isinstance(one, TokenEvent)]
    assert indexes == [*range(LONG)]
    last = of_b[-1]
    assert isinstance(last, FinishEvent) and last.cached_tokens == 48


@pytest.mark.parametrize("seed", range(6))
def test_whatever_comes_every_answer_is_right_and_no_page_is_lost(
    model: Model, reference: Reference, seed: int
) -> None:
    dice = random.Random(seed)
    settings = EngineSettings(
        pages=dice.randint(4, 7), max_batch_tokens=96, max_running=4, answer_tokens=32
    )
    core = EngineCore(model, settings)
    diary = Diary(core)
    wanted = {}
    for number in range(6):
        tokens, new = prompt(dice.randint(1, 90), seed=seed), dice.choice([30, 120, 160])
        tokens[0] = number  # of their own, and few enough kinds for the reference
        wanted[f"{number}"] = (tokens, new)
    events, left = [], [*wanted]
    while left or not core.idle:
        if left and dice.random() < 0.3:
            name = left.pop(0)
            core.add(request(*wanted[name], name))
        events += core.step()
        core.cache.check()
    outputs = finish(core, events)
    for name, (tokens, new) in wanted.items():
        assert outputs[name] == reference.tokens(tokens, new), name
    assert any("gives way" in line for line in diary.lines)


def test_conductors_hear_of_one_request_that_decodes_all_the_while(model: Model) -> None:
    core, heard = EngineCore(model, SMALL), Heard()
    core.hooks = Telling(NoHooks(), heard)
    both_long(core)
    until_b_gives_way(core)
    assert heard.loads[-1] == (2, 194 + 193), "there must be room for b"
    while not core.idle:
        core.step()
    for what in ("began", "ended", "decoding"):
        assert heard.said.count((what, "b")) == 1
    assert heard.outputs == [LONG, LONG] and heard.loads[-1] == (0, 0)


def test_conductors_hear_that_one_is_over_which_is_aborted_while_it_waits_again(
    model: Model,
) -> None:
    core, heard = EngineCore(model, SMALL), Heard()
    core.hooks = Telling(NoHooks(), heard)
    both_long(core)
    until_b_gives_way(core)
    core.abort("b")
    assert len(heard.outputs) == 1 and heard.loads[-1][0] == 1
