"""Calls made beside their caller: each of them once, or never where the caller was told so.

An executor keeps a job though it could not start a thread for it and raised: another thread may
come to it, long after its caller has taken back what it was lent for the job.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, TypeVar

T = TypeVar("T")


@dataclass(slots=True)
class _Job:
    call: Callable[[], Any]
    made: Future[Any] = field(default_factory=Future)

    def __call__(self) -> None:
        if self.made.set_running_or_notify_cancel():
            try:
                self.made.set_result(self.call())
            except BaseException as error:
                self.made.set_exception(error)


def later(threads: ThreadPoolExecutor, call: Callable[[], T]) -> Future[T] | None:
    """Make a call soon; None if it never will be made: closed, or no thread can be started."""
    job = _Job(call)
    try:
        threads.submit(job)
    except RuntimeError:
        if job.made.cancel():  # else a thread has it already
            job.call = int  # what it would have used is not kept with it
            return None
    return job.made
