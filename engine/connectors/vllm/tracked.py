"""One request as the scheduler side follows it: its block hashes, and what is done about it."""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass
from typing import Any

from kvstore.client import Chain, Client

from .contents import Content
from .keys import is_name, said_of
from .trust import Verb


@dataclass(slots=True)
class Audit:
    """A hit that is not loaded: the engine computes it, and what is stored is compared."""

    begin: int  # tokens [begin, end) are compared
    end: int
    origins: frozenset[int]
    random: bool  # drawn from hits that may be trusted; else a self-test of ones that may not yet
    proves: bool = True  # until some of its blocks could not be compared


@dataclass(slots=True)
class LeftOut:
    """A request that goes on without the pool. Its first pages may be others' as well, as where a
    text comes before an image, and so may be what another connector loads into them."""

    request: Any
    end: int = 0  # as of one that is tracked
    ran: bool = False
    apart: bool = False  # whatever is known later: it may have KV of other weights


class Tracked:
    """A vLLM request: its blocks in every group, hashed as its tokens come to be known."""

    def __init__(
        self, request: Any, clients: tuple[Client, ...], align: int, content: Content
    ) -> None:
        self.request = request
        self.arrived = time.monotonic()
        self.id: str = request.request_id
        self._clients, self._align = clients, align
        self._extra, self.adapter = content.extra, content.adapter
        self._chains: tuple[Chain, ...] = tuple(
            Chain((), (), one.space.layout.block_tokens) for one in clients
        )
        self._prompt_chains = self._chains  # as a hand-off has them, where it is one's
        said = said_of(request)
        if content.apart:
            said = {}  # neither knows the other's names for its blocks
        self.hand_off = str(said.get("hand_off") or "")  # others follow this prefill by this name
        self.follow = str(said.get("follow") or "")  # this one follows another's
        self.follow_at = str(said.get("follow_at") or "")  # on that host, where it is another
        self.misnamed = not all(map(is_name, (self.hand_off, self.follow, self.follow_at)))
        if self.misnamed:
            self.hand_off = self.follow = self.follow_at = ""
        self.published = (
            0  # leading blocks that are in the pool, or were given to a worker to store
        )
        self.loading = False
        self.ran = False  # in a step, since it was given pages: until then others may load them
        self.failed = False  # a load of it failed: it is computed now, and not tried for ever
        self.asked = False  # a match was asked for and has not come to an allocation
        self.computed = 0  # tokens that vLLM had when it last asked
        self.end = 0  # tokens that it has or will have loaded
        self.miss = ""  # why no more
        self.verb: Verb | None = None  # what is done with its hit
        self.audit: Audit | None = None
        self.compared = 0  # leading tokens that an audit has passed over
        self.began = 0.0  # when the first step that computes some of it was planned
        self.timed = False
        self.rests = range(0)  # tokens computed with nothing to do for us: see `rest`

    def follows_to(self, computed: int) -> int:
        """Up to which token a prefill is followed, of which vLLM has the first `computed`. Nothing
        of it may be there yet: its writer was told to compute all of it."""
        chain = self.loaded_chains()[0]
        short = chain.token_count % chain.block_tokens  # its last block, loaded whole or not at all
        return computed if computed > chain.token_count - short else chain.token_count

    def rest(self, writes: bool) -> None:
        """Until it fills its next block, steps have nothing to do with one that decodes. They look
        at hundreds of these, on the thread that all of them wait for."""
        if not self.timed or self.audit is not None:
            return
        chain = self._chains[0]
        handed = self.hand_off and self.published >= len(chain)
        end = (self.published + 1) * chain.block_tokens if writes and not handed else sys.maxsize
        self.rests = range(self.request.num_prompt_tokens + 1, end)

    def publish_again(self, first: int) -> None:
        """Its blocks from there on are not in the pool after all."""
        self.published, self.rests = min(self.published, first), range(0)

    def chains(self) -> tuple[Chain, ...]:
        """The blocks that it has for others, one chain a group: its full ones, of a hand-off its
        prompt's end as well."""
        if self.hand_off:
            return self._handed()
        size = self._chains[0].block_tokens
        known = self.request.num_tokens // size
        if known > len(self._chains[0]):
            self._chains = self._extended(self._chains, known * size)
        return self._chains

    def loaded_chains(self) -> tuple[Chain, ...]:
        """The blocks that it loads: of a prefill that it follows also the last, which is short. The
        full one in that one's place is its own to store, once its reply has filled it."""
        return self._handed() if self.follow else self.chains()

    @property
    def loads_max(self) -> int:
        """Tokens that can be loaded: vLLM computes at least the last one itself."""
        # The last block of a prefill that is handed off stays as short as the prompt left it.
        most: int = min(self.request.num_tokens - 1, self.chains()[0].token_count)
        return most

    def _handed(self) -> tuple[Chain, ...]:
        """All of the prompt that a reader can use: whole pages, and never the last token."""
        if not len(self._prompt_chains[0]):
            usable = (self.request.num_prompt_tokens - 1) // self._align * self._align
            self._prompt_chains = self._extended(self._prompt_chains, usable)
        return self._prompt_chains

    def _extended(self, chains: tuple[Chain, ...], count: int) -> tuple[Chain, ...]:
        tokens, extra = self.request.all_token_ids, self._extra
        return tuple(
            client.extended(chain, tokens[len(chain) * chain.block_tokens : count], extra)
            for client, chain in zip(self._clients, chains, strict=True)
        )
