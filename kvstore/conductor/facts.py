"""What an engine says of itself when it begins to report."""

from __future__ import annotations

import enum
from dataclasses import dataclass

from kvstore.address import speaks_http
from kvstore.core.cost import DecodeCost, PrefillCost, TransferCost


class Role(enum.IntEnum):
    """Of an engine that can switch: what it does, or is to do. As on the wire."""

    AS_IT_IS = 0  # it does not switch
    PREFILLS = 1
    DECODES = 2
    BOTH = 3


@dataclass(frozen=True, slots=True)
class Facts:
    """Of one engine, as it begins."""

    engine_id: str
    address: str
    node_id: str
    block_tokens: int
    token_bytes: float
    room_tokens: int
    prefill: PrefillCost | None  # None: it prefills nothing, whatever its role
    decode: DecodeCost | None
    link: TransferCost
    ssd: TransferCost | None
    rank: int | None = None  # which it is of the engines at its address; None: it is alone there
    role: Role = Role.AS_IT_IS
    rack: str = ""  # of its host; empty: nobody says
    domain: str = ""  # of its host: those that NVLink connects
    domain_bytes_per_second: float = 0.0  # within that; 0: as the link
    far_bytes_per_second: float = 0.0  # to or from another rack; 0: as the link
    revision: str = ""  # of its weights; empty: it does not say
    kind: str = ""  # what it computes with; empty: it does not say
    naming: str = ""  # of its blocks: see `kvstore.naming`
    followed: bool = False  # of a server of others: its prefills can be

    @property
    def whole(self) -> bool:
        """Whether it is sent all of a request, and decodes itself what it prefills. Engines of ours
        are followed, and of servers of others those that only prefill and say that they can be."""
        return speaks_http(self.address) and (self.decodes or not self.followed)

    @property
    def prefills(self) -> bool:
        """Whether it does so now."""
        return self.prefill is not None and self.role is not Role.DECODES

    @property
    def decodes(self) -> bool:
        return self.decode is not None and self.role is not Role.PREFILLS
