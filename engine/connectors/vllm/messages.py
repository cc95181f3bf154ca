"""What the scheduler side tells the workers for one step, and what they tell it back.

Plain values, carried by vLLM itself between its own processes; every rank gets the same ones.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from vllm.distributed.kv_transfer.kv_connector.v1.base import (
    KVConnectorHandshakeMetadata,
    KVConnectorMetadata,
    KVConnectorWorkerMetadata,
)

ADAPTERS_MAX = 16_384  # that one engine names, half a KiB each; others have no name


@dataclass(frozen=True, slots=True)
class Adapter:
    """A LoRA adapter: what vLLM calls it, and the digest of its weights; empty: it has no name."""

    number: int  # by which a worker computes: what has it was loaded last under it
    name: str
    path: str
    weights: str


@dataclass(frozen=True, slots=True)
class Part:
    """Consecutive blocks of a request in one group, and the pages its tokens lie in.

    `pages[i]` is vLLM's block i of the request, from its first token on; `first` is the chain's
    index of `hashes[0]`. The last block has `last_tokens` tokens, all others are full.
    """

    group: int  # of the namespace
    first: int
    hashes: tuple[bytes, ...]
    parent: bytes
    pages: tuple[int, ...]
    last_tokens: int


@dataclass(frozen=True, slots=True)
class Load:
    """Fill tokens [begin, end) of a request's pages from the pool."""

    request: str
    begin: int
    end: int
    parts: tuple[Part, ...]
    follow: str = ""  # the writer group that may still be filling them
    follow_at: str = ""  # the host, or the id of its node, to which that group writes; "": this one
    budget_seconds: float = 0.0  # cut it short after this; 0: never, every token is wanted
    adapter: Adapter | None = None  # under which it is to go on, by the name of the blocks


@dataclass(frozen=True, slots=True)
class Save:
    """Publish blocks whose last tokens this step computes."""

    request: str
    parts: tuple[Part, ...]
    hand_off: str = ""  # the name by which a reader follows them, layer by layer
    finished: bool = False  # the request is over: report it sent, so that its pages are freed
    adapter: Adapter | None = None  # under which they were computed, by the name of the blocks


@dataclass(frozen=True, slots=True)
class Compare:
    """Blocks that are stored, and whose tokens this step computes anew: do they agree?"""

    request: str
    parts: tuple[Part, ...]
    adapter: Adapter | None = None


@dataclass(slots=True)
class Step(KVConnectorMetadata):
    """One step's work."""

    number: int
    loads: list[Load] = field(default_factory=list)
    saves: list[Save] = field(default_factory=list)
    compares: list[Compare] = field(default_factory=list)
    over: list[str] = field(default_factory=list)  # hand-offs of which nothing more comes
    prefill_tokens: int = 0  # prompt tokens the step computes
    tokens: int = 0  # all that it computes

    @property
    def prefills(self) -> bool:
        """Whether what it takes says what computing prompts costs."""
        return self.prefill_tokens * 2 > self.tokens


@dataclass(slots=True)
class Ready(KVConnectorHandshakeMetadata):
    """A rank's namespace, told to the scheduler at the start, and what becomes of failed loads."""

    spec: str
    origin: int  # names the kind of engine and the layout that compute this one's blocks
    page_tokens: tuple[int, ...]
    vllm_groups: tuple[int, ...]
    windows: tuple[int, ...]
    policy: str  # the kv_load_failure_policy that counts


@dataclass(frozen=True, slots=True)
class Loaded:
    """What became of a load."""

    good: int  # tokens of the request that are good, from its first on
    tokens: int  # of those, loaded
    wanted: int
    seconds: float
    came: int = 0  # of those wanted, in those seconds: of a prompt that lost one block, nearly all
    follows: bool = False  # a prefill: it waited more than it loaded
    stale: Adapter | None = None  # under which it was to go on; its files, or its number's, changed

    def all_or_nothing(self) -> Loaded:
        """What is left of it where vLLM throws away all of a load that did not get all."""
        if self.tokens == self.wanted:
            return self
        return replace(self, good=self.good - self.tokens, tokens=0)

    def and_of(self, rank: Loaded) -> Loaded:
        """What became of it at this rank and that one: what is good is good at both."""
        worse = min(self, rank, key=lambda each: (each.good, -each.seconds))
        return replace(worse, stale=self.stale or rank.stale)


@dataclass(frozen=True, slots=True)
class Verdict:
    """How stored KV compares with what the engine computed."""

    blocks: int  # compared; 0 where some of those that were asked for could not be
    slope: float  # stored = slope x computed + noise: the layer's farthest from 1
    residual: float  # |stored - computed| / |computed|: the worst layer
    wrong: str  # what is out of bounds, and where; empty where they agree

    def and_of(self, rank: Verdict) -> Verdict:
        """What both ranks find, each of its own part of the same blocks."""
        worst = max(self, rank, key=lambda each: (each.wrong, each.residual))
        return replace(worst, blocks=min(self.blocks, rank.blocks))


@dataclass(slots=True)
class Report(KVConnectorWorkerMetadata):
    """What the ranks have to say of a step: of each load and comparison the worst of all ranks."""

    loaded: dict[str, Loaded] = field(default_factory=dict)
    verdicts: dict[str, Verdict] = field(default_factory=dict)
    saved_blocks: int = 0
    late: dict[str, int] = field(default_factory=dict)  # request -> first block not stored yet
    prefill: tuple[int, float] = (0, 0.0)  # tokens computed, and the seconds that took
    ready: tuple[Ready, ...] = ()  # of each rank, where it could not be told at the start
    adapters: tuple[Adapter, ...] = ()  # that were loaded since the last report

    def aggregate(self, other: KVConnectorWorkerMetadata) -> Report:
        assert isinstance(other, Report)
        loaded, verdicts = dict(self.loaded), dict(self.verdicts)
        for request, one in other.loaded.items():
            loaded[request] = one.and_of(loaded.get(request, one))
        for request, told in other.verdicts.items():
            verdicts[request] = told.and_of(verdicts.get(request, told))
        return Report(
            loaded,
            verdicts,
            max(self.saved_blocks, other.saved_blocks),
            {**self.late, **other.late},  # every rank was given the same blocks
            max(self.prefill, other.prefill, key=lambda pair: pair[1]),
            self.ready + other.ready,
            _of_both(self.adapters, other.adapters),
        )


def _of_both(one: tuple[Adapter, ...], other: tuple[Adapter, ...]) -> tuple[Adapter, ...]:
    """What ranks loaded together: of what they do not have alike, as where each loads experts of
    its own, none has a name."""
    alike = set(one) & set(other)
    return tuple(each if each in alike else replace(each, weights="") for each in (*one, *other))
