"""Requests sent by a conductor beside the same sent round-robin, over real nodes and engines.

Two engines prefill and two decode, each at a node of its own with too little memory for all that is
prompted, and chats over a few documents come at moments that were drawn beforehand. Each round runs
the load by `Schedule` and then round-robin, each on nodes that have nothing yet, over the same
engines. What differs is who prefills, who decodes, and in which order prompts are run; fetching
from other nodes is the same. Requests come at a share of the rate at which these engines compute
every prompt anew, so that a slow machine is as busy as a quick one. Every answer is compared with
that of an engine alone. At last the load is run by `Schedule` once more, and the conductor that is
asked is killed halfway. Engines with a cache of their own are sent it in other words each time:
then that is as empty as nodes are.

The planner's simulator is held against each of the rounds by `Schedule`: with what was measured in
the first half of a round, what does it say of the second? It is given the costs that engines
reported; what calls, copies and the waking of processes add to what it simulates is a straight
line through the first half's requests. The rows tell how far off it is, as a share of what was
measured.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from bench import chats
from bench.chats import Coming
from bench.drive import Answers, Ran, RoundRobin, drive, reference
from bench.engine import VOCAB
from bench.engine import Shape as Model
from bench.fleet import OURS, Fleet, Kind, Plan, running
from bench.foretold import Foretold, foretell
from bench.listening import Listener, listening
from bench.report import Goal, Report, Row
from bench.rounds import Spread
from kvstore.client.conductors import Conductors
from kvstore.config import OPEN, parse_bytes
from kvstore.gateway.request import Outcome
from kvstore.layout import SlotLayout

RUNS = 3
GOAL, GOAL_OFF = 1.0, 0.1

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Sizes:
    model: Model = field(default_factory=lambda: Model(8, 256, 8, 4, 32, 704))
    plan: Plan = field(default_factory=Plan)
    load: chats.Shape = field(default_factory=chats.Shape)
    busy: float = 0.3  # the rate, as a share of that at which all of it is computed anew


@dataclass(frozen=True, slots=True)
class SecondHalf:
    """What was foretold of it."""

    ttft_seconds: float  # mean
    untold_seconds: float  # of those, what each takes whatever was simulated
    hit_share: float


@dataclass(frozen=True, slots=True)
class Round:
    """The load both ways, and what was foretold of the second half of the first."""

    ours: Ran
    others: Ran
    foretold: SecondHalf | None  # None: the simulator was not asked


class Load:
    """What is sent: the same again and again, or in other words each time."""

    def __init__(self, fleet: Fleet, sizes: Sizes) -> None:
        self._fleet, self._vocabulary = fleet, sizes.load.vocabulary
        self._coming = chats.load(sizes.load, seed=1)
        since = time.monotonic()
        self.answers = reference(fleet, self._coming)
        self.rate = sizes.busy * len(self._coming) / (time.monotonic() - since)
        self._coming, self._times = chats.at_rate(self._coming, self.rate), 0

    def __len__(self) -> int:
        return len(self._coming)

    def next(self) -> Sequence[Coming]:
        """To nodes that have nothing yet."""
        self._fleet.refresh()
        self._times += 1
        if not self._fleet.kind.remembers:
            return self._coming
        said = chats.reworded(self._coming, self._times, self._vocabulary)
        self.answers |= reference(self._fleet, said)
        self._fleet.refresh()
        return said

    @property
    def hit_share_max(self) -> float:
        return chats.hit_share_max(self._coming, self._fleet.spec.groups[0].block_tokens)


def run(
    runs: int, say: Say, sizes: Sizes | None = None, foretold: bool = True, kind: Kind = OURS
) -> Report:
    sizes = sizes or Sizes()
    with tempfile.TemporaryDirectory(prefix="mp") as scratch, listening() as listener:
        folder = sizes.model.make(Path(scratch) / "model")
        say(f"starting {sizes.plan.nodes} nodes, and engines")
        home = Path(scratch) / "fleet"
        with running(home, folder, sizes.plan, [listener.address], kind) as fleet:
            say("requests by one engine alone")
            load = Load(fleet, sizes)
            say(f"of {len(load)} requests {load.rate:.3g} a second are sent")
            done = [_round(fleet, listener, load, sizes, foretold, say) for _ in range(runs)]
            say("once more, and a conductor is killed halfway")
            killed = with_a_conductor_killed(fleet, load.next())
    also = {"hit_share_max": load.hit_share_max}
    told: dict[str, Any] = asdict(sizes) | {"requests": len(load), "rate": round(load.rate, 3)}
    rows = [*_compared(done, told, also), _lost(done, killed, load.answers, told)]
    if foretold:
        rows += _off(done, told)
    return Report(
        name="route",
        unit="",
        against="round-robin over the same engines; what engines measured",
        ratio_is="TTFT ours / theirs; hit rate theirs / ours; what the simulator is off by",
        goal=GOAL,
        sense=Goal.AT_MOST,
        rows=tuple(rows),
    )


def with_a_conductor_killed(fleet: Fleet, coming: Sequence[Coming]) -> Ran:
    """The one that is asked, before the request in the middle."""
    with Conductors(fleet.told, OPEN) as conductors:

        def sent(number: int) -> None:
            if number == len(coming) // 2:
                asked = conductors.first
                fleet.kill(next(one for one in fleet.conductors if one.address == asked))

        return drive(fleet, conductors, coming, sent)


def _round(
    fleet: Fleet,
    listener: Listener,
    load: Load,
    sizes: Sizes,
    foretold: bool,
    say: Say,
) -> Round:
    coming, half = load.next(), len(load) // 2
    with Conductors(fleet.told, OPEN) as conductors:
        since = time.monotonic()
        ours = drive(fleet, conductors, coming)
    others = drive(fleet, RoundRobin(fleet), load.next())
    for name, ran in (("Schedule", ours), ("round-robin", others)):
        say(
            f"by {name}: hit rate {ran.hit_share:.3f}, TTFT {1e3 * ran.ttft_seconds:.0f} ms, "
            f"p99 {1e3 * ran.ttft_p99_seconds:.0f} ms, {len(ran.failed)} failed"
        )
    told = None
    if foretold:
        costs = listener.costs(since, since + coming[half].at)
        vocabulary, dram = VOCAB, _dram_bytes(fleet, sizes.plan)
        whole = foretell(fleet, sizes.model, vocabulary, dram, coming, costs)
        told, real = of_second_half(whole, ours.part(slice(half))), ours.part(slice(half, None))
        say(
            f"foretold of its second half: hit rate {told.hit_share:.3f}, TTFT "
            f"{1e3 * told.ttft_seconds:.0f} ms, of which {1e3 * told.untold_seconds:.0f} are any "
            f"request's; measured: {real.hit_share:.3f}, {1e3 * real.ttft_seconds:.0f} ms"
        )
    return Round(ours, others, told)


def of_second_half(foretold: Foretold, first: Ran) -> SecondHalf:
    """`first` is what was measured of the first: the straight line that leads best to that from
    what was simulated of the same requests is followed further."""
    half = len(first.coming)
    served = [isinstance(one, Outcome) for one in first.outcomes]
    simulated, known = foretold.ttft[:half][served], np.isfinite(foretold.ttft[:half][served])
    measured = np.array([one.ttft_seconds for _, one in first.done])
    slope, untold = np.polyfit(simulated[known], measured[known], 1)
    second = slice(half, None)
    ttft = float(slope * foretold.ttft_seconds(second) + untold)
    return SecondHalf(ttft, float(untold), foretold.hit_share(second))


def _dram_bytes(fleet: Fleet, plan: Plan) -> int:
    """What a node's memory has room for, in bytes of blocks: slots have heads, slabs a rest."""
    layout, block_tokens = SlotLayout.of(fleet.spec, 0), fleet.spec.groups[0].block_tokens
    slab, dram = parse_bytes("slab", plan.slab), parse_bytes("dram", plan.dram[0])
    return (slab // layout.slot_bytes) * (dram // slab) * layout.block_bytes(block_tokens)


def _compared(done: Sequence[Round], told: dict[str, Any], also: dict[str, Any]) -> list[Row]:
    ttft = Spread.of([one.ours.ttft_seconds / one.others.ttft_seconds for one in done])
    hits = Spread.of([one.others.hit_share / one.ours.hit_share for one in done])
    late = Spread.of([one.ours.ttft_p99_seconds / one.others.ttft_p99_seconds for one in done])
    pairs = [
        ("mean TTFT, ms", 1e3, "ttft_seconds", ttft, True),
        ("token hit rate", 1.0, "hit_share", hits, True),
        ("p99 TTFT, ms", 1e3, "ttft_p99_seconds", late, False),
    ]
    return [
        Row(
            name,
            told,
            len(done),
            scale * _median([getattr(one.ours, figure) for one in done]),
            scale * _median([getattr(one.others, figure) for one in done]),
            spread.median,
            spread,
            counted,
            also=also,
        )
        for name, scale, figure, spread, counted in pairs
    ]


def _lost(done: Sequence[Round], killed: Ran, answers: Answers, told: dict[str, Any]) -> Row:
    """Requests that failed or had other tokens than an engine alone; one is too many."""
    every = [killed, *(ran for one in done for ran in (one.ours, one.others))]
    failed = sum(len(ran.failed) for ran in every)
    wrong = sum(len(ran.wrong(answers)) for ran in every)
    lost = failed + wrong
    also = {
        "failed": failed,
        "other_tokens": wrong,
        "failed_with_a_conductor_killed": len(killed.failed),
        "unplanned_with_a_conductor_killed": sum(
            not one.expected_seconds for _, one in killed.done
        ),
        "requests": sum(len(ran.outcomes) for ran in every),
    }
    ratio = 0.0 if not lost else 1.0 + lost
    return Row("requests lost or wrong", told, len(done), float(lost), 0.0, ratio, also=also)


def _off(done: Sequence[Round], told: dict[str, Any]) -> list[Row]:
    """Of the second halves: what the simulator said beside what was measured."""
    rows, half = [], len(done[0].ours.coming) // 2
    for name, scale, figure in (
        ("simulated TTFT, ms", 1e3, "ttft_seconds"),
        ("simulated hit rate", 1.0, "hit_share"),
    ):
        said = [getattr(one.foretold, figure) for one in done]
        real = [getattr(one.ours.part(slice(half, None)), figure) for one in done]
        off = Spread.of([abs(a / b - 1) for a, b in zip(said, real, strict=True)])
        rows.append(
            Row(
                *(name, told, len(done), scale * _median(said), scale * _median(real)),
                ratio=off.median,
                spread=off,
                goal=GOAL_OFF,
            )
        )
    return rows


def _median(values: Sequence[float]) -> float:
    return float(np.median(values))
