"""What a pool brought since it runs, beside what a report of the time before it had predicted.

Both are for as much as is asked now: tokens and prefill seconds by the tokens that were asked for,
seconds to the first token by the prompts. What is realised of seconds is what the servers' own sums
fell by, so it has in it whatever else changed, the load first of all. Pure, save for the file.
"""

from __future__ import annotations

import json
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from kvstore.attach.asked import Asked
from kvstore.errors import Invalid
from kvstore.limits import ATTACH_BODY_BYTES_MAX

_ASKED = ("queries", "prompts", "prefill_seconds", "first_token_seconds")
_RIGHT = "wants what `attach --json --dram` said of a time without a pool"


@dataclass(frozen=True, slots=True)
class Brought:
    """By a pool, of all prompts; negative where it cost."""

    tokens: int  # that it had
    prefill_seconds: float  # GPU-seconds that were not spent
    first_token_seconds: float  # that first tokens came earlier


@dataclass(frozen=True, slots=True)
class Compared:
    predicted: Brought
    realised: Brought


@dataclass(frozen=True, slots=True)
class Before:
    """What was asked without a pool, all more than nothing, and what one was to bring."""

    queries: float
    prompts: float
    prefill_seconds: float
    first_token_seconds: float
    gain: Brought

    def compared(self, asked: Asked) -> Compared:
        """With what is asked now, while the pool runs."""
        tokens, prompts = asked.queries / self.queries, asked.prompts / self.prompts
        return Compared(
            Brought(
                round(self.gain.tokens * tokens),
                self.gain.prefill_seconds * tokens,
                self.gain.first_token_seconds * prompts,
            ),
            Brought(
                asked.pool_hits,
                self.prefill_seconds * tokens - asked.prefill_seconds,
                self.first_token_seconds * prompts - asked.first_token_seconds,
            ),
        )


def read(path: Path) -> Before:
    """A report as `--json` prints it. Raises Invalid, which says what would be right."""
    try:
        with path.open("rb") as file:
            raw = file.read(ATTACH_BODY_BYTES_MAX + 1)
        said = json.loads(raw) if len(raw) <= ATTACH_BODY_BYTES_MAX else None
    except OSError as error:
        raise Invalid(f"--before {path}: cannot be read: {error}") from None
    except (ValueError, RecursionError):
        said = None
    if not isinstance(said, dict):
        raise Invalid(f"--before {path}: is no JSON object: {_RIGHT}")
    asked = {name: _number(said.get("asked"), name, path) for name in _ASKED}
    if min(asked.values()) <= 0:
        raise Invalid(f"--before {path}: nothing was asked then: {_RIGHT}")
    names = asdict(Brought(0, 0.0, 0.0))
    tokens, *seconds = (_number(said.get("pool"), name, path) for name in names)
    return Before(**asked, gain=Brought(round(tokens), *seconds))


def _number(of: Any, name: str, path: Path) -> float:
    found: Any = of.get(name) if isinstance(of, dict) else None
    if type(found) not in (int, float) or not 0 <= found <= sys.float_info.max:
        raise Invalid(f"--before {path}: has no {name}: {_RIGHT}")
    return float(found)
