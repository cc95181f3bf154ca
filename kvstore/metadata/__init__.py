"""Shared metadata: who serves, which namespaces and tenants exist. One door, two forms.

On one host it is an SQLite file that the host's processes share; on several it is etcd. Only
`open_metadata` tells them apart; everything else sees the `Metadata` protocol.
"""

from __future__ import annotations

import re
from pathlib import Path
from urllib.parse import unquote

from kvstore.config import EtcdConfig
from kvstore.errors import ConfigError
from kvstore.metadata.bounds import BadKey, BadValue
from kvstore.metadata.embedded import EmbeddedMetadata
from kvstore.metadata.protocol import (
    Change,
    Compacted,
    Entry,
    Kind,
    Lease,
    LeaseLost,
    Metadata,
    StoreClosed,
)

__all__ = [
    "BadKey",
    "BadValue",
    "Change",
    "Compacted",
    "Entry",
    "Kind",
    "Lease",
    "LeaseLost",
    "Metadata",
    "StoreClosed",
    "open_metadata",
]

_SQLITE = "sqlite:///"
_ETCD = ("http://", "https://")
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:")
_FORMS = (
    "for one host write sqlite:///absolute/path/metadata.db, or the bare path of the file; for "
    "several write etcd's endpoints, http://HOST:PORT or https://HOST:PORT with commas between them"
)


def open_metadata(where: str | EtcdConfig) -> Metadata:
    """Open the store that a URL names, or etcd with all its settings. Blocks for a few file
    operations: call it at start-up. Raises `ConfigError`; whether etcd answers, the first call
    shows."""
    if isinstance(where, EtcdConfig):
        return _open_etcd(where)
    if where.startswith(_ETCD):
        return _open_etcd(EtcdConfig.parse(where))
    if where.startswith(_SQLITE):
        path = "/" + unquote(where.removeprefix(_SQLITE)).lstrip("/")
    elif not where or where.startswith(":") or _SCHEME.match(where):
        raise ConfigError(f"metadata is {where!r}; {_FORMS}")
    else:
        path = where
    if path.endswith("/") or "\0" in path:
        raise ConfigError(f"metadata is {where!r}, which names no file; {_FORMS}")
    return EmbeddedMetadata(Path(path).expanduser())


def _open_etcd(config: EtcdConfig) -> Metadata:
    try:
        from kvstore.metadata.etcd import EtcdMetadata
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"--etcd needs {error.name}: pip install 'moonpool[node]' brings it"
        ) from None
    return EtcdMetadata(config)
