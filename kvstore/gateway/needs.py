"""What a request needs of an engine beside the model, and which engines have it."""

from __future__ import annotations

from dataclasses import dataclass

from kvstore.address import HTTP, speaks_http
from kvstore.errors import Invalid, Rejected, Unavailable
from kvstore.gateway.request import Request
from kvstore.gateway.spaces import Space

RETRY_MS = 1_000  # before somebody may be known who has what is needed


class Unable(Invalid):
    """No engine that is known does what a field of the call asks for."""

    def __init__(self, field: str, message: str) -> None:
        super().__init__(f"{field}: {message}")
        self.field = field


class Lacks(Unavailable):
    """This server has not the adapter that it was asked for; another may."""


@dataclass(frozen=True, slots=True)
class Needs:
    """Nothing: all engines will do."""

    draws: bool = False  # tokens that need not be the likeliest: those of ours take these
    adapter: str = ""  # vLLM's servers alone compute under one

    @classmethod
    def of(cls, request: Request) -> Needs:
        return cls(request.sampling is not None, request.adapter)

    def met_at(self, address: str) -> bool:
        if self.adapter:
            return address.startswith(HTTP)
        return speaks_http(address) or not self.draws

    def met_in(self, space: Space) -> bool:
        if self.adapter:
            return space.samples and not space.naming  # else its engines are SGLang's
        return space.samples or not self.draws

    @property
    def unmet(self) -> Unable | Rejected:
        """What to say where no engine that is known has it. That there are servers for an adapter
        its operator has said: one of them is there again soon."""
        if self.adapter:
            text = f"no vLLM server is known now, to compute under {self.adapter!r}"
            return Unavailable(text, RETRY_MS)
        return Unable("temperature", "no engine that has this model draws tokens: write 0")
