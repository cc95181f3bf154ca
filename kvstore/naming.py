"""How the blocks of a prompt are named by engines that share them: by chains of ours, or each by a
key of its own that the engine makes, as SGLang's pages are. And what its requests are called there.

Whoever plans for engines has a prompt's tokens and is to say what its blocks are called there; this
is the only place that knows how. `naming` is what engines report of it: empty for chains, else what
the keys of pages begin with.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt

from kvstore.block import chain, following, foreign
from kvstore.content import adapted, salted, together
from kvstore.errors import Invalid

PAGES = "sglang "  # what a naming begins with where blocks are pages under SGLang's hashes
# What SGLang begins its hashes with where a request names a salt, and no key beside it.
_SALTED = b"sglang-cache-namespace-v1\x00\x01"
_TOKEN_MAX = 2**32 - 1


_RID = re.compile(r"(.*);\d", re.DOTALL)


def rid_of(request: str, attempt: int = 1) -> str:
    """What a request is called at an SGLang server. Whose caller is gone it ends by that name, and
    all whose names begin so, some seconds later: so none begins as another ends, and one that is
    asked for anew, up to 9 times, is called otherwise."""
    return f"{request};{attempt}"


def request_of(rid: str) -> str:
    """And back, of those that were called so."""
    found = _RID.fullmatch(rid)
    return found[1] if found else rid


class Names(Protocol):
    """Of one namespace and group. A link is what the link of the next block is made of."""

    def of(self, tokens: Sequence[int], salt: str = "", weights: bytes = b"") -> tuple[bytes, ...]:
        """Of a prompt's blocks, in order; `weights` is the digest of a LoRA adapter's, under which
        it is computed. Raises `Invalid` for what has no name there."""

    def links(self, before: bytes, tokens: npt.NDArray[np.uint32]) -> tuple[bytes, ...]:
        """Of the full blocks that tokens fill behind a link, or from the start where it is
        empty."""

    def named(self, links: Sequence[bytes]) -> Sequence[bytes]:
        """What the blocks of some links are called."""

    def told_as(self, link: bytes, name: int | bytes) -> bool:
        """Whether an engine that tells of its own cache may call such a block so. False: what it
        computed of these tokens is under a key that it does not tell."""


def names_of(namespace: bytes, group: int, block_tokens: int, naming: str = "") -> Names:
    """Raises `Invalid` for a naming that nothing here knows."""
    if not naming:
        return _Chains(namespace, group, block_tokens)
    if naming.startswith(PAGES):
        return _Pages(namespace, group, block_tokens, naming)
    raise Invalid(f"naming = {naming[:64]!r}: empty, or {PAGES!r} and what follows, is known")


class _Chains:
    def __init__(self, namespace: bytes, group: int, block_tokens: int) -> None:
        self._space, self._size = (namespace, group), block_tokens

    def of(self, tokens: Sequence[int], salt: str = "", weights: bytes = b"") -> tuple[bytes, ...]:
        """The last one may be short."""
        extra = together(salted(salt), adapted(weights))
        return chain(*self._space, tokens, self._size, extra).hashes

    def links(self, before: bytes, tokens: npt.NDArray[np.uint32]) -> tuple[bytes, ...]:
        return following(*self._space, before, tokens, self._size)

    def named(self, links: Sequence[bytes]) -> Sequence[bytes]:
        return links

    def told_as(self, link: bytes, name: int | bytes) -> bool:
        return True  # engines have names of their own


class _Pages:
    """SGLang's (`get_storage_hash_str` in its mem_cache): SHA-256 over the hash of the page before
    and the page's tokens as u32, little endian. In the pool a page is called by a key of that."""

    def __init__(self, namespace: bytes, group: int, block_tokens: int, naming: str) -> None:
        self._space, self._size, self._naming = (namespace, group), block_tokens, naming

    def of(self, tokens: Sequence[int], salt: str = "", weights: bytes = b"") -> tuple[bytes, ...]:
        """A short last one has no name."""
        if weights:
            raise Invalid("SGLang's pages have no names under LoRA adapters")
        raw = salt.encode()
        seed = _SALTED + len(raw).to_bytes(8, "little") + raw
        start = hashlib.sha256(seed).digest() if salt else b""
        ids = np.asarray(tokens)
        # A cast would wrap: two prompts must not come to share a name.
        if len(ids) and (ids.dtype.kind not in "iu" or ids.min() < 0 or ids.max() > _TOKEN_MAX):
            raise Invalid(f"tokens must be whole numbers from 0 to {_TOKEN_MAX}")
        return tuple(self.named(self.links(start, ids.astype(np.uint32))))

    def links(self, before: bytes, tokens: npt.NDArray[np.uint32]) -> tuple[bytes, ...]:
        raw, page, found = tokens.astype("<u4").tobytes(), 4 * self._size, []
        for start in range(0, len(raw) - page + 1, page):
            before = hashlib.sha256(before + raw[start : start + page]).digest()
            found.append(before)
        return tuple(found)

    def named(self, links: Sequence[bytes]) -> Sequence[bytes]:
        keys = [f"{self._naming} {one.hex()}" for one in links]
        return foreign(*self._space, keys, self._size).hashes

    def told_as(self, link: bytes, name: int | bytes) -> bool:
        return name == int.from_bytes(link[:8], "big", signed=True)
