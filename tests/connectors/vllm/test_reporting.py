"""Real engines report to real conductors, which send a prompt to whose own cache has its prefix."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import pytest

from kvstore.wire.v1 import conductor_pb2 as pb
from tests.connectors.vllm.engine import Engine
from tests.connectors.vllm.models import prompt
from tests.connectors.vllm.pool import Pool
from tests.connectors.vllm.server import free_port
from tests.nodes import CALL_SECONDS, NodeProcess, eventually
from tests.pools import ConductorProcess, Nodes, pool

BLOCK = 64
NAMES = ("a", "b")
SECONDS = 60.0  # a moment where nobody else uses the machine


@dataclass
class Fleet:
    """Two engines on a node each, and a conductor that knows of them."""

    nodes: Nodes
    conductor: ConductorProcess
    node: dict[str, NodeProcess]
    engines: dict[str, Engine]
    kept: dict[str, Pool]

    def considered(self, tokens: list[int]) -> dict[str, pb.ExplainReply.Considered]:
        """What the conductor thinks of each engine for a prompt, by the engine's address."""
        request = pb.ExplainRequest(request=self.asked("probe", tokens))
        try:
            found = self.conductor.stub.Explain(request, timeout=CALL_SECONDS).considered
        except grpc.RpcError as error:
            print("explain:", error.details())
            return {}
        return {one.engine_id: one for one in found}

    def schedule(self, tokens: list[int], request: str = "r") -> pb.ScheduleReply:
        return self.conductor.stub.Schedule(self.asked(request, tokens), timeout=CALL_SECONDS)

    def asked(self, request: str, tokens: list[int]) -> pb.ScheduleRequest:
        kept = self.kept["a"]
        return pb.ScheduleRequest(
            request_id=request,
            namespace=kept.spec.digest,
            hashes=kept.chain(tokens).hashes,
            tokens=len(tokens),
        )

    def own(self, name: str, tokens: list[int]) -> int:
        """-1 while nothing is heard of the engine: on a busy machine that may be."""
        found = self.considered(tokens).get(name)
        return -1 if found is None else int(found.own_blocks)

    def wait_ms(self, name: str, tokens: list[int]) -> float:
        found = self.considered(tokens).get(name)
        return -1.0 if found is None else float(found.wait_ms)


@pytest.fixture(scope="module")
def fleet(model: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    logs = tmp_path_factory.mktemp("reporting")
    with pool() as nodes, ExitStack() as stack:
        conductor = nodes.conductor()
        node = {name: nodes.node(name, dram="64MiB", slab="8MiB") for name in NAMES}
        engines = {
            name: Engine(
                model("llama"),
                logs / f"{name}.log",
                node=node[name].address,
                extra={"conductors": [conductor.address], "address": f"127.0.0.1:750{at}"},
                engine_id=name,
                kv_events_config={
                    "enable_kv_cache_events": True,
                    "endpoint": f"tcp://*:{free_port()}",
                    "replay_endpoint": f"tcp://*:{free_port()}",
                },
                max_num_batched_tokens=128,
                max_num_seqs=4,
            )
            for at, name in enumerate(NAMES)
        }
        for one in engines.values():
            stack.callback(one.close)
        for one in engines.values():
            one.ready()
        for one in engines.values():
            one.run(prompt(1, 100))  # and the nodes know the namespace
        kept = {name: Pool(one) for name, one in node.items()}
        yield Fleet(nodes, conductor, node, engines, kept)


def test_a_conductor_knows_an_engine_and_what_it_decodes_until_that_is_over(fleet: Fleet) -> None:
    probe = prompt(50, 900)
    for name in NAMES:
        eventually(lambda name=name: fleet.wait_ms(name, probe) == 0, SECONDS)
    fleet.engines["a"].begin(*(prompt(51 + n, 300) for n in range(6)), tokens=60, together=True)
    eventually(lambda: fleet.wait_ms("a", probe) > 0, SECONDS)
    assert fleet.wait_ms("b", probe) <= 0
    fleet.engines["a"].end()
    eventually(lambda: fleet.wait_ms("a", probe) == 0, SECONDS)


def test_what_prefills_take_is_learned_from_its_steps(fleet: Fleet) -> None:
    taken = []
    for number in range(6):
        began = time.monotonic()
        fleet.engines["b"].run(prompt(70 + number, 900), tokens=1)
        taken.append(1e3 * (time.monotonic() - began))

    def work_ms() -> float:
        found = fleet.considered(prompt(80, 900)).get("b")
        return -1.0 if found is None else float(found.work_ms)

    # A run is more than its steps, and other steps may be slower where others use the machine.
    eventually(lambda: 0.2 * min(taken) < work_ms() < 2 * max(taken), SECONDS)


def test_a_prompt_goes_to_the_engine_whose_own_cache_has_its_prefix(fleet: Fleet) -> None:
    tokens, more = prompt(60, 5 * BLOCK + 10), prompt(61, 30)
    fleet.engines["b"].run(tokens)
    eventually(lambda: fleet.own("b", tokens + more) == 5, SECONDS)
    eventually(lambda: fleet.own("a", tokens + more) == 0, SECONDS)
    fleet.kept["b"].remove(tokens, 0, 0)  # what the node has leads nowhere from now on
    eventually(lambda: fleet.own("b", tokens + more) == 5, SECONDS)
    reply = fleet.schedule(tokens + more)
    assert reply.prefill.engine_id == "b"
    assert reply.prefill.address == "http://127.0.0.1:7501"
    assert reply.split.own_blocks == 5 and reply.split.there_blocks == 0
    ran = fleet.engines["b"].run(tokens + more)
    assert ran.cached == [(5 * BLOCK + 10) // 32 * 32], "it was not there"
    fleet.engines["b"].forget()
    fleet.engines["b"].run(prompt(62, 40))
    eventually(lambda: fleet.own("b", tokens + more) == 0, SECONDS)
