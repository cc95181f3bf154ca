"""Where the pages of an arena are to be taken from: a NUMA node is preferred for each range of it.

It is to be told before they are touched. The kernel keeps it with the memfd (in its documentation
"NUMA Memory Policy", of shared policies), so it holds whichever process touches a page first.

It is a preference and no more (MPOL_PREFERRED): a NUMA node that is full gives way to another. Were
pages bound to it, whoever touches one would be killed for want of memory that the host has.
"""

from __future__ import annotations

import ctypes
import errno
import logging
import mmap
import os
from collections.abc import Callable

from kvstore.core.spread import ALIKE, Spread

log = logging.getLogger(__name__)

_SYS_MBIND = {"x86_64": 237, "aarch64": 235}
_MPOL_PREFERRED = 1
_WORD_BITS = 8 * ctypes.sizeof(ctypes.c_ulong)


def prefer(address: int, size: int, numa_node: int) -> None:
    """Pages of [address, +size) that are not there yet are to come from a NUMA node. `address` is
    at the start of a page. Raises `OSError`."""
    number = _SYS_MBIND.get(os.uname().machine)
    if number is None:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))
    words = numa_node // _WORD_BITS + 1
    mask = (ctypes.c_ulong * words)()
    mask[words - 1] = 1 << numa_node % _WORD_BITS
    libc = ctypes.CDLL(None, use_errno=True)
    failed = libc.syscall(
        ctypes.c_long(number),
        ctypes.c_void_p(address),
        ctypes.c_ulong(size),
        ctypes.c_long(_MPOL_PREFERRED),
        mask,
        ctypes.c_ulong(words * _WORD_BITS + 1),  # the kernel takes one off
        ctypes.c_ulong(0),
    )
    if failed:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def bound(address: int, spread: Spread, prefer: Callable[[int, int, int], None] = prefer) -> Spread:
    """Tell the kernel of each range of an arena that is mapped at `address`; what it heeds, which
    is nothing where it refuses."""
    page = mmap.PAGESIZE
    for one in spread.ranges:
        first, last = one.first // page * page, one.last // page * page
        try:
            prefer(address + first, last - first, one.numa_node)
        except OSError as error:
            log.warning(
                "the kernel takes no word on which NUMA node memory is to be (mbind: %s): blocks "
                "are put anywhere in it",
                error.strerror,
            )
            return ALIKE
    return spread
