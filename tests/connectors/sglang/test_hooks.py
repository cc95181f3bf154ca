"""What SGLang's scheduler does is told to whoever watches it, and it goes on whatever becomes of
that."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from sglang.srt.managers.scheduler import Scheduler

from kvstore.engine.connectors.sglang import hooks


class Watcher:
    def __init__(self, broken: bool = False) -> None:
        self.heard: list[tuple[str, Any]] = []
        self._broken = broken

    def __getattr__(self, what: str) -> Callable[[Any, Any], None]:
        def hear(scheduler: Any, about: Any) -> None:
            self.heard.append((what, about))
            if self._broken:
                raise RuntimeError("broken")

        return hear


class Scheduled:
    """Of SGLang's scheduler what is watched, doing what a test says."""

    def __init__(self) -> None:
        self.waiting_queue: list[Any] = []
        self.room = True

    def _add_request_to_queue(self, req: Any, is_retracted: bool = False) -> str:
        if self.room:
            self.waiting_queue.append(req)
        return "queued"

    def get_next_batch_to_run(self, running_batch: Any, last_batch: Any) -> Any:
        return SimpleNamespace(batch_to_run=running_batch)

    def process_batch_result(self, batch: Any, result: Any) -> str:
        return "processed"

    def _release_aborted_request(self, req: Any) -> str:
        return "released"

    def send_abort_output(self, abort_req: Any, req: Any) -> str:
        return "sent"


def called(scheduler: Any) -> list[Any]:
    return [
        scheduler._add_request_to_queue("r", is_retracted=False),
        scheduler.get_next_batch_to_run(running_batch="b", last_batch=None).batch_to_run,
        scheduler.process_batch_result("b", "result"),
        scheduler._release_aborted_request("r"),
        scheduler.send_abort_output("abort", "r"),
    ]


RETURNED = ["queued", "b", "processed", "released", "sent"]


@pytest.fixture
def scheduler(monkeypatch: pytest.MonkeyPatch) -> Iterator[Scheduled]:
    for name, told in hooks._TOLD.items():
        monkeypatch.setattr(Scheduled, name, hooks._wrap(getattr(Scheduled, name), told))
    yield Scheduled()
    hooks.watch(None)


def watched_by(monkeypatch: pytest.MonkeyPatch, watcher: Watcher) -> None:
    monkeypatch.setattr(hooks, "_wrapped", True)  # SGLang's own stays as it is
    hooks.watch(watcher)


def test_sglang_has_the_methods_that_are_watched() -> None:
    for name in hooks._TOLD:
        assert callable(getattr(Scheduler, name))


def test_each_call_is_told_behind_what_it_did(
    scheduler: Scheduled, monkeypatch: pytest.MonkeyPatch
) -> None:
    watcher = Watcher()
    assert called(scheduler) == RETURNED, "nobody watches"
    watched_by(monkeypatch, watcher)
    assert called(scheduler) == RETURNED
    told = [("queued", "r"), ("scheduled", "b"), ("computed", "b"), ("gone", "r"), ("gone", "r")]
    assert watcher.heard == told
    hooks.watch(None)
    assert called(scheduler) == RETURNED and len(watcher.heard) == len(told)


def test_a_request_for_which_there_was_no_place_was_never_queued(
    scheduler: Scheduled, monkeypatch: pytest.MonkeyPatch
) -> None:
    watcher = Watcher()
    watched_by(monkeypatch, watcher)
    scheduler.room = False
    scheduler._add_request_to_queue("r")
    assert not watcher.heard


def test_a_watcher_that_fails_is_told_of_once_and_stops_nothing(
    scheduler: Scheduled, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    watched_by(monkeypatch, Watcher(broken=True))
    assert [called(scheduler) for _ in range(3)] == [RETURNED] * 3
    (record,) = caplog.records
    assert "conductors may hear wrong things" in record.message


def test_of_a_watcher_that_gives_up_it_is_said_that_nothing_more_is_heard(
    scheduler: Scheduled, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    class GivesUp(Watcher):
        def queued(self, *_: Any) -> None:
            hooks.watch(None)
            raise RuntimeError("broken")

    watched_by(monkeypatch, GivesUp())
    assert called(scheduler) == RETURNED
    (record,) = caplog.records
    assert "conductors hear nothing more" in record.message
