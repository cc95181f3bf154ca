"""A node of a user who is not root: it makes nothing that root alone could use."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from kvstore.wire.v1 import kv_pb2 as pb
from tests.node.test_ssd import check_bytes, put_durable
from tests.nodes import LARGE, NodeProcess, home, prompt
from tests.unprivileged import unprivileged

__all__ = ["home", "unprivileged"]

DAC_OVERRIDE = 1 << 1  # the capability to pass over the modes of files


@pytest.fixture
def node(home: Path, unprivileged: None) -> Iterator[NodeProcess]:
    made = NodeProcess(home, dram="16MiB", slab="8MiB", ssd="64MiB")
    try:
        yield made.start()
    finally:
        made.close()


def effective(pid: int) -> int:
    """Its capabilities, as the kernel counts them."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("CapEff")).split()[1], 16)


def test_what_it_wrote_to_ssd_is_there_when_it_was_killed_and_started_again(
    node: NodeProcess,
) -> None:
    assert not effective(node.pid) & DAC_OVERRIDE, "the test sees nothing"
    caller, blocks = node.caller(), prompt(1, 3, LARGE)
    caller.register(LARGE)
    assert put_durable(caller, blocks) == [pb.PutReply.STORED] * 3
    for mode in (0o700, 0o600):  # the other is as earlier nodes, of root, left it
        node.kill()
        (node.directory / "ssd" / "index").chmod(mode)
        caller = node.start().caller()
        check_bytes(caller, blocks)
        assert caller.counters()["damaged_blocks"] == 0
