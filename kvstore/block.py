"""Block identity: which hash names which tokens, and which key a tenant's block is stored under.

`chain`, its kin and `foreign` are the only makers of block hashes and `stored_keys` the only maker
of stored keys, so a salt or a tenant cannot be forgotten in one path out of many. A hash names a
*prompt prefix*, not bytes: two prefills of one prompt may differ in bits, and every reader verifies
bytes apart.
"""

from __future__ import annotations

import enum
import functools
import itertools
import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, TypeAlias

import numpy as np
import numpy.typing as npt
from blake3 import blake3

from kvstore.errors import Invalid
from kvstore.limits import HASH_BYTES

_COUNT = struct.Struct("<I")
# What `chain` hashes begins with a group number and 28 zeros, or with a hash, so never with this.
_FOREIGN = b"moonpool foreign key".ljust(HASH_BYTES, b"\0")
_TOKEN_MAX = 2**32 - 1


class Miss(enum.StrEnum):
    """Why a block cannot be had. A miss is a value: the caller recomputes."""

    ABSENT = "absent"  # never stored here, or longer ago than the node remembers
    UNSEALED = "unsealed"  # a writer is still filling it
    UNLISTED = "unlisted"  # held, but a block before it is missing
    EVICTED = "evicted"  # held once, made room for another
    REMOVED = "removed"  # a caller took it away
    DAMAGED = "damaged"  # its bytes no longer had their hash
    NO_ROOM = "no_room"  # DRAM is full of what is held, or the tenant holds or asks all it may
    LATE = "late"  # on SSD or in HBM, and not yet in DRAM when the caller's time was over
    QUARANTINED = "quarantined"  # an engine's audit found wrong KV in its namespace
    UNREACHABLE = "unreachable"  # the node, or another that lists it, did not answer in time
    FORGONE = "forgone"  # the writer group that is followed has it not, and reserves nothing more


@dataclass(frozen=True, slots=True)
class Chain:
    """The blocks of one token sequence in one group: hash i covers every token up to its end.

    All blocks are full but perhaps the last, which is sealed with its length and a hash of its own.
    """

    hashes: tuple[bytes, ...]
    tokens: tuple[int, ...]  # tokens in each block
    block_tokens: int
    alone: ClassVar[bool] = False  # each block has the one before it as its parent

    def __len__(self) -> int:
        return len(self.hashes)

    @property
    def token_count(self) -> int:
        return sum(self.tokens)

    @property
    def ends(self) -> tuple[int, ...]:
        """Tokens of the sequence up to the end of each block."""
        return tuple(itertools.accumulate(self.tokens))

    def full(self) -> Chain:
        """This chain without its short tail block."""
        if not self.tokens or self.tokens[-1] == self.block_tokens:
            return self
        return Chain(self.hashes[:-1], self.tokens[:-1], self.block_tokens)

    def between(self, first: int, last: int) -> Chain:
        """Blocks first to last - 1."""
        return Chain(self.hashes[first:last], self.tokens[first:last], self.block_tokens)

    def parent(self, index: int) -> bytes:
        """Hash of the block before `index`; empty for the first."""
        return self.hashes[index - 1] if index > 0 else b""


@dataclass(frozen=True, slots=True)
class Keyed:
    """Full blocks in no order of their own: each is named, looked up and stored by itself.

    Such are those an engine names by its own keys, whatever order these imply (`foreign` makes
    them), and blocks of several chains that are stored together; these name their `parents`.
    """

    hashes: tuple[bytes, ...]
    block_tokens: int
    parents: tuple[bytes, ...] = ()  # one a hash, empty for a chain's first; none: all stand alone
    # Of those that stand alone and yet in the order of a prompt: the hash before the first, or
    # nothing. Each is stored to make room before the one before it.
    after: bytes | None = None
    alone: ClassVar[bool] = True

    def __len__(self) -> int:
        return len(self.hashes)

    @property
    def tokens(self) -> tuple[int, ...]:
        """Tokens in each block."""
        return (self.block_tokens,) * len(self.hashes)

    def between(self, first: int, last: int) -> Keyed:
        """Blocks first to last - 1."""
        before = self.hashes[first - 1] if first and self.after is not None else self.after
        return Keyed(self.hashes[first:last], self.block_tokens, self.parents[first:last], before)

    def parent(self, index: int) -> bytes:
        """Empty: the block before `index` is not the one before it in a prompt."""
        return b""


Blocks: TypeAlias = Chain | Keyed


def chain(
    namespace: bytes,
    group: int,
    tokens: Sequence[int] | npt.NDArray[np.integer],
    block_tokens: int,
    extra: Mapping[int, bytes] | None = None,
) -> Chain:
    """Hash a token sequence block by block.

    `hash[i] = BLAKE3(key=namespace; hash[i-1], count, tokens[i], extra[i])`, tokens as u32 little
    endian. `extra` maps a block index to the digest of *content* that changes its KV beside the
    tokens (LoRA weights, images; see `kvstore.content`): 32 bytes, never a name or a slot.
    """
    return extend(Chain((), (), block_tokens), namespace, group, tokens, extra)


def extend(
    known: Chain,
    namespace: bytes,
    group: int,
    more: Sequence[int] | npt.NDArray[np.integer],
    extra: Mapping[int, bytes] | None = None,
) -> Chain:
    """The chain of a sequence of which all before the tokens `more` has been hashed as `known`.

    The same as `chain` over all of it, at the cost of `more`. Raises `Invalid` if `known` ends in a
    short block: what follows it is hashed as part of that block.
    """
    _check_space(namespace, known.block_tokens)
    ids = np.asarray(more)
    if ids.ndim != 1:
        raise Invalid(f"tokens has shape {ids.shape}; one row of token ids is wanted")
    # A cast would wrap: two prompts must not come to share a hash.
    if len(ids) and (ids.dtype.kind not in "iu" or ids.min() < 0 or ids.max() > _TOKEN_MAX):
        raise Invalid(f"tokens must be whole numbers from 0 to {_TOKEN_MAX}")
    size, first = known.block_tokens, len(known)
    if first and known.tokens[-1] < size:
        raise Invalid(f"the last known block has {known.tokens[-1]} of {size} tokens: take `full`")
    raw = ids.astype("<u4").tobytes()
    parent = known.parent(len(known)) or _start(group)
    hashed, hashes, counts = _hasher(namespace), [], []
    for start in range(0, len(ids), size):
        count, at = min(size, len(ids) - start), first + start // size
        beside = extra.get(at, b"") if extra else b""
        if beside and len(beside) != HASH_BYTES:
            raise Invalid(f"extra[{at}] is {len(beside)} bytes; a digest has {HASH_BYTES}")
        parent = hashed(parent + _COUNT.pack(count) + raw[4 * start : 4 * (start + count)] + beside)
        hashes.append(parent)
        counts.append(count)
    return Chain((*known.hashes, *hashes), (*known.tokens, *counts), size)


def following(
    namespace: bytes, group: int, parent: bytes, tokens: npt.NDArray[np.uint32], block_tokens: int
) -> tuple[bytes, ...]:
    """Hashes of the full blocks that tokens fill behind the block `parent`, or from a chain's start
    where that is empty: as `chain` over all of it would make them."""
    _check_space(namespace, block_tokens)
    raw, count = tokens.astype("<u4").tobytes(), _COUNT.pack(block_tokens)
    parent, hashed, hashes = parent or _start(group), _hasher(namespace), []
    for start in range(0, len(tokens) - block_tokens + 1, block_tokens):
        parent = hashed(parent + count + raw[4 * start : 4 * (start + block_tokens)])
        hashes.append(parent)
    return tuple(hashes)


def foreign(namespace: bytes, group: int, keys: Sequence[str | bytes], block_tokens: int) -> Keyed:
    """Hash an engine's own keys, each by itself; text counts as its UTF-8 bytes.

    Two engines share a block only where both name the same tokens by the same key: otherwise it is
    a miss. Raises `Invalid` for an empty key, which names nothing.
    """
    _check_space(namespace, block_tokens)
    begin, hashed, hashes = _FOREIGN + _COUNT.pack(group), _hasher(namespace), []
    for index, key in enumerate(keys):
        raw = key.encode() if isinstance(key, str) else bytes(key)
        if not raw:
            raise Invalid(f"keys[{index}] is empty; it would name every block")
        hashes.append(hashed(begin + _COUNT.pack(len(raw)) + raw))
    return Keyed(tuple(hashes), block_tokens)


def stored_keys(
    secret: bytes, namespace: bytes, group: int, hashes: Sequence[bytes]
) -> list[bytes]:
    """PRF(tenant secret, namespace, group, hash) of each: what blocks are stored under.

    A caller can neither choose nor learn a tenant's stored keys; and a hash that was made in one
    namespace names nothing in another, whatever a caller says it is.
    """
    if not hashes:
        return []
    begin, hashed = namespace + _COUNT.pack(group), _hasher(secret)
    return [hashed(begin + one) for one in hashes]


def stored_key(secret: bytes, namespace: bytes, group: int, block_hash: bytes) -> bytes:
    """Of one block."""
    return stored_keys(secret, namespace, group, [block_hash])[0]


@functools.lru_cache(maxsize=4_096)
def tenant_digest(tenant: str) -> bytes:
    """16 bytes that name a tenant in a slot's head; the name itself may be any length."""
    return blake3(tenant.encode()).digest(16)


def _start(group: int) -> bytes:
    """What stands for the parent of a chain's first block."""
    return _COUNT.pack(group).ljust(HASH_BYTES, b"\0")


def _hasher(key: bytes) -> Callable[[bytes], bytes]:
    """Keyed BLAKE3 of one message after the other: to make a hasher takes longer than to hash what
    a block is named by."""
    hasher = blake3(key=key)
    reset, update, digest = hasher.reset, hasher.update, hasher.digest

    def hashed(message: bytes) -> bytes:
        reset()
        update(message)
        return digest()

    return hashed


def _check_space(namespace: bytes, block_tokens: int) -> None:
    if len(namespace) != HASH_BYTES:
        raise Invalid(f"namespace is {len(namespace)} bytes; a digest has {HASH_BYTES}")
    if block_tokens < 1:
        raise Invalid(f"block_tokens is {block_tokens}; a block has at least one token")
