"""The namespace of one LMCache engine, and what one of its chunks is.

Everything is what LMCache resolved, its metadata and its configuration, and what the vLLM around it
was told (host.py). What this plug-in cannot keep right is refused here, by name: LMCache then logs
the reason and serves without the pool.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from lmcache.utils import CacheEngineKey
from lmcache.v1.memory_management import MemoryFormat, MemoryObj
from lmcache.v1.metadata import LMCacheMetadata

from kvstore.client import KVGroup, KVSpec

from ..unsupported import Unsupported
from .host import host_of
from .settings import Settings

ADAPTER = "lora"  # the tag: `lmcache.tag.lora` in a request's kv_transfer_params
EXACT = "naive"  # of the ways in which LMCache writes chunks for other storages: it loses nothing


@dataclass(frozen=True, slots=True)
class Facts:
    """A full chunk of one rank: `shape` is (K and V or one latent, layers, tokens, heads x dim)."""

    spec: KVSpec
    shape: Any  # torch.Size
    dtype: Any  # torch.dtype
    format: MemoryFormat
    adapters: bool = False  # see `Host`

    def tells(self, key: CacheEngineKey) -> bool:
        """Whether a key says all that its chunk depends on. LMCache's own name no adapter, and a
        plug-in is not told of it: a tag of the request's does."""
        return not self.adapters or any(name == ADAPTER for name, _ in key.tags or ())

    def refusal(self, chunk: MemoryObj) -> str:
        """Why this chunk is not kept; empty if it is."""
        made = chunk.metadata
        tokens, full = made.shape[made.fmt.token_dim()], self.shape[2]
        if made.fmt != self.format:
            return f"a chunk in format {made.fmt.name}: {self.format.name} is kept"
        if made.dtype != self.dtype or (made.dtypes or [self.dtype]) != [self.dtype]:
            return f"a chunk of {made.dtypes or made.dtype}: {self.dtype} is kept"
        if tokens < full and [*made.shape[:2], full, *made.shape[3:]] == list(self.shape):
            # Without how many it has: each of these lines is said once.
            return f"save_unfull_chunk: a chunk of fewer tokens than {full}, full ones are kept"
        if made.shape != self.shape or (made.shapes or [self.shape]) != [self.shape]:
            return f"a chunk of {made.shapes or made.shape}: {self.shape} is kept"
        if chunk.tensor is None or chunk.tensor.device.type != "cpu":
            return "a chunk that is not in CPU memory: max_local_cpu_size gives it a place there"
        return ""

    def still(self, metadata: LMCacheMetadata) -> bool:
        """Whether LMCache means the same by a chunk. It learns more once the engine runs."""
        shapes, dtypes = metadata.get_shapes(), metadata.get_dtypes()
        return bool(shapes == [self.shape] and dtypes == [self.dtype])


def facts_of(config: Any, metadata: LMCacheMetadata, settings: Settings) -> Facts:
    """The facts of one rank. Raises `Unsupported` naming what stands in the way."""
    # A layer that goes missing after its lookup raises in LMCache's layerwise retrieval.
    _refuse(config, "use_layerwise")
    _refuse(config, "enable_blending")  # chunks carry positions, which are not kept
    _refuse(config, "enable_pd")  # never tried
    if config.remote_serde not in (None, EXACT):
        raise Unsupported(
            f"remote_serde {config.remote_serde!r}: chunks come back changed, and those after them "
            f"are computed from that; {EXACT!r} is right"
        )
    layers, parts, _, heads, dim = metadata.kv_shape
    groups = getattr(metadata.kv_layer_groups_manager, "kernel_groups", None) or ()
    if len(groups) > 1:
        raise Unsupported(f"the model has {len(groups)} kinds of layers; models of one are kept")
    for group in groups:  # what the engine's own tensors say goes before the model's configuration
        layers, parts = group.num_layers, group.shape_desc.kv_size
        heads, dim = group.shape_desc.nh, group.shape_desc.hs
    [shape], [dtype] = metadata.get_shapes(), metadata.get_dtypes()
    if list(shape) != [parts, layers, metadata.chunk_size, heads * dim]:
        raise Unsupported(
            f"a chunk has shape {tuple(shape)}; {parts} x {layers} layers x "
            f"{metadata.chunk_size} tokens x {heads} heads of {dim} was expected"
        )
    host = host_of(metadata.model_name, layers, settings)
    kept = MemoryFormat.KV_MLA_FMT if metadata.use_mla else MemoryFormat.KV_2LTD
    spec = KVSpec(
        model=metadata.model_name,
        revision=host.revision,
        dtype=str(dtype).removeprefix("torch."),
        groups=(
            KVGroup(
                layers=tuple(range(host.layer_first, host.layer_first + layers)),
                kv_heads=heads,
                head_dim=dim,
                block_tokens=metadata.chunk_size,
                parts=parts,
                # Heads are numbered from the rank's own first: only LMCache's keys, which name the
                # rank, make sense of them.
                interior=f"lmcache {kept.name}, one rank",
            ),
        ),
        rope=host.rope,
    )
    return Facts(spec, shape, dtype, kept, host.adapters)


def _refuse(config: Any, name: str) -> None:
    if getattr(config, name):
        raise Unsupported(f"{name} is not supported; set it to false")
