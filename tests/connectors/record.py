"""Records of the interfaces that connectors implement, so that a slip shows without the engine.

A record is made where the engine is installed, and checked there against the installed class; the
connector's own source is checked against it anywhere, by its syntax alone:

    python -m tests.connectors.record sglang \
        sglang.srt.mem_cache.hicache_storage:HiCacheStorage \
        engine/connectors/sglang/storage.py:MoonpoolStorage

writes `signatures/sglang-VERSION.json` beside this file. An interface of several classes names them
with commas between.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import json
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

from tests import tree

RECORDS = Path(__file__).parent / "signatures"


def recorded(path: Path) -> dict[str, Any]:
    return dict(json.loads(path.read_text()))


def record_of(engine: str, interface: str, connector: str) -> dict[str, Any]:
    """What the installed engine asks of a connector."""
    kinds = _loaded(interface)
    methods = {name: taken for kind in kinds for name, taken in _methods(kind).items()}
    return {
        "engine": engine,
        "version": version(engine),
        "interface": interface,
        "connector": connector,
        "abstract": sorted({one for kind in kinds for one in kind.__abstractmethods__}),
        "methods": methods,
    }


def problems(record: dict[str, Any]) -> list[str]:
    """Where the connector's source is not what the recorded interface asks for."""
    path, _, name = record["connector"].partition(":")
    ours = methods_of((tree.ROOT / path).read_text(), name)
    found = [f"{name}.{one} is missing" for one in record["abstract"] if one not in ours]
    for method, asked in record["methods"].items():
        if method not in ours:
            continue  # the engine's own serves
        names, defaults = ours[method]
        more = names[len(asked) :]
        if names[: len(asked)] != asked or len(more) > defaults:
            found.append(f"{name}.{method} takes {names}; {asked} is asked for")
    return found


def methods_of(source: str, name: str) -> dict[str, tuple[list[str], int]]:
    """Parameters of a class's public methods, and how many of the last have defaults."""
    kinds = [one for one in ast.parse(source).body if isinstance(one, ast.ClassDef)]
    (kind,) = [one for one in kinds if one.name == name]
    found = {}
    for one in kind.body:
        if isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef) and one.name[0] != "_":
            every = one.args
            plain = [*every.posonlyargs, *every.args][1:]
            names = [arg.arg for arg in plain]
            names += [arg.arg for arg in (every.vararg, *every.kwonlyargs, every.kwarg) if arg]
            found[one.name] = names, len(every.defaults)
    return found


def _loaded(interface: str) -> list[Any]:
    module, _, names = interface.partition(":")
    return [getattr(importlib.import_module(module), name) for name in names.split(",")]


def _methods(kind: Any) -> dict[str, list[str]]:
    """Public methods, those of the class itself among them, and what they take beside it."""
    found = {}
    for name, member in inspect.getmembers(kind, inspect.isroutine):
        if not name.startswith("_"):
            taken = list(inspect.signature(member).parameters)
            found[name] = taken if inspect.ismethod(member) else taken[1:]
    return found


if __name__ == "__main__":
    made = record_of(*sys.argv[1:])
    target = RECORDS / f"{made['engine']}-{made['version']}.json"
    target.write_text(json.dumps(made, indent=1, sort_keys=True) + "\n")
    print(target)
