"""Those who ask why requests were sent where they were keep nobody waiting but each other."""

from __future__ import annotations

import asyncio
import json
import threading
from types import SimpleNamespace
from typing import Any

from kvstore.dashboard import board
from kvstore.dashboard.explained import AT_ONCE, Explain
from kvstore.dashboard.watch import Watch
from kvstore.errors import Unavailable

SECONDS = 20.0
MANY = 40  # more than an event loop has threads by itself


def answers_by(explain: Explain) -> Any:
    """The page's own way to ask, of a gateway that explains so."""
    shown = {one.path: one for one in board.routes(Watch([]), list, list, explain)}
    return shown["/board/requests/{id}"].endpoint


def test_more_than_so_many_at_once_are_refused_and_the_loop_s_own_threads_are_free() -> None:
    gate, begun = threading.Event(), list[str]()

    def explain(request_id: str) -> dict[str, Any] | None:
        begun.append(request_id)
        assert gate.wait(SECONDS)
        return {"sentence": request_id}

    answer = answers_by(explain)

    async def run() -> None:
        calls: list[Any] = [SimpleNamespace(path_params={"id": f"r{i}"}) for i in range(MANY)]
        asked = [asyncio.create_task(answer(one)) for one in calls]
        async with asyncio.timeout(SECONDS):
            while len(begun) < AT_ONCE:
                await asyncio.sleep(0.01)
            await asyncio.to_thread(int)
        gate.set()
        codes = [(await one).status_code for one in asked]
        assert codes == [200] * AT_ONCE + [429] * (MANY - AT_ONCE)
        assert (await answer(calls[-1])).status_code == 200

    asyncio.run(run())


def test_conductors_that_do_not_answer_are_not_said_to_have_forgotten_the_request() -> None:
    def explain(request_id: str) -> dict[str, Any] | None:
        raise Unavailable("127.0.0.1:1: connection refused")

    told = asyncio.run(answers_by(explain)(SimpleNamespace(path_params={"id": "r"})))
    assert told.status_code == 503
    assert json.loads(told.body) == {"error": "127.0.0.1:1: connection refused"}
