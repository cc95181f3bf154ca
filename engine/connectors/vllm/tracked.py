"""One request as the scheduler side follows it: its block hashes, and what of it is in the pool."""

from __future__ import annotations

from typing import Any

from kvstore.client import Chain, Client

from .keys import extra_of


class Tracked:
    """A vLLM request's full blocks in every group, hashed as its tokens come to be known."""

    def __init__(self, request: Any, clients: tuple[Client, ...]) -> None:
        self.request = request
        self.id: str = request.request_id
        self._clients = clients
        self._extra = extra_of(request)
        self._chains: tuple[Chain, ...] = tuple(
            Chain((), (), one.space.layout.block_tokens) for one in clients
        )
        self.published = (
            0  # leading blocks that are in the pool, or were given to a worker to store
        )
        self.loading = False

    def chains(self) -> tuple[Chain, ...]:
        """The request's full blocks, one chain a group."""
        known = self.request.num_tokens // self._chains[0].block_tokens
        if known > len(self._chains[0]):
            tokens = self.request.all_token_ids[: known * self._chains[0].block_tokens]
            self._chains = tuple(
                client.extended(chain, tokens, self._extra)
                for client, chain in zip(self._clients, self._chains, strict=True)
            )
        return self._chains
