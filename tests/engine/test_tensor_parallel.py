"""Engines of several processes, `moonpool engine --tp N`: one pool and the same tokens, whatever N.

(From one process to another is tests/engine/test_pool.py.)
"""

from __future__ import annotations

import select
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc
import psutil
import pytest
import torch

from kvstore.cli.ranks import Ranks
from kvstore.cli.stack import Child, Stack
from kvstore.client import Client, InDirectory
from kvstore.engine.namespace import spec_of
from kvstore.engine.reference import Reference
from kvstore.errors import ConfigError, Unavailable
from kvstore.rpc.channel import open_channel
from kvstore.wire.v1 import engine_pb2 as pb
from kvstore.wire.v1 import engine_pb2_grpc
from tests.engine.asks import NEW, check, flip_a_bit, swap_heads
from tests.engine.runs import prompt
from tests.nodes import eventually

SECONDS = 120.0
LAYERS, KV_HEADS, TOKEN_BYTES = 3, 2, 2 * 16 * 4  # of the model in conftest


class Engine:
    """`moonpool engine` and a caller of it."""

    def __init__(self, node: Stack, model_dir: Path, ranks: int, directory: Path) -> None:
        where = ["--dir", str(node.children["node"].log.parent), "--model", str(model_dir)]
        sizes = ["--pages", "96", "--threads", "1", "--tp", str(ranks)]
        self._child = Child("engine", ["engine", *where, *sizes], directory)
        self._channel: Any = None
        self._child.start()

    def wait_ready(self) -> None:
        self._child.wait_ready()
        self._channel = open_channel(self._child.address)
        self.stub = engine_pb2_grpc.EngineStub(self._channel)

    @property
    def log(self) -> str:
        return self._child.log.read_text()

    def wait(self) -> int:
        """Wait for it to end by itself; its exit code."""
        codes: list[int] = eventually(
            lambda: self._child.exited is not None and [self._child.exited], 60.0
        )
        return codes[0]

    def processes(self) -> list[psutil.Process]:
        """By rank."""
        first = psutil.Process(self._child.pid)
        return [first, *sorted(first.children(), key=lambda one: int(_option(one, "--rank")))]

    def generate(
        self, tokens: list[int], new: int = NEW, hand_off: pb.HandOff | None = None
    ) -> tuple[list[int], pb.GenerateReply.Started]:
        name = f"{time.monotonic_ns()}"
        request = pb.GenerateRequest(
            request_id=name, prompt=tokens, max_new_tokens=new, ignore_eos=True, hand_off=hand_off
        )
        replies = list(self.stub.Generate(request, timeout=SECONDS))
        (started,) = [one.started for one in replies if one.HasField("started")]
        return [one.token for one in replies if one.HasField("token")], started

    def logprobs(self, tokens: list[int], top: int) -> list[pb.Logprobs]:
        """Of each token that it goes on with."""
        request = pb.GenerateRequest(
            request_id=f"{time.monotonic_ns()}",
            prompt=tokens,
            max_new_tokens=NEW,
            ignore_eos=True,
            logprobs=top,
        )
        replies = self.stub.Generate(request, timeout=SECONDS)
        return [one.logprobs for one in replies if one.HasField("token")]

    def prefill(self, tokens: list[int]) -> Iterator[pb.PrefillReply]:
        request = pb.PrefillRequest(request_id=f"{time.monotonic_ns()}", prompt=tokens)
        replies: Iterator[pb.PrefillReply] = self.stub.Prefill(request, timeout=SECONDS)
        return replies

    def stop(self) -> None:
        self._child.stop()

    def close(self) -> None:
        self._child.stop()
        self._child.reap(time.monotonic() + 30.0)
        if self._channel is not None:
            self._channel.close()


def _option(process: psutil.Process, name: str) -> str:
    line = process.cmdline()
    return line[line.index(name) + 1]


@contextmanager
def running(node: Stack, model_dir: Path, *ranks: int) -> Iterator[list[Engine]]:
    """Engines of so many ranks each, started side by side."""
    with tempfile.TemporaryDirectory(prefix="mp") as directory:
        folders = [Path(directory, str(i)) for i in range(len(ranks))]
        for folder in folders:
            folder.mkdir()
        engines = [
            Engine(node, model_dir, count, folder)
            for count, folder in zip(ranks, folders, strict=True)
        ]
        try:
            for engine in engines:
                engine.wait_ready()
            yield engines
        finally:
            for engine in engines:
                engine.stop()
            for engine in engines:
                engine.close()


@pytest.fixture(scope="module")
def engines(node: Stack, model_dir: Path) -> Iterator[dict[str, Engine]]:
    with running(node, model_dir, 1, 2, 2) as started:
        yield dict(zip(("1", "2", "other 2"), started, strict=True))


@pytest.fixture
def client(node: Stack, model_dir: Path) -> Iterator[Client]:
    where = InDirectory(node.children["node"].log.parent)
    found = Client(where, spec_of(model_dir), deadline_seconds=20.0)
    yield found
    found.close()


PAIRS = [("2", "1"), ("1", "2"), ("2", "other 2")]
pairs = pytest.mark.parametrize(("writer", "reader"), PAIRS, ids=lambda name: name)


@pairs
def test_what_one_engine_published_another_loads(
    engines: dict[str, Engine], reference: Reference, node: Stack, writer: str, reader: str
) -> None:
    tokens = prompt(300, seed=100 + PAIRS.index((writer, reader)))
    expected = reference.tokens(tokens, NEW)
    cold, started = engines[writer].generate(tokens)
    assert cold == expected and started.computed_tokens == 300
    warm, started = engines[reader].generate(tokens)
    assert warm == expected
    assert (started.pool_tokens, started.hand_off_tokens, started.computed_tokens) == (300, 0, 1)
    assert started.loaded_bytes == 300 * LAYERS * KV_HEADS * TOKEN_BYTES
    check(node)


@pairs
def test_a_chunked_prefill_of_one_engine_is_followed_by_another(
    engines: dict[str, Engine], reference: Reference, node: Stack, writer: str, reader: str
) -> None:
    followed = 0
    for seed in range(5):
        tokens = prompt(1_300 + seed, seed=PAIRS.index((writer, reader)))
        prefill = engines[writer].prefill(tokens)
        hand_off = next(prefill).hand_off
        assert all(hand_off.handles) and len(hand_off.handles) == -(-len(tokens) // 64)
        found, started = engines[reader].generate(tokens, hand_off=hand_off)
        assert found == reference.tokens(tokens, NEW)
        assert started.pool_tokens + started.hand_off_tokens == len(tokens)
        (done,) = [one.done for one in prefill]
        assert done.published and done.computed_tokens == len(tokens)
        followed += started.hand_off_tokens
        if followed:
            break
    assert followed, "some of it was read before it was sealed"
    check(node)


def test_ranks_that_have_a_part_of_the_vocabulary_each_know_the_logprobs_of_all(
    engines: dict[str, Engine], reference: Reference
) -> None:
    tokens = prompt(90, seed=7)
    answer = reference.tokens(tokens, NEW)
    logits = reference.logits([*tokens, *answer])[len(tokens) - 1 : -1]
    expected = logits.log_softmax(-1, dtype=torch.float32)
    for engine in (engines["1"], engines["2"]):
        for at, said in enumerate(engine.logprobs(tokens, 20)):
            assert said.logprob == pytest.approx(float(expected[at, answer[at]]), abs=1e-4)
            theirs = [float(expected[at, one]) for one in said.top_tokens]
            assert list(said.top_logprobs) == pytest.approx(theirs, abs=1e-4)
            assert theirs == pytest.approx(expected[at].topk(20).values.tolist(), abs=1e-4)
            # Of the whole vocabulary, and not of the first rank's part alone.
            assert {one < 256 for one in said.top_tokens} == {True, False}


@pytest.mark.parametrize("name", ["1", "2"])
def test_swapped_heads_in_the_pool_change_the_tokens(
    engines: dict[str, Engine], reference: Reference, client: Client, name: str
) -> None:
    tokens = prompt(256, seed=120 + int(name))
    expected = reference.tokens(tokens, NEW)
    assert engines["other 2"].generate(tokens)[0] == expected
    swap_heads(client, tokens, block=1)
    found, started = engines[name].generate(tokens)
    assert started.pool_tokens == 256 and found != expected


@pytest.mark.parametrize("head", [0, 1])
def test_a_head_that_is_damaged_is_computed_anew_by_all_ranks(
    engines: dict[str, Engine], reference: Reference, client: Client, head: int
) -> None:
    tokens = prompt(320, seed=130 + head)
    engines["1"].generate(tokens)
    flip_a_bit(client, tokens, block=2, head=head)
    found, started = engines["2"].generate(tokens)
    assert found == reference.tokens(tokens, NEW)
    assert (started.pool_tokens, started.miss) == (128, "damaged")
    assert client.match(client.chain(tokens)).blocks == 5


def test_ranks_that_outnumber_the_kv_heads_share_them(
    engines: dict[str, Engine], node: Stack, model_dir: Path, reference: Reference
) -> None:
    ours, theirs = prompt(200, seed=140), prompt(200, seed=141)
    engines["2"].generate(theirs)
    with running(node, model_dir, 4) as (four,):
        found, _ = four.generate(ours)
        assert found == reference.tokens(ours, NEW)
        found, started = four.generate(theirs)
        assert found == reference.tokens(theirs, NEW) and started.pool_tokens == 200
        # Each of the two heads goes to two ranks.
        assert started.loaded_bytes == 2 * 200 * LAYERS * KV_HEADS * TOKEN_BYTES
        processes = four.processes()
        assert len(processes) == 4
        sockets = [one for rank in processes for one in rank.net_connections("tcp")]
        assert {one.laddr.ip.removeprefix("::ffff:") for one in sockets} == {"127.0.0.1"}
        four.stop()
        assert four.wait() == 0
        eventually(lambda: not any(map(_lives, processes)))
    found, started = engines["1"].generate(ours)
    assert found == reference.tokens(ours, NEW) and started.pool_tokens == 200
    check(node)


def _lives(process: psutil.Process) -> bool:
    return process.is_running() and process.status() != psutil.STATUS_ZOMBIE


def _kill_the_other(processes: list[psutil.Process]) -> None:
    processes[1].kill()


def _kill_the_first(processes: list[psutil.Process]) -> None:
    processes[0].kill()


@pytest.mark.parametrize("kill", [_kill_the_other, _kill_the_first])
def test_an_engine_that_loses_a_rank_ends_within_seconds(
    node: Stack, model_dir: Path, kill: Callable[[list[psutil.Process]], None]
) -> None:
    with running(node, model_dir, 2) as (engine,):
        processes = engine.processes()
        asked = pb.GenerateRequest(
            request_id="r", prompt=prompt(300, seed=150), max_new_tokens=1_700, ignore_eos=True
        )
        replies = engine.stub.Generate(asked, timeout=SECONDS)
        eventually(lambda: next(replies).HasField("token"))
        kill(processes)
        with pytest.raises(grpc.RpcError) as caught:
            list(replies)
        assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
        eventually(lambda: not any(map(_lives, processes)), 20.0)
        if kill is _kill_the_other:
            assert engine.wait() == 1
            assert "rank 1 ended with -9" in engine.log
            assert "rank 0 of 2 has lost the others" in engine.log
    check(node)


def test_a_model_that_ranks_cannot_share_is_refused_at_once(node: Stack, model_dir: Path) -> None:
    with (
        pytest.raises(ConfigError, match="3 ranks: 8 attention heads"),
        running(node, model_dir, 3),
    ):
        pass


def test_a_rank_that_does_not_start_ends_the_wait_for_it() -> None:
    with Ranks(["rank", "--no-such-option"], 3) as ranks:
        ranks.start()
        with pytest.raises(ConfigError, match="rank 1 did not start"):
            ranks.meet()
        meeting = ranks.meeting
        assert meeting.stat().st_mode & 0o077 == 0, "no other user finds it"
    assert not meeting.exists()


def test_a_rank_that_ends_a_moment_after_the_others_have_lost_it_is_named(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kvstore.cli.ranks.GONE_SECONDS", 30.0)
    dies = ["sh", "-c", "sleep 0.1; kill -9 $$"]
    with pytest.raises(Unavailable), Ranks([], 2) as ranks:
        pipe = subprocess.PIPE
        ranks._processes.append(subprocess.Popen(dies, stdin=pipe, stdout=pipe))
        raise Unavailable("the others are lost")
    assert "rank 1 ended with -9" in capfd.readouterr().err


def test_an_engine_whose_rank_ends_while_others_load_ends_with_an_error_and_leaves_nothing(
    capfd: pytest.CaptureFixture[str],
) -> None:
    loads, pipe = ["sh", "-c", "echo loaded; read word"], subprocess.PIPE
    with pytest.raises(Unavailable, match="rank 1 ended before all"), Ranks([], 3) as ranks:
        ranks._processes += [subprocess.Popen(loads, stdin=pipe, stdout=pipe) for _ in range(2)]
        meeting = ranks.meeting
        assert select.select([ranks._processes[0].stdout], [], [], 60)[0], "it has not loaded"
        ranks._processes[0].kill()
        ranks._processes[0].wait()
        ranks.meet()
    assert "rank 1 ended with -9" in capfd.readouterr().err
    assert not meeting.exists() and ranks._processes[1].poll() is not None
