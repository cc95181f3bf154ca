"""What a user may set in `--hicache-storage-backend-extra-config`, checked key by key."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from kvstore.client import FixedAddress, InDirectory, Locator

# Read by SGLang itself from the same object: where the class is, and how it calls it.
SGLANG_KEYS = frozenset(
    {
        *("backend_name", "module_path", "class_name", "interface_v1", "tp_lcm_size"),
        *("prefetch_threshold", "prefetch_timeout_base", "prefetch_timeout_per_ki_token"),
        "hicache_storage_pass_prefix_keys",
    }
)
WHERE = "--hicache-storage-backend-extra-config"


@dataclass(frozen=True, slots=True)
class Settings:
    """The backend's settings. Raises ValueError naming the key, its value and what is right."""

    moonpool: str = "127.0.0.1:7410"  # HOST:PORT of a node, or the directory one runs in
    revision: str = ""  # an immutable revision; default: a digest of the weights in a local folder
    namespace_extra: str = ""  # whatever else changes the KV and SGLang does not name
    deadline_ms: int = 1_000  # for one call to the node

    def __post_init__(self) -> None:
        if not self.moonpool:
            raise ValueError(
                f"{WHERE}: moonpool is empty; HOST:PORT or a node's directory is right"
            )
        if not 1 <= self.deadline_ms <= 60_000:
            raise ValueError(f"{WHERE}: deadline_ms is {self.deadline_ms}; 1 to 60000 is right")

    @classmethod
    def of(cls, extra: Mapping[str, Any]) -> Settings:
        """The settings among an extra config's keys; SGLang's own are passed over."""
        known = {field.name: type(field.default) for field in fields(cls)}
        ours = {key: value for key, value in extra.items() if key not in SGLANG_KEYS}
        for key, value in ours.items():
            if key not in known:
                names = ", ".join([*known, *sorted(SGLANG_KEYS)])
                raise ValueError(f"{WHERE}: {key} is unknown; known are {names}")
            if type(value) is not known[key]:
                raise ValueError(f"{WHERE}: {key} is {value!r}; {known[key].__name__} is wanted")
        return cls(**ours)

    @property
    def locator(self) -> Locator:
        where = self.moonpool
        return FixedAddress(where) if ":" in where else InDirectory(Path(where))
