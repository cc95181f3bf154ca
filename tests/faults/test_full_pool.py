"""A pool far too small for what is put into it: nothing fails, nothing is wrong, nothing grows."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time

import psutil
import pytest

from kvstore.client import Client
from kvstore.limits import MiB
from tests import tree
from tests.faults.engines import BATCH_BLOCKS, DEADLINE_SECONDS, SPECS, Done, Prompts
from tests.nodes import NodeProcess, eventually, running

_SECONDS = float(os.environ.get("MOONPOOL_FLOOD_SECONDS", "10"))  # read before it is cleared
_ENGINES = 3  # that write, and as many that read
_DRAM, _SSD = 64 * MiB, 128 * MiB
_SPACE = 2_048 * MiB  # of keys, which is ten times the pool
_NOISE_BYTES = 24 * MiB  # that glibc and gRPC may hold more at one moment than at another


@pytest.mark.parametrize(
    ("ssd", "blocks"), [("", 1_024), ("512MiB", 768)], ids=["DRAM alone", "DRAM and SSD"]
)
@pytest.mark.parametrize("reading", [False, True], ids=["written", "written and read"])
def test_four_times_what_memory_holds_is_put_without_a_failure(
    ssd: str, blocks: int, reading: bool
) -> None:
    spec = SPECS[-1]
    with running(dram="256MiB", slab="32MiB", ssd=ssd) as node:
        with Client.at(node.address, spec, deadline_seconds=DEADLINE_SECONDS) as client:
            prompts = Prompts(client, spec)
            assert prompts.block_bytes == MiB
            for number in range(blocks // BATCH_BLOCKS):
                assert prompts.put(number) == BATCH_BLOCKS
                if reading:
                    assert prompts.get(number) == (BATCH_BLOCKS, True)
            assert prompts.get(number) == (BATCH_BLOCKS, True)
            found = [prompts.get(number) for number in range(blocks // BATCH_BLOCKS)]
            assert all(right for _, right in found)
            holds = 512 if ssd else 200  # MiB, of which slots' heads take some
            assert sum(count for count, _ in found) >= holds // 2
        at_rest(node)


def test_engines_that_write_and_read_ten_times_the_pool_meet_no_failure(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with running(dram="64MiB", slab="8MiB", ssd="128MiB") as node:
        process, samples = psutil.Process(node.pid), []
        engines = [
            engine(node, how, number) for how in ("write", "read") for number in range(_ENGINES)
        ]
        try:
            fill(node)  # so that every page of the arena is the node's already
            for one in engines:
                assert one.stdout is not None and one.stdout.readline() == "ready\n"
            for one in engines:
                assert one.stdin is not None
                one.stdin.write("\n")
                one.stdin.flush()
            while any(one.poll() is None for one in engines):
                samples.append((process.memory_info().rss, process.num_fds()))
                time.sleep(0.05)
        finally:
            for one in engines:
                one.kill()
        told = [one.communicate() for one in engines]
        assert [one.returncode for one in engines] == [0] * len(engines), told
        done = [Done(**json.loads(out)) for out, _ in told]
        assert sum(one.wrong for one in done) == 0
        written, read = done[:_ENGINES], done[_ENGINES:]
        assert min(one.bytes for one in read) > 0, "readers saw nothing"
        counters = at_rest(node)
        third = len(samples) // 3
        first, last = samples[:third], samples[-third:]
        peaks = [max(rss for rss, _ in some) for some in (first, last)]
        files = [max(count for _, count in some) for some in (first, last)]
        with capsys.disabled():
            print(
                f" [{_SECONDS:.0f} s: wrote {sum(one.bytes for one in written) / 1e9:.1f} GB, "
                f"read {sum(one.bytes for one in read) / 1e9:.1f} GB, "
                f"{sum(one.calls for one in done)} calls, "
                f"slowest {max(one.slowest for one in done):.2f} s, "
                f"peak RSS {peaks[0] / 1e6:.0f} then {peaks[1] / 1e6:.0f} MB, "
                f"files {files[0]} then {files[1]}, waits for room {counters['overloaded']}]",
                end="",
            )
        assert peaks[1] <= peaks[0] + _DRAM // 20 + _NOISE_BYTES
        assert files[1] <= files[0]


def engine(node: NodeProcess, how: str, number: int) -> subprocess.Popen[str]:
    size = Prompts.size(SPECS[number % len(SPECS)])
    count = _SPACE // _ENGINES // size
    given = [how, node.address, str(number), str(_SECONDS), str(count)]
    return subprocess.Popen(
        [sys.executable, "-m", "tests.faults.engines", *given],
        cwd=tree.ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def fill(node: NodeProcess) -> None:
    with Client.at(node.address, SPECS[0], deadline_seconds=DEADLINE_SECONDS) as client:
        prompts = Prompts(client, SPECS[0])
        for number in range(2 * (_DRAM + _SSD) // Prompts.size(SPECS[0])):
            prompts.put(10**6 + number)


def at_rest(node: NodeProcess) -> dict[str, int]:
    """Nothing is held any more, and nothing was damaged; the node's counters."""
    caller = node.caller()
    eventually(lambda: caller.stats().pins == caller.stats().windows == 0)
    counters = caller.counters()
    assert counters["damaged_blocks"] == counters["aborted_blocks"] == 0
    return counters
