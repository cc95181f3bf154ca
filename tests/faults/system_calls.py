"""System calls of a running node that fail or take their time, by strace."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.nodes import NodeProcess, eventually


@contextmanager
def spoilt(node: NodeProcess, calls: str, how: str) -> Iterator[None]:
    """From now on these system calls of the node fail, as `error=EIO` says, or take a second more,
    as `delay_enter=1000000` says."""
    if shutil.which("strace") is None:
        pytest.skip("strace is not installed")
    inject = ["-e", f"trace={calls}", "-e", f"inject={calls}:{how}:when=1+"]
    tracer = subprocess.Popen(
        ["strace", "-f", "-qq", "-o", "/dev/null", *inject, "-p", str(node.pid)],
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        eventually(lambda: tracer.poll() is not None or _traced(node.pid))
        if tracer.poll() is not None:
            assert tracer.stderr is not None
            pytest.skip(f"strace may not trace here: {tracer.stderr.read().strip()}")
        yield
    finally:
        tracer.terminate()
        tracer.communicate()


def _traced(pid: int) -> bool:
    """Whether each of its threads is; one that ends as it is looked at needs not be."""
    return all(map(_thread_traced, Path(f"/proc/{pid}/task").iterdir()))


def _thread_traced(task: Path) -> bool:
    try:
        return "TracerPid:\t0\n" not in (task / "status").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return True
