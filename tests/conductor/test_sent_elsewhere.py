"""Prompts that come to an engine from another conductor: what they are to this one."""

from __future__ import annotations

from typing import Any

import pytest

from kvstore.block import Chain, stored_keys
from kvstore.client.outbox import Outbox
from kvstore.conductor.reports import BEGIN_SECONDS, Reporter
from kvstore.core.fingerprints import Prints, fingerprints
from kvstore.kernels.decision import waiting
from kvstore.limits import RPC_KEYS_MAX
from tests.conductor.reporting import accepted, engine
from tests.conductor.test_reports import SECRET, Streams
from tests.nodes import SPEC, prompt

TOKENS = 4  # of a block


def prints_of(blocks: Chain) -> Prints:
    return fingerprints(stored_keys(SECRET, SPEC.digest, 0, blocks.hashes))


def waits(streams: Streams, name: str = "a") -> Any:
    """Prompts that wait at an engine, and the seconds that they take."""
    return waiting(streams.crew.fleet, streams.crew.by_id[name].number)


@pytest.mark.parametrize("where", ["node of a", "elsewhere"])
def test_one_costs_what_is_left_of_it_when_what_nodes_have_is_there(where: str) -> None:
    streams, blocks = Streams(), prompt(1, blocks=20)
    reporter = streams.begin("a")
    streams.rig.node(where, prints_of(blocks)[:15])
    streams.say(reporter, accepted=[accepted("r", 20 * TOKENS, blocks)])
    assert waits(streams) == (1, pytest.approx(0.01 + 1e-3 * 5 * TOKENS))


def test_what_a_node_has_that_may_not_be_named_is_computed() -> None:
    streams, blocks = Streams(), prompt(1, blocks=20)
    reporter = streams.begin("a")
    streams.rig.node("elsewhere", prints_of(blocks))
    streams.rig.named.clear()
    streams.say(reporter, accepted=[accepted("r", 20 * TOKENS, blocks)])
    assert waits(streams) == (1, pytest.approx(0.01 + 1e-3 * 20 * TOKENS))


def test_what_an_engine_holds_itself_costs_it_nothing_and_others_all_of_it() -> None:
    streams, blocks = Streams(), prompt(1, blocks=20)
    first, second = streams.begin("a"), streams.begin("b")
    streams.say(first, held=list(blocks.hashes))
    for name, reporter in (("at a", first), ("at b", second)):
        streams.say(reporter, accepted=[accepted(name, 20 * TOKENS, blocks)])
    assert waits(streams, "a") == (1, pytest.approx(0.01 + 1e-3)), "its last token is computed"
    assert waits(streams, "b") == (1, pytest.approx(0.01 + 1e-3 * 20 * TOKENS))


def test_what_an_engine_says_that_it_has_counts_where_nobody_knows_of_more() -> None:
    streams = Streams()
    one = accepted("r", 100)
    one.prefix_tokens = 60
    streams.say(streams.begin("a"), accepted=[one])
    assert waits(streams) == (1, pytest.approx(0.01 + 1e-3 * 40))


def test_what_waited_there_before_a_stream_began_came_from_nobody_just_now() -> None:
    streams = Streams()
    streams.begin("stays")
    box = Outbox(engine("a"))
    box.adapter("french", b"w" * 32)
    for number in range(3):
        box.accept(
            f"{number}", TOKENS * RPC_KEYS_MAX, 0, [bytes([number]) * 32] * (RPC_KEYS_MAX // 2)
        )
    stream, reporter = box.begin(), Reporter(streams.rig.scheduler, "team", lambda: SECRET)
    messages = []
    while (message := box.next(stream, 0.0)) and message.ByteSize():
        messages.append(message)
    assert len(messages) > 1 and messages[0].adapters, "adapters take no message of their own"
    for message in messages:
        reporter.take(message, streams.rig.now)
        streams.rig.now += 0.02
    assert streams.crew.roles._work["others"] == 0.0
    streams.rig.now += BEGIN_SECONDS
    streams.say(reporter, accepted=[accepted("new", 100)])
    assert streams.crew.roles._work["others"] > 0.0
