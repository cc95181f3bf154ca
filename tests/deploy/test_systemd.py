"""What the units promise of each process, and of the host that it runs on."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import pytest

from tests.deploy.confined import UNKNOWN
from tests.deploy.files import DEPLOY, UNITS, systemd_runs, unit_lines
from tests.tree import ROOT


def told_to(name: str) -> dict[str, str]:
    (unit,) = (one for one in UNITS if one.stem == name)
    return dict(unit_lines(unit))


@pytest.mark.parametrize("unit", UNITS, ids=lambda one: one.name)
def test_a_process_is_started_again_however_long_its_host_waits_for_what_it_needs(
    unit: Path,
) -> None:
    """Else one that cannot start yet (etcd comes up after it, or a disk) is given up for good."""
    told = dict(unit_lines(unit))
    assert told["Restart"] == "on-failure"
    seconds, burst = int(told["StartLimitIntervalSec"]), int(told.get("StartLimitBurst", 5))
    assert not seconds or burst * int(told["RestartSec"]) > seconds


@pytest.mark.parametrize("name", ["moonpool-node", "moonpool-engine@"])
def test_a_process_that_has_others_is_the_only_one_that_is_told_to_end(name: str) -> None:
    """An engine's ranks, and a node's mover of UCX, are of use until it has drained."""
    assert told_to(name)["KillMode"] == "mixed"


@pytest.mark.parametrize(
    ("name", "does", "takes"),
    [
        ("moonpool-engine@", "team", "torch"),
        ("moonpool-engine@", "ucx", "nixl_cu12"),
        ("moonpool-node", "ucx", "nixl_cu12"),
    ],
)
def test_a_process_may_open_the_sockets_by_which_it_finds_its_network(
    name: str, does: str, takes: str
) -> None:
    """gloo and UCX list the host's interfaces, and fail where they cannot."""
    pytest.importorskip(takes)
    families = ",".join(told_to(name)["RestrictAddressFamilies"].split())
    command = [sys.executable, "-m", "tests.deploy.confined", families, does]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=120, cwd=ROOT)
    assert ran.returncode == 0, ran.stderr


def test_ucx_tries_to_make_no_code_where_a_node_may_make_none() -> None:
    """It would put hooks into the C library, and call it an error at each start that it may not."""
    pytest.importorskip("nixl_cu12")
    told = told_to("moonpool-node")
    assert told["MemoryDenyWriteExecute"] == "yes"
    families = ",".join(told["RestrictAddressFamilies"].split())
    command = [sys.executable, "-m", "tests.deploy.confined", families, "ucx_without_code"]
    env = os.environ | dict(pair.split("=") for pair in told.get("Environment", "").split())
    ran = subprocess.run(command, capture_output=True, text=True, timeout=120, cwd=ROOT, env=env)
    if ran.returncode == UNKNOWN:
        pytest.skip("it takes Linux 6.3")
    assert ran.returncode == 0, ran.stderr
    assert "hook" not in ran.stdout + ran.stderr


def test_what_is_compiled_for_a_gpu_is_kept_where_an_engine_may_write(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its home is read-only, and Triton gives up where it cannot keep a kernel."""
    triton = pytest.importorskip("triton", reason="pip install 'moonpool[gpu]'")
    told = told_to("moonpool-engine@")
    assert told["ProtectSystem"] == "strict"
    for pair in told["Environment"].split():
        monkeypatch.setenv(*pair.split("="))
    kept = Path(triton.knobs.cache.dir)
    assert kept.is_relative_to(f"/var/cache/{told['CacheDirectory']}")


def test_an_engine_that_serves_loopback_is_known_to_the_conductor_of_its_own_host_alone() -> None:
    """Under another host's it is where that host has one, too, and gateways there would ask it."""
    named = {
        run.arguments[0]: {
            given
            for option, given in pairwise(run.arguments)
            if option == ("--listen" if run.arguments[0] == "conductor" else "--conductor")
        }
        for run in systemd_runs()
    }
    assert named["engine"] == named["serve"] == named["conductor"] and len(named["engine"]) == 1


def test_the_guide_puts_every_file_there_that_the_settings_name() -> None:
    settings = "".join(one.read_text() for one in (DEPLOY / "systemd").glob("*.env"))
    named = set(re.findall(r"/etc/moonpool/tls/([\w.-]+)", settings))
    guide = (DEPLOY / "guide" / "deploy.md").read_text()
    (put,) = re.findall(r"install -m 0640 -g moonpool ([^*]+?) /etc/moonpool/tls/", guide)
    there = {one for one in put.split() if one != "\\"}
    assert named == there
