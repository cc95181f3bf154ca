"""One vLLM engine in a process of its own: it does what it is told, a JSON line at a time.

The engine computes on the CPU, in float32 where nothing else is said, one prompt at a time where
nothing else is said: then the same number of rows enters each product, and equal tokens can be
asked for in equal bits.
"""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Self

import psutil

from tests import tree

READY_SECONDS = 240.0  # 10 on two free cores
ANSWER_SECONDS = 240.0
STOP_SECONDS = 30.0

ENVIRONMENT = {
    "VLLM_CPU_KVCACHE_SPACE": "1",  # GiB
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "PYTHONHASHSEED": "0",
    # One thread, anywhere: several of them wait for each other where others use the machine too.
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "OMP_NUM_THREADS": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "HF_HUB_OFFLINE": "1",
}
# CPU attention wants blocks of a multiple of 32 tokens.
OPTIONS = {"dtype": "float32", "block_size": 32, "enforce_eager": True, "max_model_len": 1024}
# Every hit is loaded and none computed a second time to compare. On a machine that is busy a node
# answers late; tests of late nodes say for themselves what late is.
PLAIN = {
    "reuse": "always",
    "self_test": False,
    "audit_rate": 0.0,
    "save_ms": 5_000,
    "deadline_ms": 20_000,
}


KERNELS = "TEST_KERNELS_OF_A_GPU"  # says by which way: see as_on_a_gpu.py


def ours(
    node: str,
    module: str = "kvstore.engine.connectors.vllm",
    role: str = "kv_both",
    policy: str = "recompute",
    **extra: Any,
) -> dict[str, Any]:
    """The `kv_transfer_config` by which vLLM asks this connector."""
    return {
        "kv_connector": "MoonpoolConnector",
        "kv_connector_module_path": module,
        "kv_role": role,
        "kv_load_failure_policy": policy,
        "kv_connector_extra_config": {"node": node, **PLAIN, **extra},
    }


def several(*connectors: dict[str, Any], policy: str = "recompute") -> dict[str, Any]:
    """The `kv_transfer_config` by which vLLM asks several connectors, in this order."""
    return {
        "kv_connector": "MultiConnector",
        "kv_role": "kv_both",
        "kv_load_failure_policy": policy,
        "kv_connector_extra_config": {"connectors": list(connectors)},
    }


class EngineFailed(Exception):
    """The engine did not start, or a call to it raised; the message is its own."""


@dataclass(frozen=True)
class Adapter:
    """A LoRA adapter as vLLM is asked for it."""

    name: str
    path: str
    in_place: bool = False  # loaded again each time


@dataclass(frozen=True)
class Image:
    """A square of random pixels."""

    seed: int
    side: int = 112
    name: str | None = None  # its uuid; else vLLM makes one of the pixels


@dataclass(frozen=True)
class Prompt:
    tokens: Sequence[int]
    salt: str | None = None
    transfer: dict[str, Any] | None = None  # its kv_transfer_params
    adapter: Adapter | None = None
    images: Sequence[Image] = ()  # for each of `IMAGE` in its tokens


@dataclass(frozen=True)
class Output:
    """What became of one prompt."""

    tokens: list[int]
    logprobs: list[float]  # of these tokens
    cached: int  # tokens of the prompt that were not computed
    finish: str


@dataclass(frozen=True)
class Round:
    """What became of several, and what vLLM counted meanwhile."""

    outputs: list[Output]
    counted: dict[str, int]

    @property
    def tokens(self) -> list[list[int]]:
        return [one.tokens for one in self.outputs]

    @property
    def cached(self) -> list[int]:
        return [one.cached for one in self.outputs]

    @property
    def external(self) -> tuple[int, int]:
        """Prompt tokens the connector was asked for, and those it had."""
        name = "external_prefix_cache"
        return self.counted[f"{name}_queries"], self.counted[f"{name}_hits"]


class Engine:
    """The caller's side. Once it is made, the process is starting; `ready` waits for it."""

    def __init__(
        self,
        model: Path,
        log: Path,
        *,
        node: str = "",
        extra: dict[str, Any] | None = None,
        policy: str = "recompute",
        role: str = "kv_both",
        engine_id: str = "",
        environment: dict[str, str] | None = None,
        keep_prefixes: bool = False,
        kernels: str = "",
        **options: Any,
    ) -> None:
        """`kernels`: the way by which a GPU's kernels are to move its KV; else the CPU's do."""
        self.log_file = log
        module, environment = "kvstore.engine.connectors.vllm", dict(environment or {})
        if kernels:
            module = "tests.connectors.vllm.as_on_a_gpu"
            environment |= {KERNELS: kernels, "TRITON_INTERPRET": "1"}
        options = {**OPTIONS, **options}
        if node:
            options["kv_transfer_config"] = {
                **ours(node, module, role, policy, **(extra or {})),
                **({"engine_id": engine_id} if engine_id else {}),
            }
        with log.open("ab") as words:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.connectors.vllm.child"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=words,
                text=True,
                cwd=tree.ROOT,
                env={**os.environ, **ENVIRONMENT, **environment},
            )
        self._tell(model=os.fspath(model), options=options, keep_prefixes=keep_prefixes)

    def ready(self) -> Self:
        self._answer(READY_SECONDS)
        return self

    @property
    def log(self) -> str:
        return self.log_file.read_text(errors="replace")

    def run(
        self, *prompts: Prompt | Sequence[int], tokens: int = 8, together: bool = False
    ) -> Round:
        """Generate `tokens` tokens after each prompt: one by one, or all in one batch."""
        self.begin(*prompts, tokens=tokens, together=together)
        return self.end()

    def begin(self, *prompts: Prompt | Sequence[int], tokens: int, together: bool = False) -> None:
        """Tell it to run these; `end` waits for what comes of it."""
        asked = [asdict(one if isinstance(one, Prompt) else Prompt(one)) for one in prompts]
        self._tell(do="generate", prompts=asked, tokens=tokens, together=together)

    def end(self) -> Round:
        found = self._answer(ANSWER_SECONDS)
        return Round([Output(**one) for one in found["outputs"]], found["counted"])

    def figures(self) -> dict[str, float]:
        """The connector's own figures since the engine's start."""
        self._tell(do="figures")
        return dict(self._answer(ANSWER_SECONDS))

    def moved(self) -> dict[str, int]:
        """Moves by the kernels of a GPU, where it was told to use these."""
        self._tell(do="moved")
        return dict(self._answer(ANSWER_SECONDS))

    def forget(self) -> None:
        """Empty vLLM's own prefix cache; what the pool has is the pool's."""
        self._tell(do="forget")
        assert self._answer(ANSWER_SECONDS) is True, "its prefix cache is in use"

    def reset(self) -> None:
        """Have vLLM and its connector forget what was cached, as where weights change in place."""
        self._tell(do="reset")
        assert self._answer(ANSWER_SECONDS) is True, "its caches are in use"

    def signal_at_load(self, pid: int, number: int, *, opened: bool) -> None:
        """Signal a process in the middle of the next load: see `child.Served.signal_at_load`."""
        self._tell(do="signal_at_load", pid=pid, number=number, opened=opened)
        self._answer(ANSWER_SECONDS)

    def close(self) -> None:
        """End it, and whatever it started."""
        started = [self._process.pid]
        with suppress(psutil.NoSuchProcess):
            started += [one.pid for one in psutil.Process(started[0]).children(recursive=True)]
        assert self._process.stdin is not None and self._process.stdout is not None
        with suppress(BrokenPipeError):
            self._process.stdin.close()
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(STOP_SECONDS)
        for pid in started:
            with suppress(psutil.NoSuchProcess):
                psutil.Process(pid).kill()
        self._process.wait(STOP_SECONDS)
        self._process.stdout.close()

    def _tell(self, **what: Any) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(what) + "\n")
        self._process.stdin.flush()

    def _answer(self, seconds: float) -> Any:
        assert self._process.stdout is not None
        deadline = time.monotonic() + seconds
        found, _, _ = select.select([self._process.stdout], [], [], deadline - time.monotonic())
        line = self._process.stdout.readline() if found else ""
        if not line:
            why = "ended without an answer" if found else f"did not answer in {seconds:.0f} s"
            raise EngineFailed(f"the engine {why}:\n{self.log[-4000:]}")
        said = json.loads(line)
        if "error" in said:
            raise EngineFailed(said["error"])
        return said["answer"]


@contextmanager
def engine(model: Path, log: Path, **options: Any) -> Iterator[Engine]:
    """An engine that serves, for as long as the block lasts."""
    made = Engine(model, log, **options)
    try:
        yield made.ready()
    finally:
        made.close()
