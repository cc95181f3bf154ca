"""vLLM's own HTTP server as a process of the test's, and the small proxy before two of them."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
import uuid
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from types import MappingProxyType
from typing import Any

import psutil

from tests import tree
from tests.connectors.vllm.engine import ENVIRONMENT, ours, several

READY_SECONDS = 300.0  # 40 on two free cores
CALL_SECONDS = 120.0
STOP_SECONDS = 30.0
LENGTH = 1_024  # tokens of a prompt and its answer that it takes


class Server:
    """One vLLM server on a free port of this host."""

    def __init__(
        self,
        model: Path,
        log: Path,
        *,
        node: str = "",
        role: str = "kv_both",
        pages: int = 0,  # of its own cache; 0: as many as fit
        publishes: bool = False,
        beside: dict[str, Any] | None = None,
        adapters: Mapping[str, Path] = MappingProxyType({}),
        **extra: Any,
    ) -> None:
        """`beside`: another connector, which MultiConnector asks after ours. `adapters`: for LoRA,
        by name."""
        self.port = free_port()
        self.log_file = log
        options = ["--host", "127.0.0.1", "--port", str(self.port), "--model", os.fspath(model)]
        options += ["--served-model-name", "tiny", "--dtype", "float32", "--block-size", "32"]
        options += [
            "--enforce-eager",
            "--max-model-len",
            str(LENGTH),
            "--max-num-batched-tokens",
            "128",
        ]
        options += ["--max-num-seqs", "4", "--enable-prompt-tokens-details"]
        if adapters:
            options += ["--enable-lora", "--max-loras", "2", "--lora-modules"]
            options += [f"{name}={path}" for name, path in adapters.items()]
        if pages:
            options += ["--num-gpu-blocks-override", str(pages)]
        self.events = free_port(), free_port()  # where it publishes, and says so again
        if "conductors" in extra:  # which are told what its own cache holds, too
            extra["address"] = self.place
        if publishes or "conductors" in extra:
            ports = [f"tcp://*:{port}" for port in self.events]
            events = {"enable_kv_cache_events": True, "endpoint": ports[0]}
            options += ["--kv-events-config", json.dumps({**events, "replay_endpoint": ports[1]})]
        if node:
            config = ours(node, role=role, **extra)
            if beside is not None:
                config = several(config, beside)
                options += ["--disable-hybrid-kv-cache-manager"]
            options += ["--kv-transfer-config", json.dumps(config)]
        environment = {k: v for k, v in ENVIRONMENT.items() if "MULTIPROCESSING" not in k}
        with log.open("ab") as words:
            self._process = psutil.Popen(
                [sys.executable, "-m", "vllm.entrypoints.openai.api_server", *options],
                stdin=subprocess.DEVNULL,
                stdout=words,
                stderr=words,
                cwd=tree.ROOT,
                env={**os.environ, **environment},
            )

    @property
    def place(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def address(self) -> str:
        return f"http://{self.place}"

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

    def complete(self, tokens: list[int], count: int, transfer: Any = None) -> dict[str, Any]:
        """The tokens and logprobs of one completion."""
        asked = {
            "model": "tiny",
            "prompt": tokens,
            "max_tokens": count,
            "temperature": 0,
            "logprobs": 0,
            "return_token_ids": True,
            "ignore_eos": True,
        }
        if transfer is not None:
            asked["kv_transfer_params"] = transfer
        request = urllib.request.Request(
            f"{self.address}/v1/completions",
            json.dumps(asked).encode(),
            {"Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=CALL_SECONDS) as reply:
            found = json.loads(reply.read())
        (choice,) = found["choices"]
        return {"tokens": choice["token_ids"], "logprobs": choice["logprobs"]["token_logprobs"]}

    def metrics(self) -> dict[str, float]:
        """What /metrics says, summed over labels."""
        with urllib.request.urlopen(f"{self.address}/metrics", timeout=CALL_SECONDS) as reply:
            lines = reply.read().decode().splitlines()
        found: dict[str, float] = {}
        for line in lines:
            if line and not line.startswith("#"):
                name, value = line.rsplit(" ", 1)
                name = name.split("{")[0]
                found[name] = found.get(name, 0.0) + float(value)
        return found

    def kill(self) -> None:
        """It and what it started are gone at once."""
        for one in [self._process, *self._process.children(recursive=True)]:
            one.kill()

    def close(self) -> None:
        """End it and what it started, by pid."""
        with suppress(psutil.NoSuchProcess):
            family = [*self._process.children(recursive=True), self._process]
            self._process.terminate()
            _, left = psutil.wait_procs(family, STOP_SECONDS)
            for one in left:
                one.kill()
            psutil.wait_procs(left, STOP_SECONDS)


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as free:
        return int(free.getsockname()[1])


class Proxy:
    """Sends each prompt to both servers at once, with a name for them to meet under."""

    def __init__(self, prefill: Server, decode: Server) -> None:
        self._prefill, self._decode = prefill, decode

    def complete(self, tokens: list[int], count: int) -> dict[str, Any]:
        name = uuid.uuid4().hex
        with ThreadPoolExecutor(1) as beside:
            first = beside.submit(
                self._prefill.complete, tokens, 1, {"moonpool": {"hand_off": name}}
            )
            said = self._decode.complete(tokens, count, {"moonpool": {"follow": name}})
            first.result()
        return said


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
