"""The decoder: the logits `transformers` would compute, over pages instead of a private cache.

Each layer writes its K and V to the pages, says so, and only then attends. So once `on_layer` has
been called those bytes are final, and whatever `before_layer` put in the pages is seen. Of a team
each rank computes its own heads and its part of the MLP; they add up what the parts give.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch
import torch.nn.functional as functional

from . import rope, weights
from .attention import Attend
from .batch import Batch, Inputs
from .cache import PagedKV
from .config import ModelConfig
from .device import CPU, Device
from .shard import Shard
from .team import SOLO, Team
from .weights import LayerWeights, Weights

LayerHook = Callable[[int], None]


class Model:
    """A Llama, Qwen2 or Qwen3 style decoder on one device, in its checkpoint's dtype.

    `config` is of the part that is computed here: all of it, or a rank's own heads.
    """

    def __init__(
        self, config: ModelConfig, loaded: Weights, team: Team = SOLO, device: Device = CPU
    ) -> None:
        self.config, self.device = config, device
        self.dtype: torch.dtype = getattr(torch, config.dtype)
        self._weights = loaded
        self.team = team
        self._freqs = rope.frequencies(config.rope, config.head_dim).to(device.place)

    @classmethod
    def load(cls, folder: str | Path, team: Team = SOLO, device: Device = CPU) -> Model:
        """The model of a local Hugging Face folder, or this rank's part of it."""
        shard = Shard(ModelConfig.load(folder), team.rank, team.ranks)
        return cls(shard.part, weights.load(folder, shard, device.place), team, device)

    def forward(
        self,
        batch: Batch,
        cache: PagedKV,
        on_layer: LayerHook | None = None,
        before_layer: LayerHook | None = None,
    ) -> torch.Tensor:
        """Logits of the last token of each span that wants them: (spans that want, vocab).

        before_layer(i) runs before layer i touches the pages, on_layer(i) once the K and V of all
        this batch's tokens are in them.
        """
        attention = self.device.attention(batch, self.config)
        return self.compute(batch, attention, cache, on_layer, before_layer)

    @torch.inference_mode()
    def compute(
        self,
        batch: Inputs,
        attention: Attend,
        cache: PagedKV,
        on_layer: LayerHook | None = None,
        before_layer: LayerHook | None = None,
    ) -> torch.Tensor:
        """`forward` with what the device was told before. Where there are no hooks and no team,
        nothing here waits for the device, and which kernels run is decided by shapes alone."""
        x = functional.embedding(batch.tokens, self._weights.embedding)
        turn = rope.angles(batch.positions, self._freqs, self.dtype)
        for index, layer in enumerate(self._weights.layers):
            if before_layer is not None:
                before_layer(index)
            normed = self._norm(x, layer.input_norm)
            q = self._write_kv(index, layer, normed, turn, batch, cache)
            if on_layer is not None:
                on_layer(index)
            x = x + self.team.sum(layer.o(attention(index, q, cache).flatten(1)))
            gate, up = layer.gate_up(self._norm(x, layer.post_norm)).chunk(2, dim=-1)
            x = x + self.team.sum(layer.down(functional.silu(gate) * up))
        wanted = x.index_select(0, batch.logit_rows)
        logits = functional.linear(self._norm(wanted, self._weights.norm), self._weights.lm_head)
        # Joined, not summed: all ranks see the same bits and so take the same tokens.
        return self.team.join(logits)[:, : self.config.vocab_size]

    def _write_kv(
        self,
        index: int,
        layer: LayerWeights,
        x: torch.Tensor,
        turn: tuple[torch.Tensor, torch.Tensor],
        batch: Inputs,
        cache: PagedKV,
    ) -> torch.Tensor:
        """Put the layer's K and V of x (tokens, hidden) in the pages; Q, (tokens, heads, dim)."""
        c = self.config
        heads = layer.qkv(x).unflatten(-1, (-1, c.head_dim))
        q, k, v = heads.split((c.heads, c.kv_heads, c.kv_heads), dim=1)
        if layer.q_norm is not None and layer.k_norm is not None:
            q, k = self._norm(q, layer.q_norm), self._norm(k, layer.k_norm)
        kv = torch.stack((rope.rotate(k, *turn), v), dim=1)
        cache.write(index, batch.pages, batch.offsets, kv)
        return rope.rotate(q, *turn)

    def _norm(self, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        """RMSNorm over the last axis, in float32 until the weight, as the checkpoints expect."""
        wide = x.float()
        scale = torch.rsqrt(wide.square().mean(-1, keepdim=True) + self.config.rms_eps)
        return weight * (wide * scale).to(x.dtype)
