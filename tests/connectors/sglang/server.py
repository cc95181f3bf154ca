"""SGLang's own HTTP server as a process of the test's."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil

from tests import tree
from tests.etcd import free_port

READY_SECONDS = 400.0  # 40 on two free cores
CALL_SECONDS = 120.0
STOP_SECONDS = 30.0
IN_TURN = "--disable-overlap-schedule"  # a step begins once what came of the last is known
BACKEND = {
    "backend_name": "moonpool",
    "module_path": "kvstore.engine.connectors.sglang",
    "class_name": "MoonpoolStorage",
    "interface_v1": 1,
    "prefetch_threshold": 16,
    "hicache_storage_pass_prefix_keys": True,
    "deadline_ms": 4_000,
}


class Server:
    """One SGLang server on a free port of this host, which publishes and counts."""

    def __init__(
        self,
        model: Path,
        log: Path,
        *more: str,
        page: int,
        tokens: int,
        pool: Mapping[str, Any] | None = None,
    ) -> None:
        """`pool` are keys of the extra config: there is a storage, and they are its."""
        self.log_file = log
        self.address = f"http://127.0.0.1:{free_port()}"
        self.events = free_port(), free_port()  # where it publishes, and says so again
        endpoint, replay = (f"tcp://*:{port}" for port in self.events)
        events = {"publisher": "zmq", "endpoint": endpoint, "replay_endpoint": replay}
        events["format"] = "dynamo"
        options = ["--host", "127.0.0.1", "--port", self.address.rsplit(":", 1)[1]]
        options += ["--model-path", os.fspath(model), "--dtype", "float32", "--device", "cpu"]
        options += ["--skip-tokenizer-init", "--attention-backend", "torch_native"]
        options += ["--disable-cuda-graph", "--skip-server-warmup"]
        options += ["--page-size", str(page), "--max-total-tokens", str(tokens)]
        options += ["--enable-metrics", "--kv-events-config", json.dumps(events), *more]
        if pool is not None:
            extra = {**BACKEND, "address": self.place, **pool}
            options += ["--enable-hierarchical-cache", "--hicache-ratio", "2"]
            options += [
                "--hicache-mem-layout",
                "page_first",
                "--hicache-storage-backend",
                "dynamic",
            ]
            options += ["--hicache-write-policy", "write_through"]
            options += ["--hicache-storage-prefetch-policy", "wait_complete"]
            options += ["--hicache-storage-backend-extra-config", json.dumps(extra)]
        with log.open("ab") as words:
            self._process = psutil.Popen(
                [sys.executable, "-m", "tests.connectors.sglang.serving", *options],
                stdin=subprocess.DEVNULL,
                stdout=words,
                stderr=words,
                cwd=tree.ROOT,
                env={**os.environ, "PYTHONPATH": os.fspath(tree.ROOT), "no_proxy": "127.0.0.1"},
            )

    @property
    def place(self) -> str:
        """HOST:PORT."""
        return self.address.removeprefix("http://")

    def wait_ready(self) -> None:
        deadline = time.monotonic() + READY_SECONDS
        while True:
            with suppress(urllib.error.URLError, ConnectionError):
                if urllib.request.urlopen(f"{self.address}/health", timeout=5).status == 200:
                    return
            words = self.log_file.read_text(errors="replace")[-4000:]
            assert self._process.poll() is None, f"the server ended:\n{words}"
            assert time.monotonic() < deadline, f"the server is not ready:\n{words}"
            time.sleep(0.2)

    def complete(self, tokens: list[int], count: int, **more: Any) -> tuple[list[int], int]:
        """An answer of so many tokens, and how many of the prompt's it had. `more` is beside them
        in the request."""
        greedy = {"max_new_tokens": count, "temperature": 0, "ignore_eos": True}
        request = urllib.request.Request(
            f"{self.address}/generate",
            json.dumps({"input_ids": tokens, "sampling_params": greedy, **more}).encode(),
            {"Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=CALL_SECONDS) as reply:
            made: dict[str, Any] = json.loads(reply.read())
        return made["output_ids"], made["meta_info"]["cached_tokens"]

    def post(self, path: str) -> None:
        """What an operator asks of it. Raises where it refuses."""
        request = urllib.request.Request(self.address + path, b"", method="POST")
        urllib.request.urlopen(request, timeout=CALL_SECONDS).read()

    def counted(self, name: str) -> int:
        """One counter of its /metrics, summed over labels; 0 where it has none."""
        with urllib.request.urlopen(f"{self.address}/metrics", timeout=CALL_SECONDS) as reply:
            lines = reply.read().decode().splitlines()
        rows = [one for one in lines if one.startswith(f"sglang:{name}{{")]
        return round(sum(float(one.rsplit(" ", 1)[1]) for one in rows))

    def close(self) -> None:
        """End it and what it started, by pid."""
        with suppress(psutil.NoSuchProcess):
            family = [*self._process.children(recursive=True), self._process]
            self._process.terminate()
            _, left = psutil.wait_procs(family, STOP_SECONDS)
            for one in left:
                one.kill()
            psutil.wait_procs(left, STOP_SECONDS)


@contextmanager
def servers(*made: Server) -> Iterator[None]:
    """Servers that are ready, for as long as the block lasts. They start side by side."""
    try:
        for one in made:
            one.wait_ready()
        yield
    finally:
        for one in made:
            one.close()
