"""What a user may set in `kv_connector_extra_config`: one frozen dataclass, checked key by key.

Everything else the connector needs it takes from vLLM's own resolved configuration.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from ..in_fleet import InFleet

if TYPE_CHECKING:
    from kvstore.client import Locator  # its kernels load late: see connector.py

REUSE = ("priced", "always")
ROLES = ("prefill", "decode", "both")


@dataclass(frozen=True, slots=True)
class Settings(InFleet):
    """The connector's settings. Raises ValueError naming the key, its value and what is right."""

    node: str = "127.0.0.1:7410"  # HOST:PORT of a node, or the directory one runs in
    # Tokens of a block, which is matched, stored and evicted as one: whole pages of vLLM's.
    block_tokens: int = 0  # 0: 64, or the next multiple of vLLM's block
    model: str = ""  # names the weights beside their revision; default: the architecture
    revision: str = ""  # an immutable revision; default: vLLM's, else a digest of the weights
    codec: str = "none"  # or fp8 or int8: how the pool keeps blocks, half as large and not exact
    reuse: str = "priced"  # or "always": load every hit, whatever it costs
    self_test: bool = True  # compare the first hits of a new pair of layouts, loading none
    self_test_hits: int = 2  # how many of a pair's hits have to agree
    audit_rate: float = 0.005  # share of hits that are recomputed and compared
    audit_seed: int = 0
    deadline_ms: int = 1_000  # for one call to the node
    lookup_ms: int = 20  # how long a step's scheduling may wait for the node's answers
    save_ms: int = 20  # how long a step that is computed waits for room for its blocks
    stall_ms: int = 10_000  # a followed prefill that gives nothing new for so long has failed
    loads_max: int = 4  # requests loaded at once, of stored blocks; more wait their turn
    fleet_role: str = "both"  # or "prefill" or "decode": what conductors have this engine do
    trace: str = ""  # a file to which stored and loaded layers are logged, one JSON object a line

    SCHEME: ClassVar[str] = "http://"  # vLLM's server speaks OpenAI's API
    WHERE: ClassVar[str] = "kv_connector_extra_config."

    def __post_init__(self) -> None:
        _within("block_tokens", self.block_tokens, 0, 65_536)
        _within("self_test_hits", self.self_test_hits, 1, 1_000)
        _within("audit_rate", self.audit_rate, 0.0, 1.0)
        _within("deadline_ms", self.deadline_ms, 1, 60_000)
        _within("lookup_ms", self.lookup_ms, 0, 1_000)
        _within("save_ms", self.save_ms, 0, 10_000)
        _within("stall_ms", self.stall_ms, 1, 600_000)
        _within("loads_max", self.loads_max, 1, 64)
        if self.reuse not in REUSE:
            raise ValueError(f"reuse is {self.reuse!r}; it may be {' or '.join(REUSE)}")
        if self.fleet_role not in ROLES:
            raise ValueError(f"fleet_role is {self.fleet_role!r}; it may be {', '.join(ROLES)}")
        self.check_fleet()

    @classmethod
    def of(cls, extra: Mapping[str, Any]) -> Settings:
        known = cls.kinds()
        extra = dict(extra)
        if isinstance(said := extra.get("conductors"), list):
            extra["conductors"] = tuple(said)
        for key, value in extra.items():
            if key not in known:
                raise ValueError(
                    f"kv_connector_extra_config.{key} is unknown; known are {', '.join(known)}"
                )
            kind = known[key]
            fits = isinstance(value, kind) or (kind is float and isinstance(value, int))
            if not fits or (isinstance(value, bool) and kind is not bool):
                wanted = "list" if kind is tuple else kind.__name__
                raise ValueError(
                    f"kv_connector_extra_config.{key} is {value!r}; {wanted} is wanted"
                )
        return cls(**extra)

    @property
    def locator(self) -> Locator:
        from kvstore.client import located

        return located(self.node)

    @property
    def revision_key(self) -> str:
        return "kv_connector_extra_config.revision"


def _within(name: str, value: float, low: float, high: float) -> None:
    if not low <= value <= high:
        raise ValueError(f"kv_connector_extra_config.{name} is {value}; {low} to {high} is right")
