"""Which phase engines that can switch had better do: the split of a crew by which the busier phase
is the least busy, and which one engine, if any, is to switch now.

How busy a phase is: what was asked for lately, refused or not, over what its engines can do. For
prefill engine-seconds a second; for decoding the steps that answers of that length take, over what
engines do that hold all they have room for within the target, and no less than they are full. All
are means over a minute, and each engine counts by its own costs, half where it does both phases at
once.

Nobody switches for little, for what was too short to know, soon after another, or where nobody is
busy; and no phase loses its last engine.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

from .fleet import NONE, SIZES, busy_for
from .inner import BORROWED, KEPT, OWN, inner

LATELY = 60.0  # seconds over which all is a mean: a burst moves nobody
QUIET = 30.0  # between two switches of a crew: the next is decided on what the last one changed
GAIN = 0.8  # times the load of the busier phase that is to be left, at most
BUSY = 0.3  # of the busier phase: below, hardly anybody waits, and a switch brings nothing
PROMPTS_MIN = 20.0  # lately: fewer say little about what comes
PREFILLS, DECODES = 1, 2
# Why nobody switches; or that somebody does.
SWITCH, CANNOT, UNKNOWN, CHANGED, CALM, BALANCED = range(6)
_LEAST = 1e-15  # of what may be 0 and is divided by

WORK = np.dtype(
    [
        ("prompts", np.float64),  # that were asked for lately, refused or not,
        ("others", np.float64),  # and those of which nothing but this is known: they are alike
        ("tokens", np.float64),  # of the prompts,
        ("new", np.float64),  # those that had to be computed,
        ("pairs", np.float64),  # and what attention of those looks at, as costs have it
        ("since", np.float64),  # until when those are counted
        (
            "full",
            np.float64,
        ),  # engines that could decode no more, in the mean: two half full are one
        ("looked", np.float64),  # when that was last looked at
        ("began", np.float64),  # when the first prompt was counted
        ("changed", np.float64),  # when an engine last switched; 0: never
    ],
    align=True,
)
ADVICE = np.dtype(
    [
        ("engine", np.int64),  # that is to switch, or `NONE`
        ("role", np.int64),  # that it is to take, or that the best split has more of
        ("why", np.int64),
        ("prefills", np.int64),  # engines now
        ("decodes", np.int64),
        ("best_prefills", np.int64),  # and if they were split best
        ("best_decodes", np.int64),
        ("prefill_load", np.float64),
        ("decode_load", np.float64),
        ("best_load", np.float64),  # of the busier phase then
    ],
    align=True,
)


@inner
def _pass(work: Any, now: Any) -> None:
    """What is counted fades until now; the first thing that is counted begins it."""
    if work.prompts + work.others == 0.0:
        work.began = work.since = work.looked = now
    kept = np.exp(-max(0.0, now - work.since) / LATELY)
    work.prompts *= kept
    work.others *= kept
    work.tokens *= kept
    work.new *= kept
    work.pairs *= kept
    work.since = max(now, work.since)


@njit(cache=KEPT, **BORROWED)
def asked(works: Any, tokens: Any, new: Any, now: Any) -> None:
    """A prompt was asked for, of which so much is new; it counts whether it is refused or not.
    `works` is one record of WORK."""
    work = works[0]  # Python's calls take an array apart sooner than a record
    _pass(work, now)
    work.prompts += 1.0
    work.tokens += tokens
    work.new += new
    work.pairs += new * (2.0 * tokens - new)


@njit(cache=KEPT, **BORROWED)
def asked_elsewhere(works: Any, now: Any) -> None:
    """Another was asked for a prompt, and all that is known of it is that it came."""
    work = works[0]
    _pass(work, now)
    work.others += 1.0


@inner
def _full(engine: Any, tpot: Any) -> Any:
    """By its room for KV, or by the target, whichever is the shorter."""
    if engine.context <= 0.0:
        return 0.0
    step = engine.decode_b * engine.batch + engine.decode_c * engine.context
    full = max(step / max(_LEAST, tpot - engine.decode_a), engine.context / max(1.0, engine.room))
    return min(1.0, full)


@njit(cache=KEPT, **BORROWED)
def look(work: Any, engines: Any, tpot: Any, now: Any) -> None:
    """See how full engines are now, also those that only finish what they have."""
    if work.prompts + work.others == 0.0:
        return
    full = 0.0
    for number in range(len(engines)):
        full += _full(engines[number], tpot)
    kept = np.exp(-max(0.0, now - work.looked) / LATELY)
    work.full = kept * work.full + (1.0 - kept) * full
    work.looked = max(now, work.looked)


@inner
def _known(work: Any, until: Any) -> Any:
    """Of a mean over all that ever was, the share that was counted: of a minute at least, for in
    its first moment a single prompt would be a rush without end."""
    return 1.0 - np.exp(-max(LATELY, until - work.began) / LATELY)


@inner
def _share(engine: Any) -> Any:
    return 0.5 if engine.prefills and engine.decodes else 1.0


@inner
def _can_prefill(engine: Any, work: Any) -> Any:
    """How many times a second it could do all the prompts that are counted."""
    seconds = engine.prefill_a * work.prompts + engine.prefill_b * work.new
    return 1.0 / max(_LEAST, seconds + engine.prefill_c * work.pairs)


@inner
def _can_decode(engine: Any, each: Any, tpot: Any) -> Any:
    """How many tokens of KV it could decode behind in a second, in sequences of so many: all that
    it has room for within `tpot`, and one sequence at least, in the time of a step."""
    a_token = max(_LEAST, engine.decode_b / each + engine.decode_c)
    held = max(each, min(engine.room, (tpot - engine.decode_a) / a_token))
    return held / (engine.decode_a + a_token * held)


@inner
def _least_on_it(engines: Any, lines: Any, gone: Any, role: Any, now: Any) -> Any:
    """Who is the first to take a role: of those that can, the one with the least to finish."""
    best, least = NONE, np.inf
    for number in range(len(engines)):
        engine = engines[number]
        other = engine.decodes if role == PREFILLS else engine.prefills
        if gone[number] or not (engine.switches and other):
            continue
        left = engine.context
        if role == DECODES:
            left = lines[SIZES - 1, number].ahead + busy_for(engine, now)
        if left < least or (left == least and engine.tie < engines[best].tie):
            best, least = number, left
    return best


@njit(cache=KEPT, **OWN)
def advise(
    engines: Any, lines: Any, work: Any, reserve: Any, tpot: Any, now: Any, advice: Any
) -> None:
    """Fill the record `advice`. A request is decoded for `reserve` steps of at most `tpot`."""
    count, some = len(engines), max(_LEAST, work.prompts)
    each = max(1.0, work.tokens / some + 0.5 * reserve)
    rate = np.exp(-max(0.0, now - work.since) / LATELY) / (LATELY * _known(work, now))
    rate *= 1.0 + work.others / some
    if work.prompts + work.others == 0.0:
        rate = 0.0  # no clock says how long ago nothing was
    prefilling, decoding, prefills, decodes, can = 0.0, 0.0, 0, 0, False
    shares = 0.0  # engines that decode
    for number in range(count):
        engine = engines[number]
        can |= engine.switches and (engine.prefills or engine.decodes)
        if engine.prefills:
            prefills += 1
            prefilling += _share(engine) * _can_prefill(engine, work)
        if engine.decodes:
            decodes += 1
            shares += _share(engine)
            decoding += _share(engine) * _can_decode(engine, each, tpot)
    wanted = rate * work.prompts * each * reserve
    if decodes:
        wanted = max(wanted, work.full / _known(work, work.looked) * decoding / shares)
    advice.prefills, advice.decodes = prefills, decodes
    advice.prefill_load = rate / prefilling if prefills else np.inf
    advice.decode_load = wanted / decoding if decodes else np.inf
    now_load = least = max(advice.prefill_load, advice.decode_load)
    role = PREFILLS if advice.prefill_load > advice.decode_load else DECODES
    gone, first = np.zeros(count, np.bool_), NONE
    while (decodes if role == PREFILLS else prefills) > 1:
        number = _least_on_it(engines, lines, gone, role, now)
        if number == NONE:
            break
        engine = engines[number]
        both = engine.prefills and engine.decodes
        prefill, decode = _can_prefill(engine, work), _can_decode(engine, each, tpot)
        if role == PREFILLS:
            prefilling += 0.5 * prefill if both else prefill
            decoding -= _share(engine) * decode
        else:
            prefilling -= _share(engine) * prefill
            decoding += 0.5 * decode if both else decode
        load = max(rate / max(_LEAST, prefilling), wanted / max(_LEAST, decoding))
        if not load < least:
            break
        least, gone[number] = load, True
        first = number if first == NONE else first
        if role == PREFILLS:
            decodes -= 1
            prefills += 0 if both else 1
        else:
            prefills -= 1
            decodes += 0 if both else 1
    advice.best_prefills, advice.best_decodes, advice.best_load = prefills, decodes, least
    advice.role, advice.engine = role, NONE
    if not can:
        advice.why = CANNOT
    elif work.changed > 0.0 and now - work.changed < QUIET:  # also where little else is known
        advice.why = CHANGED
    elif now - work.began < LATELY or work.prompts < PROMPTS_MIN:
        advice.why = UNKNOWN
    elif now_load < BUSY:
        advice.why = CALM
    elif first == NONE or least > GAIN * now_load:
        advice.why = BALANCED
    else:
        advice.why, advice.engine = SWITCH, first
