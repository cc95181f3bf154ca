"""Engines that write to and read from one node's pool: `python -m tests.faults.engines HOW ...`.

write ADDRESS NUMBER SECONDS    puts batches of blocks of a key space that is ten times the pool
read ADDRESS NUMBER SECONDS     loads batches of the same, and looks at every byte

It says when it is ready, waits for a line, and in its last line says what it did.
"""

from __future__ import annotations

import json
import random
import sys
import time
from dataclasses import asdict, dataclass

import numpy as np

from kvstore.client import Client
from kvstore.layout import SlotLayout
from kvstore.spec import KVGroup, KVSpec

BATCH_BLOCKS = 16
DEADLINE_SECONDS = 20.0
LAYERS, HEADS, TOKENS, DIM = 4, 2, 64, 128


def spec_of(block_bytes: int) -> KVSpec:
    """Blocks of so many bytes, a multiple of 256 KiB."""
    scale = block_bytes // (LAYERS * HEADS * TOKENS * 2 * DIM * 2)
    group = KVGroup(tuple(range(LAYERS)), HEADS, DIM * scale, TOKENS)
    return KVSpec(f"flood-{block_bytes}", "r1", "float16", (group,))


SPECS = [spec_of(size << 10) for size in (256, 512, 1_024)]


@dataclass
class Done:
    """What an engine did, for the test that started it."""

    calls: int = 0
    blocks: int = 0
    bytes: int = 0
    wrong: int = 0
    slowest: float = 0.0


class Prompts:
    """The KV of numbered prompts of a batch each; every byte follows from number and place."""

    def __init__(self, client: Client, spec: KVSpec) -> None:
        self.client, self._spec = client, spec
        group = spec.groups[0]
        tokens = BATCH_BLOCKS * group.block_tokens
        shape = (len(group.layers), group.kv_heads, tokens, 2, group.head_dim)
        self.memory = np.zeros(shape, dtype=np.float16)
        self._words = self.memory.view(np.uint64)
        self._ramp = np.arange(self._words[0].size, dtype=np.uint64).reshape(self._words[0].shape)
        self.block_bytes = self.memory.nbytes // BATCH_BLOCKS

    @staticmethod
    def size(spec: KVSpec) -> int:
        """Bytes of one prompt."""
        return BATCH_BLOCKS * SlotLayout.of(spec, 0).payload_bytes

    def put(self, number: int) -> int:
        for layer, words in enumerate(self._words):
            words[:] = self._layer(number, layer)
        return self.client.put(self._chain(number), self._mapped())

    def get(self, number: int) -> tuple[int, bool]:
        """How many leading blocks there were, and whether every byte of them was right."""
        self._words[:] = 0
        found = self.client.get(self._chain(number), self._mapped()).blocks
        tokens = found * self._spec.groups[0].block_tokens
        right = all(
            np.array_equal(words[:, :tokens], self._layer(number, layer)[:, :tokens])
            for layer, words in enumerate(self._words)
        )
        return found, right

    def _layer(self, number: int, layer: int) -> np.ndarray:
        return self._ramp + np.uint64((number * LAYERS + layer + 1) << 32)

    def _chain(self, number: int):  # type: ignore[no-untyped-def]
        tokens = self.memory.shape[2]
        return self.client.chain([number, *range(tokens - 1)])

    def _mapped(self):  # type: ignore[no-untyped-def]
        return self.client.memory(list(self.memory), "htkd")


def main(how: str, address: str, number: str, seconds: str, prompts: str) -> None:
    spec = SPECS[int(number) % len(SPECS)]
    dice, done = random.Random(f"{how} {number}"), Done()
    with Client.at(address, spec, deadline_seconds=DEADLINE_SECONDS) as client:
        some = Prompts(client, spec)
        some.put(0)
        some.get(0)  # what is compiled is compiled now
        print("ready", flush=True)
        sys.stdin.readline()
        ends = time.monotonic() + float(seconds)
        while time.monotonic() < ends:
            # Some prompts are asked for more often than others, as system prompts are.
            which = min(dice.randrange(int(prompts)), dice.randrange(int(prompts)))
            began = time.monotonic()
            if how == "write":
                blocks, right = some.put(which), True
            else:
                blocks, right = some.get(which)
            done.slowest = max(done.slowest, time.monotonic() - began)
            done.calls += 1
            done.blocks += blocks
            done.bytes += blocks * some.block_bytes
            done.wrong += not right
    print(json.dumps(asdict(done)), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
