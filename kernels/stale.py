"""Compiled kernels must not outlive their sources.

numba stamps its cache with the one file a kernel stands in; a kernel here is made of several. So
before anything is loaded from the cache, whatever is older than the newest source is deleted.
"""

from __future__ import annotations

import contextlib
from pathlib import Path


def forget_stale(module_file: str) -> None:
    """Delete the cached code of a module that is older than any source beside it."""
    module = Path(module_file)
    newest = max(path.stat().st_mtime for path in module.parent.glob("*.py"))
    for cached in (module.parent / "__pycache__").glob(f"{module.stem}.*.nb?"):
        # Another process may be doing the same; an installation may be read-only.
        with contextlib.suppress(OSError):
            if cached.stat().st_mtime < newest:
                cached.unlink()
