"""Engines that have other plug-ins beside them have other names."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from kvstore.engine.connectors.plugins import loaded

GROUP = "an_engine.general_plugins"
Installs = Callable[..., None]


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Installs:
    """Installs a distribution of one plug-in, as far as what is installed is looked through."""

    def of(name: str, value: str, *, version: str = "1.0", group: str = GROUP) -> None:
        at = tmp_path / f"{name}-{version}-{len(list(tmp_path.iterdir()))}"
        info = at / f"{name}-{version}.dist-info"
        info.mkdir(parents=True)
        (info / "METADATA").write_text(f"Name: {name}\nVersion: {version}\n")
        (info / "entry_points.txt").write_text(f"[{group}]\n{name} = {value}\n")
        monkeypatch.setattr(sys, "path", [str(at), *sys.path])

    return of


def test_a_plug_in_is_named_with_its_version(install: Installs) -> None:
    assert loaded([GROUP], "an_engine") == []
    names = []
    for version in ("1.0", "1.1"):
        install("steer", "theirs.steering:patch", version=version)
        names.append(loaded([GROUP], "an_engine"))
    assert names[0] == [f"{GROUP} steer = theirs.steering:patch of steer 1.0"]
    assert names[1] == [f"{GROUP} steer = theirs.steering:patch of steer 1.1"]


def test_what_is_loaded_is_named_and_not_what_is_only_installed(install: Installs) -> None:
    for name in ("steer", "log"):
        install(name, f"theirs.{name}:patch")

    def named(*only: str) -> list[str]:
        return loaded([GROUP], "an_engine", only)

    assert named() == named("of-another") == []
    assert len(named("steer")) == len(named("log")) == 1 and named("steer") != named("log")
    assert named("steer", "log") == loaded([GROUP], "an_engine") == named("log", "steer")


def test_a_plug_in_of_another_kind_is_no_part_of_the_name(install: Installs) -> None:
    install("graphs", "theirs.graphs:Logger", group="an_engine.stat_logger_plugins")
    assert loaded([GROUP], "an_engine") == []
    assert len(loaded([GROUP, "an_engine.stat_logger_plugins"], "an_engine")) == 1


def test_what_an_engine_brings_itself_is_no_part_of_the_name(install: Installs) -> None:
    install("resolver", "an_engine.plugins.lora:register")
    assert loaded([GROUP], "an_engine") == []
    install("near", "an_engine_near.plugins:register")
    assert len(loaded([GROUP], "an_engine")) == 1
