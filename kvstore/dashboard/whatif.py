"""The what-if page: the planner's simulation of a cluster like that, asked from a browser.

Each question is a process of its own, one at a time and no longer than its deadline: the gateway
does not wait for it, and who asks while another is answered comes again. So does who asked what
takes long: it goes on meanwhile, and its answer is theirs. Where they do not come, it is given up
for the next question, but for the first: what that compiles would never be there.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Mapping
from typing import Any

from kvstore.errors import Broken, ConfigError, Overloaded
from kvstore.planner import whatif

ANSWER_SECONDS = 30.0  # then it is to be asked again: neither browsers nor proxies wait for ever
RETRY_MS = 500
AGAIN_SECONDS = 10.0  # whoever has not asked again by then does not any more
QUESTION_SECONDS_MAX = 180.0
# The first on a machine compiles the simulator: a minute, or many where others want its cores.
FIRST_SECONDS_MAX = 900.0
_COMMAND = (sys.executable, "-m", "kvstore.planner.whatif")


class WhatIf:
    """Answers one question at a time."""

    def __init__(self) -> None:
        self._question = b""
        self._asked: asyncio.Task[dict[str, Any]] | None = None  # until somebody has its answer
        self._asked_at = 0.0  # for the last time
        self._compiled = False  # as far as is known: something was answered

    @staticmethod
    def choices() -> dict[str, Any]:
        """What there is to set."""
        return whatif.choices()

    async def answer(self, said: Mapping[str, str]) -> dict[str, Any]:
        """Raises `ConfigError` for a setting that cannot be, `Overloaded` while another question is
        answered, or where this one is to be asked again, and `Broken`."""
        whatif.read(said)
        question = json.dumps(dict(said)).encode()
        if self._asked is None or question != self._question:
            if self._asked is not None:
                if self._is_kept(self._asked):
                    raise Overloaded("another question is being answered", RETRY_MS)
                self._asked.cancel()
            self._question, self._asked = question, asyncio.create_task(self._ask(question))
        asked, self._asked_at = self._asked, time.monotonic()
        if not (await asyncio.wait([asked], timeout=ANSWER_SECONDS))[0]:
            raise Overloaded("it is not answered yet: ask again", RETRY_MS)
        if self._asked is asked:
            self._asked = None
        return asked.result()

    def _is_kept(self, asked: asyncio.Task[dict[str, Any]]) -> bool:
        """Whether a question is not to be given up for another."""
        if not self._compiled and not asked.done():
            return True
        return time.monotonic() < self._asked_at + ANSWER_SECONDS + AGAIN_SECONDS

    async def _ask(self, question: bytes) -> dict[str, Any]:
        child = await asyncio.create_subprocess_exec(
            *_COMMAND,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
        )
        seconds_max = QUESTION_SECONDS_MAX if self._compiled else FIRST_SECONDS_MAX
        try:
            async with asyncio.timeout(seconds_max):
                said, _ = await child.communicate(question)
        except TimeoutError:
            raise Broken(f"no answer in {seconds_max:.0f} s") from None
        finally:
            if child.returncode is None:
                child.kill()
                await child.wait()
        try:
            told: dict[str, Any] = json.loads(said)
        except ValueError:
            raise Broken("the simulation failed") from None
        if "error" in told:
            raise ConfigError(told["error"])
        self._compiled = True
        return told
