"""Ranks of LMCache's engine at real nodes, and what is logged on the way."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

os.environ["LMCACHE_TRACK_USAGE"] = "false"  # read when it is imported: no test calls home

from kvstore.engine.connectors.lmcache import lost
from tests.connectors.lmcache.engine import Engine, settings
from tests.nodes import NodeProcess, home, node, shared, shared_node

__all__ = ["home", "node", "shared", "shared_node"]

OURS = "kvstore.engine.connectors.lmcache"
LOADER = "lmcache.v1.storage_backend"
LOGGERS = (*(f"{OURS}.{name}" for name in ("backend", "node", "stores")), LOADER)


@pytest.fixture(autouse=True)
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each test is a host of its own to the ranks it makes."""
    monkeypatch.setattr(lost, "SHARED", tmp_path)


@pytest.fixture
def make() -> Iterator[Callable[..., Engine]]:
    """Makes ranks, which are closed after the test."""
    made: list[Engine] = []

    def of(extra: dict[str, Any], **options: Any) -> Engine:
        made.append(Engine(extra, **options))
        return made[-1]

    yield of
    for one in made:
        one.close()


@pytest.fixture
def engine_of(make: Callable[..., Engine], shared_node: NodeProcess) -> Callable[..., Engine]:
    """Makes ranks at the module's node; keywords that are settings go to the plug-in."""

    def of(config: Any = None, metadata: Any = None, lookups: Any = None, **more: Any) -> Engine:
        extra = settings(shared_node.address, **more)
        return make(extra, config=config, metadata=metadata, lookups=lookups)

    return of


@pytest.fixture
def heard() -> Iterator[list[str]]:
    """Warnings and worse of the plug-in and of LMCache's loader, whose loggers tell no other."""
    messages: list[str] = []

    class Ear(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if record.funcName != "storage_plugin_launcher" or record.levelno > logging.WARNING:
                messages.append(record.getMessage())  # it warns of something at each load

    ear = Ear(logging.WARNING)
    for name in LOGGERS:
        logging.getLogger(name).addHandler(ear)
    yield messages
    for name in LOGGERS:
        logging.getLogger(name).removeHandler(ear)
