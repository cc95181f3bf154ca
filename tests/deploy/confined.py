"""A process that opens sockets of some address families alone, as a unit's RestrictAddressFamilies
has it, and then does one of the things that processes of that unit do:

    python -m tests.deploy.confined AF_INET,AF_UNIX team
"""

from __future__ import annotations

import ctypes
import errno
import platform
import socket
import struct
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

_SOCKET = {"x86_64": 41, "aarch64": 198}  # by machine, the number of that system call
_NO_NEW_PRIVILEGES, _SECCOMP, _FILTER = 38, 22, 2  # of prctl
_NO_NEW_CODE, _REFUSED = 65, 1  # of prctl, since Linux 6.3
_LOAD, _IF_EQUAL, _RETURN = 0x20, 0x15, 0x06
_CALL_AT, _FIRST_ARGUMENT_AT = 0, 16
UNKNOWN = 77  # the exit code where the kernel cannot do this
_ALLOW, _REFUSE = 0x7FFF0000, 0x00050000


def confine(families: Sequence[int]) -> None:
    """From now on, and for good."""
    count = len(families)
    lines = [
        (_LOAD, 0, 0, _CALL_AT),
        (_IF_EQUAL, 0, count + 2, _SOCKET[platform.machine()]),  # any other call is allowed
        (_LOAD, 0, 0, _FIRST_ARGUMENT_AT),
        *((_IF_EQUAL, count - i, 0, family) for i, family in enumerate(families)),
        (_RETURN, 0, 0, _REFUSE | errno.EAFNOSUPPORT),
        (_RETURN, 0, 0, _ALLOW),
    ]
    program = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *one) for one in lines))
    told = struct.pack("HxxxxxxP", len(lines), ctypes.addressof(program))
    kernel = ctypes.CDLL(None, use_errno=True)
    for asked in ((_NO_NEW_PRIVILEGES, 1, 0, 0, 0), (_SECCOMP, _FILTER, told, 0, 0)):
        if kernel.prctl(*asked):
            raise OSError(ctypes.get_errno(), "prctl")


def make_no_code() -> None:
    """From now on memory that is written becomes no code, as MemoryDenyWriteExecute has it."""
    kernel = ctypes.CDLL(None, use_errno=True)
    if kernel.prctl(_NO_NEW_CODE, _REFUSED, 0, 0, 0):
        sys.exit(UNKNOWN)


def team() -> None:
    """Ranks of an engine meet."""
    import torch

    from kvstore.engine.gloo import GlooTeam

    with tempfile.TemporaryDirectory() as meeting:
        alone = GlooTeam(0, 1, Path(meeting))
        alone.join_others()
        assert alone.sum(torch.ones(1)).tolist() == [1.0]


def ucx() -> None:
    """Blocks are to go over UCX."""
    from kvstore.transfer.ucx_agent import shared_agent

    shared_agent()


def ucx_without_code() -> None:
    make_no_code()
    ucx()


if __name__ == "__main__":
    confine([getattr(socket, name) for name in sys.argv[1].split(",")])
    {"team": team, "ucx": ucx, "ucx_without_code": ucx_without_code}[sys.argv[2]]()
