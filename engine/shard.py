"""What one rank of a tensor-parallel engine has of a model. Pure arithmetic.

Query heads, the MLP's width and the vocabulary are cut into equal parts; KV heads too, or, where
ranks outnumber them, each is kept by several ranks, of which the first alone publishes it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from .config import ModelConfig
from .errors import UnsupportedModel


@dataclass(frozen=True, slots=True)
class KVHeads:
    """KV heads [first, first + count) of a model; `writes` at one of the ranks that have them."""

    first: int
    count: int
    writes: bool

    @classmethod
    def of(cls, kv_heads: int, rank: int, ranks: int) -> KVHeads:
        """The rank's part of `kv_heads`; `check` has seen that they divide."""
        if ranks <= kv_heads:
            count = kv_heads // ranks
            return cls(rank * count, count, True)
        sharers = ranks // kv_heads
        return cls(rank // sharers, 1, rank % sharers == 0)


@dataclass(frozen=True, slots=True)
class Shard:
    """The part of a model that rank `rank` of `ranks` computes."""

    config: ModelConfig  # of the whole model
    rank: int = 0
    ranks: int = 1

    def __post_init__(self) -> None:
        c, ranks = self.config, self.ranks
        if c.heads % ranks or c.intermediate_size % ranks:
            raise UnsupportedModel(
                f"{ranks} ranks: {c.heads} attention heads and an MLP of {c.intermediate_size} "
                "must both divide over them"
            )
        if c.kv_heads % ranks and ranks % c.kv_heads:
            raise UnsupportedModel(
                f"{ranks} ranks and {c.kv_heads} KV heads: one number must divide the other"
            )

    @property
    def kv(self) -> KVHeads:
        return KVHeads.of(self.config.kv_heads, self.rank, self.ranks)

    @property
    def part(self) -> ModelConfig:
        """The config as this rank computes it: its own heads and its part of the MLP."""
        c = self.config
        return replace(
            c,
            heads=c.heads // self.ranks,
            kv_heads=self.kv.count,
            intermediate_size=c.intermediate_size // self.ranks,
        )

    @property
    def q_rows(self) -> range:
        """Rows of the Q projection, and columns of the output projection."""
        return self._part(self.config.heads * self.config.head_dim)

    @property
    def kv_rows(self) -> range:
        """Rows of the K projection, and of the V projection."""
        kv, dim = self.kv, self.config.head_dim
        return range(kv.first * dim, (kv.first + kv.count) * dim)

    @property
    def mlp_rows(self) -> range:
        """Rows of the gate and up projections, and columns of the down projection."""
        return self._part(self.config.intermediate_size)

    @property
    def vocab_rows(self) -> range:
        """Rows of the language model's head. The last ranks' may end beyond the vocabulary."""
        size = -(-self.config.vocab_size // self.ranks)
        return range(self.rank * size, (self.rank + 1) * size)

    def _part(self, whole: int) -> range:
        size = whole // self.ranks
        return range(self.rank * size, (self.rank + 1) * size)
