"""A caller that leaves: the calls that are made for it end, those that come after it too."""

from __future__ import annotations

import threading

import pytest

from kvstore.gateway.caller import Caller, CallerLeft
from tests.nodes import CALL_SECONDS


class Call:
    def __init__(self) -> None:
        self.cancelled = 0

    def cancel(self) -> None:
        self.cancelled += 1


def test_calls_under_way_end_and_those_that_are_over_do_not() -> None:
    caller, over, running = Caller(), Call(), Call()
    with caller.waits_for(over):
        caller.check()
    with caller.waits_for(running):
        caller.leave()
    assert (over.cancelled, running.cancelled) == (0, 1)


def test_a_pause_of_one_that_leaves_is_over() -> None:
    caller = Caller()
    caller.pause(1e-3)
    leaving = threading.Timer(0.05, caller.leave)
    leaving.start()
    with pytest.raises(CallerLeft):
        caller.pause(CALL_SECONDS)
    leaving.join()


def test_one_that_has_left_waits_for_nothing_any_more() -> None:
    caller, late = Caller(), Call()
    caller.leave()
    with pytest.raises(CallerLeft, match="the caller left"):
        caller.check()
    with caller.waits_for(late):
        assert late.cancelled == 1
