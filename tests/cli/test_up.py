"""`moonpool up` as a user meets it: killed in every way, it goes on or starts again."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import openai
import psutil
import pytest

from kvstore.cli.demo.route import dispatcher
from kvstore.cli.demo.workload import Ask
from kvstore.cli.main import main
from kvstore.client import Client, InDirectory
from kvstore.dashboard import scrape
from kvstore.engine.make_model import make_model
from kvstore.engine.namespace import spec_of
from kvstore.engine.reference import Reference
from tests.nodes import running

SECONDS = 60.0
ALL = ("node", "conductor", "prefill", "decode", "gateway")


class Up:
    """A running `moonpool up` and what it has printed."""

    def __init__(self, directory: Path, model: Path) -> None:
        self.directory = directory
        self._output = (directory.parent / "up.out").open("ab+")
        arguments = ["up", "--dir", str(directory), "--model", str(model)]
        arguments += ["--listen", "127.0.0.1:0"]
        self.process = subprocess.Popen(
            [sys.executable, "-m", "kvstore", *arguments, "--dram", "64MiB", "--slab", "4MiB"],
            stdout=self._output,
            stderr=self._output,
        )
        eventually(lambda: "Ctrl-C" in self.text() or self.process.poll() is not None)
        assert self.process.poll() is None, self.text()

    def text(self) -> str:
        self._output.seek(0)
        return self._output.read().decode()

    def addresses(self) -> dict[str, str]:
        return dict(re.findall(rf"^({'|'.join(ALL)}) +(\S+:\d+)$", self.text(), re.M))

    def children(self) -> dict[str, psutil.Process]:
        found = psutil.Process(self.process.pid).children()
        return {_name(child): child for child in found if child.status() != "zombie"}

    def stop(self, number: int = signal.SIGTERM) -> int:
        if self.process.poll() is None:
            self.process.send_signal(number)
        code = self.process.wait(SECONDS)
        self._output.truncate(0)
        self._output.close()
        return code


def _name(child: psutil.Process) -> str:
    command = child.cmdline()
    if "--role" in command:
        return command[command.index("--role") + 1]
    name = command[command.index("kvstore") + 1]
    return "gateway" if name == "serve" else name


def eventually(condition: Callable[[], bool], seconds: float = SECONDS) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not come true in time"
        time.sleep(0.05)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tmp_path_factory.mktemp("m"), layers=2, hidden=64, heads=4, kv_heads=2)


@pytest.fixture
def directory() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="mp") as path:
        yield Path(path) / "pool"


def ask_through(up: Up, model: Path, number: int) -> None:
    """One request through prefill, hand-off and decode; its tokens must be right."""
    with Client(InDirectory(up.directory), spec_of(model)) as client:
        addresses = up.addresses()
        through = dispatcher(addresses["prefill"], addresses["decode"], client)
        words = [100 + (7 * number * i + i * i) % 1900 for i in range(600)]
        ask = Ask(f"r{number}-{time.monotonic_ns()}", "cold", tuple(words), 6)
        outcome = through.run(ask.request())
        through.close()
    assert outcome.tokens == Reference(model).tokens(ask.prompt, 6)


def ask_the_gateway(up: Up) -> None:
    """It answers, wherever the others are now, and its page says that all of them do."""
    address = up.addresses()["gateway"]
    with openai.OpenAI(base_url=f"http://{address}/v1", api_key="k", timeout=SECONDS) as ai:
        [served] = ai.models.list().data
        answer = ai.completions.create(model=served.id, prompt=[5] * 200, max_tokens=4)
    assert answer.usage is not None and answer.usage.completion_tokens == 4

    def silent() -> list[str]:
        with urllib.request.urlopen(f"http://{address}/board/charts", timeout=SECONDS) as charts:
            return [one["silent"] for one in json.load(charts)["processes"] if one["silent"]]

    eventually(lambda: not silent())


def test_killing_any_one_process_leaves_the_others_running_and_requests_right(
    directory: Path, model: Path
) -> None:
    up = Up(directory, model)
    try:
        ask_through(up, model, 1)
        for number, victim in enumerate(ALL, start=2):
            before = up.children()
            assert set(before) == set(ALL)
            before[victim].kill()
            before[victim].wait(SECONDS)
            if victim == "node":  # at once, with the node still gone
                ask_through(up, model, 10)
            others = [child.pid for name, child in before.items() if name != victim]
            eventually(lambda: len(up.children()) == len(ALL))
            assert {child.pid for child in up.children().values()} >= set(others)
            restarts = number - 1
            printed = rf"(?m)^{victim} +\S+:\d+$"
            eventually(lambda printed=printed: len(re.findall(printed, up.text())) == 2)
            assert up.text().count("starting it again") == restarts
            ask_through(up, model, number)
            ask_the_gateway(up)
    finally:
        assert up.stop() == 0


def test_it_prints_a_request_that_is_answered_as_it_stands_and_what_top_is_to_be_given(
    directory: Path, model: Path
) -> None:
    up = Up(directory, model)
    try:
        said = dict(line.split(maxsplit=1) for line in up.text().splitlines())
        assert said["model"] == model.name
        asked = subprocess.run(
            said["request"], shell=True, capture_output=True, check=True, timeout=SECONDS
        )
        assert json.loads(asked.stdout)["usage"]["completion_tokens"] > 0
        command, name, *metrics = said["metrics"].split()
        assert (command, name, len(metrics)) == ("moonpool", "top", len(ALL))
        for address in metrics:
            assert scrape.read(address)
    finally:
        assert up.stop() == 0


def test_it_starts_cleanly_over_what_a_killed_one_left(directory: Path, model: Path) -> None:
    up = Up(directory, model)
    children = up.children()
    up.process.kill()
    up.process.wait(SECONDS)
    # The kernel ends the children of a killed parent; then everything is killed, mid-work or not.
    psutil.wait_procs(list(children.values()), timeout=SECONDS)
    assert not any(child.is_running() for child in children.values())
    up.stop()
    again = Up(directory, model)
    children = again.children()
    for child in children.values():
        child.kill()
    again.process.kill()
    psutil.wait_procs(list(children.values()), timeout=SECONDS)
    again.stop()
    assert (directory / "node.sock").exists(), "a stale socket is what this test is about"
    third = Up(directory, model)
    ask_through(third, model, 3)
    assert third.stop(signal.SIGINT) == 0
    assert not list(Path("/dev/shm").glob("*moonpool*"))


def test_a_second_stack_in_one_directory_is_refused_by_name(directory: Path, model: Path) -> None:
    up = Up(directory, model)
    try:
        second = subprocess.run(
            [sys.executable, "-m", "kvstore", "up", "--dir", str(directory), "--no-engines"],
            capture_output=True,
            text=True,
            timeout=SECONDS,
            env={**os.environ},
        )
        assert second.returncode == 2
        assert str(directory) in second.stderr and "another node" in second.stderr
    finally:
        assert up.stop() == 0


def test_where_a_node_runs_no_model_is_made_for_another(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with running() as node:
        assert main(["up", "--dir", str(node.directory), "--listen", "127.0.0.1:0"]) == 2
        said = capsys.readouterr().err
        assert f"{node.directory}: another node runs there" in said and "--model" not in said
        assert not (node.directory / "random-model").exists()


def test_a_model_that_is_none_is_told_before_anything_is_started(tmp_path: Path) -> None:
    home, none = tmp_path / "home", tmp_path / "none"
    asked = ["up", "--dir", str(home), "--model", str(none)]
    ran = subprocess.run(
        [sys.executable, "-m", "kvstore", *asked], capture_output=True, text=True, timeout=SECONDS
    )
    assert ran.returncode == 2
    assert f"--model {none}: there is no such folder" in ran.stderr
    assert not home.exists()


def test_a_port_that_another_process_has_is_told_before_anything_is_started(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    home = tmp_path / "home"
    with socket.create_server(("127.0.0.1", 0)) as taken:
        at = f"127.0.0.1:{taken.getsockname()[1]}"
        code = main(["up", "--dir", str(home), "--model", str(model), "--listen", at])
    assert code == 2 and not home.exists()
    said = capsys.readouterr().err
    assert f"--listen = '{at}': another process listens there" in said and "starting" not in said
