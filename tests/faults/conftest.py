"""Fixtures of real nodes, for every test here that asks for one."""

from tests.disk.conftest import mounted
from tests.nodes import caller, home, node, shared, shared_node

__all__ = ["caller", "home", "mounted", "node", "shared", "shared_node"]
