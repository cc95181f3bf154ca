"""How functions are compiled that compiled code alone calls, and those that are only lent arrays;
and whether any is kept for the next start, of these sources and no others.

Without a way in from Python there is a third less to compile. What that way would take apart is
wide: a fleet is a tuple of forty arrays. Without it a call from Python ends the process, so
`tests/kernels/test_inner.py` reads every file for one.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

from numba import njit
from numba.core import caching

BORROWED: dict[str, Any] = {"_nrt": False}
"""Arrays are the caller's, who holds them until the call is over, so nobody counts who uses them:
counting took a third of what compiled code took to decide. Whatever would make an array is not
compiled then."""

OWN: dict[str, Any] = {"_nrt": True}
"""It may make arrays of its own, whoever calls it."""


_HERE = Path(__file__).resolve().parent


def _stamp_all() -> bool:
    """Have numba stamp what it keeps with all of these sources. Its own stamp is of the one file
    that a function stands in, and most are made of several: what was compiled of the others as they
    were would go on beside Python's of today. False for a numba that has no such stamp to replace.
    """
    locator: Any = getattr(caching, "_SourceFileBackedLocatorMixin", None)
    own = getattr(locator, "get_source_stamp", None)
    if own is None:
        return False
    every = hashlib.sha256()
    for path in sorted(_HERE.glob("*.py")):
        every.update(path.name.encode() + b"\0" + hashlib.sha256(path.read_bytes()).digest())
    stamp = every.digest()

    def of_all(self: Any) -> Any:
        return stamp if Path(self._py_file).resolve().parent == _HERE else own(self)

    locator.get_source_stamp = of_all
    return True


def _is_kept() -> bool:
    """Whether numba finds a folder that it can write: of its own setting NUMBA_CACHE_DIR, beside
    these files, or the user's. Where it finds none it makes no function that is to be kept."""

    def nothing() -> None: ...

    if not _stamp_all():
        return False
    try:
        njit(cache=True)(nothing)
    except RuntimeError as refusal:
        if "no locator available" not in str(refusal):
            raise
        return False
    return True


KEPT = _is_kept()
"""Else all is compiled at each start, which takes seconds."""

inner = njit(no_cpython_wrapper=True, no_cfunc_wrapper=True, **BORROWED)
making = njit(no_cpython_wrapper=True, no_cfunc_wrapper=True, **OWN)

across = njit(error_model="numpy", no_cpython_wrapper=True, no_cfunc_wrapper=True, **BORROWED)
"""For loops that ask nothing, so that a processor goes through them several numbers at a time:
whether a divisor is 0 is a question too."""
