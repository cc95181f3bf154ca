"""What SGLang's scheduler does, told to whoever watches it in its process.

A storage backend hears of pages alone. So five of the scheduler's methods are wrapped, once a
process, and for nothing while nobody watches. What a watcher raises is told in the log once, and
SGLang goes on.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable
from typing import Any, Protocol

logger = logging.getLogger(__name__)


class Watcher(Protocol):
    """Called on the scheduler's thread, which waits for it."""

    def queued(self, scheduler: Any, request: Any) -> None: ...
    def scheduled(self, scheduler: Any, batch: Any) -> None:
        """A step is about to run; None: there is nothing to do."""

    def computed(self, scheduler: Any, batch: Any) -> None: ...
    def gone(self, scheduler: Any, request: Any) -> None: ...


_watcher: Watcher | None = None
_wrapped = False
_well = True


def watch(watcher: Watcher | None) -> None:
    """From now on, instead of whoever did; None: nobody does any more."""
    global _watcher, _wrapped, _well
    _watcher, _well = watcher, True
    if watcher is not None and not _wrapped:
        from sglang.srt.managers.scheduler import Scheduler  # late: it imports all of SGLang

        for name, told in _TOLD.items():
            setattr(Scheduler, name, _wrap(getattr(Scheduler, name), told))
        _wrapped = True


def _queued(watcher: Watcher, scheduler: Any, _: Any, request: Any, *__: Any, **___: Any) -> None:
    line = scheduler.waiting_queue
    if line and line[-1] is request:  # else there was no place for it
        watcher.queued(scheduler, request)


def _scheduled(watcher: Watcher, scheduler: Any, plan: Any, *_: Any, **__: Any) -> None:
    watcher.scheduled(scheduler, plan.batch_to_run)


def _computed(watcher: Watcher, scheduler: Any, _: Any, batch: Any, *__: Any, **___: Any) -> None:
    watcher.computed(scheduler, batch)


def _gone(watcher: Watcher, scheduler: Any, _: Any, request: Any, *__: Any, **___: Any) -> None:
    watcher.gone(scheduler, request)


def _sent_abort(
    watcher: Watcher, scheduler: Any, _: Any, abort: Any, request: Any, *__: Any, **___: Any
) -> None:
    watcher.gone(scheduler, request)


# Each is given what the method returned, and what it was called with.
_TOLD: dict[str, Callable[..., None]] = {
    "_add_request_to_queue": _queued,
    "get_next_batch_to_run": _scheduled,
    "process_batch_result": _computed,
    "_release_aborted_request": _gone,
    "send_abort_output": _sent_abort,
}


def _wrap(method: Callable[..., Any], told: Callable[..., None]) -> Callable[..., Any]:
    @functools.wraps(method)
    def wrapped(scheduler: Any, *args: Any, **more: Any) -> Any:
        global _well
        result = method(scheduler, *args, **more)
        if _watcher is not None:
            try:
                told(_watcher, scheduler, result, *args, **more)
            except Exception:
                if _well:
                    what = "may hear wrong things" if _watcher else "hear nothing more"
                    logger.exception("Moonpool: conductors %s of this engine", what)
                _well = False
        return result

    return wrapped
