"""What a pool would have found of the prompts that were seen: their uses once more, with one.

Every prompt that computed a block is looked up in the pool as it came, and every block is stored
there when it was computed. The pool has blocks of its own size, a multiple of the engines'; it is
empty at the start. Engines of two kinds share no block there: their KV is not laid out alike. A
prompt that an engine had whole tells of nothing and so is no use of the pool, nor is it a gain.
Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from kvstore.attach.fleet import Fleet
from kvstore.attach.pool import Pool, Size
from kvstore.attach.prompts import Filled, Use
from kvstore.core.cost import TransferCost
from kvstore.limits import BLOCK_TOKENS_MAX

BLOCK_TOKENS_MIN = 64  # of the pool's blocks, as its connectors choose where nobody says more


@dataclass(frozen=True, slots=True)
class Found:
    """Tokens that a pool had of one prompt, beyond what its engine had."""

    engine: int
    tokens: int
    on_ssd: int


@dataclass(frozen=True, slots=True)
class Gain:
    """Of all prompts."""

    tokens: int
    prompts: int  # that had any
    prefill_seconds: float  # that they did not take; nothing is fetched at a loss
    first_token_seconds: float  # the same, less the fetches
    fetched_bytes: int
    evicted_blocks: int
    held_blocks: int  # at the end


def pool_block_tokens(engine_tokens: int) -> int:
    """Tokens of a block of the pool: the least from 64 on that is whole blocks of the engine's."""
    size = engine_tokens * -(-BLOCK_TOKENS_MIN // engine_tokens)
    assert size <= max(BLOCK_TOKENS_MAX, engine_tokens)
    return size


def replay(fleet: Fleet, size: Size) -> tuple[list[Found], Pool]:
    """What the pool had for each prompt, in order, and the pool afterwards."""
    blocks, kinds = fleet.blocks, list(dict.fromkeys(fleet.kinds))
    engine_tokens = max(1, blocks.block_tokens)
    pool_tokens = pool_block_tokens(engine_tokens)
    each = pool_tokens // engine_tokens
    pool, found = Pool(size, pool_tokens), []
    for step in fleet.steps:
        kind = kinds.index(fleet.kinds[step.engine])
        path = [len(kinds) * one + kind for one in blocks.path(step.last)]
        match step:
            case Use():
                # Its last token is computed whatever is found. Where not all of its blocks were
                # there, there are tokens behind them as far as anybody knows.
                ends = len(path) - 1 if step.whole else len(path)
                held = pool.look_up(path[each - 1 :: each])
                usable = min(held.blocks, ends // each)
                tokens = max(0, usable * pool_tokens - step.found * engine_tokens)
                far = min(held.on_ssd * pool_tokens, tokens)
                found.append(Found(step.engine, tokens, far))
            case Filled():
                before = (len(path) - step.count) // each
                whole = path[each - 1 :: each]
                pool.store(whole, len(whole) - before)
    return found, pool


def gain(
    found: Iterable[Found],
    pool: Pool,
    token_bytes: int,
    token_seconds: Sequence[float],
    link: TransferCost,
    ssd: TransferCost,
) -> Gain:
    """What that is worth where a token less to prefill saves an engine its `token_seconds`."""
    hits = [one for one in found if one.tokens]
    saved, waited, fetched = 0.0, 0.0, 0
    for one in hits:
        prefill = one.tokens * token_seconds[one.engine]
        fetch = link.seconds(one.tokens * token_bytes)
        fetch += ssd.seconds(one.on_ssd * token_bytes) if one.on_ssd else 0.0
        if fetch < prefill:
            saved += prefill
            waited += prefill - fetch
            fetched += one.tokens * token_bytes
    tokens = sum(one.tokens for one in hits)
    return Gain(tokens, len(hits), saved, waited, fetched, pool.evicted, len(pool))
