"""What a user may set in `--hicache-storage-backend-extra-config`, checked key by key."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from kvstore.client import Locator, located

from ..in_fleet import InFleet

# Read by SGLang itself from the same object: where the class is, and how it calls it.
SGLANG_KEYS = frozenset(
    {
        *("backend_name", "module_path", "class_name", "interface_v1", "tp_lcm_size"),
        *("prefetch_threshold", "prefetch_timeout_base", "prefetch_timeout_per_ki_token"),
        *("hicache_storage_pass_prefix_keys", "allocator", "file_storage_path"),
    }
)
WHERE = "--hicache-storage-backend-extra-config"
# A move may take two. Where it takes 10 s while SGLang flushes its cache, the server ends.
DEADLINE_MS_MAX = 4_000


@dataclass(frozen=True, slots=True)
class Settings(InFleet):
    """The backend's settings. Raises ValueError naming the key, its value and what is right."""

    moonpool: str = "127.0.0.1:7410"  # HOST:PORT of a node, or the directory one runs in
    revision: str = ""  # an immutable revision; default: a digest of the weights in a local folder
    namespace_extra: str = ""  # whatever else changes the KV and SGLang does not name
    deadline_ms: int = 1_000  # for one call to the node

    SCHEME: ClassVar[str] = "sglang://"  # its server speaks SGLang's own API
    WHERE: ClassVar[str] = f"{WHERE}: "

    def __post_init__(self) -> None:
        if not self.moonpool:
            raise ValueError(
                f"{WHERE}: moonpool is empty; HOST:PORT or a node's directory is right"
            )
        if not 1 <= self.deadline_ms <= DEADLINE_MS_MAX:
            right = f"1 to {DEADLINE_MS_MAX} is right"
            raise ValueError(f"{WHERE}: deadline_ms is {self.deadline_ms}; {right}")
        self.check_fleet()

    @classmethod
    def of(cls, extra: Mapping[str, Any]) -> Settings:
        """The settings among an extra config's keys; SGLang's own are passed over."""
        known = cls.kinds()
        ours = {key: value for key, value in extra.items() if key not in SGLANG_KEYS}
        if isinstance(said := ours.get("conductors"), list):
            ours["conductors"] = tuple(said)
        for key, value in ours.items():
            if key not in known:
                names = ", ".join([*known, *sorted(SGLANG_KEYS)])
                raise ValueError(f"{WHERE}: {key} is unknown; known are {names}")
            kind = known[key]
            if type(value) is not kind and not (kind is float and type(value) is int):
                wanted = "list" if kind is tuple else kind.__name__
                raise ValueError(f"{WHERE}: {key} is {value!r}; {wanted} is wanted")
        return cls(**ours)

    @property
    def locator(self) -> Locator:
        return located(self.moonpool)
