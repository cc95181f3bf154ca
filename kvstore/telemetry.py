"""Counters of one process: monotonic totals by name. The one list of names is here.

Hits and queries are counted in tokens, as a pair, so that a ratio can be taken over any time span.
"""

from __future__ import annotations

from collections import Counter

NAMES = {
    "query_tokens": "tokens asked for by Match, or that an engine says it looked for",
    "hit_tokens": "of those, tokens found, or loaded as the engine says",
    "match_miss": "Match calls that ended before the last block, by .reason",
    "open_hit_blocks": "blocks opened for reading",
    "open_miss_blocks": "blocks that could not be opened, by .reason",
    "sealed_blocks": "blocks that became readable",
    "sealed_bytes": "payload bytes of those",
    "duplicate_blocks": "blocks another writer had sealed first",
    "aborted_blocks": "blocks given up before their seal, by their writer or its end",
    "evicted_blocks": "blocks that made room for others",
    "stored_blocks": "blocks written to SSD, synced and recorded",
    "passed_blocks": "times that a block was worth less than what it would displace on SSD",
    "unstored_blocks": "blocks that were to be and were not: dropped, no room, failure",
    "promoted_blocks": "blocks read from SSD into DRAM",
    "ssd_failures": "times that a file of the SSD tier was retired, or all of a path",
    "removed_blocks": "blocks a caller removed",
    "purged_blocks": "blocks that went with their namespace or tenant",
    "damaged_blocks": "blocks dropped because their bytes no longer had their hash",
    "scrubbed_blocks": "copies of blocks that the scrubber verified, sound or not",
    "scrubbed_bytes": "bytes of slots that it read for that",
    "put_bytes": "payload bytes received by Put and Write",
    "get_bytes": "payload bytes sent by Get and Read",
    "opened_bytes": "payload bytes opened for transfer through shared memory",
    "quarantines": "namespaces in which an engine found wrong KV",
    "expired_pins": "pins that ended by the node's clock",
    "overloaded": "times that what was held left no room for a call's blocks",
    "sessions": "sessions begun",
}


class Counters:
    """Totals since the process started."""

    def __init__(self) -> None:
        self._totals: Counter[str] = Counter()

    def add(self, name: str, amount: int = 1, reason: str = "") -> None:
        assert name in NAMES, f"{name} is not in telemetry.NAMES"
        self._totals[f"{name}.{reason}" if reason else name] += amount

    def totals(self) -> dict[str, int]:
        return {name: 0 for name in NAMES if name not in _BY_REASON} | dict(self._totals)


_BY_REASON = {name for name, text in NAMES.items() if "by .reason" in text}
