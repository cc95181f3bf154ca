"""A small random Llama in Hugging Face format: real KV and real arithmetic, with no download.

The same arguments give the same bytes on every machine, so a digest of the folder can serve as its
revision: the weights come from NumPy's PCG64, where torch's own normal differs between processors.
They have a standard deviation of 0.1. At the customary 0.02 a decoder this small hardly lets
attention matter, and KV loaded into the wrong place would go unnoticed.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save
from tokenizers import Tokenizer, models, pre_tokenizers

SPECIALS = ("<unk>", "<bos>", "<eos>")
UNK_ID, BOS_ID, EOS_ID = range(len(SPECIALS))
PUNCTUATION = tuple(".,;:!?'\"()[]-")
FIRST_WORD_ID = len(SPECIALS) + len(PUNCTUATION)
STD = 0.1
_CHAT_TEMPLATE = """\
{{ bos_token }}{% for message in messages %}{{ message.role }}: {{ message.content }}
{% endfor %}{% if add_generation_prompt %}assistant:{% endif %}
"""


def make_model(
    path: str | Path,
    seed: int = 0,
    *,
    layers: int = 8,
    hidden: int = 256,
    heads: int = 8,
    kv_heads: int = 4,
    head_dim: int = 32,
    intermediate: int = 704,
    vocab: int = 2048,
    max_positions: int = 8192,
) -> Path:
    """Write config, weights (float32), tokenizer and chat template to the folder `path`, and return
    it."""
    if vocab <= FIRST_WORD_ID:
        raise ValueError(
            f"vocab must be more than {FIRST_WORD_ID}, the special and punctuation ids"
        )
    folder = Path(path)
    folder.mkdir(parents=True, exist_ok=True)
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": hidden,
        "intermediate_size": intermediate,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "head_dim": head_dim,
        "vocab_size": vocab,
        "max_position_embeddings": max_positions,
        "hidden_act": "silu",
        "rms_norm_eps": 1e-6,
        "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
        "attention_bias": False,
        "mlp_bias": False,
        "tie_word_embeddings": False,
        "dtype": "float32",
        "bos_token_id": BOS_ID,
        "eos_token_id": EOS_ID,
    }
    _write_json(folder / "config.json", config)
    shapes = _shapes(layers, hidden, heads * head_dim, kv_heads * head_dim, intermediate, vocab)
    # Written here, not by save_file: that one lets only its own user read the file.
    content = save(_weights(shapes, seed), metadata={"format": "pt"})
    (folder / "model.safetensors").write_bytes(content)
    _write_tokenizer(folder, vocab, max_positions)
    return folder


def _shapes(
    layers: int, hidden: int, q: int, kv: int, intermediate: int, vocab: int
) -> dict[str, tuple[int, ...]]:
    """Every tensor of a Llama by its Hugging Face name, in the order it is drawn."""
    shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (vocab, hidden)}
    layer: dict[str, tuple[int, ...]] = {
        "input_layernorm": (hidden,),
        "self_attn.q_proj": (q, hidden),
        "self_attn.k_proj": (kv, hidden),
        "self_attn.v_proj": (kv, hidden),
        "self_attn.o_proj": (hidden, q),
        "post_attention_layernorm": (hidden,),
        "mlp.gate_proj": (intermediate, hidden),
        "mlp.up_proj": (intermediate, hidden),
        "mlp.down_proj": (hidden, intermediate),
    }
    for index in range(layers):
        shapes |= {f"model.layers.{index}.{name}.weight": one for name, one in layer.items()}
    return shapes | {"model.norm.weight": (hidden,), "lm_head.weight": (vocab, hidden)}


def _weights(shapes: dict[str, tuple[int, ...]], seed: int) -> dict[str, torch.Tensor]:
    """Norm weights are 1, all others normal with standard deviation STD."""
    draw = np.random.Generator(np.random.PCG64(seed))
    weights: dict[str, torch.Tensor] = {}
    for name, shape in shapes.items():
        if len(shape) == 1:
            weights[name] = torch.ones(shape)
        else:
            values = draw.standard_normal(shape, dtype=np.float32) * np.float32(STD)
            weights[name] = torch.from_numpy(values)
    return weights


def _write_tokenizer(folder: Path, vocab: int, max_positions: int) -> None:
    """One token a word: specials, punctuation, then w0, w1, ...; anything else is <unk>."""
    words = [f"w{number}" for number in range(vocab - FIRST_WORD_ID)]
    ids = {word: at for at, word in enumerate([*SPECIALS, *PUNCTUATION, *words])}
    tokenizer = Tokenizer(models.WordLevel(ids, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Punctuation()]
    )
    tokenizer.add_special_tokens(list(SPECIALS))
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "unk_token": "<unk>",
        "bos_token": "<bos>",
        "eos_token": "<eos>",
        "clean_up_tokenization_spaces": False,
        "model_max_length": max_positions,
    }
    _write_json(folder / "tokenizer_config.json", settings)
    (folder / "chat_template.jinja").write_text(_CHAT_TEMPLATE)


def _write_json(path: Path, value: dict[str, Any]) -> None:
    path.write_text(json.dumps(value, indent=2) + "\n")
