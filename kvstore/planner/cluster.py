"""A cluster that is planned for: which engines there are, what KV their hosts hold, the link
between them, and how soon answers are wanted. One that cannot be is refused by the name of what is
wrong with it, and told what would be right.

An engine has a host of its own, of which KV may fill so much DRAM and SSD where it prefills, and so
much DRAM where it only decodes: what is handed over to it stays there, is not handed over again,
and others may fetch it. A host whose engine switches has what one that prefills has.

Hosts may stand in racks and NVLink domains. Those of each pool are dealt to them in turn, so that
each has its share of every kind, however many engines there are.
"""

from __future__ import annotations

import enum
import math
from dataclasses import dataclass, replace

from kvstore.core.hardware import NVLINK5, Fabric, Gpu
from kvstore.core.model_shape import ModelShape
from kvstore.core.priors import kv_room, prefill_prior
from kvstore.errors import ConfigError
from kvstore.limits import LINK_SPEEDS
from kvstore.planner import bounds

ENGINES_MAX = 4_096  # of a cluster: a router that looks at all of them would be the bottleneck
BYTES_MAX = 1 << 60  # of a host
LATENCY_MAX = 60.0  # seconds of a link: far above one around the world


class Role(enum.StrEnum):
    """What an engine does."""

    PREFILL = "prefill"
    DECODE = "decode"
    MIXED = "mixed"  # both, prompts in chunks between decode steps


@dataclass(frozen=True, slots=True)
class Pool:
    """Engines that are alike. Raises ConfigError for numbers that cannot be."""

    role: Role
    engines: int
    gpu: Gpu
    tensor_parallel: int = 1  # GPUs of one engine
    chunk_tokens: int = 0  # of a prompt in one step; 0: as engines of the role are mostly set
    elastic: bool = False  # they switch to the other role where that is busier

    def __post_init__(self) -> None:
        bounds.whole(f"{self.role}.engines", self.engines, 1, ENGINES_MAX)
        bounds.whole(f"{self.role}.tensor_parallel", self.tensor_parallel, 1, 1 << 10)
        bounds.whole(f"{self.role}.chunk_tokens", self.chunk_tokens, 0, bounds.TOKENS_MAX)
        if self.elastic and self.role is Role.MIXED:
            raise ConfigError("mixed.elastic = true: they do both already: leave it out")

    @property
    def prefills(self) -> bool:
        return self.role is not Role.DECODE

    @property
    def decodes(self) -> bool:
        return self.role is not Role.PREFILL


@dataclass(frozen=True, slots=True)
class Failure:
    """An engine that dies with its host's memory, and is back after some time, with none. Raises
    ConfigError for numbers that cannot be."""

    role: Role
    number: int  # of the engines of the role, the first is 0
    at_seconds: float  # of the load
    seconds: float = math.inf  # until it is back

    def __post_init__(self) -> None:
        bounds.whole("failure.engine", self.number, 0, ENGINES_MAX - 1)
        bounds.number("failure.at", self.at_seconds, 0, 1e6)
        if self.seconds != math.inf:
            bounds.number("failure.seconds", self.seconds, 1e-3, 1e6)


@dataclass(frozen=True, slots=True)
class Cluster:
    """Raises ConfigError or Invalid, which name the field, for one that cannot be."""

    shape: ModelShape
    pools: tuple[Pool, ...]
    fabric: Fabric
    dram_bytes: int  # for KV, of each host whose engine prefills
    ssd_bytes: int = 0  # likewise
    ssd_bytes_per_second: float = 6e9  # read; an NVMe drive's data sheet, PCIe 4
    ttft_seconds: float = 30.0  # a request is in time with its first token by then,
    tpot_seconds: float = 0.1  # and so much a token after it, on average
    decode_dram_bytes: int = 0  # for KV, of each host whose engine only decodes
    failures: tuple[Failure, ...] = ()
    racks: int = 0  # that hosts are dealt to; 0: all are in one
    cross_rack_bytes_per_second: float = 0.0  # of a host, to other racks; 0: as the fabric
    domains: int = 0  # of NVLink, that hosts are dealt to; 0: there are none
    nvlink_bytes_per_second: float = NVLINK5.bytes_per_second  # of a host, within its domain

    def __post_init__(self) -> None:
        self._check_places()
        bounds.whole("dram", self.dram_bytes, 0, BYTES_MAX)
        bounds.whole("ssd", self.ssd_bytes, 0, BYTES_MAX)
        bounds.whole("decode_dram", self.decode_dram_bytes, 0, BYTES_MAX)
        bounds.number("ssd_bytes_per_second", self.ssd_bytes_per_second, 1e6, 1e13)
        bounds.number("ttft", self.ttft_seconds, 1e-3, 86_400)
        bounds.number("tpot", self.tpot_seconds, 1e-4, 3_600)
        if not any(pool.prefills for pool in self.pools):
            raise ConfigError("prefill.engines = 0: nobody does it: take 1 or more")
        if not any(pool.decodes for pool in self.pools):
            raise ConfigError("decode.engines = 0: nobody does it: take 1 or more")
        bounds.whole("engines", sum(pool.engines for pool in self.pools), 1, ENGINES_MAX)
        for pool in self.pools:
            prefill_prior(self.shape, pool.gpu, pool.tensor_parallel)  # it can be split so
            kv_room(self.shape, pool.gpu, pool.tensor_parallel)  # and fits
        for one in self.failures:
            if one.number >= (count := self.engines(one.role)):
                text = f"failure: {one.role} engine {one.number}: there are {count}, the first is 0"
                raise ConfigError(text)

    def check_asked(self) -> None:
        """Raises ConfigError for what can be, and nobody means: an SSD that nothing comes to."""
        if self.ssd_bytes and not self.dram_bytes:
            raise ConfigError("ssd without dram: blocks come to SSD through DRAM: give hosts some")

    def _check_places(self) -> None:
        bounds.number("fabric.bytes_per_second", self.fabric.bytes_per_second, *LINK_SPEEDS)
        bounds.number("fabric.latency_seconds", self.fabric.latency_seconds, 0, LATENCY_MAX)
        bounds.whole("racks", self.racks, 0, ENGINES_MAX)
        bounds.whole("domains", self.domains, 0, ENGINES_MAX)
        bounds.number("nvlink_bytes_per_second", self.nvlink_bytes_per_second, *LINK_SPEEDS)
        if self.cross_rack_bytes_per_second:
            speed = self.cross_rack_bytes_per_second
            bounds.number("cross_rack_bytes_per_second", speed, *LINK_SPEEDS)
            if self.racks < 2:
                text = f"cross_rack_bytes_per_second = {speed:g}: there is one rack"
                raise ConfigError(f"{text}: say how many `racks` there are, 2 or more")
        if (speed := self.nvlink_bytes_per_second) != NVLINK5.bytes_per_second and not self.domains:
            text = f"nvlink_bytes_per_second = {speed:g}: there is no NVLink domain"
            raise ConfigError(f"{text}: say how many `domains` there are, 1 or more")
        if self.racks and self.domains % self.racks:
            several = f"{self.domains} in {self.racks} racks"
            raise ConfigError(f"domains: {several}: as many in each, as {2 * self.racks} would be")

    def engine(self, role: Role, number: int) -> int:
        """Its number among all."""
        for at, one in enumerate(pool.role for pool in self.pools for _ in range(pool.engines)):
            if one is role:
                if not number:
                    return at
                number -= 1
        raise ConfigError(f"{role} engine {number}: there is none")

    def engines(self, role: Role) -> int:
        return sum(pool.engines for pool in self.pools if pool.role is role)

    def pool(self, role: Role) -> Pool:
        """The only one of a role. Raises ConfigError where there are several."""
        some = [pool for pool in self.pools if pool.role is role]
        if len(some) != 1:
            raise ConfigError(f"pools: {len(some)} of role {role}: this wants 1")
        return some[0]

    def split(self, prefill: int) -> Cluster:
        """As many engines in all, so many of them for prefills. Raises ConfigError where they are
        not of one kind, or where nobody would be left to decode."""
        first, second = self.pool(Role.PREFILL), self.pool(Role.DECODE)
        if (first.gpu, first.tensor_parallel) != (second.gpu, second.tensor_parallel):
            raise ConfigError("pools: engines of two kinds cannot take each other's place")
        decode = first.engines + second.engines - prefill
        return self.sized(prefill, decode)

    def sized(self, prefill: int, decode: int) -> Cluster:
        """So many engines of the kinds there are, beside those that do both. Raises ConfigError
        where there are several kinds of one role."""
        counts = {self.pool(Role.PREFILL): prefill, self.pool(Role.DECODE): decode}
        sized = tuple(replace(one, engines=counts.get(one, one.engines)) for one in self.pools)
        return replace(self, pools=sized, failures=())

    def switching(self) -> Cluster:
        """The same engines, each of which switches where the other role is busier."""
        return replace(self, pools=tuple(replace(one, elastic=True) for one in self.pools))

    def together(self, chunk_tokens: int = 0) -> Cluster:
        """As many engines, each of which prefills and decodes. Raises ConfigError where they are
        not of one kind."""
        one = self.split(1).pool(Role.PREFILL)
        engines = sum(pool.engines for pool in self.pools)
        return replace(self, pools=(_mixed(one, engines, chunk_tokens),), failures=())

    def __str__(self) -> str:
        pools = " + ".join(
            f"{pool.engines} {'elastic ' if pool.elastic else ''}{pool.role} on"
            f" {pool.tensor_parallel} x {pool.gpu.name}"
            for pool in self.pools
        )
        places = {"racks": self.racks, "NVLink domains": self.domains}
        return ", in ".join([pools, *(f"{many} {name}" for name, many in places.items() if many)])


def _mixed(pool: Pool, engines: int, chunk_tokens: int) -> Pool:
    return Pool(Role.MIXED, engines, pool.gpu, pool.tensor_parallel, chunk_tokens)
