"""Named places at which a test makes a process die, as `kill -9` would, to see what it finds again.

`MOONPOOL_FAIL=write_back.before_sync:exit@3` ends the node the third time it passes that place: no
handler runs, nothing is flushed. Where the variable is not set a place costs one comparison.
"""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import chain, islice, repeat

from kvstore.errors import ConfigError

VARIABLE = "MOONPOOL_FAIL"
_EXAMPLE = "write_back.before_sync:exit@3"

# What has happened by then, and what has not.
POINTS = {
    "seal.before_index": "every strip is written; nobody can find the block",
    "seal.after_index": "readers find the block; its writer was not told, the SSD has none of it",
    "write_back.before_write": "slots on SSD were chosen; nothing is written to them",
    "write_back.before_sync": "a batch's bytes are written; the disk may forget them",
    "write_back.before_commit": "the bytes are durable; no record names them",
    "write_back.before_ack": "bytes and records are durable; nobody was told",
    "commit.before_deletes": "blocks were dropped; the records that are to go still stand",
    "commit.inside": "a transaction has deleted its records and put none",
    "evict.after_drop": "a block made room and is out of the index; its record still stands",
    "promotion.before_read": "a slot in DRAM was chosen for a block on SSD; nothing is read",
    "promotion.after_read": "the block is in DRAM and verified; the index names the SSD's copy",
    "remove.before_flush": "blocks are out of the index; their records may still stand",
    "remove.before_answer": "no restart brings the blocks back; their caller was not told",
    "recovery.between_records": "some of what the disk recorded is read; none of it is taken up",
    "recovery.before_serving": "all of it is taken up; no call is answered yet",
    "shutdown.before_drain": "new blocks are refused; windows and pins are open",
    "shutdown.before_close": "no call is answered any more; the disk is open",
}


@dataclass(frozen=True, slots=True)
class _Armed:
    name: str
    passes: Iterator[bool]  # whether this one is the last


_armed: _Armed | None = None


def failpoint(name: str, times: int = 1) -> None:
    """Die here, if this is the place and the time that `arm` was told; passed so many times."""
    if _armed is not None and _armed.name == name and any(islice(_armed.passes, times)):
        os.kill(os.getpid(), signal.SIGKILL)


def arm(environment: Mapping[str, str]) -> None:
    """Heed the variable, or its absence, from now on. Raises `ConfigError`."""
    global _armed
    given = environment.get(VARIABLE, "")
    if not given:
        _armed = None
        return
    parsed = re.fullmatch(r"([\w.]+):exit(?:@([1-9]\d*))?", given)
    if parsed is None:
        raise ConfigError(f"{VARIABLE} = {given!r}: write NAME:exit@COUNT, as in {_EXAMPLE}")
    name, count = parsed[1], int(parsed[2] or 1)
    if name not in POINTS:
        raise ConfigError(f"{VARIABLE} names {name!r}: the places are {', '.join(POINTS)}")
    _armed = _Armed(name, chain(repeat(False, count - 1), [True]))
