"""The bench beside Mooncake measures both at the same work, and never outside a network of its own.

With Mooncake installed (`make bench-peers` does that) the smallest run of it is a test here too.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from bench import peers, peers_rounds
from bench.guest import NotInstalled
from bench.peers_mooncake import SETTINGS
from bench.peers_ours import KV_HEADS, Moonpool, Shape
from bench.pool import running_node
from bench.report import Row
from bench.rounds import Spread
from kvstore.layout import SlotLayout
from kvstore.limits import KiB, MiB
from tests.tree import ROOT

SECONDS = 300.0


@pytest.mark.parametrize("size", peers_rounds.SIZES)
def test_a_block_has_the_bytes_of_the_object_it_is_held_against(size: int) -> None:
    shape = Shape.of(size)
    layout = SlotLayout.of(shape.spec, 0)
    assert layout.payload_bytes == size
    assert layout.kv_heads == KV_HEADS == 8
    assert shape.strip_bytes * KV_HEADS * shape.layers == size


def test_a_block_of_a_mebibyte_has_strips_of_128_kib() -> None:
    assert Shape.of(1 * MiB).strip_bytes == Shape.of(4 * MiB).strip_bytes == 128 * KiB


def test_a_batch_moves_64_mib_where_16_to_1024_objects_make_that() -> None:
    assert [peers_rounds.batch(size) for size in peers_rounds.SIZES] == [1024, 1024, 256, 64, 16]


def test_goals_are_for_batches_and_one_size_has_its_own() -> None:
    assert peers_rounds.GOALS == {"same host": 1.3, "tcp": 1.5}
    assert peers.GOAL == 1.0


@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_our_side_puts_gets_and_forgets_and_compares_every_byte(transport: str) -> None:
    shape = Shape.of(64 * KiB)
    with (
        running_node("64MiB", "8MiB") as directory,
        Moonpool.at(directory, shape, 4, transport) as ours,
    ):
        assert ours.put("one") > 0
        ours.spoil()
        with pytest.raises(RuntimeError, match="came back wrong"):
            ours.check()
        assert ours.get("one") > 0
        ours.check()
        assert ours.put_singly("two", 2) > 0 and ours.get_singly("two", 2) > 0
        ours.forget()
        for gone in ("one", "two"):
            with pytest.raises(RuntimeError, match="0 of 4 blocks came"):
                ours.get(gone)


def test_the_rounds_refuse_a_network_that_others_are_on() -> None:
    asked = ["--runs", "1", "--transport", "same host", "--sizes", "4096"]
    ran = subprocess.run(
        [sys.executable, "-m", "bench.peers_rounds", *asked],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    devices = [name for name in os.listdir("/sys/class/net") if name != "lo"]
    if not devices:
        pytest.skip("this machine has no network but lo")
    assert ran.returncode == 1
    assert "Mooncake would serve it" in ran.stderr and devices[0] in ran.stderr
    assert ran.stdout == ""


def test_without_mooncake_the_bench_says_how_to_get_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(peers, "ENVIRONMENT", tmp_path)
    with pytest.raises(NotInstalled, match="make bench-peers"):
        peers.run(1, lambda _: None)


def test_where_no_network_can_be_made_the_bench_says_what_it_takes(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "mooncake_master").touch()
    monkeypatch.setattr(peers, "ENVIRONMENT", tmp_path)
    monkeypatch.setattr(peers, "_unshared", lambda: ["sh", "-c", "echo not permitted >&2; exit 1"])
    with pytest.raises(NotInstalled, match=r"not permitted.*as root"):
        peers.run(1, lambda _: None)


def test_a_row_comes_through_the_line_of_json_as_it_was() -> None:
    spread = Spread.of([1.0, 2.0, 3.0])
    row = Row("r", {"objects": 4}, 3, 2.0, 1.0, 2.0, spread, goal=1.3, also={"gb_per_second": 1.0})
    assert peers._row(json.loads(json.dumps(asdict(row)))) == row


@pytest.mark.skipif(
    not (peers.ENVIRONMENT / "installed").exists() or os.geteuid() != 0,
    reason="takes root, and Mooncake: `make bench-peers` installs it",
)
@pytest.mark.parametrize("transport", ["same host", "tcp"])
def test_the_smallest_run_finds_rows_for_both(
    transport: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(peers, "GOALS", {transport: 1.0})
    report = peers.run(1, lambda _: None, sizes=(64 * KiB,))
    names = ["put", "get", "single put", "single get"]
    assert [row.name for row in report.rows] == [f"{transport}: {one}, 64 KiB" for one in names]
    assert [row.counted for row in report.rows] == [True, True, False, False]
    for row in report.rows:
        assert row.sizes["objects"] == 1024 and row.limit is not None
        assert row.sizes["mooncake"] in [one.name for one in SETTINGS[transport]]
        assert row.ratio is not None and row.ratio > 0


@pytest.mark.parametrize("told", [KeyboardInterrupt, SystemExit])
def test_rounds_that_are_told_to_end_have_time_to_remove_what_they_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, told: type[BaseException]
) -> None:
    rounds = f"""
import signal, sys, time
signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
try:
    print("begun", flush=True)
    time.sleep(60)
finally:
    time.sleep(0.5)
    open({str(tmp_path / "removed")!r}, "w")
"""
    communicate = subprocess.Popen.communicate

    def interrupted(process: subprocess.Popen[str], *given: Any, **named: Any) -> Any:
        if process.args[-1] == "true":  # that tries whether there are namespaces
            return communicate(process, *given, **named)
        assert process.stdout is not None and process.stdout.readline()
        raise told

    monkeypatch.setattr(peers, "_unshared", lambda: [sys.executable, "-c", rounds])
    monkeypatch.setattr(subprocess.Popen, "communicate", interrupted)
    with pytest.raises(told):
        peers._rows("tcp", 1, (4 * KiB,))
    assert (tmp_path / "removed").exists()
