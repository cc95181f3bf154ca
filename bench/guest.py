"""A real vLLM in a process of its own, for the benches that have the pool as its guest.

It runs in the environment that `make test-vllm` makes, computes on the CPU in float32, and is told
what to do a line of JSON at a time; the seconds it answers are taken inside it, around vLLM's call.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any, Self

ROOT = Path(__file__).resolve().parent.parent
PYTHON = ROOT / ".venv-vllm" / "bin" / "python"
ENVIRONMENT = {
    "VLLM_CPU_KVCACHE_SPACE": "1",  # GiB
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "PYTHONHASHSEED": "0",
    "VLLM_NO_USAGE_STATS": "1",
    "HF_HUB_OFFLINE": "1",
}
OPTIONS: dict[str, Any] = {
    "dtype": "float32",
    "block_size": 32,  # CPU attention wants a multiple of it
    "enforce_eager": True,
    "max_model_len": 2048,
    "seed": 0,
}
LOG_CHARACTERS = 4000
CONNECTOR = {
    "kv_connector": "MoonpoolConnector",
    "kv_connector_module_path": "kvstore.engine.connectors.vllm",
    "kv_role": "kv_both",
    "kv_load_failure_policy": "recompute",
}


class NotInstalled(Exception):
    """What a bench needs is not on this machine; the message says how to get it."""


class Guest:
    """The caller's side. Use as a context manager: the process ends with the block."""

    def __init__(
        self,
        model: Path,
        log: Path,
        node: Path | None,
        *,
        extra: dict[str, Any] | None = None,
        load_bytes_per_second: float = 0.0,
        **options: Any,
    ) -> None:
        if not PYTHON.exists():
            raise NotInstalled(f"{PYTHON} is not there: `make test-vllm` makes it")
        self._log, chosen = log, {**OPTIONS, **options}
        if node is not None:
            settings = {"node": os.fspath(node), **(extra or {})}
            chosen["kv_transfer_config"] = {**CONNECTOR, "kv_connector_extra_config": settings}
        with log.open("ab") as words:
            self._process = subprocess.Popen(
                [PYTHON, "-m", "bench.guest"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=words,
                text=True,
                cwd=ROOT,
                env={**os.environ, **ENVIRONMENT},
            )
        self._ask(model=os.fspath(model), options=chosen, slow=load_bytes_per_second)

    def run(self, prompts: Sequence[Sequence[int]], tokens: int) -> float:
        """Seconds that vLLM takes for these prompts, all given at once."""
        return float(self._ask(prompts=[list(one) for one in prompts], tokens=tokens)["seconds"])

    def run_without(self, prompts: Sequence[Sequence[int]], tokens: int) -> float:
        """The same, and meanwhile the engine is without its connector."""
        asked = [list(one) for one in prompts]
        return float(self._ask(prompts=asked, tokens=tokens, without=True)["seconds"])

    def figures(self) -> dict[str, float]:
        """The connector's own, as vLLM's /metrics shows them."""
        return dict(self._ask(figures=True))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.close()
        try:
            self._process.wait(30)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()

    def _ask(self, **what: Any) -> Any:
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(json.dumps(what) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            self._process.wait(30)
            words = self._log.read_text(errors="replace")[-LOG_CHARACTERS:]
            raise RuntimeError(f"vLLM ended:\n{words}")
        return json.loads(line)


def main() -> None:
    """The child's side."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever is printed goes to the log
    told = json.loads(sys.stdin.readline())
    from vllm import LLM, SamplingParams
    from vllm.inputs import TokensPrompt

    llm = LLM(told["model"], disable_log_stats=False, **told["options"])
    if told["slow"]:
        _slow_down(told["slow"])
    print(json.dumps({}), file=answers, flush=True)
    for line in sys.stdin:
        told = json.loads(line)
        if "figures" in told:
            print(json.dumps(_figures()), file=answers, flush=True)
            continue
        prompts = [TokensPrompt(prompt_token_ids=one) for one in told["prompts"]]
        greedy = SamplingParams(temperature=0, max_tokens=told["tokens"], ignore_eos=True)
        with _without_connector(llm) if told.get("without") else nullcontext():
            started = time.perf_counter()
            llm.generate(prompts, greedy, use_tqdm=False)
            seconds = time.perf_counter() - started
        print(json.dumps({"seconds": seconds}), file=answers, flush=True)


def _figures() -> dict[str, float]:
    from prometheus_client import REGISTRY

    return {
        one.name.removeprefix("moonpool:").removesuffix("_total"): one.value
        for family in REGISTRY.collect()
        for one in family.samples
        if one.name.startswith("moonpool:") and not {"le", "reason"} & one.labels.keys()
    }


@contextmanager
def _without_connector(llm: Any) -> Iterator[None]:
    """Neither vLLM's scheduler nor its worker, both of this process, has one: as where none was
    asked for."""
    from vllm.distributed.kv_transfer import kv_transfer_state as worker

    scheduler = llm.llm_engine.engine_core.engine_core.scheduler
    kept = scheduler.connector, worker._KV_CONNECTOR_AGENT
    scheduler.connector = worker._KV_CONNECTOR_AGENT = None
    try:
        yield
    finally:
        scheduler.connector, worker._KV_CONNECTOR_AGENT = kept


def _slow_down(bytes_per_second: float) -> None:
    """Make the pool a slow one: every load takes so much longer than its copy."""
    from kvstore.transfer.shm import ShmTransport

    load = ShmTransport.load

    def slow(self: Any, layout: Any, slots: Any, memory: Any, starts: Any, fragment: Any) -> Any:
        found = load(self, layout, slots, memory, starts, fragment)
        strip_bytes = sum(map(layout.strip_bytes, slots.tokens.tolist()))
        moved = strip_bytes * fragment.layers * fragment.heads
        time.sleep(moved / bytes_per_second)
        return found

    ShmTransport.load = slow  # type: ignore[method-assign]


if __name__ == "__main__":
    main()
