"""Another process with a client of its own: does what it is told, a JSON line at a time."""

from __future__ import annotations

import contextlib
import json
import select
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent.parent))

from kvstore.client import Client
from kvstore.client.writer import Writer
from kvstore.errors import KVStoreError
from kvstore.layout import Fragment
from tests import tree
from tests.client.kv import Cache, spec_of, truth_of

ANSWER_SECONDS = 40.0


class Peer:
    """The caller's side of such a process."""

    def __init__(self, directory: Path, model: str, **shape: int) -> None:
        command = [sys.executable, "-m", "tests.client.peer", str(directory), model]
        self._process = subprocess.Popen(
            [*command, json.dumps(shape)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=tree.ROOT,
        )

    def tell(self, do: str, **fields: Any) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"do": do, **fields}) + "\n")
        self._process.stdin.flush()

    def answer(self) -> Any:
        """To what was told last: tell it the next thing only then."""
        found, _, _ = select.select([self._process.stdout], [], [], ANSWER_SECONDS)
        assert found, "the peer did not answer in time"
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, "the peer ended without an answer"
        return json.loads(line)

    def ask(self, do: str, **fields: Any) -> Any:
        self.tell(do, **fields)
        return self.answer()

    def kill(self) -> None:
        self._process.kill()
        self._process.wait(10)

    def close(self) -> None:
        assert self._process.stdin is not None and self._process.stdout is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self.kill()
        self._process.stdout.close()


@contextlib.contextmanager
def peers(count: int, directory: Path, model: str, **shape: int) -> Iterator[list[Peer]]:
    started: list[Peer] = []
    try:
        started += [Peer(directory, model, **shape) for _ in range(count)]
        yield started
    finally:
        for one in started:
            one.close()


class Acts:
    """What a peer can do. `heads` and `layers` are first and count."""

    def __init__(self, client: Client) -> None:
        self._client, self._spec = client, client.space.spec
        self._writer: Writer | None = None

    def reserve(
        self, tokens: int, seed: int, heads: Any, layers: Any, group: str, hand_off: bool = False
    ) -> Any:
        self._cache = Cache(self._spec, tokens, heads=heads, layers=layers, seed=seed + 1)
        self._cache.fill(truth_of(self._spec, tokens, seed))
        self._writer = self._client.writer(
            self._client.chain(range(seed, seed + tokens)),
            fragment=Fragment(*layers, *heads),
            writer_group=group,
            hand_off=hand_off,
        )
        return [one.hex() for one in self._writer.hand_offs]

    def store(self, layer: int) -> Any:
        cache = self._cache
        assert self._writer is not None
        self._writer.put_layer(
            layer,
            cache.tensors[layer - cache.layer_first],
            cache.axes,
            block_table=cache.block_table,
        )
        return "stored"

    def seal(self) -> Any:
        assert self._writer is not None
        return self._writer.seal()

    def load(self, tokens: int, seed: int, heads: Any, layers: Any) -> Any:
        """Blocks got, and whether the bytes of their tokens, and no others, are right."""
        cache = Cache(self._spec, tokens, heads=heads, layers=layers, axes="pthkd", seed=seed + 2)
        found = self._client.get(
            self._client.chain(range(seed, seed + tokens)), cache.memory(self._client)
        )
        truth = truth_of(self._spec, tokens, seed)
        right = cache.holds(truth, 0, found.tokens) and cache.untouched(0, found.tokens)
        return [found.blocks, found.miss, right]

    def churn(self, seconds: float, seed: int, tokens: int) -> Any:
        """Put sequences that nobody asked for, one after the other, so that others must go."""
        deadline, put = time.monotonic() + seconds, 0
        while time.monotonic() < deadline:
            cache = Cache(self._spec, tokens)
            cache.fill(truth_of(self._spec, tokens, seed + put))
            start = 1_000_000 + 1_000 * (seed + put)
            chain = self._client.chain(range(start, start + tokens))
            self._client.put(chain, cache.memory(self._client))
            put += 1
        return put


def main() -> None:
    directory, model, shape = sys.argv[1:]
    spec = spec_of(model, **json.loads(shape))
    with Client.at(Path(directory), spec, label="peer", deadline_seconds=20.0) as client:
        acts = Acts(client)
        for line in sys.stdin:
            ask = json.loads(line)
            try:
                answer = getattr(acts, ask.pop("do"))(**ask)
            except KVStoreError as error:
                answer = {"error": type(error).__name__, "text": str(error)}
            print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
