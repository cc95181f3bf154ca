"""Whether this host has IPv6: tests of it are skipped where it has not."""

from __future__ import annotations

import socket

import pytest


def _has_loopback() -> bool:
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        return False
    return True


ipv6 = pytest.mark.skipif(not _has_loopback(), reason="this host has no [::1]")
both = pytest.mark.skipif(
    not (_has_loopback() and socket.has_dualstack_ipv6()), reason="no socket here is of both kinds"
)
