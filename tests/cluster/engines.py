"""Real engines at nodes of a cluster, and callers of them."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import grpc

from kvstore.cli.stack import STOP_SECONDS, Child
from kvstore.config import OPEN
from kvstore.rpc.channel import open_channel
from kvstore.wire.v1 import engine_pb2 as pb
from kvstore.wire.v1 import engine_pb2_grpc

NEW = 6  # tokens that a request asks for
DEADLINE_SECONDS = 120.0


class Engine:
    """`moonpool engine` of so many ranks at the node of a directory, and a caller of it."""

    def __init__(self, role: str, directory: Path, model: Path, ranks: int = 1) -> None:
        where = ["--dir", os.fspath(directory), "--model", os.fspath(model), "--role", role]
        sizes = ["--threads", "1", "--pages", "96", "--tp", str(ranks)]
        name = f"{role}-{ranks}-of-{directory.name}"
        self._child = Child(name, ["engine", *where, *sizes], model.parent)
        self._channel: grpc.Channel | None = None

    def start(self) -> None:
        self._child.start()

    def wait_ready(self, reach: Callable[[str], str] = str) -> None:
        """Return once it serves; `reach` says where its address is reached from here."""
        self._child.wait_ready()
        self._channel = open_channel(reach(self._child.address), OPEN)
        self._stub = engine_pb2_grpc.EngineStub(self._channel)

    @property
    def log(self) -> str:
        return self._child.log.read_text()

    def stop(self) -> None:
        self._child.stop()

    def close(self) -> None:
        if self._channel is not None:
            self._channel.close()
        self._child.stop()
        self._child.reap(time.monotonic() + STOP_SECONDS)

    def prefill(self, name: str, tokens: list[int]) -> Iterator[pb.PrefillReply]:
        request = pb.PrefillRequest(request_id=name, prompt=tokens)
        return iter(self._stub.Prefill(request, timeout=DEADLINE_SECONDS))

    def generate(self, name: str, tokens: list[int], hand_off: pb.HandOff | None = None) -> Answer:
        request = pb.GenerateRequest(
            request_id=name,
            prompt=tokens,
            max_new_tokens=NEW,
            ignore_eos=True,
            hand_off=hand_off,
        )
        return Answer(list(self._stub.Generate(request, timeout=DEADLINE_SECONDS)))


class Answer:
    """All of a reply."""

    def __init__(self, parts: list[pb.GenerateReply]) -> None:
        self.tokens = [one.token for one in parts if one.WhichOneof("part") == "token"]
        (started,) = [one.started for one in parts if one.WhichOneof("part") == "started"]
        self.fetched, self.followed = started.pool_tokens, started.hand_off_tokens
        self.computed = started.computed_tokens
