"""One gateway for a file of tests: a node, a conductor, two engines and `moonpool serve`, all of
them real processes."""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path

import openai
import pytest

from kvstore.cli.parts import Plan
from kvstore.cli.stack import STOP_SECONDS, Child, Stack
from kvstore.engine.make_model import make_model
from kvstore.engine.reference import Reference

VOCABULARY = 512
TEMPLATE = """{% for message in messages %}{{ message.role }} {{ message.content }} w9
{% endfor %}{% if add_generation_prompt %}assistant{% endif %}"""
TOLD = ("--metrics", "127.0.0.1:0")


@pytest.fixture(scope="session")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("m") / "tiny"
    sizes = {"layers": 2, "hidden": 64, "heads": 4, "kv_heads": 2, "intermediate": 128}
    return make_model(path, seed=1, vocab=VOCABULARY, max_positions=1024, **sizes)


@pytest.fixture(scope="session")
def chatting(model_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same, and it chats."""
    path = tmp_path_factory.mktemp("chats") / "tiny"
    shutil.copytree(model_dir, path)
    (path / "chat_template.jinja").write_text(TEMPLATE)
    return path


@pytest.fixture(scope="session")
def reference(model_dir: Path) -> Reference:
    return Reference(model_dir)


class House:
    """What the pool and its gateways are made of."""

    def __init__(self, model: Path, directory: Path, *options: str) -> None:
        """`options` are of its engines."""
        self._model = ("--model", os.fspath(model))
        self._directory, self._parts = directory, ExitStack()
        node = directory / "node"
        plan = Plan(node, dram="64MiB", slab="1MiB", model=None, node_options=TOLD)
        stack = self._parts.enter_context(Stack(plan, restart=False))
        stack.start()
        self.node = stack.children["node"]
        follows = ["conductor", "--metadata", os.fspath(node / "metadata.db"), *TOLD]
        self.conductor = self.child("conductor", follows)
        self._where = ["--dir", os.fspath(node), *self._model, "--threads", "1", *TOLD, *options]
        told = ["--conductor", self.conductor.address]
        self.engines = [
            self.child(f"engine{number}", ["engine", *self._where, *told]) for number in range(2)
        ]

    def child(self, name: str, arguments: list[str]) -> Child:
        """Started, ready, and stopped with the house."""
        return self._parts.enter_context(self.running(name, arguments))

    @contextmanager
    def running(self, name: str, arguments: list[str]) -> Iterator[Child]:
        child = Child(name, arguments, self._directory)
        child.start()
        try:
            child.wait_ready()
            yield child
        finally:
            child.stop()
            child.reap(time.monotonic() + STOP_SECONDS)

    def engine(self, name: str) -> AbstractContextManager[Child]:
        """One more, that no conductor knows."""
        return self.running(name, ["engine", *self._where])

    def serving(self, name: str, *knows: str) -> AbstractContextManager[Child]:
        """A gateway that knows these."""
        return self.running(name, ["serve", *self._model, "--listen", "127.0.0.1:0", *knows])

    @property
    def knows(self) -> tuple[str, ...]:
        """All that there is to know."""
        engines = [f"--engine={one.address}" for one in self.engines]
        return (f"--conductor={self.conductor.address}", *engines)

    @property
    def watched(self) -> tuple[str, ...]:
        """Every process's metrics."""
        return tuple(one.metrics for one in (self.node, self.conductor, *self.engines))

    def close(self) -> None:
        self._parts.close()


@pytest.fixture(scope="module")
def house(model_dir: Path) -> Iterator[House]:
    with tempfile.TemporaryDirectory(prefix="mp") as directory:
        made = House(model_dir, Path(directory))
        try:
            yield made
        finally:
            made.close()


@pytest.fixture(scope="module")
def gateway(house: House) -> Iterator[Child]:
    with house.serving("serve", *house.knows) as child:
        yield child


@pytest.fixture
def ai(gateway: Child) -> Iterator[openai.OpenAI]:
    """OpenAI's own client. It tries nothing twice: a failure is to be seen."""
    with client_of(gateway) as client:
        yield client


def client_of(gateway: Child, key: str = "k") -> openai.OpenAI:
    base = f"http://{gateway.address}/v1"
    return openai.OpenAI(base_url=base, api_key=key, max_retries=0, timeout=60.0)
