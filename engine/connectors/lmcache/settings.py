"""What a user may set under `storage_plugin.<name>.` in LMCache's `extra_config`, key by key.

Everything else the plug-in needs it takes from LMCache's own resolved configuration.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from kvstore.client import Locator, located

LOADERS_OWN = ("module_path", "class_name")  # LMCache reads these itself
PREFIX = "storage_plugin."


@dataclass(frozen=True, slots=True)
class Settings:
    """The plug-in's settings. Raises ValueError naming the key, its value and what is right."""

    name: str  # as in `storage_plugins`
    moonpool: str = "127.0.0.1:7410"  # HOST:PORT of a node, or the directory one runs in
    revision: str = ""  # an immutable revision; default: vLLM's, else a digest of the weights
    deadline_ms: int = 1_000  # for one call to the node
    pin_ms: int = 30_000  # how long a chunk that was looked up is kept for its load
    pending_chunks: int = 128  # chunks that may wait to be stored; more are dropped

    def __post_init__(self) -> None:
        self._within("deadline_ms", 1, 60_000)
        self._within("pin_ms", 1, 600_000)
        self._within("pending_chunks", 1, 65_536)

    @classmethod
    def of(cls, config: Any, kind: type) -> Settings:
        """The settings of the plug-in of class `kind`, as LMCache's configuration has them."""
        extra, plugins = config.extra_config or {}, config.storage_plugins or []
        mine = [name for name in plugins if _class_of(name, extra) is kind]
        if len(mine) != 1:
            raise ValueError(f"storage_plugins names this plug-in {len(mine)} times; once is right")
        return cls(mine[0], **_values(mine[0], plugins, extra))

    @property
    def locator(self) -> Locator:
        return located(self.moonpool)

    @property
    def revision_key(self) -> str:
        return f"extra_config '{PREFIX}{self.name}.revision'"

    def _within(self, key: str, low: int, high: int) -> None:
        value = getattr(self, key)
        if not low <= value <= high:
            full = f"{PREFIX}{self.name}.{key}"
            raise ValueError(f"extra_config '{full}' is {value}; {low} to {high} is right")


def _class_of(name: str, extra: Mapping[str, Any]) -> Any:
    """The class of a plug-in. Its loader does not tell it its name, so it looks itself up: where
    this one is from is imported by then, and what another is from may not be to be imported."""
    where, called = (extra.get(f"{PREFIX}{name}.{key}") for key in LOADERS_OWN)
    return getattr(sys.modules.get(where), called, None) if where and called else None


def _values(name: str, plugins: Sequence[str], extra: Mapping[str, Any]) -> dict[str, Any]:
    known = {field.name: field for field in fields(Settings) if field.name != "name"}
    prefix, values = f"{PREFIX}{name}.", {}
    others = tuple(f"{PREFIX}{one}." for one in plugins if one.startswith(f"{name}."))
    for full, value in extra.items():
        key = full.removeprefix(prefix)
        if not full.startswith(prefix) or full.startswith(others) or key in LOADERS_OWN:
            continue
        if key not in known:
            every = ", ".join((*LOADERS_OWN, *known))
            raise ValueError(
                f"extra_config '{full}' is unknown; known after '{prefix}' are {every}"
            )
        kind = type(known[key].default)
        if not isinstance(value, kind) or isinstance(value, bool):
            raise ValueError(f"extra_config '{full}' is {value!r}; {kind.__name__} is wanted")
        values[key] = value
    return values
