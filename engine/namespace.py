"""The namespace of a local model: which facts of its folder decide the bytes of its KV.

The weights are named by their own digest, not by the folder's name, so that two hosts with copies
of one checkpoint share blocks and two checkpoints under one name never do.
"""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

from kvstore.client import weights_digest
from kvstore.spec import KVGroup, KVSpec

from .config import ModelConfig


def spec_of(folder: str | Path, block_tokens: int = 64, codec: str = "none") -> KVSpec:
    """The KVSpec of a Hugging Face folder, its weights hashed. Reads every byte of them once.

    `codec` is how the pool keeps its blocks: see `kvstore.codec`.
    """
    config = ModelConfig.load(folder)
    group = KVGroup(
        layers=tuple(range(config.layers)),
        kv_heads=config.kv_heads,
        head_dim=config.head_dim,
        block_tokens=block_tokens,
    )
    return KVSpec(
        model=config.architecture,
        revision=f"blake3:{weights_digest(folder)}",
        dtype=config.dtype,
        groups=(group,),
        rope=asdict(config.rope),
        codec=codec,
    )
