"""One pool with a gateway that watches all of it, after a load of which everything is known."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from kvstore.cli.stack import Child
from tests.gateway.http.conftest import House, model_dir

__all__ = ["model_dir"]


@pytest.fixture(scope="module")
def house(model_dir: Path) -> Iterator[House]:
    with tempfile.TemporaryDirectory(prefix="mp") as directory:
        made = House(model_dir, Path(directory))
        try:
            yield made
        finally:
            made.close()


@pytest.fixture(scope="module")
def gateway(house: House) -> Iterator[Child]:
    watched = [f"--watch={address}" for address in house.watched]
    with house.serving("serve", *house.knows, *watched, "--metrics=127.0.0.1:0") as child:
        yield child
