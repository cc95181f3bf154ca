"""No Python calls what only compiled code may call: the process would end without a word."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from importlib.util import resolve_name
from pathlib import Path

import pytest

from kvstore.kernels import decision, expected, pool_index, simulation
from tests import tree

INNER = """
from .inner import inner

@inner
def add(a, b):
    return a + b
"""

INNERS = {"inner", "making", "across"}  # as `kvstore.kernels.inner` has them


def called_by_python(root: Path) -> list[str]:
    """`path:line: name` of every mention of an inner function outside compiled code."""
    sources = [(one, (root / one.path).read_text()) for one in tree.modules(root)]
    modules = [
        (one, ast.parse(source))
        for one, source in sources
        if one.name.startswith("kvstore.kernels.") or "kvstore.kernels" in source
    ]
    inner = {
        f"{one.name}.{made.name}"
        for one, parsed in modules
        for made in parsed.body
        if isinstance(made, ast.FunctionDef) and _decorators(made) & INNERS
    }
    return [
        f"{one.path}:{line}: {name}"
        for one, parsed in modules
        for line, name in _mentions(parsed, one)
        if name in inner
    ]


def _decorators(made: ast.FunctionDef) -> set[str]:
    """`njit` of `@njit`, `@njit(cache=True)` and `@numba.njit`."""
    named = [one.func if isinstance(one, ast.Call) else one for one in made.decorator_list]
    return {ast.unparse(one).split(".")[-1] for one in named}


def _mentions(parsed: ast.Module, module: tree.Module) -> Iterator[tuple[int, str]]:
    """Line, and name in full, of all functions that Python's own code reads in a file."""
    known = {
        one.name: f"{module.name}.{one.name}"
        for one in parsed.body
        if isinstance(one, ast.FunctionDef)
    }
    for node in ast.walk(parsed):
        if isinstance(node, ast.ImportFrom):
            source = resolve_name("." * node.level + (node.module or ""), module.package)
            known |= {one.asname or one.name: f"{source}.{one.name}" for one in node.names}
    for node in _by_python(parsed):
        match node:
            case ast.Name(name) if name in known:
                yield node.lineno, known[name]
            case ast.Attribute(ast.Name(held), name) if held in known:
                yield node.lineno, f"{known[held]}.{name}"


def _by_python(node: ast.AST) -> Iterator[ast.AST]:
    """All below a node but what is compiled."""
    for below in ast.iter_child_nodes(node):
        if isinstance(below, ast.FunctionDef) and _decorators(below) & {"njit", *INNERS}:
            continue
        yield below
        yield from _by_python(below)


def test_no_python_calls_an_inner_function() -> None:
    assert called_by_python(tree.ROOT) == []


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("kernels/a.py", INNER + "def f():\n    return add(1, 2)\n"),
        ("kernels/a.py", INNER.replace("inner\n", "making\n") + "x = add(1, 2)\n"),
        ("tests/test_a.py", "from kvstore.kernels.a import add\nadd(1, 2)\n"),
        ("tests/test_a.py", "from kvstore.kernels.a import add as plus\nf(plus)\n"),
        ("bench/b.py", "from kvstore.kernels import a as sums\nx = sums.add(1, 2)\n"),
    ],
)
def test_a_call_is_found_wherever_it_stands(tmp_path: Path, path: str, body: str) -> None:
    files = {"kernels/a.py": INNER, path: body}
    for name, content in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(content)
    for name in tree.LINKED:
        (tmp_path / "kvstore").mkdir(exist_ok=True)
        (tmp_path / "kvstore" / name).symlink_to(f"../{name}")
    (found,) = called_by_python(tmp_path)
    assert found.startswith(f"{path}:") and found.endswith("a.add")


def test_compiled_code_may_call_one(tmp_path: Path) -> None:
    (tmp_path / "kernels").mkdir()
    (tmp_path / "kernels/a.py").write_text(INNER + "@njit\ndef f():\n    return add(1, 2)\n")
    (tmp_path / "kvstore").mkdir()
    (tmp_path / "kvstore/kernels").symlink_to("../kernels")
    assert called_by_python(tmp_path) == []


def unsaid(root: Path) -> list[str]:
    """`path:line: name` of compiled functions that do not say whose their arrays are, in files
    whose others do."""
    found = []
    for path in sorted((root / "kernels").glob("*.py")):
        parsed = ast.parse(path.read_text())
        made = [one for one in parsed.body if isinstance(one, ast.FunctionDef)]
        said = {one: set(_said(one)) for one in made if _decorators(one) & {"njit", *INNERS}}
        if any(said.values()):
            found += [
                f"kernels/{path.name}:{one.lineno}: {one.name}"
                for one, words in said.items()
                if not words
            ]
    return found


def _said(made: ast.FunctionDef) -> Iterator[str]:
    for decorator in made.decorator_list:
        text = ast.unparse(decorator)
        yield from (word for word in ("BORROWED", "OWN", *INNERS) if word in text)


def test_who_is_lent_arrays_counts_no_references_to_them() -> None:
    """A function that does not say so counts them, if nobody who is lent them calls it first."""
    assert unsaid(tree.ROOT) == []
    for one in (decision.choose, expected.settle, pool_index.longest, simulation.run):
        assert one.targetoptions["_nrt"] is False, one


def test_one_that_does_not_say_so_is_found(tmp_path: Path) -> None:
    (tmp_path / "kernels").mkdir()
    text = INNER + "@njit(cache=True)\ndef f():\n    return add(1, 2)\n"
    (tmp_path / "kernels/a.py").write_text(text)
    assert unsaid(tmp_path) == ["kernels/a.py:8: f"]
