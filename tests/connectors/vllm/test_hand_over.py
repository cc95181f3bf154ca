"""A gateway's dispatcher before a vLLM server that prefills and one that decodes, each on a node of
its own: layers go from one to the other as they are computed, and the next turn finds the reply.

prompt --> prefill --layers--> node "prefill" --> node "decode" --layers--> decode --> tokens
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from kvstore.client import conductors as module
from kvstore.client import weights_digest
from kvstore.client.conductors import Conductors
from kvstore.config import OPEN
from kvstore.gateway.dispatch import Dispatcher
from kvstore.gateway.request import Outcome, Request
from kvstore.gateway.spaces import Told
from kvstore.wire.v1 import conductor_pb2 as pb
from tests.connectors.vllm.models import prompt
from tests.connectors.vllm.pool import Pool
from tests.connectors.vllm.server import Server, servers
from tests.nodes import NodeProcess, eventually
from tests.pools import ConductorProcess, pool

NEW = 8
PAGE, BLOCK = 32, 64
SECONDS = 60.0
TRIES = 8
FOLLOWED, MADE = "moonpool:followed_tokens_total", "vllm:generation_tokens_total"


@dataclass
class Fleet:
    conductor: ConductorProcess
    prefill: Server
    decode: Server
    dispatcher: Dispatcher
    kept: Pool

    def run(self, name: str, tokens: Sequence[int], new: int = NEW) -> Outcome:
        return self.dispatcher.run(Request(name, tuple(tokens), new, ignore_eos=True))

    @property
    def both(self) -> list[str]:
        return [self.prefill.address, self.decode.address]

    def counted(self, name: str) -> list[float]:
        """What either server says of a figure."""
        return [one.metrics().get(name, 0.0) for one in (self.prefill, self.decode)]

    def settled(self, tokens: Sequence[int]) -> None:
        """Returns once conductors know of all whole blocks of these in the pool."""
        hashes = self.kept.chain(tokens).hashes
        asked = pb.PoolMatchRequest(namespace=self.kept.spec.digest, hashes=hashes)
        matched = self.conductor.stub.Match
        eventually(lambda: matched(asked, timeout=5).blocks == len(hashes), SECONDS)


@pytest.fixture(scope="module")
def fleet(
    model: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Fleet]:
    folder, logs = model("llama"), tmp_path_factory.mktemp("fleet")
    with pool() as nodes:
        conductor = nodes.conductor()
        homes = {one: nodes.node(one, dram="64MiB", slab="8MiB") for one in ("prefill", "decode")}
        both = [
            Server(
                *(folder, logs / f"{does}.log"),
                node=home.address,
                conductors=[conductor.address],
                fleet_role=does,
            )
            for does, home in homes.items()
        ]
        with (
            servers(*both),
            pytest.MonkeyPatch.context() as patient,
            Conductors([conductor.address]) as conductors,
        ):
            # Who does not hear in time sends a request where it likes.
            patient.setattr(module, "ANSWER_SECONDS", SECONDS)
            eventually(lambda: engines(conductor) == [2], SECONDS)
            acquaint(both[1], homes["prefill"])
            revision = f"blake3:{weights_digest(folder)}"
            dispatcher = Dispatcher(conductors, Told(conductors, revision), (), OPEN)
            yield Fleet(conductor, *both, dispatcher, Pool(homes["decode"]))
            dispatcher.close()


def acquaint(server: Server, node: NodeProcess) -> None:
    """Returns once a node has fetched something of what a server of another one stored: how long a
    first contact takes on a full machine is not what is looked at here."""
    tokens = prompt(0, BLOCK + 1)
    alone(server, tokens)
    eventually(lambda: any(Pool(node).get(tokens)), SECONDS)


def engines(conductor: ConductorProcess) -> list[int]:
    """How many there are of each kind."""
    return [one.engines for one in conductor.stub.Crews(pb.CrewsRequest(), timeout=5).crews]


def alone(server: Server, tokens: Sequence[int], new: int = NEW) -> list[int]:
    """What a vLLM says by itself."""
    said: list[int] = server.complete(list(tokens), new)["tokens"]
    return said


def test_one_server_prefills_and_the_other_follows_it_and_answers(fleet: Fleet) -> None:
    tokens, before = prompt(1, 600), fleet.counted(MADE)
    outcome = fleet.run("r1", tokens)
    assert outcome.engines == fleet.both
    made = [now - then for now, then in zip(fleet.counted(MADE), before, strict=True)]
    assert made == [1, NEW], "the first is nobody's"
    # All but the tokens of the last page, of which the very last is always computed.
    assert outcome.hand_off_tokens == 599 // PAGE * PAGE == fleet.counted(FOLLOWED)[1]
    assert (outcome.pool_tokens, outcome.computed_tokens) == (0, 600 - 599 // PAGE * PAGE)
    assert outcome.tokens == alone(fleet.decode, tokens) == alone(fleet.prefill, tokens)


@pytest.mark.parametrize("length", [97, 333, 700])
def test_tokens_are_those_of_one_server(fleet: Fleet, length: int) -> None:
    tokens = prompt(length, length)
    outcome = fleet.run(f"of {length}", tokens)
    assert outcome.engines == fleet.both and outcome.hand_off_tokens > 0
    assert outcome.tokens == alone(fleet.prefill, tokens)


def test_the_next_turn_finds_the_reply_as_well_as_the_prompt(fleet: Fleet) -> None:
    tokens, new = prompt(2, 310), 80
    outcome = fleet.run("r2", tokens, new)
    assert outcome.engines == fleet.both
    # Its last token has no KV. The prompt's last block was short when it was handed over.
    said = [*tokens, *outcome.tokens[:-1]]
    fleet.settled(said)
    turn = [*tokens, *outcome.tokens, *prompt(20, 100)]
    again = fleet.run("r3", turn)
    assert again.pool_tokens // BLOCK * BLOCK == len(said) // BLOCK * BLOCK > len(tokens)
    assert again.tokens == alone(fleet.prefill, turn)


def test_what_is_nearly_all_in_the_pool_is_decoded_alone(fleet: Fleet) -> None:
    for once in range(TRIES):
        tokens = prompt(100 + once, 300)
        alone(fleet.decode, tokens)
        fleet.settled(tokens)
        near = [*tokens[:256], *prompt(200 + once, 20)]
        outcome = fleet.run(f"near {once}", near)
        assert outcome.tokens == alone(fleet.decode, near)
        if outcome.engines == [fleet.decode.address]:
            break
    # On a full machine a fetch may be thought to take longer than so small a model computes.
    assert outcome.engines == [fleet.decode.address] and outcome.pool_tokens == 256


def test_a_short_next_turn_goes_to_who_decodes_alone(fleet: Fleet) -> None:
    """Also while the server that prefilled the first still has it in its own cache."""
    for once in range(TRIES):
        tokens, new = prompt(300 + once, 600), 41
        first = fleet.run(f"first {once}", tokens, new)
        said = [*tokens, *first.tokens[:-1]]
        assert len(said) % BLOCK == 0 and first.engines == fleet.both
        fleet.settled(said)
        turn = [*said, *prompt(400 + once, 20)]
        outcome = fleet.run(f"next {once}", turn)
        assert outcome.tokens == alone(fleet.prefill, turn)
        if outcome.engines == [fleet.decode.address]:
            break
    assert outcome.engines == [fleet.decode.address] and outcome.pool_tokens == len(said)


def test_a_prefill_that_is_killed_loses_no_answer(fleet: Fleet) -> None:
    tokens, more = prompt(4, 500), prompt(5, 500)
    expected = [alone(fleet.decode, one) for one in (tokens, more)]
    fleet.prefill.kill()
    found = [fleet.run(f"k{at}", one) for at, one in enumerate((tokens, more))]
    assert [one.tokens for one in found] == expected
    assert found[-1].engines[-1] == fleet.decode.address
