"""Who has compiled code for sockets, and from when on; whoever has none does the same without."""

from __future__ import annotations

import subprocess
import sys
import threading
from types import ModuleType

import pytest

from kvstore.transfer import socket_kernels
from kvstore.transfer.socket_kernels import WORTH_BYTES
from tests.nodes import eventually

SECONDS = 120.0  # that a compiler may take, on a busy machine


@pytest.fixture
def loaded(monkeypatch: pytest.MonkeyPatch) -> socket_kernels._Loaded:
    """As in a process that has done nothing yet."""
    new = socket_kernels._Loaded()
    monkeypatch.setattr(socket_kernels, "_loaded", new)
    return new


def test_a_large_run_has_them_loaded_beside_and_a_small_one_does_not(
    loaded: socket_kernels._Loaded,
) -> None:
    assert socket_kernels.at_hand(WORTH_BYTES - 1) is None
    assert not loaded.begun
    assert socket_kernels.at_hand(WORTH_BYTES) is None, "it is not waited for"
    eventually(lambda: socket_kernels.at_hand(1) is not None, SECONDS)
    kernels = socket_kernels.at_hand(1)
    assert kernels is not None
    assert all(isinstance(one, ModuleType) for one in kernels)


def test_whoever_computes_anyway_has_them_at_once(loaded: socket_kernels._Loaded) -> None:
    socket_kernels.load()
    assert socket_kernels.at_hand(1) is not None


def test_a_node_compiles_no_more_than_it_needs() -> None:
    """Loops over strips take four times as long, and 60 MB more while they are compiled."""
    code = """
import sys
from kvstore.transfer import socket_kernels
socket_kernels.load()
print(*(name for name in sys.modules if name.startswith("kvstore.kernels.strip")))
"""
    ran = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=SECONDS
    )
    assert ran.stdout.split() == ["kvstore.kernels.strip_entry"], ran.stderr


@pytest.mark.parametrize("kind", [ImportError, RuntimeError, OSError])
def test_what_cannot_be_loaded_is_tried_once_and_said(
    loaded: socket_kernels._Loaded,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    kind: type[Exception],
) -> None:
    tries = list[int]()

    def fails() -> None:
        tries.append(1)
        raise kind("no numba here")

    monkeypatch.setattr(loaded, "load", fails)
    caplog.set_level("INFO")
    for _ in range(5):
        assert socket_kernels.at_hand(WORTH_BYTES) is None
    eventually(lambda: "no numba here" in caplog.text, SECONDS)
    assert socket_kernels.at_hand(WORTH_BYTES) is None
    assert len(tries) == 1


def test_runs_that_come_at_once_have_them_loaded_once(
    loaded: socket_kernels._Loaded, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun = list[threading.Thread]()
    monkeypatch.setattr(threading.Thread, "start", lambda thread: begun.append(thread))
    for _ in range(2):  # the second had looked before the first began
        loaded.begin()
    assert len(begun) == 1


def test_where_no_thread_is_left_another_run_tries_again(
    loaded: socket_kernels._Loaded, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_thread(thread: threading.Thread) -> None:
        assert thread.daemon, "a node that ends waits for no compiler"
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as context:
        context.setattr(threading.Thread, "start", no_thread)
        assert socket_kernels.at_hand(WORTH_BYTES) is None
    assert not loaded.begun
    assert socket_kernels.at_hand(WORTH_BYTES) is None
    eventually(lambda: socket_kernels.at_hand(1) is not None, SECONDS)


def test_where_memory_must_not_become_code_nothing_is_loaded(
    loaded: socket_kernels._Loaded, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused() -> None:
        raise PermissionError("no memory that is both")

    monkeypatch.setattr(socket_kernels, "_make_code", refused)
    monkeypatch.setattr(loaded, "load", lambda: pytest.fail("LLVM would end the process"))
    loaded._try()
    assert loaded.kernels is None


def test_where_memory_must_not_become_code_the_process_lives_on_without() -> None:
    """As under systemd's MemoryDenyWriteExecute. LLVM would end the process."""
    code = """
import ctypes, logging, sys, threading
from kvstore.transfer import socket_kernels
REFUSE, TO_GAIN_EXEC = 65, 1
if ctypes.CDLL(None).prctl(REFUSE, TO_GAIN_EXEC, 0, 0, 0):
    sys.exit(77)  # a kernel before 6.3
logging.basicConfig(level=logging.INFO, stream=sys.stdout)
assert socket_kernels.at_hand(socket_kernels.WORTH_BYTES) is None
for one in threading.enumerate():
    if one.name == "socket-kernels":
        one.join()
assert socket_kernels.at_hand(socket_kernels.WORTH_BYTES) is None
assert "numba" not in sys.modules
"""
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    if ran.returncode == 77:
        pytest.skip("this kernel cannot refuse it")
    assert ran.returncode == 0, ran.stderr
    assert "without compiled code" in ran.stdout
