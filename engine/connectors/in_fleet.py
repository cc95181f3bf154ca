"""What a user says of an engine's part in a fleet: the same keys for every kind of engine."""

from __future__ import annotations

import re
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, ClassVar

if TYPE_CHECKING:
    from kvstore.client import Stands  # its kernels load late: see vllm/connector.py

_ADDRESS = re.compile(r"(?:[^\s:]+|\[[0-9a-fA-F:]+\]):([0-9]{1,5})")
_PORT_MAX = 65_535
_STANDS = (  # settings that say where the host stands
    *("rack", "cross_rack_bytes_per_second"),
    *("nvlink_domain", "nvlink_bytes_per_second"),
)


@dataclass(frozen=True, slots=True)
class InFleet:
    """Raises ValueError naming the key, its value and what is right."""

    # Conductors that are told of this engine, HOST:PORT each, and where requests are to be sent to.
    conductors: tuple[str, ...] = ()
    address: str = ""
    # Where this host stands, for conductors: who is near is quicker to reach.
    rack: str = ""
    cross_rack_bytes_per_second: float = 0.0  # 0: as over the link
    nvlink_domain: str = ""
    nvlink_bytes_per_second: float = 0.0  # that KV moves at within it

    SCHEME: ClassVar[str] = ""  # of its address: how the server is spoken to
    WHERE: ClassVar[str] = ""  # what a key's name begins with

    @classmethod
    def kinds(cls) -> dict[str, type]:
        """What each key's value is, an engine's own keys before these."""
        these = {one.name for one in fields(InFleet)}
        found = sorted(fields(cls), key=lambda one: one.name in these)
        return {one.name: type(one.default) for one in found}

    def check_fleet(self) -> None:
        for one in self.conductors:
            if not (isinstance(one, str) and _is_address(one)):
                raise ValueError(f"{self.WHERE}conductors: {one!r} is no HOST:PORT")
        if self.conductors and not _is_address(self.address.removeprefix(self.SCHEME)):
            raise ValueError(
                f"{self.WHERE}address: {self.address!r} is no HOST:PORT; `address` "
                "is where the server listens for requests, as those who send them see it"
            )
        if any(getattr(self, name) for name in _STANDS):
            self._check_stands()

    @property
    def told_address(self) -> str:
        """As conductors are told it."""
        return self.SCHEME + self.address.removeprefix(self.SCHEME)

    def stands(self) -> Stands:
        """Raises `Invalid`."""
        from kvstore.client import Stands

        return Stands(**{name: getattr(self, name) for name in _STANDS})

    def _check_stands(self) -> None:
        from kvstore.client import Invalid

        try:
            self.stands()  # its checks are those of these settings
        except Invalid as error:
            raise ValueError(f"{self.WHERE.rstrip('.: ')}: {error}") from None


def _is_address(text: str) -> bool:
    found = _ADDRESS.fullmatch(text)
    return found is not None and 0 < int(found[1]) <= _PORT_MAX
