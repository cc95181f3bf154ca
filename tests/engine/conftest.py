"""One small model for all engine tests, and transformers' answer to it, loaded once."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from kvstore.cli.parts import Plan
from kvstore.cli.stack import Stack
from kvstore.engine.core import EngineCore, EngineSettings
from kvstore.engine.make_model import make_model
from kvstore.engine.model import Model
from kvstore.engine.reference import Reference
from tests.engine.runs import CopyingPool


@pytest.fixture(scope="session", autouse=True)
def _one_thread() -> Iterator[None]:
    # With two, OpenMP's barriers cost milliseconds each where another process has a core.
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(
        tmp_path_factory.mktemp("model"),
        seed=1,
        layers=3,
        hidden=128,
        heads=8,
        kv_heads=2,
        head_dim=16,
        intermediate=256,
        vocab=512,
        max_positions=2048,
    )


@pytest.fixture(scope="session")
def model(model_dir: Path) -> Model:
    return Model.load(model_dir)


@pytest.fixture(scope="session")
def reference(model_dir: Path) -> Reference:
    return Reference(model_dir)


@pytest.fixture
def core(model: Model) -> EngineCore:
    return EngineCore(model, EngineSettings(pages=48))


@pytest.fixture
def pool() -> CopyingPool:
    return CopyingPool()


@pytest.fixture
def pooled(model: Model, pool: CopyingPool) -> EngineCore:
    pool.core = EngineCore(model, EngineSettings(pages=48), pool)
    return pool.core


@pytest.fixture(scope="module")
def node() -> Iterator[Stack]:
    with tempfile.TemporaryDirectory(prefix="mp") as directory:
        plan = Plan(Path(directory), "64MiB", "4MiB", None)
        with Stack(plan, restart=False) as stack:
            stack.start()
            yield stack
