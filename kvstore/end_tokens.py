"""Which tokens end an answer, as a Hugging Face model folder says it: those of its config.json and
those of its generation_config.json. Chat models often name the end of a turn in the latter alone.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from kvstore.errors import ConfigError

_FILES = ("config.json", "generation_config.json")


def end_tokens(folder: Path) -> frozenset[int]:
    """Their ids; of a model of several kinds of input, as it says of text too. Raises `ConfigError`
    naming the file and the field."""
    return frozenset(one for name in _FILES for one in _said(folder / name))


def _said(path: Path) -> set[int]:
    try:
        raw = json.loads(path.read_text())
    except FileNotFoundError:
        return set()
    except ValueError as error:
        raise ConfigError(f"{path} is no JSON: {error}") from None
    if not isinstance(raw, dict):
        raise ConfigError(f"{path} is no JSON object")
    text = raw.get("text_config")
    parts = [raw, text] if isinstance(text, dict) else [raw]
    return {one for part in parts for one in _ids(path, part.get("eos_token_id"))}


def _ids(path: Path, value: Any) -> list[int]:
    ids = value if isinstance(value, list) else [] if value is None else [value]
    if not all(type(one) is int for one in ids):
        raise ConfigError(f"{path}: eos_token_id = {value!r}: a token id or a list is wanted")
    return ids
