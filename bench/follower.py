"""The reading side of bench `overlap`: a decode engine in a process of its own, told by JSON lines.

It is the engine's own worker thread, core and pool hooks, so it looks for new layers as often as an
engine does, and no oftener. The moment it reports is the one at which the pool's hook hands the
engine its prompt: everything loaded, every strip verified, no slot changed meanwhile. It is read
from CLOCK_MONOTONIC, which all processes of a host share.

    {"follow": [token, ...], "hand_offs": [hex, ...]}  ->  {"landed": seconds, "tokens": n, ...}
    {"load": [token, ...], "times": n}                 ->  {"seconds": [...]}
"""

from __future__ import annotations

import json
import queue
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from kvstore.client import PAGED, Client
from kvstore.engine.core import EngineCore, EngineSettings, FinishEvent
from kvstore.engine.namespace import spec_of
from kvstore.engine.pool import Pool
from kvstore.engine.pool_use import PoolUse
from kvstore.engine.sequence import Request
from kvstore.engine.sequence import Sequence as Running
from kvstore.engine.worker import Failed, Job, JobEvent, Worker


class _Stamped(Pool):
    """The engine's pool; remembers when it last had all of a prompt."""

    landed_at = 0.0

    def admitted(self, sequence: Running) -> int | None:
        tokens = super().admitted(sequence)
        if tokens is not None:
            self.landed_at = time.monotonic()
        return tokens


class Follower:
    """One engine that follows prefills."""

    def __init__(self, folder: Path, directory: Path, pages: int) -> None:
        self._core = EngineCore.load(folder, EngineSettings(pages=pages))
        self._core.cache.storage.fill_(1.0)  # touch every page before any is timed
        self._client = Client.at(directory, spec_of(folder), label="bench follower")
        self._pool = _Stamped(self._client, self._core.cache)
        self._worker = Worker(self._core, self._pool)
        self._worker.start()

    def follow(self, prompt: Sequence[int], hand_offs: Sequence[str]) -> dict[str, Any]:
        """Load a prompt behind its prefill, as a decode engine that was handed it."""
        use = PoolUse(hand_offs=tuple(bytes.fromhex(one) for one in hand_offs))
        events: queue.SimpleQueue[JobEvent] = queue.SimpleQueue()
        request = Request("follow", tuple(prompt), 1, ignore_eos=True)
        self._worker.submit(Job(request, use, events.put))
        while not isinstance(event := events.get(), FinishEvent):
            if isinstance(event, Failed):
                raise event.error
        return {
            "landed": self._pool.landed_at,
            "tokens": use.pool_tokens + use.hand_off_tokens,
            "followed_tokens": use.hand_off_tokens,
            "miss": use.miss,
        }

    def load(self, prompt: Sequence[int], times: int) -> dict[str, Any]:
        """Seconds of loading and verifying the same blocks, sealed by now, in one go.

        Opening them is left out: a hand-off opens its blocks while the prefill has just begun.
        """
        chain = self._client.chain(prompt)
        table = np.arange(len(chain))
        memory = self._client.memory(self._core.cache.layers, PAGED, table)
        seconds = []
        for _ in range(times):
            with self._client.reader(chain, memory) as reader:
                started = time.perf_counter()
                reader.poll()
                seconds.append(time.perf_counter() - started)
                if reader.blocks != len(chain):
                    raise RuntimeError(f"{reader.blocks} of {len(chain)} blocks: {reader.miss}")
        return {"seconds": seconds}

    def close(self) -> None:
        self._worker.stop(1.0)
        self._client.close()


def main() -> None:
    folder, directory, pages = sys.argv[1:]
    torch.set_num_threads(1)
    follower = Follower(Path(folder), Path(directory), int(pages))
    _say({"ready": True})
    for line in sys.stdin:  # ends when the bench does, however it ends
        asked = json.loads(line)
        if "follow" in asked:
            _say(follower.follow(asked["follow"], asked["hand_offs"]))
        else:
            _say(follower.load(asked["load"], asked["times"]))
    follower.close()


def _say(answer: dict[str, Any]) -> None:
    print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
