"""What engines are to decode counts as theirs, from when that is decided until they say so."""

from __future__ import annotations

import pytest

from kvstore.limits import SENT_SECONDS
from tests.conductor.crews import Rig, chain


def test_one_that_is_to_be_decoded_is_owed_while_its_prompt_is_prefilled_however_long() -> None:
    rig = Rig()
    prefills, decodes = rig.engine("p", decode=None), rig.engine("d", prefill=None)
    rig.in_flight.send("r", prefills, 25.0, chain(1), rig.now, 25.0, 1_024)
    rig.in_flight.began("r", prefills, rig.now)
    rig.in_flight.owe("r", decodes, 1_024, rig.now)
    rig.in_flight.owe("of another's prompt", decodes, 1, rig.now)
    rig.now += SENT_SECONDS
    rig.in_flight.expire(rig.now)
    assert list(rig.in_flight.sequences) == ["r"], "who decodes it has nothing to say of it yet"
    rig.now += 0.9 * SENT_SECONDS
    rig.in_flight.ended("r", prefills, rig.now)
    rig.now += 0.9 * SENT_SECONDS
    rig.in_flight.expire(rig.now)
    assert decodes.owed == 1, "from then on it has as long as any to say that it decodes it"
    rig.now += 0.1 * SENT_SECONDS
    rig.in_flight.expire(rig.now)
    assert decodes.owed == 0
    rig.check()


def test_one_that_is_to_be_decoded_is_owed_no_longer_than_its_prompt_may_be_in_flight() -> None:
    rig = Rig()
    prefills, decodes = rig.engine("p", decode=None), rig.engine("d", prefill=None)
    rig.in_flight.send("r", prefills, 25.0, chain(1), rig.now, 25.0, 1_024)
    rig.in_flight.owe("r", decodes, 1_024, rig.now)
    rig.now += SENT_SECONDS
    rig.in_flight.expire(rig.now)
    assert rig.in_flight.held == (0, 0), "nobody ever said that it has the prompt"
    rig.check()


@pytest.mark.parametrize("follows", [True, False])
@pytest.mark.parametrize("both", [True, False])
def test_one_that_is_over_with_its_first_token_is_owed_no_more(follows: bool, both: bool) -> None:
    rig = Rig()
    does: dict[str, None] = {} if both else {"prefill": None}
    prefills, decodes = rig.engine("p", decode=None), rig.engine("d", **does)
    rig.in_flight.send("r", prefills, 1.0, chain(1), rig.now, 1.0, 1_024)
    rig.in_flight.owe("r", decodes, 1_024, rig.now)
    if follows:
        rig.in_flight.began("r", prefills, rig.now)
        rig.in_flight.ended("r", prefills, rig.now)
        assert decodes.owed == 1
    elif both:
        rig.in_flight.accepted("r", decodes, 1.0, chain(1), rig.now, 1_024)
    else:
        rig.in_flight.elsewhere("r", rig.now)
    rig.in_flight.ended("r", decodes, rig.now)
    assert decodes.owed_tokens == 0, "nobody else is let have its room"
    assert rig.in_flight.held == (0, 0)
    rig.check()


def test_one_that_another_conductor_sent_wants_no_room_once_it_has_its_first_token() -> None:
    rig = Rig()
    prefills, decodes = rig.engine("p", decode=None), rig.engine("d", prefill=None)
    rig.in_flight.accepted("r", prefills, 1.0, chain(1), rig.now, 1_024)
    rig.in_flight.began("r", prefills, rig.now)
    rig.in_flight.ended("r", prefills, rig.now)
    assert "r" in rig.in_flight.room
    rig.in_flight.ended("r", decodes, rig.now)
    assert "r" not in rig.in_flight.room and rig.in_flight.held == (0, 0)
    rig.check()


def test_one_that_an_engine_prefills_for_another_is_owed_there_until_it_is_decoded() -> None:
    rig = Rig()
    prefills, decodes = rig.engine("a"), rig.engine("b")
    rig.in_flight.send("r", prefills, 1.0, chain(1), rig.now, 1.0, 1_024)
    rig.in_flight.owe("r", decodes, 1_024, rig.now)
    rig.in_flight.began("r", prefills, rig.now)
    rig.in_flight.ended("r", prefills, rig.now)
    assert decodes.owed == 1
    rig.in_flight.decoding("r", decodes, rig.now)
    assert decodes.owed == 0 and rig.in_flight.held == (0, 0)
    rig.check()
