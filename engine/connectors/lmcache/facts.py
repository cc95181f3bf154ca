"""The namespace of one LMCache engine, and what one of its chunks is.

Everything is what LMCache resolved: its metadata and its configuration. What this plug-in cannot
keep right is refused here, by name: LMCache then logs the reason and serves without the pool.
"""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lmcache.v1.memory_management import MemoryFormat, MemoryObj
from lmcache.v1.metadata import LMCacheMetadata

from kvstore.client import KVGroup, KVSpec, weights_digest

from .settings import PREFIX, Settings

# Settings of vLLM's models that change KV beside what is in a folder, and load formats that do not.
CHANGES = (
    *("quantization", "quantization_config", "hf_overrides", "hf_config_path"),
    *("model_class_overrides", "model_weights"),
)
AS_IT_IS = ("auto", "hf", "safetensors")


class Unsupported(ValueError):
    """This engine's chunks cannot be kept in the pool; the message names what stands in the way."""


@dataclass(frozen=True, slots=True)
class Facts:
    """A full chunk of one rank: `shape` is (K and V or one latent, layers, tokens, heads x dim)."""

    spec: KVSpec
    shape: Any  # torch.Size
    dtype: Any  # torch.dtype
    format: MemoryFormat

    def refusal(self, chunk: MemoryObj) -> str:
        """Why this chunk is not kept; empty if it is."""
        made = chunk.metadata
        tokens, full = made.shape[made.fmt.token_dim()], self.shape[2]
        if made.fmt != self.format:
            return f"a chunk in format {made.fmt.name}: {self.format.name} is kept"
        if made.dtype != self.dtype or (made.dtypes or [self.dtype]) != [self.dtype]:
            return f"a chunk of {made.dtypes or made.dtype}: {self.dtype} is kept"
        if tokens < full and [*made.shape[:2], full, *made.shape[3:]] == list(self.shape):
            return f"save_unfull_chunk: a chunk of {tokens} tokens, full ones of {full} are kept"
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
    kept = MemoryFormat.KV_MLA_FMT if metadata.use_mla else MemoryFormat.KV_2LTD
    spec = KVSpec(
        model=metadata.model_name,
        revision=_revision(metadata, settings),
        dtype=str(dtype).removeprefix("torch."),
        groups=(
            KVGroup(
                layers=tuple(range(layers)),
                kv_heads=heads,
                head_dim=dim,
                block_tokens=metadata.chunk_size,
                parts=parts,
                # Layers and heads are numbered from the rank's own first: only LMCache's keys,
                # which name the rank, make sense of them.
                interior=f"lmcache {kept.name}, one rank",
            ),
        ),
    )
    return Facts(spec, shape, dtype, kept)


def _revision(metadata: LMCacheMetadata, settings: Settings) -> str:
    if settings.revision:
        return settings.revision
    folder = Path(metadata.model_name)
    if folder.is_dir():
        if of_length(folder):
            raise Unsupported(
                "the engine's longest prompt changes this model's KV, and LMCache does not say it: "
                f"set extra_config '{PREFIX}{settings.name}.revision' to something that changes "
                "with the weights and with max_model_len"
            )
        if told := told_to_vllm(folder):
            raise Unsupported(
                f"vLLM was told {told}, and this model's KV depends on it: set extra_config "
                f"'{PREFIX}{settings.name}.revision' to something that changes with the weights "
                "and with that"
            )
        return f"blake3:{weights_digest(folder)}"
    raise Unsupported(
        f"the revision of {metadata.model_name!r} is not known: set extra_config "
        f"'{PREFIX}{settings.name}.revision' to something that changes whenever the weights do"
    )


def told_to_vllm(folder: Path) -> str:
    """What the vLLM that hosts this worker was told beside the folder that changes its KV. LMCache
    does not say it, but vLLM's workers make their connectors with their configuration at hand."""
    vllm = sys.modules.get("vllm.config")
    current = getattr(vllm, "get_current_vllm_config_or_none", None)
    config = current() if current else None
    if config is None:
        return ""
    model, load_format = config.model_config, config.load_config.load_format
    said = {name: getattr(model, name, None) for name in CHANGES}
    for name in ("hf_config_path", "model_weights"):  # of the model itself, they change nothing
        said[name] = said[name] != model.model and said[name]
    own = json.loads((folder / "config.json").read_text())
    if own.keys() & {"quantization_config", "compression_config"} or any(
        folder.glob("*quant*.json")
    ):
        said["quantization"] = None  # it is the folder's, which is named by all of this
    said["load_format"] = load_format not in AS_IT_IS and load_format
    said["additional_config"] = config.additional_config
    return ", ".join(f"{name} {value!r}" for name, value in said.items() if value)


def of_length(folder: Path) -> bool:
    """Whether vLLM computes other KV of this model where it takes longer prompts: by that it
    chooses LongRoPE's factors, and tunes Llama 4's attention."""
    config = json.loads((folder / "config.json").read_text())
    text = config.get("text_config") or config
    rope = text.get("rope_parameters") or text.get("rope_scaling") or {}
    kind = rope.get("rope_type") or rope.get("type")
    return kind in ("longrope", "su") or text.get("model_type") == "llama4_text"


def _refuse(config: Any, name: str) -> None:
    if getattr(config, name):
        raise Unsupported(f"{name} is not supported; set it to false")
