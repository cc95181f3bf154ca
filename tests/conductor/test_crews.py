"""Who is in a crew: engines are told apart by their ids, and an id is one engine's."""

from __future__ import annotations

import pytest

from kvstore.errors import Invalid
from kvstore.limits import REPORT_SILENCE_SECONDS
from tests.conductor.crews import WHOSE, Rig


def test_engines_of_two_hosts_that_have_one_id_do_not_have_each_other_forgotten() -> None:
    """As two that listen at the same port of loopback, and name the same conductor."""
    rig = Rig()
    first = rig.engine("prefill 127.0.0.1:7501", node_id="a")
    rig.schedule("r")
    with pytest.raises(Invalid, match="an engine of node a reports under it"):
        rig.engine("prefill 127.0.0.1:7501", node_id="b")
    assert rig.scheduler.has(WHOSE, first) and rig.in_flight.knows("r", first)
    rig.check()


def test_an_engine_that_comes_back_with_another_node_is_let_in_once_it_was_silent() -> None:
    rig = Rig()
    before = rig.engine("e", node_id="a")
    rig.now += REPORT_SILENCE_SECONDS
    assert rig.scheduler.leave_silent(rig.now) == ["e"]
    assert rig.engine("e", node_id="b") is not before
    rig.check()


def test_an_engine_whose_stream_has_ended_is_let_in_with_another_node_at_once() -> None:
    rig = Rig()
    rig.scheduler.leave(WHOSE, rig.engine("e", node_id="a"), rig.now)
    assert rig.scheduler.has(WHOSE, rig.engine("e", node_id="b"))
    rig.check()


def test_an_engine_that_comes_back_with_its_own_node_takes_the_place_that_it_had() -> None:
    rig = Rig()
    before = rig.engine("e", node_id="a")
    after = rig.engine("e", node_id="a")
    assert rig.scheduler.has(WHOSE, after) and not rig.scheduler.has(WHOSE, before)
    rig.check()
