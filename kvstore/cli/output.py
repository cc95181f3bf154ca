"""Files that commands write: each is there whole or as it was, and one that cannot be is named."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """The system says what is wrong with a write, as of a full disk, and not where it went."""
    try:
        yield
    except OSError as error:
        error.filename = error.filename or str(path)
        raise


@contextmanager
def written(path: Path) -> Iterator[BinaryIO]:
    """To be filled. It takes its place at the end, unless that is a pipe or the like, or is in a
    folder that nothing new may be in."""
    try:
        whole = path.resolve()
        if path.exists() and not (path.is_file() and os.access(whole.parent, os.W_OK)):
            with path.open("wb") as file:
                yield file
            return
        anew = whole.with_name(f".{whole.name}.new")
        try:
            with anew.open("wb") as file:
                if whole.exists():
                    whole.open("r+b").close()  # or it is not ours to replace
                    shutil.copymode(whole, anew)
                yield file
            anew.replace(whole)
        finally:
            anew.unlink(missing_ok=True)
    except OSError as error:
        error.filename = str(path)
        raise
