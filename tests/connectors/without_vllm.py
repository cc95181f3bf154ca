"""Names of vLLM's that the connector imports, where vLLM is not: so its worker's half runs where
only torch is, as on a GPU's host for tests.

Of these three have what is called of them, as vLLM 0.32.0 has them; the rest are names. That a real
vLLM has them all, tests/connectors/vllm says.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from types import ModuleType
from typing import Any

OURS = "kvstore.engine.connectors.vllm"


class Base:
    """KVConnectorBase_V1, of a worker."""

    _connector_metadata: Any = None

    def bind_connector_metadata(self, connector_metadata: Any) -> None:
        self._connector_metadata = connector_metadata

    def clear_connector_metadata(self) -> None:
        self._connector_metadata = None


@dataclass
class Results:
    """KVConnectorTransferResults."""

    finished_sending: set[str] = field(default_factory=set)
    finished_recving: set[str] = field(default_factory=set)
    failed_recving: set[str] = field(default_factory=set)


class Factory:
    """KVConnectorFactory, of which nothing is asked here."""

    @staticmethod
    def register_connector(name: str, module_path: str, class_name: str) -> None:
        pass


KNOWN = {
    "KVConnectorFactory": Factory,
    "KVConnectorBase_V1": Base,
    "KVConnectorTransferResults": Results,
    "init_logger": logging.getLogger,
    "__version__": "0.32.0",
}


class Named(ModuleType):
    """A module of vLLM's that has whatever is asked for."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") and name not in KNOWN:
            raise AttributeError(name)
        made = KNOWN[name] if name in KNOWN else type(name, (), {})
        setattr(self, name, made)
        return made


class Finder(MetaPathFinder, Loader):
    def find_spec(self, name: str, path: Sequence[str] | None, target: Any = None) -> Any:
        if name.split(".")[0] != "vllm":
            return None
        return ModuleSpec(name, self, is_package=True)

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return Named(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        """It has nothing to run."""


@contextmanager
def standing_in() -> Iterator[None]:
    """The connector can be imported until the block ends. After it neither it nor vLLM is there,
    for whoever looks for them; where a real one is installed, that is what is imported."""
    if find_spec("vllm") is not None:
        yield
        return
    finder, before = Finder(), set(sys.modules)
    sys.meta_path.append(finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)
        for name in set(sys.modules) - before:
            if name.split(".")[0] == "vllm" or name.startswith(OURS):
                del sys.modules[name]
                package, _, last = name.rpartition(".")
                vars(sys.modules.get(package, ModuleType(""))).pop(last, None)
