"""Mooncake's store as a peer to be measured against: its master, and a client in its own process.

It runs in the environment that `make bench-peers` makes and is used as its documentation says: keys
in batches, buffers registered beforehand, bytes moved straight between them and the segment. The
client is told what to do a line of JSON at a time; the seconds it answers are taken inside it,
around Mooncake's call. It binds every address of the machine, so it belongs into a network
namespace that has `lo` and nothing else; `bench.peers` sees to that.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

ROOT = Path(__file__).resolve().parent.parent
ENVIRONMENT = ROOT / ".venv-mooncake"
SEGMENT_BYTES = 512 << 20
LOCAL_BUFFER_BYTES = 64 << 20
MASTER, STORE = "127.0.0.1:50051", "127.0.0.1:50052"
READY_SECONDS = 60.0
PAUSE_SECONDS = 0.3  # between tries to reach a process that is starting
LOG_CHARACTERS = 4000
WITH_PARENT = ("setpriv", "--pdeathsig", "KILL", "--")  # Mooncake's own programs do not see to it


@dataclass(frozen=True, slots=True)
class Setting:
    """Where the bytes lie, and what of Mooncake's environment variables is set.

    `place` is "same process" (the segment is the client's own, bytes move by memcpy), "same host"
    (mooncake_client holds the segment; caller's buffers are memory shared with it), or "remote"
    (another client's process holds the segment, bytes move by TCP).
    """

    place: str
    variables: Mapping[str, str] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return " ".join([self.place, *(f"{key}={value}" for key, value in self.variables.items())])


_QUIET = {"MC_STORE_CLIENT_METRIC": "0"}
_POOL = {"MC_TCP_ENABLE_CONNECTION_POOL": "1"}
_LANES = {**_POOL, "MC_TCP_LANES_PER_PEER": "16"}  # as many as it allows; by default 4
SETTINGS: dict[str, tuple[Setting, ...]] = {
    "same host": (
        Setting("same process"),
        Setting("same process", _QUIET),
        Setting("same host"),
        Setting("same host", _QUIET),
    ),
    "tcp": (
        Setting("remote"),
        Setting("remote", _POOL),
        Setting("remote", {**_POOL, "MC_TCP_SLICE_SIZE": str(256 << 10)}),
        Setting("remote", _LANES),
        Setting("remote", {**_LANES, "MC_TCP_SLICE_SIZE": str(1 << 20)}),
    ),
}


class Mooncake:
    """The caller's side. Use as a context manager: every process ends with the block."""

    def __init__(self, setting: Setting, log: Path) -> None:
        self.setting, self._log = setting, log
        self._helpers: list[subprocess.Popen[bytes]] = []
        self._variables = {**os.environ, **setting.variables}

    def __enter__(self) -> Self:
        self._help("mooncake_master", f"--rpc_port={MASTER.rpartition(':')[2]}")
        if self.setting.place == "same host":
            self._help(
                *("mooncake_client", "--host=127.0.0.1", "--metadata_server=P2PHANDSHAKE"),
                *(f"--master_server_address={MASTER}", f"--port={STORE.rpartition(':')[2]}"),
                f"--global_segment_size={SEGMENT_BYTES >> 20} MB",
            )
        self._holder = self._client("holder") if self.setting.place == "remote" else None
        self._worker = self._client(self.setting.place)
        return self

    def __exit__(self, *_: object) -> None:
        for client in (self._worker, self._holder):
            if client is not None:
                client.close()
        for helper in reversed(self._helpers):
            helper.kill()
            helper.wait()

    def ask(self, **what: Any) -> float:
        """Have the client do something; its answer, most often in seconds."""
        return float(self._worker.ask(**what))

    def _help(self, program: str, *arguments: str) -> None:
        command = [*WITH_PARENT, ENVIRONMENT / "bin" / program, *arguments]
        with self._log.open("ab") as words:
            self._helpers.append(
                subprocess.Popen(command, stdout=words, stderr=words, env=self._variables)
            )

    def _client(self, role: str) -> _Client:
        return _Client(role, self._variables, self._log)


class _Client:
    """A process with a client of Mooncake's, told what to do a line at a time."""

    def __init__(self, role: str, variables: Mapping[str, str], log: Path) -> None:
        self._log = log
        with log.open("ab") as words:
            self._process = subprocess.Popen(
                [*WITH_PARENT, ENVIRONMENT / "bin" / "python", "-m", "bench.peers_mooncake", role],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=words,
                text=True,
                cwd=ROOT,
                env=variables,
            )
        self._answer()

    def ask(self, **what: Any) -> Any:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(what) + "\n")
        self._process.stdin.flush()
        return self._answer()

    def close(self) -> None:
        self._process.kill()
        self._process.communicate()

    def _answer(self) -> Any:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            self._process.wait(READY_SECONDS)
            words = self._log.read_text(errors="replace")[-LOG_CHARACTERS:]
            raise RuntimeError(f"Mooncake's client ended:\n{words}")
        return json.loads(line)


class _Store:
    """Inside the client's process: the store, and the caller's buffers."""

    def __init__(self, role: str) -> None:
        from mooncake.store import MooncakeDistributedStore

        self._store = MooncakeDistributedStore()
        self._shares = role == "same host"
        deadline = time.monotonic() + READY_SECONDS
        while self._set_up(role):
            if time.monotonic() > deadline:
                raise RuntimeError("Mooncake's master or store does not answer")
            time.sleep(PAUSE_SECONDS)

    def prepare(self, size: int, count: int) -> None:
        """Buffers of `count` objects, and every page of them and of the segment in place."""
        import numpy as np

        total = size * count
        self._sizes, self._source, self._target = [size] * count, *map(self._buffer, (total,) * 2)
        self._source[:] = np.frombuffer(np.random.default_rng(size).bytes(total), np.uint8)
        self._sources, self._targets = (
            [one.ctypes.data + i * size for i in range(count)]
            for one in (self._source, self._target)
        )
        for batch in range(SEGMENT_BYTES * 3 // 4 // total):
            self.put(f"warm-{batch}")
        self.forget()

    def put(self, batch: str) -> float:
        keys = [f"{batch}-{i}" for i in range(len(self._sizes))]
        started = time.perf_counter()
        answers = self._store.batch_put_from(keys, self._sources, self._sizes)
        seconds = time.perf_counter() - started
        if any(answers):
            raise RuntimeError(f"batch_put_from answered {set(answers)}")
        return seconds

    def get(self, batch: str) -> float:
        keys = [f"{batch}-{i}" for i in range(len(self._sizes))]
        started = time.perf_counter()
        answers = self._store.batch_get_into(keys, self._targets, self._sizes)
        seconds = time.perf_counter() - started
        if answers != self._sizes:
            raise RuntimeError(f"batch_get_into answered {set(answers)}")
        return seconds

    def put_singly(self, batch: str, count: int) -> float:
        """Seconds a call, over so many calls."""
        started = time.perf_counter()
        for i in range(count):
            if self._store.put_from(f"{batch}-{i}", self._sources[i], self._sizes[i]):
                raise RuntimeError("put_from failed")
        return (time.perf_counter() - started) / count

    def get_singly(self, batch: str, count: int) -> float:
        started = time.perf_counter()
        for i in range(count):
            if self._store.get_into(f"{batch}-{i}", self._targets[i], self._sizes[i]) < 0:
                raise RuntimeError("get_into failed")
        return (time.perf_counter() - started) / count

    def spoil(self) -> None:
        self._target[:] = 0

    def check(self) -> None:
        if not (self._target == self._source).all():
            raise RuntimeError("Mooncake's bytes came back wrong")

    def forget(self) -> None:
        """Nothing is in the store. (`remove_all` says how many there were.)"""
        if self._store.remove_all(True) < 0:
            raise RuntimeError("remove_all failed")

    def _set_up(self, role: str) -> int:
        if self._shares:
            return int(self._store.setup_dummy(LOCAL_BUFFER_BYTES, LOCAL_BUFFER_BYTES, STORE))
        segment = 0 if role == "remote" else SEGMENT_BYTES
        where = ("127.0.0.1", "P2PHANDSHAKE", segment, LOCAL_BUFFER_BYTES, "tcp", "", MASTER)
        return int(self._store.setup(*where))

    def _buffer(self, size: int) -> Any:
        """Memory of the caller's that is registered, so that nothing is copied on its way."""
        import ctypes

        import numpy as np

        if self._shares:  # its own allocator's, which the store's process can map
            address = self._store.alloc_from_mem_pool(size)
            found = np.ctypeslib.as_array((ctypes.c_uint8 * size).from_address(address))
        else:
            found = np.full(size, 0xFF, np.uint8)
            address = found.ctypes.data
        if self._store.register_buffer(address, size):
            raise RuntimeError(f"register_buffer failed for {size} bytes")
        return found


def main() -> None:
    """The client's process: one line of JSON is {"method": {its arguments}}."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever is printed goes to the log
    store = _Store(sys.argv[1])
    print(json.dumps(0), file=answers, flush=True)
    for line in sys.stdin:
        ((what, given),) = json.loads(line).items()
        print(json.dumps(getattr(store, what)(**given) or 0), file=answers, flush=True)
    os._exit(0)  # its threads outlive their store


if __name__ == "__main__":
    main()
