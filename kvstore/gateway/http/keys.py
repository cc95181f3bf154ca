"""Whose a call is. With a file of keys each call shows one, which says its client and its tenant;
without one everybody is let in, and a key only tells clients apart.

Of a key the file has a digest, so whoever reads it cannot call. Tenants share no KV: what stands
for one in the names of blocks is made of its name and the file's secret, and nobody can guess it.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from blake3 import blake3

from kvstore.errors import ConfigError, Unauthenticated
from kvstore.limits import (
    CLIENT_BYTES_MAX,
    SERVE_KEYS_BYTES_MAX,
    SERVE_KEYS_MAX,
    SERVE_REQUESTS_MAX,
)

_DIGEST = re.compile(r"[0-9a-f]{64}")
_CLIENT_CHARACTERS = 16  # of a digest: enough to tell clients apart
_FIELDS = ("keys", "tenant", "requests")


class BadKey(Unauthenticated):
    """A call that shows no key, or one that nobody has."""


@dataclass(frozen=True, slots=True)
class Whose:
    """Whose a call is."""

    client: str  # engines and places are shared fairly between clients
    salt: str = ""  # of the names of its tenant's blocks
    requests: int = SERVE_REQUESTS_MAX  # prompts of it at once, at most


class Keys(Protocol):
    def whose(self, authorization: str) -> Whose:
        """Of a call with this header. Raises `BadKey`."""


class Anybody:
    """No file: whoever reaches the gateway is let in."""

    def whose(self, authorization: str) -> Whose:
        key = _shown(authorization)
        return Whose(hashlib.sha256(key).hexdigest()[:_CLIENT_CHARACTERS] if key else "")


class KeyFile:
    """Those of a file, which can be read again while calls are answered."""

    def __init__(self, path: Path) -> None:
        """Raises `ConfigError`."""
        self._path = path
        self._by_digest = _read(path)

    def read(self) -> None:
        """Anew. Raises `ConfigError`; then all is as it was."""
        self._by_digest = _read(self._path)

    def whose(self, authorization: str) -> Whose:
        key = _shown(authorization)
        if not key:
            raise BadKey("no key: send the header Authorization: Bearer KEY")
        digest, found = hashlib.sha256(key).hexdigest(), None
        for one, whose in self._by_digest.items():  # all of them: how long it takes tells nothing
            if hmac.compare_digest(one, digest):
                found = whose
        if found is None:
            raise BadKey("nobody has this key: ask whoever runs this gateway for one")
        return found


def _shown(authorization: str) -> bytes:
    scheme, _, key = authorization.partition(" ")
    # As it was sent: a header's bytes are told as characters of Latin-1, one each.
    return key.strip(" ").encode("latin-1") if scheme.lower() == "bearer" else b""


def _read(path: Path) -> Mapping[str, Whose]:
    """Callers, by the digests of their keys."""
    try:
        raw = path.read_bytes()
        if len(raw) > SERVE_KEYS_BYTES_MAX:
            raise ConfigError(f"--keys = {path}: more than {SERVE_KEYS_BYTES_MAX} bytes")
        said = tomllib.loads(raw.decode())
    except OSError as error:
        raise ConfigError(f"--keys = {path}: {error.strerror}") from None
    except ValueError as error:  # which names the line
        raise ConfigError(f"--keys = {path}: {error}: TOML is wanted") from None
    try:
        return _callers(said)
    except ConfigError as error:
        raise ConfigError(f"--keys = {path}: {error}") from None


def _callers(said: Mapping[str, Any]) -> Mapping[str, Whose]:
    secret, clients = said.get("secret"), said.get("client")
    if not isinstance(secret, str) or not _DIGEST.fullmatch(secret):
        raise ConfigError("secret: write 64 hexadecimal digits, as `openssl rand -hex 32` makes")
    if not isinstance(clients, dict) or not clients:
        raise ConfigError("client: write a table for each, as in [client.web]")
    if other := set(said) - {"secret", "client"}:
        raise ConfigError(f"{min(other)} is not known: write secret and [client.NAME]")
    found: dict[str, Whose] = {}
    for name, one in clients.items():
        where = f"client.{name}"
        whose = _whose(where, name, one, bytes.fromhex(secret))
        digests = one["keys"] if isinstance(one.get("keys"), list) else []
        if not digests:
            raise ConfigError(f"{where}.keys: write a list of SHA-256 digests of keys")
        for at, digest in enumerate(digests):
            if not isinstance(digest, str) or not _DIGEST.fullmatch(digest):
                text = "write the SHA-256 of a key in 64 lower hexadecimal digits"
                raise ConfigError(f"{where}.keys[{at}]: {text}, as sha256sum does")
            if digest in found:
                raise ConfigError(f"{where}.keys[{at}]: {found[digest].client} has it too")
            found[digest] = whose
    if len(found) > SERVE_KEYS_MAX:
        raise ConfigError(f"{len(found)} keys: {SERVE_KEYS_MAX} at most")
    return found


def _whose(where: str, name: str, said: Any, secret: bytes) -> Whose:
    if not isinstance(said, dict):
        raise ConfigError(f"{where}: write a table, as in [{where}]")
    if other := set(said) - set(_FIELDS):
        raise ConfigError(f"{where}.{min(other)} is not known: there are {', '.join(_FIELDS)}")
    tenant, requests = said.get("tenant", name), said.get("requests", SERVE_REQUESTS_MAX)
    for field, text in ((f"{where}: its name", name), (f"{where}.tenant", tenant)):
        if not isinstance(text, str) or not text.isprintable():
            raise ConfigError(f"{field}: write printable text")
        if not 0 < len(text.encode()) <= CLIENT_BYTES_MAX:
            raise ConfigError(f"{field}: 1 to {CLIENT_BYTES_MAX} bytes are wanted")
    if type(requests) is not int or not 1 <= requests <= SERVE_REQUESTS_MAX:
        text = f"{requests!r}: write a number from 1 to {SERVE_REQUESTS_MAX}"
        raise ConfigError(f"{where}.requests = {text}")
    return Whose(name, blake3(tenant.encode(), key=secret).hexdigest(), requests)
