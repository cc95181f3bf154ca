"""A server's settings, published as SGLang publishes them, a model's config beside them, and the
folder that it has its weights in."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from safetensors.torch import save_file
from sglang.srt.configs.model_config import ModelImpl
from sglang.srt.runtime_context import get_context

TRAINED, LONGEST = 8, 32  # tokens


@contextmanager
def server(
    rope: Any = None,
    longest: int = LONGEST,
    impl: ModelImpl = ModelImpl.SGLANG,
    model_type: str = "llama",
    quantized: dict[str, Any] | None = None,
    multimodal: bool = False,
    **args: Any,
) -> Iterator[None]:
    """As in a server with these settings, whose model has these settings of RoPE. `impl` is whose
    code computes it, as SGLang found by what it was asked, and `quantized` how its weights are."""
    text = SimpleNamespace(
        rope_parameters=rope, max_position_embeddings=TRAINED, model_type=model_type
    )
    config = SimpleNamespace(
        hf_text_config=text,
        context_len=longest,
        _resolved_model_impl=impl,
        quantization=args.get("quantization"),
        hf_quant_config=quantized or {},
        is_multimodal=multimodal,
    )
    with get_context().override_server_args(_model_config=config, **args):
        yield


def checkpoint(folder: Path, seed: int) -> Path:
    folder.mkdir()
    weights = torch.rand(4, generator=torch.Generator().manual_seed(seed))
    save_file({"w": weights}, folder / "model.safetensors")
    (folder / "config.json").write_text("{}")
    return folder
