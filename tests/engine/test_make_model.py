"""The made model is the same bytes every time, and transformers can load it offline."""

from __future__ import annotations

from pathlib import Path

import pytest

from kvstore.engine.config import ModelConfig
from kvstore.engine.make_model import EOS_ID, make_model
from kvstore.gateway.http.template import Conversation, Message, Template

SMALL = {"layers": 1, "hidden": 32, "heads": 2, "kv_heads": 1, "intermediate": 32, "vocab": 64}


def _bytes(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


def test_the_same_seed_gives_the_same_bytes_and_another_seed_gives_others(tmp_path: Path) -> None:
    first = _bytes(make_model(tmp_path / "a", seed=4, **SMALL))
    assert first == _bytes(make_model(tmp_path / "b", seed=4, **SMALL))
    other = _bytes(make_model(tmp_path / "c", seed=5, **SMALL))
    assert {n for n in first if first[n] != other[n]} == {"model.safetensors"}


def test_the_engine_reads_the_shape_that_was_asked_for(model_dir: Path) -> None:
    config = ModelConfig.load(model_dir)
    assert (config.layers, config.heads, config.kv_heads, config.head_dim) == (3, 8, 2, 16)
    assert (config.dtype, config.eos_ids, config.tied_embeddings) == ("float32", (EOS_ID,), False)


def test_transformers_reads_the_tokenizer_offline(model_dir: Path) -> None:
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(str(model_dir), local_files_only=True)
    ids = tokenizer("w0 w1, w2. <eos> unheard")["input_ids"]
    assert tokenizer.convert_ids_to_tokens(ids) == [
        *("w0", "w1", ",", "w2", "."),
        *("<eos>", "<unk>"),
    ]
    assert tokenizer.eos_token_id == EOS_ID and len(tokenizer) == 512


def test_it_chats(model_dir: Path) -> None:
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(str(model_dir), local_files_only=True)
    said = [{"role": "system", "content": "w1 w2"}, {"role": "user", "content": "w3"}]
    told = tokenizer.apply_chat_template(said, tokenize=False, add_generation_prompt=True)
    assert told == "<bos>system: w1 w2\nuser: w3\nassistant:"
    assert Template(model_dir).text(Conversation(tuple(Message(**one) for one in said))) == told


def test_a_vocabulary_without_room_for_words_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="vocab must be more than"):
        make_model(tmp_path, vocab=8)
