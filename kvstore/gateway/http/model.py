"""What a model's folder says of tokens: how many there are, how many fit, and which end an answer.

Whoever computes the model may know more kinds of them than our own engine does, so this reads what
all configurations have, and refuses what it cannot tell.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kvstore.end_tokens import end_tokens
from kvstore.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Model:
    """By its config.json and what else says which tokens end an answer; of a model of several kinds
    of input, what it says of text."""

    vocabulary: int | None  # None where it leaves that to Transformers' defaults, as Gemma 3 does
    positions: int | None  # tokens of a prompt and its answer, at most; None likewise
    eos: frozenset[int]

    @classmethod
    def of(cls, folder: Path) -> Model:
        """Raises `ConfigError` naming the field."""
        path = folder / "config.json"
        try:
            raw = json.loads(path.read_text())
        except FileNotFoundError:
            text = f"--model = {folder}: it has no config.json, as a Hugging Face model folder has"
            raise ConfigError(text) from None
        except ValueError as error:
            raise ConfigError(f"{path} is no JSON: {error}") from None
        if not isinstance(raw, dict):
            raise ConfigError(f"{path} is no JSON object")
        nested = raw.get("text_config")
        said: Mapping[str, Any] = {**raw, **nested} if isinstance(nested, dict) else raw
        return cls(
            _size(path, said, "vocab_size"),
            _size(path, said, "max_position_embeddings", "n_positions"),
            end_tokens(folder),
        )


def _size(path: Path, said: Mapping[str, Any], *names: str) -> int | None:
    """By the first of its names that is there."""
    for name in names:
        if (value := said.get(name)) is not None:
            if type(value) is not int or value < 1:
                raise ConfigError(f"{path}: {name} = {value!r}: a whole number from 1 is wanted")
            return value
    return None
