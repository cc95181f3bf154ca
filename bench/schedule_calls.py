"""The same decisions asked for over gRPC: a conductor's own service in this process, and callers in
another, a few calls at a time. A call brings a prompt's 1,024 hashes, of which the service makes
the stored keys that nodes list.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from typing import Any

import numpy as np

from kvstore.block import stored_keys
from kvstore.conductor.crews import Whose
from kvstore.conductor.scheduler import Scheduler
from kvstore.conductor.service import ConductorService
from kvstore.conductor.table import Table
from kvstore.core.fingerprints import IN_DRAM, fingerprints
from kvstore.limits import HASH_BYTES
from kvstore.rpc.channel import open_channel
from kvstore.rpc.server import Server
from kvstore.telemetry import CONDUCTOR, Telemetry
from kvstore.wire.v1 import conductor_pb2 as pb
from kvstore.wire.v1 import conductor_pb2_grpc

CHAINS, AT_ONCE = 64, 4
SECRET = bytes(32)
CALL_SECONDS = 30.0


class _Pool:
    """Stands for the conductor's own, which follows nodes: here they have said all already."""

    approximate = False


class _Tenants:
    """Stands for those in the metadata: there is one."""

    def __init__(self) -> None:
        self.secrets = {"default": SECRET}


class _Clock:
    """Goes on from a moment of the scheduler's."""

    def __init__(self, since: float) -> None:
        self._since = since - time.monotonic()

    def now(self) -> float:
        return self._since + time.monotonic()


def rate(
    scheduler: Scheduler,
    table: Table,
    nodes: Sequence[str],
    whose: Whose,
    now: float,
    sizes: tuple[int, int],
    calls: int,
) -> float:
    """Calls a second. `sizes`: blocks of a prompt, and tokens of a block."""
    blocks, block_tokens = sizes
    for number in range(CHAINS):
        keys = stored_keys(SECRET, whose[1], whose[2], chain(number, blocks))
        tiers = np.full(blocks, IN_DRAM, np.uint8)
        table.change(nodes[number % len(nodes)], fingerprints(keys), tiers)
    service = ConductorService(
        *(_Pool(), _Tenants(), scheduler, _Clock(now)),  # type: ignore[arg-type]
        Telemetry(CONDUCTOR),
    )
    with _serving(service) as address:
        asked = [address, whose[1].hex(), str(blocks), str(block_tokens), str(calls)]
        command = [sys.executable, "-m", "bench.schedule_calls", *asked]
        said = subprocess.run(command, check=True, capture_output=True, text=True, timeout=300)
    return float(said.stdout)


def chain(number: int, blocks: int) -> list[bytes]:
    """Hashes of a prompt, made up; the same each time."""
    made = np.random.default_rng(number).bytes(blocks * HASH_BYTES)
    return [made[at : at + HASH_BYTES] for at in range(0, len(made), HASH_BYTES)]


@contextmanager
def _serving(service: ConductorService) -> Iterator[str]:
    """On a loop of its own; its address."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()

    def do(what: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(what, loop).result(CALL_SECONDS)

    async def start() -> Server:
        add = partial(conductor_pb2_grpc.add_ConductorServicer_to_server, service)
        server = Server("127.0.0.1:0", {"moonpool.v1.Conductor": add})
        await server.start()
        return server

    server = do(start())
    try:
        yield server.address
    finally:
        do(server.stop(0))
        loop.call_soon_threadsafe(loop.stop)
        thread.join(CALL_SECONDS)
        loop.close()


def _main(address: str, namespace: str, blocks: str, block_tokens: str, calls: str) -> None:
    """Prints how many calls a second were answered."""
    dice, tokens = np.random.default_rng(1), int(blocks) * int(block_tokens)
    chains = [chain(number, int(blocks)) for number in range(CHAINS)]
    requests = []
    for number in range(int(calls)):
        cut = int(dice.integers(1, int(blocks) + 1))
        beyond = [dice.bytes(HASH_BYTES) for _ in range(cut, int(blocks))]
        hashes = chains[int(dice.integers(CHAINS))][:cut] + beyond
        requests.append(
            pb.ScheduleRequest(
                request_id=f"call {number}",
                namespace=bytes.fromhex(namespace),
                tokens=tokens,
                hashes=hashes,
            )
        )
    with open_channel(address) as channel, ThreadPoolExecutor(AT_ONCE) as callers:
        schedule = partial(conductor_pb2_grpc.ConductorStub(channel).Schedule, timeout=CALL_SECONDS)
        list(callers.map(schedule, requests[: len(requests) // 10]))
        began = time.perf_counter()
        replies = list(callers.map(schedule, requests))
        took = time.perf_counter() - began
    assert any(one.split.there_blocks for one in replies), "nobody was sent where its blocks are"
    print(len(replies) / took)


if __name__ == "__main__":
    _main(*sys.argv[1:])
