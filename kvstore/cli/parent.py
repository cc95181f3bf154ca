"""A process that ends with the one that started it, however that one went: the kernel sees to it.

The child arranges it itself, first of all. To do so between fork and exec would run Python in a
copy of a process whose other threads (gRPC has some) are gone and whose locks are not.
"""

from __future__ import annotations

import ctypes
import os
import signal

_VARIABLE = "MOONPOOL_PARENT"
_PR_SET_PDEATHSIG = 1


def environment() -> dict[str, str]:
    """For a child that is to end with this process."""
    return {**os.environ, _VARIABLE: str(os.getpid())}


def heed() -> None:
    """End with the process that said so in the environment, if one did."""
    parent = os.environ.pop(_VARIABLE, "")
    if not parent.isdecimal():
        return
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != int(parent):  # it went while we were being made
        os.kill(os.getpid(), signal.SIGTERM)
