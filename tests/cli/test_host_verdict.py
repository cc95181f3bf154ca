"""What is said of a host before a node starts there: each fault by itself, with what to do."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kvstore.cli.host_verdict import Disk, Host, verdict
from kvstore.config import NodeConfig, parse_bytes
from kvstore.limits import NODE_OWN_BYTES, GiB, MiB

DAY = 86_400.0
NOW = 1_000 * DAY
FINE = Host(
    now=NOW,
    memory_bytes=64 * GiB,
    free_bytes=60 * GiB,
    lock_bytes=-1,
    huge_pages="advise",
    clock_kept=True,
    disks=(Disk(Path("/ssd"), needed_bytes=GiB, free_bytes=2 * GiB),),
    certificate=(NOW - DAY, NOW + 30 * DAY),
)


def said(config: dict[str, Any], **found: Any) -> tuple[bool, str]:
    """The one finding: whether it is an error, and its text."""
    made = NodeConfig(Path("/n"), **{"dram_bytes": 32 * GiB, **config})
    (one,) = verdict(made, replace(FINE, **found))
    return one.error, one.text


def test_nothing_is_said_of_a_host_that_is_fine() -> None:
    for transports in (("tcp",), ("tcp", "ucx")):
        config = NodeConfig(Path("/n"), dram_bytes=32 * GiB, transports=transports)
        assert not list(verdict(config, FINE))
    assert not list(verdict(config, Host(now=NOW))), "and nothing of what nobody knows"


def test_memory_that_there_is_not_is_an_error_and_that_is_in_use_a_warning() -> None:
    wrong, text = said({}, memory_bytes=32 * GiB)
    assert wrong and "at most --dram 31.7GiB" in text
    wrong, text = said({}, free_bytes=32 * GiB)
    assert not wrong and "32GiB that are free now" in text
    exact = 32 * GiB + NODE_OWN_BYTES
    config = NodeConfig(Path("/n"), dram_bytes=32 * GiB)
    assert not list(verdict(config, replace(FINE, memory_bytes=exact, free_bytes=exact)))


def test_the_memory_that_is_advised_is_there() -> None:
    for memory in (23_540_000_000, 9_999_999_999_999, 700_000_000, 600_123_456_789_012):
        _, text = said({"dram_bytes": 1 << 60}, memory_bytes=memory)
        assert text.startswith("--dram 1048576TiB and 300MiB")
        advised = text.partition("at most --dram ")[2].partition(",")[0]
        assert 0.99 * (memory - NODE_OWN_BYTES) < parse_bytes("", advised)
        assert parse_bytes("", advised) <= memory - NODE_OWN_BYTES


def test_disks_of_more_files_than_a_process_may_open_are_an_error() -> None:
    wrong, text = said({}, files_kept=4_096, files_most=4_096)
    assert wrong and "keeps 4096 files open" in text
    for enough in (8_192, -1):
        config = NodeConfig(Path("/n"), dram_bytes=32 * GiB)
        assert not list(verdict(config, replace(FINE, files_kept=4_096, files_most=enough)))


def test_locked_memory_is_for_ucx_and_has_to_do_with_rdma() -> None:
    config = {"transports": ("tcp", "ucx")}
    for rdma in (False, True):
        wrong, text = said(config, lock_bytes=8 * MiB, rdma=rdma)
        assert wrong is rdma and "LimitMEMLOCK=infinity" in text and "8MiB" in text
    tcp = NodeConfig(Path("/n"), dram_bytes=32 * GiB)
    assert not list(verdict(tcp, replace(FINE, lock_bytes=8 * MiB, rdma=True)))


def test_small_pages_are_a_warning_where_memory_is_large() -> None:
    wrong, text = said({}, huge_pages="never")
    assert not wrong and "echo advise > /sys/kernel" in text
    small = NodeConfig(Path("/n"), dram_bytes=GiB)
    assert not list(verdict(small, replace(FINE, huge_pages="never")))


def test_a_port_that_is_taken_is_an_error() -> None:
    wrong, text = said({}, taken={"10.0.0.1:7410 (--listen)": "another process does"})
    assert wrong and text == "nothing can listen at 10.0.0.1:7410 (--listen): another process does"


@pytest.mark.parametrize(
    ("disk", "wrong", "says"),
    [
        (Disk(Path("/d"), failure="/ takes no file"), True, "/ takes no file"),
        (Disk(Path("/d"), direct=False), True, "no O_DIRECT"),
        (Disk(Path("/d"), buffered=True), False, "without --ssd-buffered"),
        (Disk(Path("/d"), needed_bytes=3 * GiB, free_bytes=GiB), True, "3GiB more"),
    ],
)
def test_a_disk_that_will_not_do(disk: Disk, wrong: bool, says: str) -> None:
    error, text = said({}, disks=(disk,))
    assert error is wrong and text.startswith("--ssd /d: ") and says in text
    assert not list(
        verdict(
            NodeConfig(Path("/n"), dram_bytes=GiB),
            replace(FINE, disks=(Disk(Path("/d"), direct=False, buffered=True),)),
        )
    )


def test_a_clock_that_nothing_keeps_is_a_warning() -> None:
    wrong, text = said({}, clock_kept=False)
    assert not wrong and "chrony" in text


@pytest.mark.parametrize(
    ("begins", "ends", "wrong", "says"),
    [
        (DAY, 30 * DAY, True, "does not hold yet"),
        (-90 * DAY, 0.0, True, "is over"),
        (-90 * DAY, 6.5 * DAY, False, "6.5 days"),
    ],
)
def test_a_certificate_that_is_not_for_now(
    begins: float, ends: float, wrong: bool, says: str
) -> None:
    error, text = said({}, certificate=(NOW + begins, NOW + ends))
    assert error is wrong and says in text
