"""The shape of a model, and what follows from it: parameters, FLOPs of a prefill, bytes of a step.

Counts are of matrices alone. Norms and biases are left out: less than a part in a thousand. Every
preset is read from the `config.json` of the model that its name says, as published beside the
weights; the tests compare its parameters with the model's card.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from kvstore.errors import Invalid

COUNT_MAX = 1 << 30  # of anything that a model has; low enough that no product overflows


@dataclass(frozen=True, slots=True)
class Latent:
    """Multi-head latent attention (DeepSeek-V2, arXiv 2405.04434, section 2.1). Raises `Invalid`
    naming the field that makes no sense."""

    query_rank: int | None  # None: queries are projected at once
    kv_rank: int  # with `rope_dim`, the elements that are cached for a token and layer
    rope_dim: int  # of a key, and of what all heads share in the cache

    def __post_init__(self) -> None:
        if self.query_rank is not None:
            _require_whole(self, "query_rank", 1)
        for name, least in (("kv_rank", 1), ("rope_dim", 0)):
            _require_whole(self, name, least)


@dataclass(frozen=True, slots=True)
class ModelShape:
    """A decoder with gated MLPs. Raises `Invalid` naming the field that makes no sense.

    With `latent`, `head_dim` is of values and of the part of keys without positions. With
    `experts`, layers from `dense_layers` on have `experts` routed MLPs of width
    `expert_intermediate`, of which a token takes `experts_active`, and `experts_shared` that all
    take; those before it have one of width `intermediate`.
    """

    name: str
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int
    vocabulary: int
    experts: int = 0  # 0: dense
    experts_active: int = 0
    experts_shared: int = 0
    expert_intermediate: int = 0
    dense_layers: int = 0
    latent: Latent | None = None
    tied: bool = False  # one matrix embeds and unembeds
    parameter_bytes: float = 2.0  # as the weights lie in memory: 2 for bf16, 1 for fp8
    kv_item_bytes: float = 2.0

    def __post_init__(self) -> None:
        for name in ("layers", "hidden", "heads", "kv_heads", "head_dim", "vocabulary"):
            _require_whole(self, name, 1)
        for name in ("intermediate", "experts", "experts_active", "experts_shared"):
            _require_whole(self, name, 0)
        for name in ("expert_intermediate", "dense_layers"):
            _require_whole(self, name, 0)
        for name in ("parameter_bytes", "kv_item_bytes"):
            _require(name, getattr(self, name), 0 < getattr(self, name) < math.inf)
        _require("kv_heads", self.kv_heads, self.heads % self.kv_heads == 0)
        _require("experts_active", self.experts_active, self.experts_active <= self.experts)
        _require("dense_layers", self.dense_layers, self.dense_layers <= self.layers)
        if self.experts:
            _require("experts_active", self.experts_active, self.experts_active >= 1)
            _require("expert_intermediate", self.expert_intermediate, self.expert_intermediate >= 1)
        else:
            _require("intermediate", self.intermediate, self.intermediate >= 1)

    @property
    def parameters(self) -> int:
        """All weights: those of the embedding, of the layers and of the head."""
        return self._always + self._moe_layers * self.experts * self._expert

    @property
    def active_parameters(self) -> int:
        """Weights that a token has to do with: all save those of experts that it does not take."""
        return self._always + self._moe_layers * self.experts_active * self._expert

    @property
    def layer_parameters(self) -> int:
        """Those active weights that every token of a prompt is multiplied with: without embedding,
        which is looked up, and head, which the last token alone needs."""
        return self.active_parameters - self._vocabulary

    @property
    def weight_bytes(self) -> int:
        return math.ceil(self.parameters * self.parameter_bytes)

    @property
    def kv_bytes_per_token(self) -> int:
        """Bytes that one token of context takes in all layers together."""
        if self.latent:
            items = self.latent.kv_rank + self.latent.rope_dim
        else:
            items = 2 * self.kv_heads * self.head_dim
        return math.ceil(self.layers * items * self.kv_item_bytes)

    def kv_shards(self, tensor_parallel: int) -> int:
        """GPUs over which the KV of a token is spread. Heads that do not go round are held more
        than once, and a latent, which all heads share, by every GPU."""
        return 1 if self.latent else min(tensor_parallel, self.kv_heads)

    @property
    def attention_flops(self) -> int:
        """FLOPs of the unit n (n + 2 p) of attention. A pair of tokens costs each head 2 for each
        element of a key and 2 for each of a value, and the pairs are n (n + 2 p) / 2."""
        key = self.head_dim + (self.latent.rope_dim if self.latent else 0)
        return self.layers * self.heads * (key + self.head_dim)

    def prefill_flops(self, new_tokens: int, prefix_tokens: int = 0) -> int:
        """2 for each weight and new token, attention, and the head for the last token."""
        pairs = new_tokens * (new_tokens + 2 * prefix_tokens)
        head = 2 * self.vocabulary * self.hidden
        return 2 * self.layer_parameters * new_tokens + self.attention_flops * pairs + head

    def decode_bytes(self, batch: int, context_tokens: int) -> float:
        """Bytes that one step reads: each weight once, KV of the context summed over the batch.

        Of E experts of which each token takes k, a batch touches E (1 - (1 - k/E)^batch), if
        tokens choose alike and on their own. The embedding is looked up and not counted.
        """
        touched = 0.0
        if self.experts:
            touched = self.experts * (1 - (1 - self.experts_active / self.experts) ** batch)
        return self._step_bytes(touched) + context_tokens * self.kv_bytes_per_token

    @property
    def step_bytes_max(self) -> float:
        """Bytes of weights that a step reads whose tokens take all experts."""
        return self._step_bytes(self.experts)

    def _step_bytes(self, experts: float) -> float:
        weights = self._always - (0 if self.tied else self.vocabulary * self.hidden)
        return (weights + self._moe_layers * experts * self._expert) * self.parameter_bytes

    @property
    def _vocabulary(self) -> int:
        return (1 if self.tied else 2) * self.vocabulary * self.hidden

    @property
    def _moe_layers(self) -> int:
        return self.layers - self.dense_layers if self.experts else 0

    @property
    def _expert(self) -> int:
        return 3 * self.hidden * self.expert_intermediate  # gate, up and down

    @property
    def _always(self) -> int:
        """Weights that are not of routed experts."""
        dense = (self.layers - self._moe_layers) * 3 * self.hidden * self.intermediate
        moe = self._moe_layers * (self.hidden * self.experts + self.experts_shared * self._expert)
        return self._vocabulary + self.layers * self._attention + dense + moe

    @property
    def _attention(self) -> int:
        out = self.heads * self.head_dim * self.hidden
        if not self.latent:
            return 2 * out + 2 * self.hidden * self.kv_heads * self.head_dim
        rank, rope = self.latent.kv_rank, self.latent.rope_dim
        queries, down = self.heads * (self.head_dim + rope), self.latent.query_rank
        query = self.hidden * queries if down is None else down * (self.hidden + queries)
        kv = self.hidden * (rank + rope) + rank * self.heads * 2 * self.head_dim
        return query + kv + out


def _require_whole(one: Latent | ModelShape, name: str, least: int) -> None:
    value = getattr(one, name)
    if type(value) is not int or not least <= value <= COUNT_MAX:
        raise Invalid(f"{type(one).__name__}.{name} cannot be {value!r}")


def _require(name: str, value: float, holds: bool) -> None:
    if not holds:
        raise Invalid(f"ModelShape.{name} cannot be {value!r}")


LLAMA3_8B = ModelShape("Meta-Llama-3-8B", 32, 4096, 32, 8, 128, 14_336, 128_256)
LLAMA3_70B = ModelShape("Meta-Llama-3-70B", 80, 8192, 64, 8, 128, 28_672, 128_256)
QWEN25_7B = ModelShape("Qwen2.5-7B", 28, 3584, 28, 4, 128, 18_944, 152_064)
QWEN25_32B = ModelShape("Qwen2.5-32B", 64, 5120, 40, 8, 128, 27_648, 152_064)
QWEN25_72B = ModelShape("Qwen2.5-72B", 80, 8192, 64, 8, 128, 29_568, 152_064)
QWEN3_8B = ModelShape("Qwen3-8B", 36, 4096, 32, 8, 128, 12_288, 151_936)
QWEN3_32B = ModelShape("Qwen3-32B", 64, 5120, 64, 8, 128, 25_600, 151_936)
# Its weights are published in fp8. Without the layer that predicts a second token.
DEEPSEEK_V3 = ModelShape(
    *("DeepSeek-V3", 61, 7168, 128, 128, 128, 18_432, 129_280, 256, 8, 1, 2048, 3),
    latent=Latent(query_rank=1536, kv_rank=512, rope_dim=64),
    parameter_bytes=1.0,
)
SHAPES = (
    *(LLAMA3_8B, LLAMA3_70B, QWEN25_7B, QWEN25_32B, QWEN25_72B, QWEN3_8B, QWEN3_32B),
    DEEPSEEK_V3,
)
