"""Where the node of a directory says at which address it serves, for callers of its own host.

The file is held (flock) for as long as the node runs, so one that nobody holds was left by a node
that was killed: the kernel let go of it then. It comes and goes whole, and only the node's own user
can read it.
"""

from __future__ import annotations

import fcntl
import json
import os
from pathlib import Path

from kvstore.errors import Unavailable

NAME = "node.json"
_BYTES_MAX = 4_096


class AddressFile:
    """Held by a node, of which there is one in a directory."""

    def __init__(self, directory: Path, address: str, node_id: str) -> None:
        self._path = directory / NAME
        made = self._path.with_suffix(".new")
        made.unlink(missing_ok=True)
        self._file = os.open(made, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)  # before anybody can see it
            facts = {"address": address, "node_id": node_id, "pid": os.getpid()}
            os.write(self._file, json.dumps(facts).encode() + b"\n")
            made.replace(self._path)
        except BaseException:
            os.close(self._file)
            raise

    def close(self) -> None:
        self._path.unlink(missing_ok=True)
        os.close(self._file)


def address_in(directory: Path) -> str | None:
    """Of the node that runs there now; None if none does. Raises `Unavailable` if that
    cannot be read."""
    path = directory / NAME
    try:
        file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return str(json.loads(os.read(file, _BYTES_MAX))["address"])
        else:
            return None
        finally:
            os.close(file)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except PermissionError as error:
        raise Unavailable(
            f"{path} cannot be read ({error.strerror}): a node serves callers of its own user "
            "there; call as that user"
        ) from None
    except OSError as error:
        raise Unavailable(f"{path} cannot be read ({error.strerror})") from None
