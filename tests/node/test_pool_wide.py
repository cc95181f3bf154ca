"""What holds for a whole pool when one node is told: quarantine, release, purge everywhere."""

from __future__ import annotations

import io
import os
import signal
import sys
import threading
from dataclasses import replace
from typing import Any, Literal

import pytest

from kvstore.cli import pool_purge
from kvstore.cli.main import main
from kvstore.cli.options import size_text
from kvstore.wire.v1 import kv_pb2 as pb
from tests.copies import copied, holding, knowing, put
from tests.nodes import LARGE, PATIENCE_SECONDS, SPEC, eventually, prompt
from tests.pools import pool

QUARANTINE_SECONDS = 20.0  # from one node to all: far more than it takes
NAME = SPEC.digest.hex()[:12]


def test_a_quarantine_set_at_one_node_holds_at_all_and_a_release_lets_nothing_old_out(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pool() as nodes:
        started = [nodes.node(name, "tests.unhurried") for name in "ab"]
        callers = knowing(started)
        callers[1].register(LARGE)
        blocks, kept = prompt(1, 2), prompt(2, spec=LARGE)
        put(callers[0], blocks, replicas=2)
        callers[1].put(kept, spec=LARGE)
        callers[0].ask("Quarantine", namespace=SPEC.digest, reason="layer 3 is wrong")
        wrong = (0, pb.QUARANTINED)
        eventually(lambda: callers[1].match(blocks) == wrong, QUARANTINE_SECONDS)
        assert [
            one.quarantined for one in callers[1].stats().namespaces if one.model == "tiny"
        ] == ["layer 3 is wrong"]
        # Released by the other one: neither serves what was wrong, and both take what is new.
        assert main(["release", NAME[:8], "--node", started[1].address]) == 0
        capsys.readouterr()

        def released() -> bool:
            return not any(
                one.quarantined for caller in callers for one in caller.stats().namespaces
            )

        eventually(released)
        assert holding(callers, blocks) == [0, 0]
        assert [one.match(blocks)[0] for one in callers] == [0, 0]
        copied(callers[0], blocks, 2)
        assert callers[1].match(kept, LARGE) == (1, pb.HIT)
        # And it can be said anew.
        callers[1].ask("Quarantine", namespace=SPEC.digest, reason="again")
        eventually(lambda: callers[0].match(blocks) == wrong, QUARANTINE_SECONDS)


def test_a_node_that_stood_still_through_a_release_drops_what_it_had_before_it_serves() -> None:
    with pool() as nodes:
        started = [nodes.node(name, "tests.unhurried") for name in "ab"]
        callers = knowing(started)
        blocks = prompt(1, 2)
        put(callers[0], blocks, replicas=2)
        callers[0].ask("Quarantine", namespace=SPEC.digest, reason="wrong")
        eventually(lambda: callers[1].match(blocks) == (0, pb.QUARANTINED), QUARANTINE_SECONDS)
        started[1].signal(signal.SIGSTOP)
        assert main(["release", NAME, "--node", started[0].address]) == 0
        started[1].signal(signal.SIGCONT)

        def released() -> bool:
            assert holding(callers, blocks) == [0, 0], "from the first answer on"
            return not any(one.quarantined for one in callers[1].stats().namespaces)

        eventually(released, 20.0)


def test_a_purge_everywhere_leaves_no_copy_and_says_who_was_not_reached(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pool() as nodes:
        started = [nodes.node(name, "tests.unhurried") for name in "abc"]
        callers = knowing(started)
        blocks = prompt(1, 3)
        put(callers[0], blocks, replicas=3)
        where = ["--metadata", os.fspath(nodes.metadata), "--dir", os.fspath(nodes.directory)]
        held = sum(one.stats().blocks for one in callers)
        command = ["purge", "--namespace", NAME, "--everywhere", "--yes", *where]
        assert main(command) == 0
        told = capsys.readouterr().out
        assert told == f"purged namespace {NAME}: {held} blocks dropped at 3 of 3 nodes\n"
        assert holding(callers, blocks) == [0, 0, 0]
        put(callers[0], blocks)
        record = nodes.record_of(started[2])
        started[2].kill()
        # Its record stands until its lease is over; here for as long as this takes.
        nodes.with_metadata(lambda metadata: metadata.put(record.key(), record.encode()))
        assert main(command) == 1
        told = capsys.readouterr()
        assert told.out == f"purged namespace {NAME}: 3 blocks dropped at 2 of 3 nodes\n"
        assert f"{started[2].address} was not purged" in told.err
        assert holding(callers[:2], blocks) == [0, 0]


def test_a_purge_everywhere_says_what_all_nodes_would_forget_before_it_asks(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with pool() as nodes:
        started = [nodes.node(name, "tests.unhurried") for name in "ab"]
        callers = knowing(started)
        blocks = prompt(1, 3)
        copied(callers[0], blocks, 2)
        where = ["--metadata", os.fspath(nodes.metadata), "--dir", os.fspath(nodes.directory)]
        command = ["purge", "--everywhere", *where, "--namespace"]
        assert main([*command, "zz"]) == 2
        told = capsys.readouterr().err
        assert f"names 0 namespaces; there are: {NAME}" in told and "forget" not in told
        held = sum(one.stats().blocks for one in callers)
        size = size_text(held * 512)
        asked = f"forget all {held} blocks (about {size}) of namespace {NAME} ({SPEC.model}) at "
        monkeypatch.setattr(sys, "stdin", io.StringIO("n\n"))
        assert main([*command, NAME[:3]]) == 1
        assert f"{asked}2 of 2 nodes, for good? [y/N] nothing was" in capsys.readouterr().err
        assert holding(callers, blocks) == [3, 3], "nobody agreed"


@pytest.mark.parametrize("state", ["draining", "serving"])
def test_a_purge_everywhere_waits_for_a_node_that_ends_and_for_no_other(
    state: Literal["draining", "serving"],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with pool() as nodes:
        started = [nodes.node(name, "tests.unhurried") for name in "ab"]
        callers = knowing(started)
        put(callers[0], prompt(1, 3))
        held = callers[0].stats().blocks
        record = replace(nodes.record_of(started[1]), state=state)
        started[1].kill()
        # As one that serves no calls any more has it for a moment; or one that is cut off from its
        # metadata, and may well run.
        nodes.with_metadata(lambda metadata: metadata.put(record.key(), record.encode()))
        where = ["--metadata", os.fspath(nodes.metadata), "--dir", os.fspath(nodes.directory)]
        looked, states = threading.Semaphore(0), pool_purge._states

        async def noted(*given: Any) -> Any:
            found = await states(*given)
            looked.release()
            return found

        def leaves() -> None:
            for _ in range(2 if state == "draining" else 1):  # it is waited for by then
                assert looked.acquire(timeout=PATIENCE_SECONDS)
            nodes.with_metadata(lambda metadata: metadata.delete(record.key()))

        monkeypatch.setattr(pool_purge, "_states", noted)
        monkeypatch.setattr(pool_purge, "_LEAVES_SECONDS", PATIENCE_SECONDS)
        ends = threading.Thread(target=leaves)
        ends.start()
        try:
            code = main(["purge", "--namespace", NAME, "--everywhere", "--yes", *where])
        finally:
            ends.join()
        told, (count, why) = (
            capsys.readouterr(),
            {
                "draining": (1, "has left"),
                "serving": (2, "was not purged"),
            }[state],
        )
        assert code == count - 1 and f"{started[1].address} {why}" in told.err
        assert told.out == f"purged namespace {NAME}: {held} blocks dropped at 1 of {count} nodes\n"


def test_a_purge_is_of_one_node_or_of_all(capsys: pytest.CaptureFixture[str]) -> None:
    both = ["--everywhere", "--node", "127.0.0.1:1", "--yes"]
    assert main(["purge", "--namespace", "ab", *both]) == 2
    assert "--everywhere and --node" in capsys.readouterr().err
