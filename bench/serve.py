"""Many requests through a gateway: none fails, and nobody's memory grows with their number.

A pool of real processes: a node, a conductor, a prefill and a decode engine, and `moonpool serve`
before them. So many clients keep one connection each and send one request after the other; prompts
share a few beginnings. Memory is each process's private and shared pages as the kernel counts them
(RSS), first once all have worked for a tenth of the requests, and then after the last. The pool is
small enough to be full by then, so that what it is given for blocks is no growth.
"""

from __future__ import annotations

import http.client
import itertools
import json
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import psutil

from bench.engine import VOCAB, Shape
from bench.report import Goal, Report, Row
from bench.rounds import Spread
from kvstore.cli.parts import FREE, Plan
from kvstore.cli.stack import Stack
from kvstore.engine.make_model import FIRST_WORD_ID

RUNS = 1
GOAL = 1.10  # RSS at the end over RSS after the first tenth, of whoever grew the most
TAKES = ("requests",)
REQUESTS = 10_000
ANSWER_SECONDS = 120.0
PAUSE_SECONDS_MAX = 2.0  # of who is told to come back

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Load:
    requests: int = REQUESTS
    clients: int = 64
    beginnings: int = 40
    beginning_tokens: int = 128
    own_tokens: int = 24
    output_tokens: int = 4


MODEL = Shape(layers=2, hidden=64, heads=4, kv_heads=2, head_dim=16, intermediate=128)


@dataclass(slots=True)
class Told:
    """What clients were answered."""

    whole: int = 0
    refused: int = 0  # and came again
    failed: int = 0
    why: str = ""


def run(runs: int, say: Say, requests: int | None = None, load: Load | None = None) -> Report:
    load = load or Load(requests or REQUESTS)
    rows = []
    with tempfile.TemporaryDirectory(prefix="mp") as scratch:
        folder = MODEL.make(Path(scratch) / "model")
        plan = Plan(Path(scratch) / "pool", "24MiB", "1MiB", folder, gateway=FREE)
        for number in range(runs):
            with Stack(plan, restart=False) as stack:
                stack.start()
                rows += _round(stack, load, f"run {number + 1}" if runs > 1 else "", say)
    return Report(
        name="serve",
        unit="MiB",
        against="its own after a tenth of the requests; no request that fails",
        ratio_is="RSS at the end / before; 1 + requests that failed",
        goal=GOAL,
        sense=Goal.AT_MOST,
        rows=tuple(rows),
    )


def _round(stack: Stack, load: Load, which: str, say: Say) -> list[Row]:
    told, since = Told(), time.monotonic()
    first = load.requests // 10
    _drive(stack.addresses["gateway"], load, range(first), told, say)
    before = _resident(stack)
    _drive(stack.addresses["gateway"], load, range(first, load.requests), told, say)
    seconds, after = time.monotonic() - since, _resident(stack)
    sizes, rows = asdict(load), []
    for name, size in after.items():
        ratio = size / before[name]
        found = Spread.of([ratio])
        title = f"{name}, RSS {which}".strip()
        rows.append(Row(title, sizes, 1, size / 2**20, before[name] / 2**20, ratio, found))
    also = {
        "refused_and_sent_again": told.refused,
        "requests_per_second": load.requests / seconds,
        "first_failure": told.why,
    }
    lost = load.requests - told.whole
    ratio = 0.0 if not lost else 1.0 + lost
    rows.append(Row(f"requests lost {which}".strip(), sizes, 1, float(lost), 0.0, ratio, also=also))
    return rows


def _resident(stack: Stack) -> dict[str, int]:
    return {
        name: psutil.Process(child.pid).memory_info().rss for name, child in stack.children.items()
    }


def _drive(address: str, load: Load, numbers: range, told: Told, say: Say) -> None:
    """Every client takes the next that nobody has, until there are no more."""
    taken, lock = itertools.count(numbers.start), threading.Lock()

    def client() -> None:
        host, _, port = address.rpartition(":")
        with closing(http.client.HTTPConnection(host, int(port), timeout=ANSWER_SECONDS)) as call:
            while True:
                with lock:
                    number = next(taken)
                    if number >= numbers.stop:
                        return
                    if number % 1_000 == 0:
                        say(f"{number} of {load.requests} requests")
                _ask(call, load, number, told, lock)

    clients = [threading.Thread(target=client, daemon=True) for _ in range(load.clients)]
    for one in clients:
        one.start()
    for one in clients:
        one.join()


def _ask(
    call: http.client.HTTPConnection, load: Load, number: int, told: Told, lock: threading.Lock
) -> None:
    body = {"prompt": prompt(load, number), "max_tokens": load.output_tokens, "model": "model"}
    body["ignore_eos"] = True  # a random model ends at random
    while True:
        try:
            call.request("POST", "/v1/completions", json.dumps(body), _JSON)
            reply = call.getresponse()
            said = json.loads(reply.read())
        except (OSError, http.client.HTTPException, ValueError) as error:
            call.close()
            status, why, wait = 0, f"{type(error).__name__}: {error}", ""
        else:
            status, why, wait = reply.status, str(said)[:200], reply.headers.get("Retry-After", "")
        with lock:
            if status == 200 and said["usage"]["completion_tokens"] == load.output_tokens:
                told.whole += 1
                return
            if status == 429:
                told.refused += 1
            else:
                told.failed += 1
                told.why = told.why or f"{status} {why}"
                return
        time.sleep(min(PAUSE_SECONDS_MAX, float(wait or 1)))


def prompt(load: Load, number: int) -> list[int]:
    """One of the beginnings, and an end of its own."""
    words = (FIRST_WORD_ID, VOCAB)
    start = np.random.default_rng([1, number % load.beginnings])
    end = np.random.default_rng([2, number])
    tokens: list[int] = start.integers(*words, load.beginning_tokens).tolist()
    return tokens + list(map(int, end.integers(*words, load.own_tokens)))


_JSON = {"Content-Type": "application/json"}
