"""What `make setup` installs has a version of its own in constraints.txt, whatever pulled it in: of
two machines both have the same, on whichever day each is made."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, requires

import pytest

from tests.tree import ROOT

packaging = pytest.importorskip("packaging.requirements")
Requirement = packaging.Requirement


def plain(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def pinned() -> set[str]:
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    return {plain(line.partition("==")[0]) for line in lines if "==" in line}


def asked_for() -> list[str]:
    """As pyproject.toml has the extras that the Makefile names."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    found = re.search(r"-c constraints\.txt -e '\.\[([\w,]+)\]'", (ROOT / "Makefile").read_text())
    assert found is not None
    extras = project["optional-dependencies"]
    return [
        *project["dependencies"],
        *(one for name in found[1].split(",") for one in extras[name]),
    ]


def pulled_in(texts: list[str], extras: frozenset[str], seen: set[object]) -> Iterator[str]:
    """Names of these, and of what each takes in its turn, as they are installed here."""
    for one in map(Requirement, texts):
        wanted = one.marker is None or any(one.marker.evaluate({"extra": e}) for e in extras | {""})
        which = (plain(one.name), frozenset(one.extras))
        if not wanted or which in seen:
            continue
        seen.add(which)
        try:
            takes = requires(one.name) or []
        except PackageNotFoundError:
            pytest.skip(f"{one.name} is not installed: this is not what `make setup` makes")
        yield which[0]
        yield from pulled_in(takes, which[1], seen)


def test_all_that_is_installed_has_one_version() -> None:
    assert sorted(set(pulled_in(asked_for(), frozenset(), set())) - pinned()) == []
