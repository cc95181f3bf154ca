"""What etcd is shown: certificates for the channel, and a token for each call if it wants one.

A token is asked for at the first call, shared by all, and asked for anew when etcd has forgotten it
(it does when it restarts, and after some minutes). Neither password nor token shows in any text.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import NamedTuple

from kvstore.config import EtcdConfig
from kvstore.errors import ConfigError

Metadata = tuple[tuple[str, str], ...]
# A member without a leader refuses instead of answering from what it last knew.
_NEED_LEADER: Metadata = (("hasleader", "true"),)


class Certificates(NamedTuple):
    """In PEM: whom a channel believes, and what it shows."""

    ca: bytes | None
    key: bytes | None
    cert: bytes | None


class Token:
    """Of one user, for all calls of a client. `ask` authenticates; "" if nobody has to."""

    def __init__(self) -> None:
        self._text: str | None = None
        self._turn = asyncio.Lock()

    async def metadata(self, ask: Callable[[], Awaitable[str]], seconds: float) -> Metadata:
        """What a call carries. One asks, and the others wait for it: not for each of those before
        them that asks in vain, but so many seconds; then it is a `TimeoutError`."""
        async with asyncio.timeout(seconds):
            await self._turn.acquire()
        try:
            if self._text is None:
                self._text = await ask()
        finally:
            self._turn.release()
        return (*_NEED_LEADER, ("token", self._text)) if self._text else _NEED_LEADER

    def drop(self, refused: Metadata) -> None:
        """The next call asks anew, unless another has already."""
        if dict(refused).get("token", "") == (self._text or ""):
            self._text = None


def certificates(config: EtcdConfig) -> Certificates | None:
    """As its files say now; None for plain connections. Raises `ConfigError` for what is none."""
    if not config.secure:
        return None
    return Certificates(
        _read("--etcd-ca", config.ca),
        _read("--etcd-key", config.key),
        _read("--etcd-cert", config.cert),
    )


def _read(option: str, path: Path | None) -> bytes | None:
    if path is None:
        return None
    try:
        text = path.read_bytes()
    except OSError as error:
        raise ConfigError(f"{option} = {path} cannot be read: {error.strerror}") from None
    if b"-----BEGIN" not in text:
        raise ConfigError(f"{option} = {path} is no PEM file; it would say -----BEGIN")
    return text
