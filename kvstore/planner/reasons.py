"""Why a plan is as it is, in a paragraph: what is short, and what would help most."""

from __future__ import annotations

from collections.abc import Iterator

from kvstore.percent import percent
from kvstore.planner.answers import Answers
from kvstore.planner.digits import gigabytes
from kvstore.planner.outcome import Outcome
from kvstore.planner.rates import number
from kvstore.planner.search import SHARE

_FULL = 0.85  # of its room, or of what links carry: one sequence more waits
_MATTERS = 1.05  # times as good: less is chance
_POINTS = 0.01  # of a share: likewise


def why(answers: Answers) -> str:
    return " ".join(_sentences(answers))


def _sentences(answers: Answers) -> Iterator[str]:
    told = answers.outcome
    yield _short_of(answers)
    yield from _split_or_not(answers)
    yield from _apart_or_not(answers)
    yield from _of_phases(answers)
    yield _of_memory(answers)
    yield from _of_rivals(answers)
    if told.ended["lost"]:
        yield f"{told.ended['lost']:,} requests were lost with their engine."


def _split_or_not(answers: Answers) -> Iterator[str]:
    """Of rates that are as far as was looked it is not known which is the highest."""
    best, now, rates = answers.best_split, answers.highest_healthy, answers.rates
    if best and best.highest > now * _MATTERS:
        times = f"{best.highest / now:.2f} times" if now else "far above"
        yield (
            f"Split {best.prefill} to {best.decode}, the same engines take"
            f" {rates.text(best.highest)} requests a second, {times} what they do now."
        )
    elif best and not rates.ends_at(best.highest):
        yield "No other split of the same engines is better by more than chance."


def _of_rivals(answers: Answers) -> Iterator[str]:
    mine, rivals, rates = answers.highest, answers.curves[1:], answers.rates
    first = max(rivals, key=lambda one: one.highest, default=None)
    if first is None or rates.ends_at(first.highest):
        return
    level = sum(one.highest == first.highest for one in rivals)
    name = f"{first.policy} comes" if level == 1 else f"{level} come alike"
    known = first.highest and not rates.ends_at(mine)
    ratio = f" ({mine / first.highest:.2f} times)" if known else ""
    yield (
        f"Of the other policies {name} highest, at {number(first.highest)} requests"
        f" a second against {rates.text(mine)}{ratio}."
    )


def _apart_or_not(answers: Answers) -> Iterator[str]:
    best, both = answers.best_split, answers.together
    if best is None or both is None:
        return
    together, rates = both.highest, answers.rates
    if together > best.highest * _MATTERS:
        yield (
            "Do not disaggregate: where every engine prefills and decodes, in chunks, they take"
            f" {rates.text(together)} requests a second, more than under any split."
        )
    elif together * _MATTERS < best.highest:
        yield (
            "Disaggregating pays: where every engine prefills and decodes, in chunks, they take"
            f" {number(together)} requests a second, {rates.text(best.highest)} under the best"
            " split."
        )
    elif not rates.ends_at(max(together, best.highest)):
        yield "Whether to disaggregate is of no matter: done by the same engines it is as fast."


def _of_phases(answers: Answers) -> Iterator[str]:
    found, best = answers.parallelism, answers.best_split
    least = max(answers.highest_healthy, best.highest if best else 0.0)
    if found and found.highest > least * _MATTERS:
        yield (
            "With engines of other sizes for each phase, the same GPUs take"
            f" {answers.rates.text(found.highest)} requests a second: {found.cluster}."
        )


def _short_of(answers: Answers) -> str:
    told, rate = answers.outcome, f"at {number(answers.outcome.rate)} requests a second"
    if told.share < SHARE:
        return f"There is too little {rate}: {_limit(told)}"
    limit = _limit(answers.at_highest or told)
    if answers.highest < told.rate:  # a queue that only grows is still in time to the load's end
        none = "none that can be simulated" if answers.rates.longest else "none at all"
        least = f"{number(answers.highest)} requests a second" if answers.highest else none
        return (
            f"There is enough {rate} for as long as this load lasts, and no longer: were it to go"
            f" on, {least} could be borne. Beyond that, {limit}"
        )
    spare = answers.highest / told.rate if told.rate else 1.0
    enough = f"There is enough {rate}: it could be {spare:,.1f} times as fast"
    if answers.rates.ends_at(answers.highest):
        return f"{enough} or more."
    return f"{enough}. Beyond that, {limit}"


def _limit(told: Outcome) -> str:
    """What it is first short of."""
    # Where nobody is turned away, those who would be have their first token, and have it late.
    late = told.ended["served"] - round(told.share * told.requests) - told.slow
    turned_away = told.ended["refused"] + told.ended["late"] + late
    without_room = told.ended["no_room"] + told.ended["expired"]
    quarters = (
        f"{percent(told.quartiles[-1], 0)} of the longest quarter of prompts are in time then,"
        f" {percent(told.quartiles[0], 0)} of the shortest."
    )
    if told.slow > turned_away + without_room:
        return (
            f"the pace of tokens is what is short: {told.slow:,} requests were served, but too"
            f" slow. {quarters}"
        )
    missed = turned_away + without_room > 0
    busier = told.links_busy > max(told.prefill_busy, told.decode_full)
    if busier and (told.links_busy >= _FULL or missed):
        return (
            f"the hosts' links are what is short: they carry {percent(told.links_busy, 0)} of what"
            f" they can. {quarters}"
        )
    # Routers turn away at the door whom nobody will have room to decode, too: being turned away
    # there says nothing of why.
    foreseen = told.prefill_busy < told.decode_full
    if told.decode_full >= _FULL or without_room > turned_away or foreseen:
        nowhere = without_room + (turned_away if foreseen else 0)
        return (
            f"decoding is what is short: KV fills {percent(told.decode_full, 0)} of its engines'"
            f" room on average, and {nowhere:,} requests found none in time. {quarters}"
        )
    return (
        f"prefill is what is short: its engines work {percent(told.prefill_busy, 0)} of the time."
        f" {quarters}"
    )


def _of_memory(answers: Answers) -> str:
    """By both: who is let in has most of it found, however many are turned away for want of it."""
    told, least, most = answers.outcome, answers.memory[0], answers.memory[-1]
    if answers.hits_max < _POINTS:
        return "Nothing is found again however much is kept: a pool has nothing to give here."
    if most.hits < _POINTS:
        return (
            f"{percent(answers.hits_max)} of prompt tokens were in an earlier one, and"
            f" {gigabytes(most.dram_bytes)} of DRAM a host keep next to nothing of them."
        )
    found = f"{percent(told.hits.all)} of the prompt tokens that were prefilled are found"
    gained, more = most.share - told.share, most.hits - told.hits.all
    if gained > 2 * _POINTS or (more > 2 * _POINTS and gained > -2 * _POINTS):
        return (
            f"More DRAM pays: {found}, and {percent(most.hits)} with"
            f" {gigabytes(most.dram_bytes)} a host ({100 * gained:+.1f} points in time); with"
            f" none {percent(least.share)} would be in time."
        )
    enough = next(
        one
        for one in answers.memory
        if one.share >= told.share - _POINTS and one.hits >= told.hits.all - _POINTS
    )
    return (
        f"More DRAM would not help: {found}, and {gigabytes(enough.dram_bytes)} a host do as well."
    )
