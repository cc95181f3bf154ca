"""What holds for every test: own state, no process and no store left behind, and an end.

No test may run longer than `faulthandler_timeout` in pyproject.toml: then every thread's stack is
printed and the run ends.

Properties are tried with the same examples in every run; `make hunt` looks for others.

`make test` runs several files at once (pytest-xdist), each of them in one process, so that what a
file's fixtures start is started once. All that needs the simulator is one such group, since to
compile it takes minutes. Each file has one of three marks, and those of one mark run when the
others do not: `together` is what computes; `waiting` watches several processes against a clock, and
waits more than it computes, so that such files leave each other time; and `alone`, one file after
the other, has ports of its own, fills the machine with a whole stack, or measures times that a
neighbour would change.
"""

from __future__ import annotations

import itertools
import os
import re
import threading
import uuid
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import psutil
import pytest
from hypothesis import settings

settings.register_profile("same", derandomize=True, database=None, deadline=None)
settings.register_profile("hunt", database=None, print_blob=True, deadline=None)
settings.load_profile("same")  # unless --hypothesis-profile names the other

# gRPC's handlers around fork hang or end the new process when other threads are in gRPC then. Read
# when gRPC is loaded; what is started here is exec'd at once and needs none of them.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")
# To start a thread of linear algebra for each core takes each process a tenth of its start.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

_MARK = "MOONPOOL_TEST_RUN"  # inherited by whatever a test starts, at any depth
_GRACE_SECONDS = 30.0  # a process that was told to end may take this long on a busy machine
_BROWSER = "chromium"  # starts and ends processes of its own when it likes
_HELPERS = ("multiprocessing.resource_tracker", "multiprocessing.forkserver")


_SIMULATES = re.compile(
    r"planner/|kernels/test_sim|bench/test_foretold|cli/test_plan_simulate"
    r"|test_docs.py::test_the_commands_of_the_planning_page"
)
_MARKS = {
    "alone": re.compile(r"auth/test_timing|deploy/test_compose_runs|cli/test_(up|demo)"),
    "waiting": re.compile(
        r"tests/(cluster|faults)/|dashboard/test_(access|board|prometheus|reasons)"
        r"|auth/test_floods|engine/test_elastic|conductor/test_conductor|client/test_node_gone"
        r"|node/test_(waiting|data_port_peers)"
    ),
    "together": re.compile(""),
}


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Where `-m` chooses by file, the others are not read: to load them all takes many seconds."""
    if collection_path.suffix != ".py" or config.option.markexpr not in _MARKS:
        return None
    file = collection_path.relative_to(config.rootpath).as_posix()
    return True if _mark(file) != config.option.markexpr else None


@pytest.hookimpl(tryfirst=True)  # before `-m` chooses by marks
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        item.add_marker(_mark(_file(item.nodeid)))


def _mark(file: str) -> str:
    return next(mark for mark, of in _MARKS.items() if of.search(file))


@pytest.hookimpl(optionalhook=True)  # where pytest-xdist is
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    from xdist.scheduler.loadscope import LoadScopeScheduling

    made = LoadScopeScheduling(config, log)
    made._split_scope = _group  # xdist's own marks for groups pass pytest 9.2 by
    return made


def _group(nodeid: str) -> str:
    """What the process that runs a test runs all of."""
    return "simulator" if _SIMULATES.search(nodeid) else _file(nodeid)


def _file(nodeid: str) -> str:
    return nodeid.split("::")[0]


@pytest.fixture(scope="session")
def _homes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    base = tmp_path_factory.mktemp("homes")
    return (base / str(number) for number in itertools.count())


@pytest.fixture(autouse=True)
def _own_state(monkeypatch: pytest.MonkeyPatch, _homes: Iterator[Path]) -> None:
    """The user's settings do not change a test, and a test does not change the user's state."""
    for name in [name for name in os.environ if name.startswith("MOONPOOL_") and name != _MARK]:
        monkeypatch.delenv(name)
    home = next(_homes)  # short, since sockets are made below it
    home.mkdir()
    monkeypatch.setenv("MOONPOOL_DIR", str(home))


@pytest.fixture(autouse=True)
def processes() -> Iterator[None]:
    """Fails a test whose child processes outlive it. Those of wider fixtures are theirs."""
    before = set(_children())
    yield
    came = set(_children()) - before
    for browser in (one for one in before if _runs(one) and _BROWSER in _command(one)):
        came.difference_update(browser.children(recursive=True))
    _fail_for([*came])


@pytest.fixture
def fenced() -> Iterator[None]:
    """Fails a test if a GPU's kernel, interpreted here, reaches outside of what it is told of."""
    from tests.kernels.gpu import fences

    with fences.standing() if fences.INTERPRETED else nullcontext():
        yield


@pytest.fixture(scope="session", autouse=True)
def _orphans(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Fails the run if anything that it started is alive at its end, whoever its parent is now."""
    run = uuid.uuid4().hex
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(_MARK, run)
        patch.setenv("MOONPOOL_DIR", str(tmp_path_factory.mktemp("home")))  # of wider fixtures
        yield
    started = [one for one in psutil.process_iter(["environ"]) if one.pid != os.getpid()]
    _fail_for([one for one in started if (one.info["environ"] or {}).get(_MARK) == run])


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> Iterator[None]:
    """Fails a file of tests whose metadata stores outlive it: one that is watched polls on beside
    every test that follows. A fixture could not say so of fixtures wider than itself."""
    yield
    if nextitem is None or nextitem.path != item.path:
        left = [one for one in threading.enumerate() if one.name.startswith("metadata ")]
        for one in left:
            one.join(_GRACE_SECONDS)
        if found := [one.name for one in left if one.is_alive()]:  # the name is the store's path
            pytest.fail("metadata stores left open: " + "; ".join(found), pytrace=False)


def _children() -> list[psutil.Process]:
    """At any depth. To find them every process of the machine is read: not where there is none."""
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return []
    found: list[psutil.Process] = psutil.Process().children(recursive=True)
    return found


def _fail_for(left: list[psutil.Process]) -> None:
    """Wait a little for these processes, end those that stay, and fail if there were any."""
    left = [one for one in left if _runs(one)]
    if left:
        psutil.wait_procs(left, timeout=_GRACE_SECONDS)
    if found := [f"{one.pid} {_command(one)}" for one in left if _runs(one)]:
        for one in left:
            if _runs(one):
                one.kill()
        psutil.wait_procs(left, timeout=_GRACE_SECONDS)
        pytest.fail("processes left behind: " + "; ".join(found), pytrace=False)


def _runs(process: psutil.Process) -> bool:
    try:
        ended = process.status() in (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD)
    except psutil.NoSuchProcess:
        return False
    return not ended and not any(helper in _command(process) for helper in _HELPERS)


def _command(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline())
    except psutil.Error:
        return "(ended)"
