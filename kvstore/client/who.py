"""What an engine says of itself to conductors, before it has measured any step of its own."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from kvstore.config import Stands
from kvstore.core.cost import DecodeCost, PrefillCost
from kvstore.core.hardware import gpu_called
from kvstore.core.priors import decode_prior, prefill_prior
from kvstore.core.published import shape_of
from kvstore.errors import Invalid
from kvstore.wire.v1 import conductor_pb2 as pb

# Of a model of 8B on a large GPU, where no data sheet says more. Conductors learn what it really
# costs from the first steps on; what is thought too dear would not even be tried.
_GUESS = PrefillCost(0.01, 5e-5, 1e-9), DecodeCost(0.01, 1e-4, 2e-8)
_LINK_BYTES_PER_SECOND = 1e10  # of its host, until transfers are measured


@dataclass(frozen=True, slots=True)
class Runs:
    """Which model an engine runs, and on what."""

    config: Mapping[str, Any] = field(default_factory=dict)  # the model's `config.json`
    device: str = ""  # as its driver names it
    tensor_parallel: int = 1

    def costs(self) -> tuple[PrefillCost, DecodeCost]:
        """By the model's shape and the device's data sheet, where both are known."""
        gpu = gpu_called(self.device)
        if gpu is None:
            return _GUESS
        try:
            shape, degree = shape_of("its model", self.config), self.tensor_parallel
            return prefill_prior(shape, gpu, degree), decode_prior(shape, gpu, degree)
        except Invalid:
            return _GUESS


@dataclass(frozen=True, slots=True)
class Who:
    """An engine that serves one namespace and group."""

    engine_id: str
    address: str  # that requests are to be sent to: see `kvstore.address`
    namespace: bytes
    group: int
    block_tokens: int
    token_bytes: int  # of KV, of one token
    room_tokens: int  # of KV that it has place for
    prefills: bool
    decodes: bool
    rank: int | None = None  # which it is of several at its address
    stands: Stands = field(default_factory=Stands)
    revision: str = ""  # of its weights
    runs: Runs = field(default_factory=Runs)
    naming: str = ""  # of its blocks: see `kvstore.naming`
    followed: bool = False  # of a server over HTTP: its prefills can be, by others like it

    def message(self) -> pb.ReportRequest.Engine:
        """All but the node whose memory is its own."""
        (prefill, decode), does = self.runs.costs(), {}
        if self.prefills:
            does["prefill"] = pb.ReportRequest.Cost(**asdict(prefill))
        if self.decodes:
            does["decode"] = pb.ReportRequest.Cost(**asdict(decode))
        engine = pb.ReportRequest.Engine(
            engine_id=self.engine_id,
            address=self.address,
            namespace=self.namespace,
            group=self.group,
            block_tokens=self.block_tokens,
            token_bytes=self.token_bytes,
            room_tokens=self.room_tokens,
            data_parallel_rank=self.rank,
            revision=self.revision,
            naming=self.naming,
            followed=self.followed,
            link_bytes_per_second=_LINK_BYTES_PER_SECOND,
            **does,
        )
        tell(self.stands, engine)
        return engine


def tell(stands: Stands, engine: pb.ReportRequest.Engine) -> None:
    """Write down where an engine's host stands, in what conductors are told of it."""
    engine.rack, engine.nvlink_domain = stands.rack, stands.nvlink_domain
    engine.domain_bytes_per_second = stands.nvlink_bytes_per_second
    engine.cross_rack_bytes_per_second = stands.cross_rack_bytes_per_second
