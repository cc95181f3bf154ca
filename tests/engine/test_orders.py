"""What rank 0 tells arrives as it was told; what is no order is refused."""

from __future__ import annotations

import pytest

from kvstore.engine.orders import END, STEP, Admit, Drop, Order, decode, encode
from kvstore.engine.sequence import Request


@pytest.mark.parametrize(
    "order",
    [
        Drop("a"),
        Drop(""),
        Drop("end"),
        Admit(Request("a", (1, 2, 3), 4, frozenset({7, 5})), True, None, "g"),
        Admit(Request("ä \x00", (0,), 1, ignore_eos=True), False, (), ""),
        Admit(Request("b", (9,) * 1000, 2), True, (b"", bytes(range(256))), "g"),
        Admit(Request("d", (1,), 1, logprobs=0), True, None, "g"),
        Admit(Request("c", (1,), 1, due=1234567.1 + 1 / 3, follows=True), True, None, "g"),
    ],
)
def test_an_order_arrives_as_it_was_told(order: Order) -> None:
    message = encode(order)
    assert decode(message) == order and message not in (END, STEP)


@pytest.mark.parametrize("message", [b"[1]", b"[]", b'["a", 1]', b"{", b"3", b"\xff", END, STEP])
def test_what_is_no_order_is_refused(message: bytes) -> None:
    with pytest.raises(ValueError):
        decode(message)
