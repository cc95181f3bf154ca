"""Which role engines of a crew that can switch are to have, as `kvstore.kernels.roles` advises it.

At most one is named at a time, and for some seconds longer than it is told so nobody else is: it
may be about to switch. Once it has, nobody is for a while. Another conductor may name another, so
an engine asks all of its own, and goes by none if one of them says that somebody else is to switch,
or just has (`held`).

What engines that switch were learned to cost is remembered while they do something else. What one
never did is taken to cost what others were learned to that said the same of it.
"""

from __future__ import annotations

import zlib
from collections import OrderedDict
from collections.abc import Callable, Collection, Container
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from kvstore.conductor.facts import Facts, Role
from kvstore.core.cost import DecodeCost, PrefillCost
from kvstore.core.fit import DecodeFit, PrefillFit
from kvstore.kernels import roles as loops
from kvstore.kernels.fleet import NONE, Fleet, Records
from kvstore.kernels.prefill_price import BLOCKS
from kvstore.limits import SWITCHING_KEPT

TOLD_SECONDS = 10.0  # for which an engine that is named is told its role: it asks several times
NAMED_SECONDS = 15.0  # and for which nobody else is: what it was told last it may do only then
LOOK_SECONDS = 1.0  # between two looks at a crew, however many ask
_DOES = {Role.PREFILLS: "prefill", Role.DECODES: "decode"}


@dataclass(frozen=True, slots=True)
class Advice:
    """For a crew, at some moment."""

    prefills: int  # engines now; one that does both counts in both
    decodes: int
    best_prefills: int
    best_decodes: int
    prefill_load: float  # 1: all that they can do
    decode_load: float
    best_load: float  # of the busier phase
    engine: str  # who is to switch; empty: nobody
    role: Role  # that it is to take, if it begins now
    changed: bool  # an engine has just switched
    sentence: str

    def held(self, engine: str) -> bool:
        """Whether this engine is not to switch, whoever else says that it is."""
        return self.changed or self.engine not in ("", engine)


class Learned(NamedTuple):
    """What engines were learned to cost, by what they said."""

    prefill: dict[PrefillCost, PrefillCost]
    decode: dict[DecodeCost, DecodeCost]


@dataclass(slots=True, eq=False)
class _Known:
    """An engine that can switch, whether it is there or not."""

    facts: Facts
    prefill: PrefillFit
    decode: DecodeFit


class Roles:
    """Of one crew."""

    def __init__(self) -> None:
        self._work = np.zeros(1, loops.WORK)
        self._found = np.zeros(1, loops.ADVICE)
        self._known: OrderedDict[str, _Known] = OrderedDict()  # the first to enter comes first
        self._advice: Advice | None = None
        self._advised, self._looked = float("-inf"), float("-inf")
        self._named, self._named_role = "", Role.AS_IT_IS
        self._named_since = float("-inf")

    def asked(self, tokens: int, block_tokens: int, row: Any, now: float) -> None:
        """A prompt was asked for, refused or not, and by a row of prices so much of it is there;
        None where nobody prefills."""
        blocks = 0.0 if row is None else float(row[BLOCKS])
        new = max(1.0, tokens - blocks * block_tokens)
        loops.asked(self._work, float(tokens), new, float(now))

    def asked_elsewhere(self, now: float) -> None:
        """An engine has a prompt that this conductor was not asked for."""
        loops.asked_elsewhere(self._work, float(now))

    def enter(self, facts: Facts, now: float) -> tuple[PrefillFit | None, DecodeFit | None]:
        """An engine begins to report; what is known of its costs, whatever it does now."""
        before = self._known.pop(facts.engine_id, None)
        if facts.prefill is None or facts.decode is None or facts.role is Role.AS_IT_IS:
            return (
                None if facts.prefill is None else PrefillFit(facts.prefill),
                None if facts.decode is None else DecodeFit(facts.decode),
            )
        prefill, decode = PrefillFit(facts.prefill), DecodeFit(facts.decode)
        if before is not None:
            if before.facts.role is not facts.role:
                self._work["changed"] = now
                self._named, self._advice = "", None
            if (before.facts.prefill, before.facts.decode) == (facts.prefill, facts.decode):
                prefill, decode = before.prefill, before.decode
        learned = self.learned()
        if not prefill.taken:
            prefill = PrefillFit(learned.prefill.get(facts.prefill, facts.prefill))
        if not decode.taken:
            decode = DecodeFit(learned.decode.get(facts.decode, facts.decode))
        self._known[facts.engine_id] = _Known(facts, prefill, decode)
        return prefill, decode

    @property
    def known(self) -> Collection[str]:
        """Engines that can switch, and were here at some time: few of a fleet, as often as not."""
        return self._known.keys()

    def learned(self) -> Learned:
        """By those that have done most of it."""
        found = Learned({}, {})
        for one in sorted(self._known.values(), key=lambda known: known.prefill.taken):
            if one.prefill.taken and one.facts.prefill is not None:
                found.prefill[one.facts.prefill] = one.prefill.cost
        for one in sorted(self._known.values(), key=lambda known: known.decode.taken):
            if one.decode.taken and one.facts.decode is not None:
                found.decode[one.facts.decode] = one.decode.cost
        return found

    def costs(self, facts: Facts, learned: Learned) -> tuple[PrefillCost, DecodeCost]:
        """Of an engine that is `known`, whatever it does now."""
        known = self._known[facts.engine_id]
        assert facts.prefill is not None and facts.decode is not None, "it could not switch"
        prefill, decode = known.prefill, known.decode
        return (
            prefill.cost if prefill.taken else learned.prefill.get(facts.prefill, facts.prefill),
            decode.cost if decode.taken else learned.decode.get(facts.decode, facts.decode),
        )

    def forget(self, present: Container[str]) -> None:
        """An engine left, and these are there: of the others the last are remembered. One that is
        named still is, for it may be about to come back in its new role."""
        gone = [engine for engine in self._known if engine not in present]
        for engine in gone[: max(0, len(gone) - SWITCHING_KEPT)]:
            del self._known[engine]

    def look(self, engines: Records, tpot: float, now: float) -> bool:
        """See how full engines are now, if that is due."""
        due = now >= self._looked + LOOK_SECONDS
        if due:
            self._looked = now
            loops.look(self._work[0], engines, float(tpot), float(now))
        return due

    def advise(
        self,
        fleet: Fleet,
        name: Callable[[int], str],
        reserve: float,
        tpot: float,
        now: float,
    ) -> Advice:
        """How they are best split, and who is to switch; `name` is whose a row is."""
        if self._advice is not None and now < self._advised + LOOK_SECONDS:
            return self._advice
        self.look(fleet.engines, tpot, now)
        found, self._advised = self._found[0], now
        how = float(reserve), float(tpot), float(now)
        loops.advise(fleet.engines, fleet.lines, self._work[0], *how, found)
        if now >= self._named_since + NAMED_SECONDS:
            self._named = ""
        if not self._named and found["engine"] != NONE:
            self._named, self._named_role = name(int(found["engine"])), Role(int(found["role"]))
            self._named_since = now
        told = self._named and now < self._named_since + TOLD_SECONDS
        self._advice = Advice(
            prefills=int(found["prefills"]),
            decodes=int(found["decodes"]),
            best_prefills=int(found["best_prefills"]),
            best_decodes=int(found["best_decodes"]),
            prefill_load=float(found["prefill_load"]),
            decode_load=float(found["decode_load"]),
            best_load=float(found["best_load"]),
            engine=self._named,
            role=self._named_role if told else Role.AS_IT_IS,
            changed=bool(found["why"] == loops.CHANGED),
            sentence=_sentence(found, self._named, self._named_role),
        )
        return self._advice


def switch_tie(engine_id: str) -> int:
    """Which of equals is the first to switch: the same at every conductor."""
    return zlib.crc32(engine_id.encode())


def _sentence(found: Any, named: str, role: Role) -> str:
    split = f"split {found['best_prefills']} to {found['best_decodes']}"
    best, busy = found["best_load"], max(found["prefill_load"], found["decode_load"])
    phase = "prefilling" if found["prefill_load"] > found["decode_load"] else "decoding"
    if named:
        return (
            f"{named} is to {_DOES[role]}: asked for is {found['prefill_load']:.0%} of what can be"
            f" prefilled and {found['decode_load']:.0%} of what can be decoded; {split} the busier"
            f" phase has {best:.0%}"
        )
    match found["why"]:
        case loops.CANNOT:
            return "nobody is to switch: no engine here says that it can"
        case loops.UNKNOWN:
            wanted = f"{loops.PROMPTS_MIN:.0f} prompts lately, and {loops.LATELY:.0f} s, are wanted"
            return f"nobody is to switch: too little was asked for here yet: {wanted}"
        case loops.CHANGED:
            return f"nobody is to switch: an engine did so less than {loops.QUIET:.0f} s ago"
        case loops.CALM:
            return (
                f"nobody is to switch: {phase}, the busier phase, has {busy:.0%}, and hardly waits"
            )
    if best < busy:
        less = f"{split} it would have {best:.0%}, and {1 - loops.GAIN:.0%} less is wanted"
        return f"nobody is to switch: {phase}, the busier phase, has {busy:.0%}; {less}"
    return f"nobody is to switch: {phase}, the busier phase, has {busy:.0%}, no split makes it less"
