"""The what-if page: the planner's simulation of a cluster like that, asked from a browser.

Each question is a process of its own, one at a time and no longer than its deadline: the gateway
does not wait for it, and who asks while another is answered comes again.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Mapping
from typing import Any

from kvstore.errors import Broken, ConfigError, Overloaded
from kvstore.planner import whatif

ANSWER_SECONDS = 180.0  # the first on a machine compiles the simulator, for about a minute
RETRY_MS = 500
_COMMAND = (sys.executable, "-m", "kvstore.planner.whatif")


class WhatIf:
    """Answers one question at a time."""

    def __init__(self) -> None:
        self._busy = asyncio.Lock()

    @staticmethod
    def choices() -> dict[str, Any]:
        """What there is to set."""
        return whatif.choices()

    async def answer(self, said: Mapping[str, str]) -> dict[str, Any]:
        """Raises `ConfigError` for a setting that cannot be, `Overloaded` while another question is
        answered, and `Broken`."""
        whatif.read(said)
        if self._busy.locked():
            raise Overloaded("another question is being answered", RETRY_MS)
        async with self._busy:
            return await self._ask(json.dumps(dict(said)).encode())

    async def _ask(self, question: bytes) -> dict[str, Any]:
        child = await asyncio.create_subprocess_exec(
            *_COMMAND,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
        )
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                said, _ = await child.communicate(question)
        except TimeoutError:
            raise Broken(f"no answer in {ANSWER_SECONDS:.0f} s") from None
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
