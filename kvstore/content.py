"""Content beside its tokens that decides a prompt's KV, as `chain` takes it: by block a digest of
what comes to it there, from where it is in the hash of every block after it.

What is named is always the content: engines that have the same say the same, and one that has
something else under the same name does not.
"""

from __future__ import annotations

import struct
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from blake3 import blake3

_PLACE = struct.Struct("<qq")  # first token, counted from the block's, and tokens


class Medium(NamedTuple):
    """An image, or sound, or a video, whose embeddings stand for some of a prompt's tokens."""

    first: int  # token
    tokens: int
    digest: bytes  # of all that decides these embeddings, 32 bytes


def salted(salt: str) -> dict[int, bytes]:
    """Of prompts under vLLM's `cache_salt`; nothing where that is empty."""
    return {0: blake3(b"cache_salt\0" + salt.encode()).digest()} if salt else {}


def adapted(weights: bytes) -> dict[int, bytes]:
    """Of prompts under a LoRA adapter with weights of this digest; nothing where there is none."""
    return {0: blake3(b"lora\0" + weights).digest()} if weights else {}


def shown(media: Sequence[Medium], block_tokens: int) -> dict[int, bytes]:
    """Of a prompt with these in it: each block in which one has tokens names all of it, and where
    that begins."""
    parts = defaultdict[int, bytes](bytes)
    for first, tokens, digest in media:
        for block in range(first // block_tokens, -(-(first + tokens) // block_tokens)):
            parts[block] += _PLACE.pack(first - block * block_tokens, tokens) + digest
    return {block: blake3(b"media\0" + said).digest() for block, said in parts.items()}


def together(*extras: Mapping[int, bytes]) -> dict[int, bytes]:
    """All of these, in this order: a block that one alone says something of has what that says."""
    found = defaultdict[int, list[bytes]](list)
    for extra in extras:
        for block, digest in extra.items():
            found[block].append(digest)
    return {
        block: said[0] if len(said) == 1 else blake3(b"together\0" + b"".join(said)).digest()
        for block, said in found.items()
    }
