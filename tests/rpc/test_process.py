"""How many files a process may open: what it keeps for itself, and connections beside it."""

from __future__ import annotations

import resource

import pytest

from kvstore.errors import ConfigError
from kvstore.rpc.process import files_bound

CONNECTIONS = 4_096


@pytest.mark.parametrize("most", [resource.RLIM_INFINITY, 1_000_000])
def test_the_files_that_it_keeps_leave_connections_theirs(most: int) -> None:
    for kept in (0, 400, 4_096, 30_000):
        assert files_bound(kept, most) == kept + CONNECTIONS


def test_it_makes_do_with_fewer_and_says_where_there_are_too_few() -> None:
    assert files_bound(0, 100) == 100
    assert files_bound(700, 1_024) == 1_024
    with pytest.raises(ConfigError, match=r"900 files .* may open 1024 here: .*LimitNOFILE="):
        files_bound(900, 1_024)
