"""A number that no message holds is refused by its name, and costs nobody the session."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from kvstore.client import Chain, Client, FixedAddress, Memory
from kvstore.client.connection import Connection
from kvstore.errors import Invalid
from kvstore.limits import PIN_MS_MAX, REPLICAS_MAX
from tests.client.kv import Cache, spec_of, truth_of

TOKENS, BLOCKS = 30, 4
SPEC = spec_of("bounds")
Call = Callable[[Client, Chain, Memory], Any]
WRONG: list[tuple[str, Call]] = [
    (f"pin_ms -1: 0 to {PIN_MS_MAX}", lambda c, b, m: c.reader(b, m, pin_ms=-1)),
    (f"pin_ms {2**32}: 0 to", lambda c, b, m: c.reader(b, m, pin_ms=2**32)),
    ("pin_ms -1: 0 to", lambda c, b, _: c.pin(b, pin_ms=-1)),
    (f"pin_ms {PIN_MS_MAX + 1}: 0 to", lambda c, b, _: c.hold(b, pin_ms=PIN_MS_MAX + 1)),
    (f"replicas -1: 0 to {REPLICAS_MAX}", lambda c, b, m: c.put(b, m, replicas=-1)),
    (f"replicas {2**32}: 0 to", lambda c, b, m: c.put(b, m, replicas=2**32)),
    (f"origin -1: 0 to {2**64 - 1}", lambda c, b, _: c.writer(b, origin=-1)),
    (f"origin {2**64}: 0 to", lambda c, b, _: c.windows(b, origin=2**64)),
    ("query_tokens -1: 0 to", lambda c, *_: c.used(-1, 0)),
    ("hit_tokens -1: 0 to", lambda c, *_: c.used(0, -1)),
]


@pytest.fixture
def cache() -> Cache:
    made = Cache(SPEC, TOKENS)
    made.fill(truth_of(SPEC, TOKENS, 1))
    return made


@pytest.mark.parametrize(("says", "call"), WRONG, ids=[says for says, _ in WRONG])
def test_a_number_out_of_its_bounds_is_refused_before_the_node_is_asked(
    says: str, call: Call, cache: Cache, monkeypatch: pytest.MonkeyPatch
) -> None:
    def asked(*_: Any) -> None:
        pytest.fail("the node was asked")

    monkeypatch.setattr(Connection, "link", asked)
    with Client(FixedAddress("127.0.0.1:1"), SPEC) as client, pytest.raises(Invalid, match=says):
        call(client, client.chain(range(TOKENS)), cache.memory(client))


@pytest.mark.parametrize("seconds", [float("inf"), float("nan"), -1.0, 0.0, 1e9])
def test_a_deadline_that_is_none(seconds: float) -> None:
    with pytest.raises(Invalid, match=r"deadline_seconds .*: 0\.001 to 86400\.0"):
        Client(FixedAddress("127.0.0.1:1"), SPEC, deadline_seconds=seconds)


def test_a_seal_at_too_many_nodes_is_refused_and_the_window_stays(
    client_of: Callable[..., Client], cache: Cache
) -> None:
    client = client_of(SPEC)
    with client.writer(client.chain(range(100, 100 + TOKENS))) as writer:
        writer.put(cache.memory(client))
        with pytest.raises(Invalid, match=f"replicas {REPLICAS_MAX + 1}: 0 to {REPLICAS_MAX}"):
            writer.seal(replicas=REPLICAS_MAX + 1)
        assert writer.seal() == ["SEALED"] * BLOCKS


def test_what_no_message_holds_ends_no_session(
    client_of: Callable[..., Client], cache: Cache
) -> None:
    client = client_of(SPEC)
    chain, memory = client.chain(range(200, 200 + TOKENS)), cache.memory(client)
    link = client.connection.link()
    wrong: list[Any] = [{"writer_group": 7}, {"writer_node": 7}, {"hand_offs": ["a"] * BLOCKS}]
    with client.writer(chain) as writer:
        for given in wrong:
            with pytest.raises(TypeError):
                client.reader(chain, memory, **given)
        assert client.connection.link() is link
        writer.put(memory)
        assert writer.seal() == ["SEALED"] * BLOCKS
