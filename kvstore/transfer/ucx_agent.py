"""This process's NIXL agent: memory that others may be told of, others' memory, and moves to it.

What another agent says of itself is a blob that UCX alone can read, and UCX aborts the process on
some that were damaged: whoever loads blobs of others (`load`) does it in a process that may die.
An agent that only registers memory loads none.
"""

from __future__ import annotations

import atexit
import logging
import os
import secrets
import threading
from collections.abc import Iterable
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from kvstore.errors import ConfigError, Unavailable
from kvstore.limits import REGISTERED_BYTES_MAX, UCX_BLOB_BYTES_MAX
from kvstore.transfer.frames import Segment
from kvstore.transfer.ucx_memory import OnGpu, Region, Registration, Shown, place

log = logging.getLogger(__name__)

NAME_BYTES = 16  # drawn at random: nobody else is told it but those whom memory is shown to

Run = tuple[int, int, int]  # bytes: where it lies here, where there, how many

_PAUSE_MICROSECONDS = 100  # between looks of the thread that answers; without it, it takes a core
_CURES = {
    Segment.DRAM: "raise the limit of locked memory (`ulimit -l unlimited`), or, where a network "
    "device that was there at the start is gone, name the others in UCX_NET_DEVICES and start "
    "again",
    Segment.VRAM: "see that UCX_TLS allows cuda, and that the driver lets others reach the GPU",
}
_INSTALL = "`pip install 'moonpool[ucx]'`, or, without torch, `pip install --no-deps nixl-cu12`"


class Agent:
    """Safe to use from several threads: one call at a time goes to NIXL."""

    _answers = True  # others' words, at any time: by a thread of NIXL's

    def __init__(self) -> None:
        """Raises `ConfigError` where NIXL or its UCX backend cannot be had."""
        self.name = secrets.token_bytes(NAME_BYTES)
        self._nixl = _library()
        self._lock = threading.Lock()
        self._regions: dict[tuple[int, int], Region] = {}
        self._device = 0
        config = self._nixl.nixlAgentConfig()
        config.useProgThread, config.pthrDelay = self._answers, _PAUSE_MICROSECONDS
        try:
            self._agent = self._nixl.nixlAgent(self.name.hex(), config)
            self._agent.createBackend("UCX", {})
        except _failures() as error:
            raise ConfigError(
                f"transport ucx: NIXL has no UCX here ({error}): see what UCX_TLS and "
                "UCX_NET_DEVICES allow, or use another transport"
            ) from error

    def register(self, memory: Shown) -> Region:
        """Memory into which, and out of which, others may move bytes, until it is `forgotten`; of a
        GPU, for ever. Raises `ConfigError`."""
        where = place(memory)
        with self._lock:
            if known := self._regions.get(where):
                known.uses += 1
                return known
            registration = self._registration(memory)
            pieces = [(at, size, registration.device, "") for at, size in chunks(*where)]
            descriptors = self._nixl.nixlRegDList(self._segment(registration), pieces)
            try:
                self._agent.registerMem(descriptors, [])
                blob = bytes(self._agent.getLocalPartialMD(descriptors, True, []))
            except _failures() as error:
                raise ConfigError(
                    f"transport ucx: {memory.nbytes} bytes cannot be registered ({error}): "
                    f"{_CURES[registration.segment]}"
                ) from error
            made = Region(*where, registration, blob, 1, descriptors, memory)
            self._regions[where] = made
            return made

    def forget(self, region: Region) -> None:
        """One of those who registered it has no more use for it. Where NIXL does not let go of it,
        it stays registered, and alive."""
        with self._lock:
            region.uses -= 1
            if not region.uses and region.registration.segment is Segment.DRAM:
                try:
                    self._agent.deregisterMem(region.descriptors, [])
                except _failures() as error:
                    log.warning("%d bytes stay registered for ucx: %s", region.size, error)
                    return
                self._regions.pop((region.address, region.size))
                region.owner = None

    def knows(self, memory: Shown) -> bool:
        """Whether this memory is registered."""
        return place(memory) in self._regions

    def load(self, name: bytes, blob: bytes) -> None:
        """Come to know an agent, or more of its memory. See above of what this may do."""
        if not names(blob, name) or len(blob) > UCX_BLOB_BYTES_MAX:
            raise Unavailable("what is said of an agent is not of the agent that says it")
        with self._lock:
            try:
                self._agent.loadRemoteMD(blob)
                self._agent.makeConnection(name.hex(), [])
            except _failures() as error:
                raise Unavailable(f"an agent cannot be reached: {error}") from error

    def drop(self, name: bytes) -> None:
        """Know an agent no more, and hang up on it."""
        with self._lock:
            try:
                self._agent.invalidateRemoteMD(name.hex())
            except _failures() as error:
                raise Unavailable(f"an agent cannot be dropped: {error}") from error

    def begin(
        self,
        op: str,
        mine: Registration,
        name: bytes,
        theirs: Registration,
        runs: npt.NDArray[np.uint64],
    ) -> Moving:
        """What will move (n, 3) `Run`s between what two agents registered: "WRITE" from here to
        there, "READ" the other way."""
        nixl, columns = self._nixl, np.empty((2, len(runs), 3), dtype=np.uint64)
        columns[:, :, 0], columns[:, :, 1] = runs[:, :2].T, runs[:, 2]
        columns[0, :, 2], columns[1, :, 2] = mine.device, theirs.device
        with self._lock:
            try:
                ends = zip((mine, theirs), columns, strict=True)
                here, there = (nixl.nixlXferDList(self._segment(one), at) for one, at in ends)
                way = {"WRITE": nixl.NIXL_WRITE, "READ": nixl.NIXL_READ}[op]
                handle = self._agent.createXferReq(way, here, there, name.hex(), b"", [])
            except _failures() as error:
                raise Unavailable(f"no such move: {error}") from error
        return Moving(self, handle)

    def post(self, handle: int) -> bool:
        with self._lock:
            return self._done(lambda: self._agent.postXferReq(handle, b""))

    def look(self, handle: int) -> bool:
        with self._lock:
            return self._done(lambda: self._agent.getXferStatus(handle))

    def release(self, handle: int) -> None:
        with self._lock:
            try:
                self._agent.releaseXferReq(handle)
            except _failures() as error:
                raise Unavailable(f"a move cannot be called off: {error}") from error

    def _registration(self, memory: Shown) -> Registration:
        """With the lock held."""
        if isinstance(memory, OnGpu):
            return Registration(memory.device, Segment.VRAM)
        self._device += 1
        return Registration(self._device, Segment.DRAM)

    def _segment(self, registration: Registration) -> Any:
        """NIXL's word for it."""
        return getattr(self._nixl, f"{registration.segment.name}_SEG")

    def _done(self, ask: Any) -> bool:
        try:
            state = ask()
        except _failures() as error:
            raise Unavailable(f"a move failed: {error}") from error
        if state == self._nixl.NIXL_IN_PROG:
            return False
        if state != self._nixl.NIXL_SUCCESS:
            raise Unavailable(f"a move failed: {state}")
        return True


class MoversAgent(Agent):
    """Of a process that looks at its moves as long as there are any: they go on by its looking.

    A thread of NIXL's beside it would stand in line for the lock under which bytes are copied, and
    take a core while it does.
    """

    _answers = False


class Moving:
    """Bytes on their way. Whoever began it ends it."""

    def __init__(self, agent: Agent, handle: int) -> None:
        self._agent, self._handle = agent, handle

    def post(self) -> bool:
        """Set it off; whether it is done already. Raises `Unavailable`, as `done` does."""
        return self._agent.post(self._handle)

    def done(self) -> bool:
        return self._agent.look(self._handle)

    def end(self) -> None:
        """Call it off if it is not done. Raises `Unavailable` if that cannot be."""
        self._agent.release(self._handle)


def names(blob: bytes, name: bytes) -> bool:
    """Whether an agent's blob says that it is of this agent, where NIXL looks for it."""
    text = name.hex().encode()
    return blob.startswith(b"nixlSerDes|Agent" + len(text).to_bytes(8, "little") + text + b"|")


def chunks(address: int, size: int) -> list[tuple[int, int]]:
    """(address, bytes) of what is registered at a time: very large pieces fail in the field."""
    step = REGISTERED_BYTES_MAX
    return [(address + at, min(step, size - at)) for at in range(0, size, step)]


def cut(here: int, there: int, size: int) -> Iterable[Run]:
    """A run from one region to another, by their offsets, where either of them has a seam."""
    while size:
        left = REGISTERED_BYTES_MAX - max(here % REGISTERED_BYTES_MAX, there % REGISTERED_BYTES_MAX)
        step = min(size, left)
        yield here, there, step
        here, there, size = here + step, there + step, size - step


_shared: list[Agent] = []
_making = threading.Lock()


def shared_agent() -> Agent:
    """The one that all transports of this process use. Raises `ConfigError`."""
    with _making:
        if not _shared:
            _shared.append(Agent())
            # While Python still stands: its thread must not meet what exit takes down.
            atexit.register(_shared.clear)
        return _shared[0]


@cache
def _library() -> Any:
    """NIXL's bindings. Its own Python layer has no setting for the pause, and unpickles."""
    for name, value in _settings().items():
        os.environ.setdefault(name, value)
    try:
        return import_module("nixl_cu12._bindings")
    except ImportError as error:
        raise ConfigError(f"transport ucx: NIXL is not installed ({error}): {_INSTALL}") from error


def fleeting(net: Path) -> list[str]:
    """Ends of veth pairs among a host's network devices (`/sys/class/net`), as containers come and
    go with; none where there is nothing else, as within a container."""
    ends, others = [], []
    for device in sorted(net.iterdir()) if net.is_dir() else []:
        if not (device / "iflink").exists():
            continue  # it is gone already, or was never a device
        link, own = ((device / name).read_text().strip() for name in ("iflink", "ifindex"))
        if link != own and "DEVTYPE" not in (device / "uevent").read_text():
            ends.append(device.name)
        elif device.name != "lo" and (device / "operstate").read_text().strip() == "up":
            others.append(device.name)
    return ends if others else []


def _settings() -> dict[str, str]:
    settings = {"NIXL_LOG_LEVEL": "ERROR", "UCX_ERROR_SIGNALS": "", "UCX_LOG_LEVEL": "fatal"}
    devices = Path("/sys/class/infiniband")
    if not (devices.is_dir() and any(devices.iterdir())):
        # No use here, and where the system has a libnl of its own the two meet at exit, and crash.
        settings["UCX_MODULES"] = "^ib"
    if ends := fleeting(Path("/sys/class/net")):
        # An agent that has begun with a device can do nothing more once that is gone.
        settings["UCX_NET_DEVICES"] = "^" + ",".join(ends)
    return settings


@cache
def _failures() -> tuple[type[Exception], ...]:
    """What NIXL raises: a class for each of its states, with no base of their own."""
    nixl = _library()
    found = [one for name, one in vars(nixl).items() if name.endswith("Error")]
    return (*[one for one in found if isinstance(one, type)], RuntimeError, TypeError, ValueError)
