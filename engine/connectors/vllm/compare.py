"""Stored KV against what the engine has just computed: is it the same, but for rounding?

For each layer, over all tokens and heads of the blocks compared, stored = slope x computed + noise
in the least-squares sense. Rounding makes noise, which a mean over many values hides from the
slope; a wrong scale moves the slope and a wrong layout or prompt makes the residual as large as the
values themselves. So both are bounded.

Under a codec both sides are what the codec leaves of them. Rounding may then take an element to the
next code, which the residual is given room for; the slope has the same bounds as without.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from kvstore.client import Keyed

from .caches import GroupCache
from .messages import Part, Verdict

BLOCKS_MAX = 32  # compared in one go: bounds the scratch memory

# dtype -> how far the slope may be from 1, and how large the residual may be.
BOUNDS = {
    "float32": (1e-3, 0.02),
    "float16": (3e-3, 0.10),
    "bfloat16": (4e-3, 0.25),
}
# codec -> how much larger the residual may be. A code of fp8 is within a sixteenth of its number,
# one of int8 within half a 127th of its group's largest, 16 times the usual; both sides have one.
CODED = {"fp8": 0.125, "int8": 0.125}

NOTHING = Verdict(blocks=0, slope=1.0, residual=0.0, wrong="")  # none could be had


def compare(cache: GroupCache, part: Part) -> Verdict:
    """Of the blocks that can be had now, the layer that agrees least."""
    size, per_page = cache.client.space.layout.block_tokens, cache.facts.page_tokens
    per_block = size // per_page
    worst = NOTHING
    for begin in range(0, len(part.hashes), BLOCKS_MAX):
        hashes = part.hashes[begin : begin + BLOCKS_MAX]
        first = (part.first + begin) * per_block
        pages = part.pages[first : first + len(hashes) * per_block]
        scratch = cache.scratch(len(pages))
        found = cache.client.load_each(Keyed(hashes, size), scratch.memory)
        rows = [
            row
            for row in range(len(pages))
            if found[row // per_block] and pages[row]  # page 0 stands for one that was given up
        ]
        if not rows:
            continue
        own = cache.scratch(len(pages))
        own.copy_from(pages)
        cache.client.recode(own.memory, len(hashes))
        judged = _judge(cache, scratch.layers(rows), own.layers(rows))
        verdict = Verdict(len({row // per_block for row in rows}), *judged)
        worst = _worse(worst, verdict)
    return worst


def together(parts: Sequence[Part], verdicts: Sequence[Verdict]) -> Verdict:
    """Of parts that were compared each by itself, the worst. Of what could not be had nothing is
    known, so where that is a part of it, it proves nothing of who computed these: of no blocks."""
    worst = max(verdicts, key=lambda one: (one.wrong, one.residual))
    whole = all(len(a.hashes) == one.blocks for a, one in zip(parts, verdicts, strict=True))
    return replace(worst, blocks=sum(one.blocks for one in verdicts) if whole else 0)


def _judge(cache: GroupCache, stored: list[Any], computed: list[Any]) -> tuple[float, float, str]:
    spec = cache.client.space.spec
    slope_off_max, residual_max = BOUNDS[spec.dtype]
    residual_max += CODED.get(spec.codec, 0.0)
    far, large, wrong = 1.0, 0.0, ""
    for layer, (theirs, ours) in enumerate(zip(stored, computed, strict=True)):
        y, x = theirs.double().flatten(), ours.double().flatten()
        own = float(x @ x)
        slope = float(x @ y) / own if own else 1.0
        residual = float((y - x).norm()) / own**0.5 if own else float(y.norm())
        if not (abs(slope - 1) <= slope_off_max and residual <= residual_max) and not wrong:
            name = cache.facts.layer_names[layer]
            wrong = f"{name}: stored KV is {slope:.4f} x what was computed, residual {residual:.3g}"
        # A comparison with NaN is false: what is not a number must not pass for small.
        far = slope if not abs(slope - 1) <= abs(far - 1) else far
        large = residual if not residual <= large else large
    return far, large, wrong


def _worse(one: Verdict, other: Verdict) -> Verdict:
    return Verdict(
        one.blocks + other.blocks,
        max(one.slope, other.slope, key=lambda slope: abs(slope - 1)),
        max(one.residual, other.residual),
        one.wrong or other.wrong,
    )
