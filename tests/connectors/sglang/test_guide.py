"""The guide's command and settings are such as the installed SGLang and the backend take."""

from __future__ import annotations

import argparse
import importlib.util
import json
import re
import shlex
from pathlib import Path

from sglang.srt.managers.io_struct import PauseGenerationReqInput, UpdateWeightFromDiskReqInput
from sglang.srt.mem_cache.hybrid_cache.hybrid_cache_controller import HybridCacheController
from sglang.srt.server_args import ServerArgs

from kvstore.engine.connectors.sglang.settings import SGLANG_KEYS, Settings
from tests import tree

GUIDE = (tree.ROOT / "deploy" / "guide" / "sglang.md").read_text()


def command() -> list[str]:
    (block,) = re.findall(r"```\n(python -m sglang.*?)```", GUIDE, re.S)
    return shlex.split(block.replace("\\\n", " "))


def test_sglang_takes_the_guide_s_flags_and_the_backend_its_settings() -> None:
    parser = argparse.ArgumentParser()
    ServerArgs.add_cli_args(parser)
    parsed = parser.parse_args(command()[3:])
    assert parsed.hicache_storage_backend == "dynamic"
    given = parsed.hicache_storage_backend_extra_config
    extra, *_ = HybridCacheController.parse_storage_backend_extra_config(given)
    settings = Settings.of(extra)
    assert settings.moonpool == json.loads(given)["moonpool"]


def test_every_setting_is_in_the_guide() -> None:
    named = re.findall(r"^\| `(\w+)` \|", GUIDE, re.M)
    ours = Settings.kinds().keys()
    assert ours <= set(named) <= ours | SGLANG_KEYS


def test_new_weights_come_where_no_request_runs_until_nothing_of_the_old_can_hit() -> None:
    steps = re.findall(r"`POST (/[\w/-]+)", GUIDE)
    assert steps == [
        *("/pause_generation", "/flush_cache", "/update_weights_from_disk"),
        *("/hicache/storage-backend/clear", "/continue_generation"),
    ]
    (said,) = re.findall(r"`POST /pause_generation` with `(.*?)`", GUIDE)
    assert PauseGenerationReqInput(**json.loads(said)).mode == "abort"
    assert UpdateWeightFromDiskReqInput(model_path="m").flush_cache is True


def test_the_version_and_the_paths_of_the_guide_are_sglang_s() -> None:
    import sglang.version

    assert f"**SGLang {sglang.version.__version__}**" in GUIDE
    found = importlib.util.find_spec("sglang")
    assert found is not None and found.submodule_search_locations
    server = Path(found.submodule_search_locations[0]) / "srt" / "entrypoints" / "http_server.py"
    for path in re.findall(r"`POST (/[\w/-]+)", GUIDE):
        route = rf'@app\.(post\("{path}"|api_route\("{path}", methods=\[.*"POST")'
        assert re.search(route, server.read_text()), path
