"""Models, GPUs and links that are known by name, as people type it: lower case, no marketing."""

from __future__ import annotations

from typing import TypeVar

from kvstore.core.hardware import FABRICS, GPUS, Fabric, Gpu
from kvstore.core.model_shape import SHAPES, ModelShape
from kvstore.errors import ConfigError

T = TypeVar("T")


def named(key: str, name: str, known: dict[str, T]) -> T:
    """What is meant by a name. Raises ConfigError, which lists those there are."""
    if name.lower() not in known:
        raise ConfigError(f"{key} {name}: is one of {', '.join(known)}")
    return known[name.lower()]


def _link(name: str) -> str:
    """'RDMA 200 Gb/s' -> 'rdma-200'"""
    return "-".join(name.lower().split()[:2])


MODELS: dict[str, ModelShape] = {one.name.lower().removeprefix("meta-"): one for one in SHAPES}
CARDS: dict[str, Gpu] = {one.name.lower().partition("-")[0]: one for one in GPUS}
LINKS: dict[str, Fabric] = {_link(one.name): one for one in FABRICS}
