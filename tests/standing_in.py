"""A node's process in which something stands in for a part of its machine: a program of these tests
that changes that and is `kvstore` then.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

from kvstore.cli.parent import environment
from kvstore.cli.stack import Child
from tests import tree
from tests.nodes import NodeProcess


class Program(Child):
    def __init__(self, module: str, arguments: list[str], directory: Path) -> None:
        super().__init__("node", arguments, directory)
        self._module = module

    def start(self) -> None:
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", self._module, *self.arguments],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
                cwd=tree.ROOT,
                env=environment(),
            )


class StandingIn(NodeProcess):
    """`moonpool node` as the module runs it."""

    def __init__(self, module: str, directory: Path, **options: Any) -> None:
        super().__init__(directory, **options)
        self._child = Program(module, self._child.arguments, directory)
