"""A process that is at work is waited for longer than one that does nothing; neither for ever."""

from __future__ import annotations

import os
import subprocess
import time

from kvstore.cli.patience import AT_WORK_SECONDS_MAX, WORK_SECONDS, Patience, worked_seconds

IDLE_SECONDS = 100.0


def test_one_that_does_nothing_is_waited_for_so_long_and_no_longer() -> None:
    patience = Patience(1_000.0, IDLE_SECONDS)
    assert patience.left(1_000.0, 0.0) == IDLE_SECONDS
    assert patience.left(1_099.0, WORK_SECONDS * 0.9) == 1.0, "what knocks does a little"
    assert patience.left(1_100.0, WORK_SECONDS * 0.9) == 0.0
    assert patience.why == "was not ready, and has done nothing for 100 s"


def test_one_that_works_however_slowly_is_waited_for_on() -> None:
    patience = Patience(0.0, IDLE_SECONDS)
    for step in range(1, 6):
        assert patience.left(step * 99.0, step * WORK_SECONDS) == IDLE_SECONDS
    assert patience.left(5 * 99.0 + IDLE_SECONDS, 5 * WORK_SECONDS) == 0.0


def test_one_that_works_for_ever_is_not_waited_for_for_ever() -> None:
    patience, now = Patience(0.0, IDLE_SECONDS), 0.0
    while patience.left(now, worked=now) > 0:
        now += 1.0
    assert now == AT_WORK_SECONDS_MAX
    assert patience.why == "was not ready in 900 s, though it was at work"


def test_what_a_process_works_is_what_it_has_had_of_a_core() -> None:
    before = worked_seconds(os.getpid())
    while time.process_time() < before + 0.1:
        pass
    assert worked_seconds(os.getpid()) > before


def test_a_process_that_is_gone_does_nothing() -> None:
    with subprocess.Popen(["true"]) as gone:
        pass
    assert worked_seconds(gone.pid) == 0.0
