"""The Unix socket that hands the arena to processes of this host, and tells when they are gone.

A caller presents its session's token and gets the arena's descriptor, and what opens HBM where the
node lends any. The connection then stays: the kernel closes it when the last process that holds it
is gone, however that ended, so its end is proof that nobody of that session can still write to the
mapping.

On connections of their own, for which they present the session's other token, the same processes
make the calls that are too many for gRPC (see `kvstore.rpc.socket_frames`).
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from pathlib import Path

from kvstore.errors import ConfigError
from kvstore.limits import SESSIONS_MAX, SOCKET_CALLS_MAX
from kvstore.memory.arena import HELLO, HELLO_MAGIC, TOKEN_BYTES, Arena
from kvstore.node.data_calls import Answering
from kvstore.node.sessions import Session, Sessions
from kvstore.node.store import Store
from kvstore.rpc.socket_frames import WELCOME

log = logging.getLogger(__name__)

_PRESENT_SECONDS = 2.0  # a caller that connects and says nothing is hung up on
_PAUSE_SECONDS = 0.2


class DataSocket:
    """Accepts mappers until it is closed."""

    def __init__(
        self,
        path: Path,
        arena: Arena,
        handle: bytes,
        sessions: Sessions,
        store: Store,
        answering: Answering,
    ) -> None:
        """`handle`: by which callers open HBM that the node lends; empty where it lends none."""
        self._descriptor = arena.descriptor
        self._hello = HELLO.pack(HELLO_MAGIC, arena.size) + handle
        self._sessions, self._store = sessions, store
        self._path, self._answering = path, answering
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        self._tasks: set[asyncio.Task[None]] = set()
        # Whoever runs a node in this directory holds its lock, so a socket found here is stale.
        path.unlink(missing_ok=True)
        try:
            self._socket.bind(os.fspath(path))
        except OSError as error:
            raise ConfigError(f"node.dir: no socket can be made at {path}: {error}") from error
        path.chmod(0o600)
        self._socket.listen(64)

    async def serve(self) -> None:
        """Accept until cancelled."""
        loop = asyncio.get_running_loop()
        while True:
            try:
                peer, _ = await loop.sock_accept(self._socket)
            except OSError as error:  # out of descriptors: it is better in a while
                log.warning("no mapper can be let in: %s", error)
                await asyncio.sleep(_PAUSE_SECONDS)
                continue
            if len(self._tasks) >= (2 + SOCKET_CALLS_MAX) * SESSIONS_MAX:
                peer.close()
                continue
            task = asyncio.create_task(self._attend(peer))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _attend(self, peer: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        session: Session | None = None
        try:
            peer.setblocking(False)
            token = await asyncio.wait_for(loop.sock_recv(peer, TOKEN_BYTES), _PRESENT_SECONDS)
            caller = self._sessions.by_call_token(token)
            if caller is not None:
                await self._answer(peer, caller)
                return
            session = self._sessions.by_shm_token(token)
            if session is None:
                return
            session.mappings += 1
            socket.send_fds(peer, [self._hello], [self._descriptor])
            while await loop.sock_recv(peer, 64):
                pass  # nothing more is said here; only the end matters
        except (OSError, TimeoutError) as error:
            log.info("a mapper went away: %s", error)
        finally:
            peer.close()
            if session is not None:
                session.mappings -= 1
                if not session.streaming and not session.may_write:
                    self._store.gone(session)

    async def _answer(self, peer: socket.socket, session: Session) -> None:
        """Answer what this session calls, until it hangs up."""
        if session.calling >= SOCKET_CALLS_MAX:
            return
        session.calling += 1
        try:
            loop = asyncio.get_running_loop()
            await loop.sock_sendall(peer, WELCOME)
            answering = self._answering(session)
            transport, _ = await loop.connect_accepted_socket(lambda: answering, peer)
            try:
                await answering.over
            finally:
                transport.abort()
        finally:
            session.calling -= 1

    def close(self) -> None:
        self._socket.close()
        for task in self._tasks:
            task.cancel()
        self._path.unlink(missing_ok=True)
