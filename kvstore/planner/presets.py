"""Models, GPUs and links that are known by name, as people type it: lower case, no marketing."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TypeVar

from kvstore.core.hardware import FABRICS, GPUS, Fabric, Gpu
from kvstore.core.model_shape import SHAPES, ModelShape
from kvstore.core.published import shape_of
from kvstore.errors import ConfigError, Invalid

T = TypeVar("T")

_BYTES_MAX = 1 << 20  # of a config.json: they have some KiB


def named(key: str, name: str, known: dict[str, T], other: str = "") -> T:
    """What is meant by a name. Raises ConfigError, which lists those there are, and what `other`
    says would do."""
    if name.lower() not in known:
        raise ConfigError(f"{key} {name}: is one of {', '.join(known)}{other}")
    return known[name.lower()]


def model(key: str, name: str) -> ModelShape:
    """One of `MODELS`, or that of a folder or file with a published configuration. Raises
    ConfigError, which says what was wrong."""
    path = Path(name) / "config.json" if Path(name).is_dir() else Path(name)
    if name.lower() in MODELS or not path.is_file():
        return named(key, name, MODELS, ", or a folder with a model's config.json")
    try:
        with path.open("rb") as file:
            config = json.loads(file.read(_BYTES_MAX))
        if not isinstance(config, dict):
            raise Invalid("is no JSON object, as a model's config.json is")
        return shape_of(path.absolute().parent.name, config)
    except OSError as error:
        raise ConfigError(f"{key} {path}: {error.strerror or error}") from None
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{key} {path}: is no JSON: {error}") from None
    except Invalid as error:
        raise ConfigError(f"{key} {path}: {error}") from None


def _link(name: str) -> str:
    """'RDMA 200 Gb/s' -> 'rdma-200'"""
    return "-".join(name.lower().split()[:2])


MODELS: dict[str, ModelShape] = {one.name.lower().removeprefix("meta-"): one for one in SHAPES}
CARDS: dict[str, Gpu] = {one.name.lower().partition("-")[0]: one for one in GPUS}
LINKS: dict[str, Fabric] = {_link(one.name): one for one in FABRICS}
