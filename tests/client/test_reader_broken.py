"""A reader whose way breaks in the middle of a poll: it reports what it is sure of, no more."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from kvstore.client import Client, Miss
from kvstore.errors import Unavailable
from kvstore.layout import GENERATION_OFFSET, Fragment
from tests.client.kv import Cache, spec_of, truth_of

TOKENS, LAYERS, HEADS = 16, 3, 4  # two blocks
FIRST, OTHERS = Fragment(0, 1, 0, HEADS), Fragment(1, LAYERS - 1, 0, HEADS)  # layers


@pytest.mark.usefixtures("mapped")
def test_of_a_poll_that_breaks_nothing_counts_whose_slot_was_not_looked_at_again(
    client_of: Callable[..., Client], monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = spec_of("reader-broken", layers=LAYERS)
    client, source, target = client_of(spec), Cache(spec, TOKENS), Cache(spec, TOKENS, seed=1)
    source.fill(truth_of(spec, TOKENS, 1))
    chain, memory = client.chain(range(TOKENS)), source.memory(client)
    transport: Any = client.connection.link().transport
    with client.writer(chain, hand_off=True) as writer:
        reader = client.reader(chain, target.memory(client), hand_offs=writer.hand_offs)
        where = [reader._opened.slots.offsets[0] + GENERATION_OFFSET >> 3]
        load, calls = transport.load, list[int]()

        def breaks(*given: Any) -> Any:
            calls.append(1)
            if len(calls) == 2:
                raise Unavailable("the GPU has no memory left for a piece")
            good = load(*given)
            transport._writing.words[where] += 1  # its pin was over, and its place is another's
            return good

        writer.put(memory, FIRST, blocks=(1, 2))
        assert not reader.poll()
        writer.put(memory, blocks=(0, 1))  # whole: it comes first, by itself
        writer.put(memory, OTHERS, blocks=(1, 2))
        monkeypatch.setattr(transport, "load", breaks)
        try:
            assert reader.poll() and len(calls) == 2
            assert (reader.blocks, reader.tokens, reader.miss) == (0, 0, Miss.UNREACHABLE)
        finally:
            transport._writing.words[where] -= 1
            reader.close()


def test_a_follower_whose_session_is_given_up_keeps_what_it_has_and_misses_the_rest(
    client_of: Callable[..., Client],
) -> None:
    """As where another call of its client came to no answer in time."""
    spec = spec_of("reader-given-up", layers=LAYERS)
    client, source, target = client_of(spec), Cache(spec, TOKENS), Cache(spec, TOKENS, seed=1)
    source.fill(truth_of(spec, TOKENS, 1))
    chain, link = client.chain(range(TOKENS)), client.connection.link()
    writer = client.writer(chain, hand_off=True)
    with client.reader(chain, target.memory(client), hand_offs=writer.hand_offs) as reader:
        writer.put(source.memory(client), blocks=(0, 1))
        assert not reader.poll() and reader.blocks == 1
        client.connection.give_up(link)
        for parting in client.connection._parting:
            parting.join()
        assert reader.wait(10.0)
        assert (reader.blocks, reader.miss) == (1, Miss.UNREACHABLE)
    assert target.holds(truth_of(spec, TOKENS, 1), 0, spec.groups[0].block_tokens)
