"""A local model is named by its weights, as they were when the process that computes had them."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from kvstore.engine.connectors.sglang import facts
from kvstore.engine.connectors.sglang.settings import Settings
from tests.connectors.sglang.engine import Engine, mha_pool
from tests.connectors.sglang.published import checkpoint, server

Engines = Callable[..., Engine]
KEYS = ["a" * 64, "b" * 64]
began = facts._began  # as it is, before any test has it be another


@pytest.mark.parametrize("published", [False, True])
def test_a_local_model_is_named_by_its_weights_and_not_by_its_folder(
    engine_of: Engines, tmp_path: Path, published: bool
) -> None:
    def of(folder: Path) -> Engine:
        pool = mha_pool("page_first")
        if not published:
            return engine_of(pool, model_name=str(folder), revision="")
        with server(model_path=str(folder)):
            return engine_of(pool, model_name="served as this", revision="")

    first, copy = checkpoint(tmp_path / "first", 1), checkpoint(tmp_path / "copy", 1)
    other = checkpoint(tmp_path / "other", 2)
    keys = [f"{published} {key}" for key in KEYS]
    ours = of(first)
    assert ours.store(keys, 0, 1) == [True, True]
    assert of(copy).storage.batch_exists(keys) == 2
    assert of(other).storage.batch_exists(keys) == 0


def test_weights_are_those_that_were_there_when_a_backend_was_attached_first(
    engine_of: Engines, tmp_path: Path
) -> None:
    """What lies there later may be meant for the next server."""
    folder, same = checkpoint(tmp_path / "a", 5), checkpoint(tmp_path / "b", 5)
    keys = [f"replaced {key}" for key in KEYS]
    first = engine_of(mha_pool("page_first"), model_name=str(folder), revision="")
    assert first.store(keys, 0, 1) == [True, True]
    shutil.rmtree(folder)
    checkpoint(folder, 6)
    again = engine_of(mha_pool("page_first"), model_name=str(folder), revision="")
    assert again.storage.batch_exists(keys) == 2, "it names what it has not loaded"
    other = engine_of(mha_pool("page_first"), model_name=str(same), revision="")
    assert other.storage.batch_exists(keys) == 2


def test_what_came_since_the_process_began_is_not_what_it_has_loaded(
    engine_of: Engines, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = checkpoint(tmp_path / "latest", 7)
    start = [time.time() + 1.0]
    monkeypatch.setattr(facts, "_began", lambda: start[0])

    def attached(**more: str) -> Engine:
        return engine_of(mha_pool("page_first"), model_name=str(folder), **more)

    attached(revision="")
    facts._digest.cache_clear()
    start[0] = 0.0
    with pytest.raises(ValueError, match=r"was changed since this server began.*set revision in"):
        attached(revision="")
    attached(revision="r7")


def test_the_process_began_before_now_and_not_long_ago() -> None:
    assert 0 < time.time() - began() < 86_400


def test_a_format_that_loads_what_an_earlier_run_left_beside_the_weights_is_refused(
    engine_of: Engines, tmp_path: Path
) -> None:
    folder = checkpoint(tmp_path / "a", 8)
    with (
        server(model_path=str(folder), load_format="npcache"),
        pytest.raises(ValueError, match="load_format npcache may load other weights"),
    ):
        engine_of(mha_pool("page_first"), revision="")


def test_what_sglang_itself_puts_among_the_settings_is_none_of_ours() -> None:
    assert Settings.of({"file_storage_path": "/tmp/files", "revision": "r"}) == Settings(
        revision="r"
    )
