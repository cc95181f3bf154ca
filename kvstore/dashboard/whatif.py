"""The what-if page: the planner's simulation of a cluster like that, asked from a browser.

Each question is a process of its own, one at a time and no longer than its deadline: the gateway
does not wait for it, and who asks while another is answered comes again. So does who asked what
takes long: it goes on meanwhile, or what the first of a machine compiles would never be there.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Mapping
from typing import Any

from kvstore.errors import Broken, ConfigError, Overloaded
from kvstore.planner import whatif

ANSWER_SECONDS = 30.0  # then it is to be asked again: neither browsers nor proxies wait for ever
# The first on a machine compiles the simulator: a minute, or many where others want its cores.
QUESTION_SECONDS_MAX = 900.0
RETRY_MS = 500
_COMMAND = (sys.executable, "-m", "kvstore.planner.whatif")


class WhatIf:
    """Answers one question at a time."""

    def __init__(self) -> None:
        self._question = b""
        self._asked: asyncio.Task[dict[str, Any]] | None = None  # until somebody has its answer

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
            if self._asked is not None and not self._asked.done():
                raise Overloaded("another question is being answered", RETRY_MS)
            self._question, self._asked = question, asyncio.create_task(self._ask(question))
        asked = self._asked
        if not (await asyncio.wait([asked], timeout=ANSWER_SECONDS))[0]:
            raise Overloaded("it is not answered yet: ask again", RETRY_MS)
        if self._asked is asked:
            self._asked = None
        return asked.result()

    async def _ask(self, question: bytes) -> dict[str, Any]:
        child = await asyncio.create_subprocess_exec(
            *_COMMAND,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
        )
        try:
            async with asyncio.timeout(QUESTION_SECONDS_MAX):
                said, _ = await child.communicate(question)
        except TimeoutError:
            raise Broken(f"no answer in {QUESTION_SECONDS_MAX:.0f} s") from None
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
        return told
