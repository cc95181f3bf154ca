"""What was found of a fleet, as one value: in words, and as JSON."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from kvstore.attach.asked import Asked
from kvstore.attach.compared import Brought, Compared
from kvstore.attach.gain import Gain
from kvstore.attach.pool import Size
from kvstore.attach.reasons import Reasons
from kvstore.percent import percent

_WORDS = {
    "never": "nobody had computed it",
    "evicted": "the same server had had it, and let it go",
    "elsewhere": "another server has it",
    "gone": "another server had had it, and let it go",
    "here": "it is there: a prompt's last block, or prompts side by side",
    "short": "shorter than a block, at a prompt's end",
    "untold": "no event told of it",
}
assert list(_WORDS) == list(asdict(Reasons()))
_BROUGHT = {
    "tokens": "tokens found in it",
    "prefill_seconds": "GPU-seconds of prefill not spent",
    "first_token_seconds": "seconds that a first token came earlier on average",
}
assert list(_BROUGHT) == list(Brought.__dataclass_fields__)
_ASSUMES = (
    "the pool is empty when the time begins, and all of its memory counts as one",
    "what is computed is stored there at once, and goes by the node's own policy",
    "a token takes as long to prefill whatever stands before it; prompts side by side count each",
    "a prompt that its server had whole is no use of the pool",
)


@dataclass(frozen=True, slots=True)
class Server:
    """One of the fleet."""

    url: str
    asked: Asked
    reasons: Reasons
    losses: int
    restarts: int


@dataclass(frozen=True, slots=True)
class Report:
    seconds: float
    block_tokens: int
    pool_block_tokens: int
    servers: Sequence[Server]
    asked: Asked  # of all
    reasons: Reasons
    exact: bool  # the lengths of prompts are known
    size: Size | None  # of the pool that was asked about
    gain: Gain | None
    compared: Compared | None  # with the time before a pool that runs now
    notes: Sequence[str]

    @property
    def as_json(self) -> dict[str, Any]:
        said = asdict(self)
        said["pool"] = None
        size, gain = said.pop("size"), said.pop("gain")
        if gain is not None:
            said["pool"] = {**size, **gain, "assumes": _ASSUMES, "found": self.realised}
        return said

    @property
    def realised(self) -> int | None:
        """Tokens that a pool which runs found; None where none does."""
        return self.asked.pool_hits if self.asked.pool_queries else None

    def __str__(self) -> str:
        return "\n".join(self._lines())

    def _lines(self) -> Iterator[str]:
        asked = self.asked
        count = f"{len(self.servers)} server{'s' * (len(self.servers) != 1)}"
        minutes = f"{self.seconds / 60:.1f} minutes"
        yield f"{minutes} of {count}, whose blocks have {self.block_tokens} tokens"
        yield ""
        yield f"{asked.queries:>15,}  tokens of {asked.prompts:,} prompts were asked for"
        yield self._line(asked.hits, "the servers' own caches had")
        yield self._line(asked.missed, "they had not:")
        for name, words in _WORDS.items():
            if tokens := getattr(self.reasons, name):
                yield self._line(tokens, f"  {words}")
        if not self.exact:
            yield " " * 17 + "(what is short is inferred; with --requests or --trace it is known)"
        yield ""
        for one in self.servers:
            share = _share(one.asked.hits, one.asked.queries)
            yield f"{one.asked.queries:>15,}  asked of {one.url}, {share} found there"
        if self.gain is not None and self.size is not None:
            yield ""
            yield from self._of_pool(self.gain, self.size)
        if self.compared is not None:
            yield ""
            yield from self._of_both(self.compared)
        for note in self.notes:
            yield f"note: {note}"

    def _of_pool(self, gain: Gain, size: Size) -> Iterator[str]:
        asked = self.asked
        memory = f"{size.dram / 1e9:,.4g} GB of DRAM and {size.ssd / 1e9:,.4g} GB of SSD"
        yield f"A pool with {memory}, in blocks of {self.pool_block_tokens} tokens, would have had"
        yield self._line(gain.tokens, f"more, of {gain.prompts:,} prompts")
        yield f"{gain.prefill_seconds:>15,.1f}  GPU-seconds of prefill saved"
        if asked.prompts:
            now = asked.first_token_seconds / asked.prompts
            less = gain.first_token_seconds / asked.prompts
            yield f"{now:>15,.3f}  seconds to the first token on average, {less:.3f} of them saved"
        evicted = f"{gain.evicted_blocks:,} blocks evicted"
        yield f"{gain.fetched_bytes / 1e9:>15,.2f}  GB fetched; {evicted}"
        if self.realised is not None:
            yield self._line(self.realised, "the pool that runs has found")
        yield "It is assumed that"
        yield from (f"  {one};" for one in _ASSUMES)

    def _of_both(self, both: Compared) -> Iterator[str]:
        yield "The pool that runs, and what the report before it had predicted for as much:"
        for name, words in _BROUGHT.items():
            now, then = getattr(both.realised, name), getattr(both.predicted, name)
            if name == "first_token_seconds":
                now, then = now / max(1, self.asked.prompts), then / max(1, self.asked.prompts)
            shape = ",d" if name == "tokens" else ",.3f"
            yield f"{now:>15{shape}}  {words}; predicted {then:{shape}}"

    def _line(self, tokens: int, words: str) -> str:
        return f"{tokens:>15,}  {_share(tokens, self.asked.queries):>6}  {words}"


def _share(part: int, of: int) -> str:
    return percent(part / of) if of else "-"
