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


@dataclass(frozen=True, slots=True)
class Part:
    """Consecutive blocks of a request in one group, and the pages its tokens lie in.

    `pages[i]` is vLLM's block i of the request, from its first token on; `first` is the chain's
    index of `hashes[0]`.
    """

    group: int  # of the namespace
    first: int
    hashes: tuple[bytes, ...]
    parent: bytes
    pages: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Load:
    """Fill tokens [begin, end) of a request's pages from the pool."""

    request: str
    begin: int
    end: int
    parts: tuple[Part, ...]


@dataclass(frozen=True, slots=True)
class Save:
    """Publish blocks whose last tokens this step computes."""

    request: str
    parts: tuple[Part, ...]
    finished: bool = False  # the request is over: report it sent, so that its pages are freed


@dataclass(slots=True)
class Step(KVConnectorMetadata):
    """One step's work."""

    number: int
    loads: list[Load] = field(default_factory=list)
    saves: list[Save] = field(default_factory=list)


@dataclass(slots=True)
class Ready(KVConnectorHandshakeMetadata):
    """A rank's namespace, told to the scheduler at the start."""

    spec: str
    page_tokens: tuple[int, ...]
    vllm_groups: tuple[int, ...]
    windows: tuple[int, ...]


@dataclass(slots=True)
class Report(KVConnectorWorkerMetadata):
    """What became of loads: tokens good from the request's first on, the least of all ranks."""

    loaded: dict[str, int] = field(default_factory=dict)

    def aggregate(self, other: KVConnectorWorkerMetadata) -> Report:
        assert isinstance(other, Report)
        both = dict(self.loaded)
        for request, tokens in other.loaded.items():
            both[request] = min(tokens, both.get(request, tokens))
        return replace(self, loaded=both)
