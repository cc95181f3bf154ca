"""A vLLM server in a fleet, as a process of its own: it has the pool's connector with all settings
as anybody gets them, and keeps vLLM's own prefix cache.

It runs in the environment that `make test-vllm` makes and computes on the CPU in float32.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
import urllib.request
from contextlib import suppress
from dataclasses import replace

from bench.fleet import Fleet, Kind, Seat, free_port
from bench.guest import CONNECTOR, ENVIRONMENT, LOG_CHARACTERS, OPTIONS, PYTHON, ROOT, NotInstalled
from kvstore.engine.core import EngineSettings
from kvstore.gateway.request import Request
from kvstore.spec import KVSpec

READY_SECONDS = 300.0  # 40 on two free cores
_LOOK_SECONDS = 0.2


class VLLMServer:
    """With as much room for KV as an engine of ours of that plan, and steps as large."""

    def __init__(self, seat: Seat) -> None:
        if not PYTHON.exists():
            raise NotInstalled(f"{PYTHON} is not there: `make test-vllm` makes it")
        port = free_port()
        self.address = f"http://127.0.0.1:{port}"
        self._name, self._log = seat.name, seat.log / f"{seat.name}.log"
        self._options = _options(seat, port)
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    @property
    def exited(self) -> int | None:
        return None if self._process is None else self._process.poll()

    def start(self) -> None:
        environment = ENVIRONMENT | {"VLLM_CPU_OMP_THREADS_BIND": "nobind", "OMP_NUM_THREADS": "1"}
        with self._log.open("ab") as words:
            self._process = subprocess.Popen(
                [PYTHON, "-m", "vllm.entrypoints.openai.api_server", *self._options],
                stdin=subprocess.DEVNULL,
                stdout=words,
                stderr=words,
                cwd=ROOT,
                env={**os.environ, **environment},
                start_new_session=True,  # what it starts ends with it, whatever becomes of it
            )

    def wait_ready(self) -> None:
        deadline = time.monotonic() + READY_SECONDS
        while True:
            with suppress(OSError):  # nobody listens yet
                if urllib.request.urlopen(f"{self.address}/health", timeout=5).status == 200:
                    return
            if self.exited is not None or time.monotonic() > deadline:
                words = self._log.read_text(errors="replace")[-LOG_CHARACTERS:]
                raise RuntimeError(f"{self._name} did not start:\n{words}")
            time.sleep(_LOOK_SECONDS)

    def stop(self) -> None:
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)

    def reap(self, deadline: float) -> None:
        if self._process is None:
            return
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(max(0.1, deadline - time.monotonic()))
        with suppress(ProcessLookupError):  # all of its session, of which it is the first
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()


def salted(request: Request) -> Request:
    """Nothing of it is found anywhere: whether it uses the pool is a server's own setting."""
    return replace(request, id=f"{request.id} alone", salt=f"{request.id} alone")


def named(fleet: Fleet) -> list[KVSpec]:
    """By servers, at any node: only they know it whole."""
    found = {space.spec for node in fleet.stats() for space in node.namespaces}
    return [KVSpec.parse(one) for one in found]


SERVERS = Kind(VLLMServer, named, salted, remembers=True)


def _options(seat: Seat, port: int) -> list[str]:
    sizes = EngineSettings()
    settings = {
        "node": os.fspath(seat.home),
        "conductors": list(seat.told),
        "address": f"127.0.0.1:{port}",
        "fleet_role": seat.role,
    }
    publishes = {
        "enable_kv_cache_events": True,
        "endpoint": f"ipc://{seat.log / seat.name}.events",
        "replay_endpoint": f"ipc://{seat.log / seat.name}.again",
    }
    return [
        *("--host", "127.0.0.1", "--port", str(port), "--model", os.fspath(seat.model)),
        *("--dtype", OPTIONS["dtype"], "--enforce-eager", "--seed", str(OPTIONS["seed"])),
        # Workers in processes of their own, vLLM's default on a CPU, take a core each by looking
        # for work, for a second after they had some: four servers do not have four of these here.
        *("--distributed-executor-backend", "uni"),
        *("--max-model-len", str(OPTIONS["max_model_len"])),
        *("--block-size", str(sizes.page_tokens)),
        *("--num-gpu-blocks-override", str(seat.plan.pages + 1)),  # of which it uses one for none
        *("--max-num-batched-tokens", str(sizes.max_batch_tokens)),
        *("--max-num-seqs", str(sizes.max_running)),
        "--enable-prompt-tokens-details",
        *("--kv-events-config", json.dumps(publishes)),
        "--kv-transfer-config",
        json.dumps({**CONNECTOR, "kv_connector_extra_config": settings}),
    ]
