"""Which files the source tree has, and which module each one is.

A file is part of the tree unless `.gitignore` names it or a folder above it. git itself is not
asked, so an unpacked archive gives the same answer as a checkout. Links are not followed:
`engine/` and `kernels/` are read where they lie and named as they are imported.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LINKED = ("engine", "kernels")  # imported as kvstore.engine, kvstore.kernels
CODE = ("kvstore", *LINKED, "proto", "bench", "tests")
GENERATED = "kvstore/wire/v1"


@dataclass(frozen=True)
class Module:
    """A Python file and the name it is imported by."""

    path: Path  # relative to the root
    name: str
    is_package: bool

    @property
    def package(self) -> str:
        """What a relative import in it starts from."""
        return self.name if self.is_package else self.name.rpartition(".")[0]


def files(root: Path) -> Iterator[Path]:
    """Every file and link of the tree, relative to `root`, in a fixed order."""
    ignored = [".git", *_ignored(root / ".gitignore")]
    for folder, folders, names in os.walk(root):
        here = Path(folder)
        links = [name for name in folders if (here / name).is_symlink()]
        folders[:] = sorted(
            name for name in folders if name not in links and not _matches(name, ignored)
        )
        for name in sorted(names + links):
            if not _matches(name, ignored):
                yield (here / name).relative_to(root)


def modules(root: Path) -> Iterator[Module]:
    """Every Python module that a person wrote, once."""
    for path in files(root):
        if path.suffix != ".py" or path.parts[0] not in CODE or path.is_relative_to(GENERATED):
            continue
        if not (root / path).is_symlink():
            yield _module(path)


def canonical(name: str) -> str:
    """The name the product imports it by: `kernels.strips` is `kvstore.kernels.strips`."""
    return f"kvstore.{name}" if name.split(".")[0] in LINKED else name


def copy(root: Path, target: Path) -> None:
    """The tree as a fresh checkout would have it, links as links."""
    for path in files(root):
        (target / path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(root / path, target / path, follow_symlinks=False)


def _module(path: Path) -> Module:
    is_package = path.name == "__init__.py"
    parts = path.parent.parts if is_package else path.with_suffix("").parts
    return Module(path, canonical(".".join(parts)), is_package)


def _ignored(gitignore: Path) -> list[str]:
    """Its patterns, each of which names files or folders at any depth."""
    lines = gitignore.read_text().splitlines() if gitignore.exists() else []
    return [line.strip().rstrip("/") for line in lines if line.strip() and line[0] != "#"]


def _matches(name: str, patterns: list[str]) -> bool:
    return any(fnmatch(name, pattern) for pattern in patterns)
