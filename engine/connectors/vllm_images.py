"""What images, sound and videos are to the model of a vLLM, beside what was sent.

How they are processed, as the engine and the checkpoint say it, and how the encoder computes.
vLLM's hash of an image, by which LMCache calls it, has none of that, and its processed bytes, by
which our own connector does, have not all of it.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from blake3 import blake3

from kvstore.client import processors_digest


def images_of(model: Any) -> str:
    """What of it is to be named; nothing for a model that is given text alone."""
    told = model.multimodal_config
    if told is None or told.language_model_only:
        return ""
    processed = dict(told.mm_processor_kwargs or {})
    processed.pop("device", None)  # by which they differ by rounding
    scales, pruned = told.mm_encoder_fp8_scale_path, told.video_pruning_rate
    said = {
        "decoded": told.media_io_kwargs,
        "processed": processed,
        "processors": processors_digest(model.model) if Path(model.model).is_dir() else "",
        "encoder": told.mm_encoder_attn_dtype,
        "scales": blake3(Path(scales).read_bytes()).hexdigest() if scales else "",
        "pruned": [pruned, told.video_pruning_method] if pruned else [],
    }
    changed = {name: value for name, value in said.items() if value}
    text = json.dumps(changed, sort_keys=True, default=str)
    return f";images={blake3(text.encode()).hexdigest()[:16]}" if changed else ""
