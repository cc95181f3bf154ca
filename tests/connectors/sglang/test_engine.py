"""Whole SGLang engines, one after another: what one computed the next one loads, and says the same.

first, page_first ── 200 tokens ──▶ 12 pages ══▶ node ══▶ 192 tokens ── second, layer_first
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests import tree
from tests.nodes import Caller, NodeProcess, eventually, mapped

PROMPT = [(i * 7 + i * i) % 251 for i in range(200)]
PAGES = 12  # whole pages of 16 tokens that are not the last one


def served(model: Path, node: NodeProcess, home: Path, layout: str, io: str, until: Any) -> Any:
    """What an engine that starts now makes of the prompt; it ends once `until` holds."""
    answer = home / f"{layout}.json"
    answer.unlink(missing_ok=True)
    told = {"model": str(model), "moonpool": node.address, "layout": layout, "io": io}
    told |= {"prompt": PROMPT, "answer": str(answer)}
    command = [sys.executable, "-m", "tests.connectors.sglang.child", json.dumps(told)]
    with (home / "log").open("w") as log:
        running = subprocess.Popen(
            command, cwd=tree.ROOT, stdin=subprocess.PIPE, stdout=log, stderr=log
        )
        try:
            eventually(lambda: answer.exists() or running.poll() is not None, 400.0)
            assert answer.exists(), (home / "log").read_text()[-4_000:]
            eventually(until, 60.0)
        finally:
            running.communicate(b"\n", timeout=60)
    return json.loads(answer.read_text())


def spoil_every_block(caller: Caller, blocks: int) -> None:
    """One bit of each block's bytes: each of them begins with its slot's head."""
    magic = b"MPSLOT01"
    with mapped(caller) as arena:
        found, at = 0, bytes(arena.view).find(magic)
        while at >= 0:
            arena.bytes[at + 4096 + 5] ^= 1
            found, at = found + 1, bytes(arena.view).find(magic, at + 4096)
    assert found >= blocks


def test_engines_reuse_what_another_computed_and_recompute_what_was_damaged(
    model: Path, node: NodeProcess, home: Path
) -> None:
    caller = node.caller()
    sealed: Callable[[], bool] = lambda: caller.stats().blocks >= PAGES  # noqa: E731
    first = served(model, node, home, "page_first", "kernel", sealed)
    assert first["reused"] == 0 and len(set(first["tokens"])) > 2
    second = served(model, node, home, "layer_first", "direct", sealed)
    assert second == {"tokens": first["tokens"], "reused": PAGES * 16}
    spoil_every_block(caller, PAGES)
    third = served(model, node, home, "page_first", "kernel", sealed)
    assert third == {"tokens": first["tokens"], "reused": 0}
    assert caller.counters()["damaged_blocks"] >= 1
