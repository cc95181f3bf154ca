"""Counters of one process: monotonic totals by name. The one list of names is here.

Hits and queries are counted in tokens, as a pair, so that a ratio can be taken over any time span.
"""

from __future__ import annotations

from collections import Counter

NAMES = {
    "query_tokens": "tokens asked for by Match, or that an engine says it looked for",
    "hit_tokens": "of those, tokens found, or loaded as the engine says",
    "peer_hit_tokens": "of those found by Match, tokens that other nodes have",
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
    "fetched_blocks": "blocks brought from other nodes and sealed here",
    "taken_blocks": "of those, that another node asked this one to take",
    "hedged_blocks": "of blocks asked of other nodes, those asked of a second: the first was late",
    "copied_blocks": "times that another node had a block after it was asked to take it",
    "moved_blocks": "blocks that another node took because this one is to leave",
    "followed_blocks": "blocks followed while another node's writer wrote them, and sealed here",
    "fetched_bytes": "payload bytes of blocks that were asked of other nodes",
    "probes": "transports to other nodes that were measured: Stats has what came of it",
    "probe_failures": "of those, that did not work",
    "probe_warnings": "of those, far slower than the best of their link",
    "ssd_failures": "times that a file of the SSD tier was retired, or all of a path",
    "removed_blocks": "blocks a caller removed",
    "purged_blocks": "blocks that went with their namespace or tenant",
    "damaged_blocks": "blocks dropped because their bytes no longer had their hash",
    "scrubbed_blocks": "copies of blocks that the scrubber verified, sound or not",
    "scrubbed_bytes": "bytes of slots that it read for that",
    "put_bytes": "payload bytes received by Put and Write",
    "get_bytes": "payload bytes sent by Get and Read",
    "opened_bytes": "payload bytes opened for transfer through shared memory",
    "data_sent_bytes": "bytes sent from slots over data connections",
    "data_received_bytes": "payload bytes laid into slots from data connections",
    "ucx_sent_bytes": "payload bytes put from slots into callers' memory over ucx",
    "ucx_fetched_bytes": "of fetched_bytes, those that came over ucx and had their hash",
    "ucx_failures": "times that ucx to another node did not work, and tcp took its place",
    "ucx_received_bytes": "payload bytes taken from callers' memory into slots over ucx",
    "quarantines": "namespaces in which an engine found wrong KV",
    "expired_pins": "pins that ended by the node's clock",
    "expired_windows": "write windows of remote sessions that stood still",
    "data_refusals": "data connections that were not let in: too many, or nobody known",
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
