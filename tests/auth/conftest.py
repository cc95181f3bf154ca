"""A node that serves over TLS, and everybody who may call it or may not."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.auth.desk import Desk, serving
from tests.auth.people import People
from tests.nodes import NodeProcess, short_directory


@pytest.fixture(scope="module")
def place() -> Iterator[Path]:
    with short_directory() as directory:
        yield directory


@pytest.fixture(scope="module")
def people(place: Path) -> People:
    node = place / "node"
    node.mkdir()
    return People(place / "certs", node / "metadata.db")


@pytest.fixture(scope="module")
def tls_node(place: Path, people: People) -> Iterator[NodeProcess]:
    node = NodeProcess(place / "node", dram="64MiB", slab="8MiB", tls=people.node)
    try:
        yield node.start()
    finally:
        node.close()


@pytest.fixture(scope="module")
def desk(place: Path, people: People) -> Iterator[Desk]:
    with serving(people.node, place / "node" / "metadata.db") as found:
        yield found
