"""A node is named by its address or by its directory, and neither is taken for the other."""

from __future__ import annotations

from pathlib import Path

import pytest

from kvstore.rpc.locator import FixedAddress, InDirectory, located


@pytest.mark.parametrize("where", ["127.0.0.1:7100", "node-a.example:7100", "[::1]:7100"])
def test_a_host_and_a_port_are_an_address(where: str) -> None:
    assert located(where) == FixedAddress(where)


@pytest.mark.parametrize("where", ["node", "/var/lib/pool:2/node", "./a:1", Path("a:1")])
def test_a_path_is_a_directory_also_with_a_colon_in_it(where: str | Path) -> None:
    assert located(where) == InDirectory(Path(where))
