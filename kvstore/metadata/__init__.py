"""Shared metadata: who serves, which namespaces and tenants exist. One door, several forms.

`open_metadata` picks the form by the URL; everything else sees only the `Metadata` protocol.
"""

from __future__ import annotations

import re
from pathlib import Path
from urllib.parse import unquote

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
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:")
_FORMS = (
    "write sqlite:///absolute/path/metadata.db, or the bare path of the file; "
    "SQLite on this host is the only form in this release"
)


def open_metadata(url: str) -> Metadata:
    """Open the store that `url` names. Blocks for a few file operations: call it at start-up."""
    if url.startswith(_SQLITE):
        path = "/" + unquote(url.removeprefix(_SQLITE)).lstrip("/")
    elif not url or url.startswith(":") or _SCHEME.match(url):
        raise ConfigError(f"metadata is {url!r}; {_FORMS}")
    else:
        path = url
    if path.endswith("/") or "\0" in path:
        raise ConfigError(f"metadata is {url!r}, which names no file; {_FORMS}")
    return EmbeddedMetadata(Path(path).expanduser())
