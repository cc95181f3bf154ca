"""A small real model that sees images, and prompts with some."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForImageTextToText, PaddleOCRVLConfig

from kvstore.engine.make_model import STD, make_model
from tests.connectors.vllm.models import POSITIONS, SHARED, VOCABULARY

IMAGE = tuple(range(VOCABULARY, VOCABULARY + 3))  # its start, itself, its end: words of no prompt
_WORDS = ("<|IMAGE_START|>", "<|IMAGE_PLACEHOLDER|>", "<|IMAGE_END|>")

_TEXT: dict[str, Any] = {
    "vocab_size": VOCABULARY + 64,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "rope_parameters": {
        "rope_type": "default",
        "rope_theta": 10_000.0,
        "mrope_section": [4, 6, 6],  # of half a head: time, height, width
    },
}
_VISION = {
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "image_size": 112,
    "patch_size": 14,
}
_PROCESSOR: dict[str, Any] = {
    "image_processor_type": "PaddleOCRVLImageProcessor",
    "processor_class": "PaddleOCRVLProcessor",
    "size": {"shortest_edge": 28 * 28, "longest_edge": 224 * 224},  # areas, whatever they say
    "patch_size": 14,
    "temporal_patch_size": 1,
    "merge_size": 2,
}


def paddleocr_vl(folder: Path) -> Path:
    """28 x 28 pixels are a token, so 112 x 112 are 16; positions are those of M-RoPE."""
    config = PaddleOCRVLConfig(
        text_config={**SHARED, **_TEXT},
        vision_config=_VISION,
        image_token_id=IMAGE[1],
        video_token_id=IMAGE[2] + 1,  # there are none, and it wants a word for them
        vision_start_token_id=IMAGE[0],
        vision_end_token_id=IMAGE[2],
        tie_word_embeddings=False,
    )
    make_model(folder, vocab=VOCABULARY, max_positions=POSITIONS, layers=1, hidden=8, heads=1)
    for name in ("model.safetensors", "config.json"):
        (folder / name).unlink()
    torch.manual_seed(0)
    made = AutoModelForImageTextToText.from_config(config, dtype=torch.float32)
    for name, weight in made.named_parameters():
        if "norm" not in name:
            torch.nn.init.normal_(weight, std=STD)
    with torch.no_grad():  # so that no answer is an image
        made.get_output_embeddings().weight[VOCABULARY:] = 0
    made.save_pretrained(folder)
    (folder / "preprocessor_config.json").write_text(json.dumps(_PROCESSOR))
    _tell_tokenizer(folder)
    return folder


def _tell_tokenizer(folder: Path) -> None:
    """Of the words that stand for images."""
    said = json.loads((folder / "tokenizer.json").read_text())
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    for number, word in zip(IMAGE, _WORDS, strict=True):
        said["model"]["vocab"][word] = number
        said["added_tokens"].append({"id": number, "content": word, **flags, "special": True})
    (folder / "tokenizer.json").write_text(json.dumps(said))
    said = json.loads((folder / "tokenizer_config.json").read_text())
    said["extra_special_tokens"] = {"image_token": _WORDS[1]}
    (folder / "tokenizer_config.json").write_text(json.dumps(said))
