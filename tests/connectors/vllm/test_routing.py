"""Two servers, and whoever asks a conductor for each request, beside round-robin.

Conversations of several turns, each a longer prompt that begins with the one before. Who comes to
the server that had it last finds its beginning in vLLM's own cache.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from kvstore.client.conductors import Conductors
from kvstore.errors import Overloaded
from kvstore.wire.v1 import conductor_pb2 as pb
from tests.connectors.vllm.models import prompt
from tests.connectors.vllm.pool import Pool
from tests.connectors.vllm.server import Server, servers
from tests.nodes import eventually
from tests.pools import ConductorProcess, pool

CHATS, TURNS = 5, 3  # an odd number, so that round-robin takes turns at each conversation too
FIRST_TOKENS, MORE_TOKENS, REPLY_TOKENS = 200, 70, 4
SECONDS = 60.0


@dataclass
class Fleet:
    conductor: ConductorProcess
    servers: list[Server]
    kept: Pool
    callers: Conductors
    asked: int = 0
    routed: int = 0
    tokens: dict[tuple[int, int], list[int]] = field(default_factory=dict)

    def round_robin(self, tokens: list[int]) -> tuple[Server, str]:
        self.asked += 1
        return self.servers[self.asked % 2], f"r{self.asked}"

    def routes(self, tokens: list[int]) -> tuple[Server, str]:
        """Where a conductor says, if one says anything."""
        server, name = self.round_robin(tokens)
        request = pb.ScheduleRequest(
            request_id=name,
            namespace=self.kept.spec.digest,
            hashes=self.kept.chain(tokens).hashes,
            tokens=len(tokens),
        )
        try:
            reply = self.callers.schedule(request)
        except Overloaded:
            reply = None
        if reply is None:
            return server, name
        self.routed += 1
        return next(one for one in self.servers if one.address == reply.prefill.address), name

    def chat(
        self, seed: int, to: Callable[[list[int]], tuple[Server, str]], turns: int = TURNS
    ) -> list[list[int]]:
        """What is said in so many turns of all conversations, side by side."""
        texts = [prompt(seed + number, FIRST_TOKENS) for number in range(CHATS)]
        said = []
        for turn in range(turns):
            for number in range(CHATS):
                server, name = to(texts[number])
                transfer = {"moonpool": {"request": name}}
                said.append(server.complete(texts[number], REPLY_TOKENS, transfer)["tokens"])
                more = prompt(1_000 * seed + 10 * number + turn, MORE_TOKENS)
                texts[number] = texts[number] + said[-1] + more
        return said

    def hit_rate(self, doing: Callable[[], Any]) -> float:
        """Of prompt tokens, the share that vLLM's own caches had."""
        before = [one.metrics() for one in self.servers]
        doing()
        after = [one.metrics() for one in self.servers]
        names = [f"vllm:prefix_cache_{what}_total" for what in ("hits", "queries")]
        hits, queries = (
            sum(now[name] - was[name] for was, now in zip(before, after, strict=True))
            for name in names
        )
        return hits / queries


@pytest.fixture
def fleet(model: Callable[[str], Path], tmp_path: Path) -> Iterator[Fleet]:
    with pool() as nodes:
        conductor = nodes.conductor()
        made = [nodes.node(name, dram="64MiB", slab="8MiB") for name in "ab"]
        both = [
            Server(
                model("llama"),
                tmp_path / f"{number}.log",
                node=node.address,
                conductors=[conductor.address],
            )
            for number, node in enumerate(made)
        ]
        with servers(*both), Conductors([conductor.address]) as callers:
            found = Fleet(conductor, both, Pool(made[0]), callers)

            def known() -> bool:
                request = pb.ExplainRequest(
                    request=pb.ScheduleRequest(
                        request_id="probe", namespace=found.kept.spec.digest, tokens=10
                    )
                )
                return len(conductor.stub.Explain(request, timeout=5).considered) == 2

            eventually(lambda: quietly(known), SECONDS)
            yield found


def quietly(ask: Callable[[], bool]) -> bool:
    try:
        return ask()
    except Exception:  # nobody is known yet
        return False


def test_a_conductor_s_way_hits_more_says_the_same_and_is_missed_by_nobody_when_it_dies(
    fleet: Fleet,
) -> None:
    alone = fleet.hit_rate(lambda: fleet.chat(100, fleet.round_robin))
    said: list[list[int]] = []
    asked = fleet.hit_rate(lambda: said.extend(fleet.chat(200, fleet.routes)))
    print(f"own cache hits: round-robin {alone:.3f}, conductor {asked:.3f}, {fleet.routed} routed")
    assert fleet.routed > CHATS * TURNS // 2
    assert asked > alone + 0.1
    assert fleet.chat(200, fleet.round_robin) == said
    fleet.conductor.kill()
    assert fleet.chat(200, fleet.routes) == said
