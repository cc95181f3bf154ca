"""The tree is tidy, and the checker that says so finds each kind of mess."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests import tidy, tree

TIDY = {
    "kernels/__init__.py": '"""K."""\n',
    "kernels/copy.py": '"""K."""\nfrom numba import njit\nfrom . import hashes\n',
    "kernels/hashes.py": '"""K."""\n',
    "kvstore/block.py": '"""B."""\nfrom kvstore.errors import Invalid\n',
    "kvstore/errors.py": '"""E."""\nfrom kvstore import limits\n',
    "kvstore/limits.py": '"""L."""\n',
    "kvstore/core/index.py": '"""I."""\nfrom ..block import Miss\nfrom .pins import Pins\n',
    "kvstore/core/pins.py": '"""P."""\ntry:\n    x = 1\nexcept KeyError:\n    pass\n',
    "kvstore/transfer/shm.py": '"""S."""\nfrom kvstore.kernels import copy\n',
    "kvstore/client/__init__.py": '"""C."""\nimport grpc\nimport kvstore.transfer.shm\n',
    "kvstore/wire/v1/kv_pb2.py": "import pickle\n" + "x = 1\n" * 900,
    "engine/__init__.py": '"""E."""\n',
    "engine/model.py": '"""M."""\nimport torch\nfrom . import rope\nmodel.eval()\n',
    "engine/pool.py": '"""P."""\nfrom kvstore.client import Client\nimport kvstore.limits\n',
    "engine/connectors/vllm.py": '"""V."""\nfrom kvstore.client import Client\n',
    "engine/service.py": '"""S."""\nimport grpc\nfrom kvstore.rpc import server\n',
    "kvstore/node/daemon.py": '"""D."""\nimport asyncio\nimport kvstore.core.index\n',
    "kvstore/cli/main.py": '"""M."""\ndef run():\n    from kvstore.engine import model\n',
    "tests/test_all.py": "import torch\nfrom kvstore.cli import main\nfrom bench import report\n",
    ".gitignore": ".venv/\n# tools\n*.egg-info/\n",
    ".venv/lib/bad.py": "import pickle\n",
    "kvstore/a.egg-info/bad.py": "import pickle\n",
    "README.md": "See https://example.org/root/page and ~/work/notes.\n",
    "picture.bin": b"\xff\x00/ro" + b"ot/",
}


def written(root: Path, files: dict[str, str] | dict[str, str | bytes]) -> Path:
    for name, content in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
    for name in tree.LINKED:
        (root / "kvstore").mkdir(exist_ok=True)
        (root / "kvstore" / name).symlink_to(f"../{name}")
    return root


def test_this_tree_is_tidy() -> None:
    found = tidy.problems(tree.ROOT)
    assert not found, "\n" + "\n".join(found)


def test_a_tidy_tree_has_no_problems(tmp_path: Path) -> None:
    assert tidy.problems(written(tmp_path, TIDY)) == []


def test_every_file_is_read_once_and_named_as_it_is_imported(tmp_path: Path) -> None:
    names = [module.name for module in tree.modules(written(tmp_path, TIDY))]
    assert len(names) == len(set(names))
    assert {"kvstore.kernels", "kvstore.kernels.copy", "kvstore.engine.pool"} <= set(names)
    assert not [name for name in names if name.startswith(("kernels", "engine", "kvstore.wire"))]


NOT_BELOW = "which is not below it"
# path, body of the module, what is found in it
MESSES = [
    ("kvstore/core/a.py", "from kvstore.node import daemon", f"kvstore.node, {NOT_BELOW}"),
    ("kvstore/core/a.py", "from ..node.daemon import Node", f"kvstore.node.daemon, {NOT_BELOW}"),
    ("kvstore/core/__init__.py", "from ..node import daemon", f"kvstore.node, {NOT_BELOW}"),
    ("kvstore/core/a.py", "def f():\n    import kvstore.client", f"kvstore.client, {NOT_BELOW}"),
    ("kvstore/errors.py", "from kvstore import core", f"kvstore.core, {NOT_BELOW}"),
    ("kvstore/memory/a.py", "import kvstore.disk.slots", f"kvstore.disk.slots, {NOT_BELOW}"),
    ("kvstore/node/a.py", "import kvstore.engine.model", f"kvstore.engine.model, {NOT_BELOW}"),
    ("kvstore/client/a.py", "from bench import b", f"bench, {NOT_BELOW}"),
    ("kernels/a.py", "from kvstore.block import Miss", f"kvstore.block, {NOT_BELOW}"),
    ("kernels/a.py", "from ..block import Miss", f"kvstore.block, {NOT_BELOW}"),
    (
        "kvstore/core/a.py",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from kvstore.client import C",
        f"kvstore.client, {NOT_BELOW}",
    ),
    (
        "kvstore/core/a.py",
        "import importlib\nimportlib.import_module('kvstore.node')",
        f"kvstore.node, {NOT_BELOW}",
    ),
    ("kvstore/core/a.py", "__import__('kvstore.node')", f"kvstore.node, {NOT_BELOW}"),
    ("kvstore/__init__.py", "import kvstore.client", "whoever imports any part of kvstore"),
    ("kvstore/new/a.py", "", "kvstore.new.a has no place in LAYERS"),
    ("engine/a.py", "from kvstore.metadata import open_metadata", "kvstore.engine may import only"),
    ("engine/a.py", "from ..rpc import server", "kvstore.engine may import only"),
    ("engine/connectors/a.py", "import kvstore.errors", "connectors may import only"),
    ("engine/connectors/a.py", "from ..model import M", f"kvstore.engine.model, {NOT_BELOW}"),
    ("bench/a.py", "from kernels import strips", "an install has it as kvstore.kernels only"),
    ("engine/a.py", "from engine.b import B", "an install has it as kvstore.engine.b only"),
    ("engine/a.py", "from kvstore.engine.b import B", "engine/ and kernels/ import relatively"),
    ("kvstore/layout.py", "from kvstore.kernels import strips", "kvstore.kernels, allowed only in"),
    ("kvstore/node/a.py", "import kernels.strips", "kvstore.kernels, allowed only in"),
    ("kvstore/client/a.py", "import torch.nn", "torch, allowed only in"),
    ("kvstore/cli/a.py", "def f():\n    import transformers", "transformers, allowed only in"),
    ("kvstore/metadata/a.py", "import grpc", "grpc, allowed only in"),
    ("engine/model.py", "from grpc import aio", "grpc, allowed only in"),
    ("engine/a.py", "import numba", "numba, allowed only in"),
    *[("bench/a.py", f"import {one}", f"imports {one}: it runs") for one in sorted(tidy.BANNED)],
    ("tests/a.py", "from pickle import loads", "imports pickle: it runs"),
    *[("kvstore/core/a.py", f"import {one}", "takes time, chance") for one in sorted(tidy.IMPURE)],
    ("kvstore/core/a.py", "async def f(): ...", "waits: kvstore.core decides"),
    ("kvstore/cli/a.py", "eval('1')", "calls eval"),
    ("kvstore/cli/a.py", "import builtins\nbuiltins.exec('1')", "calls exec"),
    ("engine/a.py", "import torch\ntorch.load('w')", "calls torch.load"),
    ("bench/a.py", "import numpy\nnumpy.load('x', allow_pickle=True)", "allows pickles"),
    ("kvstore/cli/a.py", "try:\n    x = 1\nexcept:\n    raise", "bare except"),
    ("kvstore/cli/a.py", "try:\n    x = 1\nexcept Exception:\n    pass", "swallows every error"),
    ("tests/a.py", "try:\n    x = 1\nexcept (OSError, BaseException):\n    ...", "swallows every"),
    ("bench/a.py", "import contextlib\nwith contextlib.suppress(Exception):\n    x", "swallows"),
    ("kvstore/cli/a.py", "x = 1\n" * 400, "402 lines, at most 400"),
]


@pytest.mark.parametrize(("path", "body", "expected"), MESSES)
def test_each_kind_of_mess_is_found(tmp_path: Path, path: str, body: str, expected: str) -> None:
    short = {f"tests/short_{number}.py": "" for number in range(3)}
    found = tidy.problems(written(tmp_path, {**short, path: f'"""A."""\n{body}\n'}))
    assert found, "nothing was found"
    assert all(problem.startswith(f"{path}:") for problem in found)
    assert any(expected in problem for problem in found), found


@pytest.mark.parametrize("top", ["kvstore/core", "engine", "kernels", "bench", "proto"])
def test_a_module_without_docstring_is_found(tmp_path: Path, top: str) -> None:
    for name in ("__init__.py", "a.py"):
        found = tidy.problems(written(tmp_path / name, {f"{top}/{name}": ""}))
        assert found == [f"{top}/{name}:1: no module docstring"]


def test_a_problem_is_reported_at_its_line(tmp_path: Path) -> None:
    files = {"kvstore/cli/a.py": '"""A."""\n\n\ndef f():\n    import pickle\n'}
    assert tidy.problems(written(tmp_path, files)) == [
        "kvstore/cli/a.py:5: imports pickle: it runs what a peer sends"
    ]


def test_a_quarter_of_the_files_may_be_longer_than_usual_and_no_more(tmp_path: Path) -> None:
    files = {f"tests/test_{number}.py": "" for number in range(4)}
    long = "x = 1\n" * (tidy.LINES_USUAL + 1)
    root = written(tmp_path, {**files, "tests/test_0.py": long})
    assert tidy.problems(root) == []
    (root / "tests/test_1.py").write_text(long)
    assert tidy.problems(root) == ["2 of 4 files exceed 200 lines: over a quarter"]
    assert tidy.sizes(root) == "4 files, 402 lines, 2 files over 200 lines"


@pytest.mark.parametrize(
    "text",
    [
        "cd /wo{}rk/main",
        'open("/ro{}ot/x")',
        "file:///wo{}rk/x",
        "/ho{}me/ada/x",
        "https://py{}pi.org/x",
        "files.python{}hosted.org",
        "https://download.py{}torch.org/whl",
        "/opt/py{}pi/simple",
    ],
)
def test_the_path_or_registry_of_one_machine_is_found(tmp_path: Path, text: str) -> None:
    # Written with a gap, so that this file does not name them.
    for name in ("README.md", ".ci/run", "deploy/Dockerfile", "bench/results/a.json"):
        found = tidy.problems(written(tmp_path / name, {name: "first\n" + text.format("")}))
        assert len(found) == 1
        assert found[0].startswith(f"{name}:2: names ")


@pytest.mark.parametrize(
    ("module", "unwanted"),
    [
        ("kvstore", "torch transformers numba grpc numpy"),
        ("kvstore.client", "torch transformers"),
        ("kvstore.node.daemon", "torch transformers numba llvmlite"),
        ("kvstore.cli.processes", "torch transformers numba llvmlite numpy"),  # as `moonpool node`
    ],
)
def test_what_an_import_may_not_load(module: str, unwanted: str) -> None:
    code = f"import sys, {module}; print(*(set({unwanted.split()}) & set(sys.modules)))"
    ran = subprocess.run(
        [sys.executable, "-c", code], cwd=tree.ROOT, capture_output=True, text=True, check=True
    )
    assert ran.stdout.split() == []
