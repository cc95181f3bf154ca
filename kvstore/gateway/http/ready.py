"""Whether requests could be sent anywhere: some conductor names engines, or one answers itself.

Asked as often as anybody likes, it looks once a second.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

from kvstore.address import speaks_http
from kvstore.config import OPEN
from kvstore.errors import KVStoreError, Unavailable
from kvstore.gateway.events import check_health
from kvstore.gateway.http.served import Served
from kvstore.rpc.lasting import LastingStub
from kvstore.wire.v1 import conductor_pb2, conductor_pb2_grpc, engine_pb2, engine_pb2_grpc

log = logging.getLogger(__name__)

ANSWER_SECONDS = 1.0  # of each that is asked
KEPT_SECONDS = 1.0  # an answer is as good as new
_RETRY_MS = 1_000


class Readiness:
    """For one model."""

    def __init__(self, served: Served, conductors: Sequence[str], engines: Sequence[str]) -> None:
        self._served = served
        # A conductor is shown what the environment says; our engines serve loopback, without TLS.
        kind = conductor_pb2_grpc.ConductorStub
        self._stubs = {one: LastingStub(one, kind) for one in conductors}
        ours = [one for one in engines if not speaks_http(one)]
        self._stubs |= {one: LastingStub(one, engine_pb2_grpc.EngineStub, OPEN) for one in ours}
        self._asked: list[tuple[str, Callable[[str], None]]] = [
            *((one, self._ask_conductor) for one in conductors),
            *((one, self._ask_engine) for one in ours),
            *((one, self._ask_server) for one in engines if speaks_http(one)),
        ]
        self._lock = asyncio.Lock()
        self._thread = ThreadPoolExecutor(1, "ready")  # no line that callers stand in is its
        self._looked = -KEPT_SECONDS
        self._missing = ""

    def close(self) -> None:
        self._thread.shutdown(wait=False)
        for stub in self._stubs.values():
            stub.close()

    async def check(self) -> None:
        """Raises `Unavailable`, which says why."""
        async with self._lock:
            if time.monotonic() - self._looked >= KEPT_SECONDS:
                looking = asyncio.get_running_loop().run_in_executor(self._thread, self._look)
                self._missing = await looking
                self._looked = time.monotonic()
        if self._missing:
            raise Unavailable(self._missing, _RETRY_MS)

    async def warn(self) -> None:
        """Says in the log why nobody will do, where that is so: some may only be late."""
        try:
            await self.check()
        except Unavailable as error:
            log.warning("not ready yet: %s", error)

    def _look(self) -> str:
        """Empty, or why nobody will do."""
        why = []
        for address, ask in self._asked:
            try:
                ask(address)
                return ""
            except KVStoreError as error:
                why.append(f"{address}: {error}")
        return "; ".join(why)

    def _ask_conductor(self, address: str) -> None:
        asked = conductor_pb2.CrewsRequest(revision=self._served.revision)
        said = self._stubs[address].ask(lambda stub: stub.Crews(asked, timeout=ANSWER_SECONDS))
        if not said.crews:
            raise Unavailable("no engine of yours reports that it has these weights", _RETRY_MS)

    def _ask_engine(self, address: str) -> None:
        asked = engine_pb2.EngineInfoRequest()
        info = self._stubs[address].ask(lambda stub: stub.EngineInfo(asked, timeout=ANSWER_SECONDS))
        if info.revision not in ("", self._served.revision):  # of one that does not say it yet
            raise Unavailable(f"it has other weights: {info.revision}", _RETRY_MS)

    def _ask_server(self, address: str) -> None:
        """Which weights it has it does not say."""
        check_health(address, ANSWER_SECONDS)
