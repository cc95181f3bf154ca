"""Three nodes and a conductor that name one real etcd, and three nodes in networks of their own.

Each test leaves them as it found them.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from kvstore.client import Client, KVSpec
from kvstore.engine.make_model import make_model
from kvstore.engine.reference import Reference
from tests.cluster.apart import Apart, Clients, three_apart
from tests.cluster.three import Three
from tests.etcd import EtcdProcess, need_etcd
from tests.pools import pool


@pytest.fixture(autouse=True)
def processes() -> None:
    """Nodes that a test starts again are the module's, and outlive it: nobody looks for those that
    are left before the end of the run."""


@pytest.fixture(scope="session")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    shape = {"layers": 3, "hidden": 128, "heads": 8, "kv_heads": 2, "head_dim": 16}
    made = tmp_path_factory.mktemp("model")
    return make_model(made, seed=1, intermediate=256, vocab=512, max_positions=2048, **shape)


@pytest.fixture(scope="session")
def reference(model_dir: Path) -> Reference:
    return Reference(model_dir)


@pytest.fixture(scope="module")
def etcd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EtcdProcess]:
    need_etcd()
    started = EtcdProcess(tmp_path_factory.mktemp("etcd"))
    try:
        yield started.start()
    finally:
        started.kill()


@pytest.fixture(scope="module")
def standing(etcd: EtcdProcess) -> Iterator[Three]:
    with pool(etcd.url) as nodes:
        yield Three(nodes)


@pytest.fixture
def three(standing: Three) -> Iterator[Three]:
    """All three run and know each other."""
    standing.ready()
    yield standing
    standing.at_rest()


@pytest.fixture(scope="module")
def standing_apart() -> Iterator[Apart]:
    with three_apart() as made:
        yield made


@pytest.fixture
def apart(standing_apart: Apart) -> Iterator[Apart]:
    """Each reaches both others."""
    standing_apart.ready()
    yield standing_apart
    standing_apart.at_rest()


@pytest.fixture
def client_at(apart: Apart) -> Iterator[Clients]:
    """Makes clients of a node, closed at the end of the test."""
    made: list[Client] = []

    def make(name: str, spec: KVSpec, transport: str = "auto") -> Client:
        made.append(apart.client(name, spec, transport))
        return made[-1]

    yield make
    for client in made:
        client.close()
