"""A caller that sends a request nowhere says so: it counts no more, unless an engine has it."""

from __future__ import annotations

from typing import Any

import pytest

from kvstore.conductor.choices import RULES
from kvstore.conductor.giving_up import give_up
from kvstore.errors import Invalid
from kvstore.limits import REPORT_REQUESTS_MAX, SENT_SECONDS
from kvstore.wire.v1 import conductor_pb2 as pb
from tests.conductor.crews import WHOSE, Rig, chain

TENANT, NAMESPACE, GROUP = WHOSE


def gives_up(rig: Rig, *requests: str, tenant: str = TENANT, **fields: Any) -> None:
    said = {"namespace": NAMESPACE, "group": GROUP, "request_ids": requests, **fields}
    give_up(rig.scheduler, tenant, pb.GiveUpRequest(**said), rig.now)
    rig.check()


def test_one_that_no_engine_has_heard_of_leaves_its_line_and_wants_no_room() -> None:
    rig = Rig()
    rig.engine("a")
    for request in ("left", "stays"):
        rig.schedule(request)
    for _ in range(2):  # said twice is as good as once
        gives_up(rig, "left", "nobody's")
        assert list(rig.in_flight.prompts) == ["stays"]
        assert "left" not in rig.in_flight.room and "stays" in rig.in_flight.room


def test_callers_that_hang_up_at_once_take_no_room_from_one_that_stays() -> None:
    rig = Rig()
    rig.engine("a", room_tokens=20_000)
    for number in range(100):
        rig.schedule(f"{number}", chain(number))
        gives_up(rig, f"{number}")
    assert rig.in_flight.held == (0, 0)
    assert rig.in_flight.room.seconds("r", 1_024, 0, RULES, False) == 0
    assert rig.in_flight.crowd.counted[0] == 0, "that they left says nothing of a crowd"


def test_what_an_engine_says_that_it_has_counts_until_that_says_what_came_of_it() -> None:
    rig = Rig()
    engine = rig.engine("a")
    rig.schedule("r")
    rig.in_flight.accepted("r", engine, 1.0, chain(1), rig.now, 1_024)
    gives_up(rig, "r")
    assert list(rig.in_flight.prompts) == ["r"]
    rig.in_flight.given_up("r", engine, rig.now)
    assert rig.in_flight.held == (0, 0)
    rig.check()


def test_an_engine_that_says_so_later_is_believed_as_well() -> None:
    rig = Rig()
    engine = rig.engine("a")
    rig.schedule("r")
    gives_up(rig, "r")
    rig.in_flight.accepted("r", engine, 1.0, chain(1), rig.now, 1_024)
    assert list(rig.in_flight.prompts) == ["r"]
    rig.in_flight.given_up("r", engine, rig.now)
    assert rig.in_flight.held == (0, 0)
    rig.check()


def test_whoever_was_to_decode_it_owes_nothing_and_once_prefilled_it_waits_for_nobody() -> None:
    rig = Rig()
    prefills, decodes = rig.engine("p", decode=None), rig.engine("d", prefill=None)
    rig.schedule("r")
    rig.in_flight.began("r", prefills, rig.now)
    rig.in_flight.owe("r", decodes, 1_024, rig.now)
    gives_up(rig, "r")
    assert decodes.owed == 0 and "r" not in rig.in_flight.room
    rig.in_flight.ended("r", prefills, rig.now)
    assert rig.in_flight.held == (0, 0)
    rig.check()


def test_one_whose_prefill_is_over_waits_to_be_decoded_no_more() -> None:
    rig = Rig()
    prefills = rig.engine("p", decode=None)
    rig.engine("d", prefill=None)
    rig.schedule("r")
    rig.in_flight.began("r", prefills, rig.now)
    rig.in_flight.ended("r", prefills, rig.now)
    assert rig.in_flight.held == (1, 0), "it wants room to be decoded in"
    gives_up(rig, "r")
    assert rig.in_flight.held == (0, 0) and "r" not in rig.in_flight.room
    rig.now += SENT_SECONDS
    rig.in_flight.expire(rig.now)
    rig.check()


def test_nobody_gives_up_what_another_asked_for() -> None:
    rig = Rig()
    rig.engine("a")
    rig.schedule("r")
    gives_up(rig, "r", tenant="another")
    gives_up(rig, "r", group=GROUP + 1)
    gives_up(rig, "r", namespace=b"m" * 32)
    assert list(rig.in_flight.prompts) == ["r"]


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"namespace": b"short"}, "namespace"),
        ({"group": 1 << 20}, "group"),
        ({"request_ids": ["r", ""]}, r"request_ids\[1\]"),
        ({"request_ids": ["r"] * (REPORT_REQUESTS_MAX + 1)}, "request_ids"),
    ],
)
def test_what_cannot_be_is_refused_by_its_name_and_changes_nothing(
    fields: dict[str, Any], named: str
) -> None:
    rig = Rig()
    rig.engine("a")
    rig.schedule("r")
    with pytest.raises(Invalid, match=named):
        gives_up(rig, "r", **fields)
    assert list(rig.in_flight.prompts) == ["r"]
