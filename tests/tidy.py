"""What a reviewer should not have to say twice: imports point down, files stay small, no pickles.

`python tests/tidy.py` prints the problems; `tests/test_tidy.py` asserts that there are none. The
tables below are the rules. An import counts wherever it stands: in a function, under
`if TYPE_CHECKING`, relative, or as text given to `import_module`.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from importlib.util import resolve_name
from pathlib import Path

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from tests import tree

LINES_MAX = 400
LINES_USUAL = 200  # at most a quarter of the files have more

WORDS = (
    *("address", "block", "cadence", "clock", "codec", "config", "content"),
    *("end_tokens", "errors", "failpoint", "garbage", "home", "layout", "limits", "logprobs"),
    *("naming", "percent", "spec"),
)
# Lowest first. A package may import itself and what stands on lines before its own. Two packages
# of one line do not know each other, save the words, which are values and make sense of each other.
LAYERS: tuple[tuple[str, ...], ...] = (
    ("kvstore.kernels",),
    tuple(f"kvstore.{word}" for word in WORDS),
    ("kvstore.core",),
    ("kvstore.memory", "kvstore.disk", "kvstore.wire", "kvstore.telemetry", "kvstore.traces"),
    ("kvstore.transfer", "kvstore.metadata", "kvstore.rpc"),
    ("kvstore.client",),
    ("kvstore.engine.connectors",),
    ("kvstore.node", "kvstore.conductor", "kvstore.planner", "kvstore.engine"),
    ("kvstore.dashboard",),
    ("kvstore.gateway", "kvstore.attach"),
    ("kvstore.cli",),
    ("kvstore.__main__",),
    ("bench",),
    ("tests",),
)
_WORDS_LINE = 1
# Stricter than the lines above: of the product, these may import themselves and this only.
_TOLD = ("kvstore.telemetry", "kvstore.traces")
_SERVED = ("kvstore.client", "kvstore.rpc", "kvstore.wire", *_TOLD)
ONLY: dict[str, tuple[str, ...]] = {
    "kvstore.engine.connectors": ("kvstore.client", "kvstore.telemetry"),
    "kvstore.engine.daemon": ("kvstore.engine", *_SERVED, *LAYERS[_WORDS_LINE]),
    "kvstore.engine.rehearsal": (
        *(
            "kvstore.engine",
            "kvstore.core.cost",
            "kvstore.core.measured",
            "kvstore.core.model_shape",
        ),
        *LAYERS[_WORDS_LINE],
    ),
    "kvstore.engine.service": ("kvstore.engine", *_SERVED, *LAYERS[_WORDS_LINE]),
    "kvstore.engine.paged_attention": ("kvstore.engine", "kvstore.kernels"),
    "kvstore.engine": ("kvstore.client", *_TOLD, *LAYERS[_WORDS_LINE]),
}
# Names, and the only places that may import them.
_TORCH = ("kvstore.kernels", "kvstore.engine", "bench", "tests")
_GRPC = (
    *("kvstore.rpc", "kvstore.wire", "kvstore.node", "kvstore.conductor", "kvstore.client"),
    *("kvstore.engine.daemon", "kvstore.engine.service", "kvstore.metadata.etcd", "bench", "tests"),
)
ONLY_IN: dict[str, tuple[str, ...]] = {
    "torch": _TORCH,
    "triton": ("kvstore.kernels.gpu", "bench", "tests"),
    "transformers": _TORCH,
    "grpc": _GRPC,
    "aetcd": ("kvstore.metadata.etcd", "tests"),
    "grpc_health": _GRPC,
    "grpc_reflection": _GRPC,
    "msgspec": ("kvstore.client.kv_events", "tests"),
    "zmq": ("kvstore.client.kv_events", "tests"),
    "jinja2": ("kvstore.gateway.http", "tests"),
    "starlette": ("kvstore.dashboard", "kvstore.gateway.http", "tests"),
    "uvicorn": ("kvstore.gateway.http", "tests"),
    "prometheus_client": (
        *("kvstore.rpc.metrics_port", "kvstore.dashboard.scrape", "kvstore.engine.connectors.vllm"),
        *("kvstore.attach.scrape", "bench", "tests"),
    ),
    "opentelemetry": ("kvstore.traces", "tests"),
    "nixl_cu12": ("kvstore.transfer", "bench", "tests"),
    "numba": ("kvstore.kernels", "bench", "tests"),
    "llvmlite": ("kvstore.kernels", "tests"),
    # Compiled by numba, which costs 100 MiB and a second: a storage node starts without.
    "kvstore.kernels": (
        *("kvstore.transfer", "kvstore.client", "kvstore.conductor", "kvstore.planner"),
        *("kvstore.core.fit", "kvstore.engine.paged_attention", "kvstore.kernels"),
        # Numbers alone, of `keeping`, which is not compiled.
        *("kvstore.core.gone", "kvstore.core.life_table", "kvstore.core.ranking"),
        *("kvstore.core.rival", "bench", "tests"),
    ),
}
BANNED = {"pickle", "marshal", "shelve", "dill", "cloudpickle"}  # they run what a peer sends
PURE = "kvstore.core"  # decides; never waits, reads a clock or rolls a die
IMPURE = {
    *("asyncio", "time", "datetime", "random", "secrets", "os", "socket", "select", "subprocess"),
    *("threading", "logging"),
}
# Of one machine and no other. The lookbehind lets `https://host/root/...` pass.
PRIVATE = re.compile(
    r"(?<![\w.~)}>-])/(?:work|root|home/\w+|Users/\w+)/"
    r"|\bpypi\.org|pythonhosted\.org|download\.pytorch\.org|/opt/(?:pypi|wheels)\b"
)


def problems(root: Path) -> list[str]:
    """Everything untidy under `root`, as `path:line: what`, in the order of the tree."""
    found = [problem for path in tree.files(root) for problem in _problems_of_text(root, path)]
    lines: dict[Path, int] = {}
    for module in tree.modules(root):
        source = (root / module.path).read_text()
        lines[module.path] = source.count("\n")
        found += [
            f"{module.path}:{line}: {what}"
            for line, what in _problems_of_module(module, source, lines[module.path])
        ]
    long = [path for path, count in lines.items() if count > LINES_USUAL]
    if 4 * len(long) > len(lines):
        found.append(
            f"{len(long)} of {len(lines)} files exceed {LINES_USUAL} lines: over a quarter"
        )
    return found


def sizes(root: Path) -> str:
    """One line on how long the files are."""
    counts = [(root / one.path).read_text().count("\n") for one in tree.modules(root)]
    over = sum(count > LINES_USUAL for count in counts)
    return f"{len(counts)} files, {sum(counts)} lines, {over} files over {LINES_USUAL} lines"


def _problems_of_text(root: Path, path: Path) -> Iterator[str]:
    if (root / path).is_symlink():
        return
    try:
        text = (root / path).read_bytes().decode()
    except UnicodeDecodeError:
        return  # not text
    for number, line in enumerate(text.splitlines(), 1):
        if found := PRIVATE.search(line):
            yield f"{path}:{number}: names {found[0]}, which is of one machine"


def _problems_of_module(module: tree.Module, source: str, lines: int) -> Iterator[tuple[int, str]]:
    parsed = ast.parse(source)
    if lines > LINES_MAX:
        yield lines, f"{lines} lines, at most {LINES_MAX}"
    if not ast.get_docstring(parsed) and not _within(module.name, ("tests",)):
        yield 1, "no module docstring"
    if _within(module.name, ("kvstore",)) and module.name != "kvstore" and not _place(module.name):
        yield 1, f"{module.name} has no place in LAYERS"
    for node in ast.walk(parsed):
        line = getattr(node, "lineno", 1)
        for spelled in _imports(node, module):
            yield from ((line, what) for what in _problems_of_import(module.name, spelled))
        yield from ((line, what) for what in _problems_of_node(module.name, node))


def _problems_of_import(importer: str, spelled: str) -> Iterator[str]:
    name, top = tree.canonical(spelled), spelled.split(".")[0]
    if name != spelled:
        yield f"imports {spelled}: an install has it as {name} only"
    if top in BANNED:
        yield f"imports {top}: it runs what a peer sends"
    if _within(importer, (PURE,)) and top in IMPURE:
        yield f"imports {top}: {PURE} takes time, chance and I/O as arguments"
    for restricted, places in ONLY_IN.items():
        if _within(name, (restricted,)) and not _within(importer, places):
            yield f"imports {restricted}, allowed only in {', '.join(places)}"
    mine, theirs = _place(importer), _place(name)
    if importer == "kvstore" and theirs and theirs[0] > _WORDS_LINE:
        yield f"imports {name}: whoever imports any part of kvstore would load it"
    if mine is None or theirs is None or mine == theirs:
        return
    strict = next((key for key in ONLY if _within(importer, (key,))), importer)
    if theirs[0] > mine[0] or theirs[0] == mine[0] != _WORDS_LINE:
        yield f"imports {name}, which is not below it"
    elif strict in ONLY and not _within(name, ONLY[strict]):
        yield f"imports {name}: {strict} may import only {', '.join(ONLY[strict])}"


def _problems_of_node(importer: str, node: ast.AST) -> Iterator[str]:
    match node:
        case ast.ExceptHandler(type=None):
            yield "bare except: name what is expected"
        case ast.ExceptHandler(type=kinds, body=body) if _any_error(kinds):
            if all(isinstance(one, ast.Pass) or _is_text(one) for one in body):
                yield "swallows every error"
        case ast.Call(func=ast.Name("suppress") | ast.Attribute(attr="suppress"), args=kinds):
            if any(_any_error(kind) for kind in kinds):
                yield "swallows every error"
        case ast.ImportFrom(str(source), level=0) if _shares_link(importer, source):
            yield f"imports {source} in full: engine/ and kernels/ import relatively"
        case ast.Call(func=ast.Name("eval" | "exec" as name)):
            yield f"calls {name}"
        case ast.Call(func=ast.Attribute(ast.Name("builtins"), "eval" | "exec" as name)):
            yield f"calls {name}"
        case ast.Call(func=ast.Attribute(ast.Name("torch"), "load")):
            yield "calls torch.load, which unpickles: use safetensors"
        case ast.keyword("allow_pickle", ast.Constant(True)):
            yield "allows pickles"
        case ast.AsyncFunctionDef() | ast.Await() if _within(importer, (PURE,)):
            yield f"waits: {PURE} decides, others await"


def _imports(node: ast.AST, module: tree.Module) -> Iterator[str]:
    """Names of the modules, or of things in modules, that a statement or call imports."""
    match node:
        case ast.Import(names):
            yield from (alias.name for alias in names)
        case ast.ImportFrom(source, names, level):
            base = resolve_name("." * level + (source or ""), module.package)
            yield from {_most_precise(base, f"{base}.{alias.name}") for alias in names}
        case ast.Call(
            func=ast.Name("import_module" | "__import__") | ast.Attribute(attr="import_module"),
            args=[ast.Constant(str(name)), *_],
        ):
            yield name if name[0] != "." else resolve_name(name, module.package)


def _most_precise(base: str, thing: str) -> str:
    """`thing`, where it is a package with a place of its own, else the module that holds it."""
    return base if _place(tree.canonical(base)) == _place(tree.canonical(thing)) else thing


def _any_error(kind: ast.expr | None) -> bool:
    match kind:
        case ast.Name("Exception" | "BaseException"):
            return True
        case ast.Tuple(kinds):
            return any(map(_any_error, kinds))
    return False


def _is_text(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)


def _shares_link(importer: str, imported: str) -> bool:
    """Whether both lie in engine/, or both in kernels/."""
    linked = [f"kvstore.{name}" for name in tree.LINKED]
    return any(_within(importer, (one,)) and _within(imported, (one,)) for one in linked)


def _within(name: str, packages: tuple[str, ...]) -> bool:
    return any(name == package or name.startswith(f"{package}.") for package in packages)


def _place(name: str) -> tuple[int, str] | None:
    """(line, package) of the longest entry of LAYERS that holds the module."""
    held = [
        (len(package), line, package)
        for line, packages in enumerate(LAYERS)
        for package in packages
        if _within(name, (package,))
    ]
    return max(held)[1:] if held else None


if __name__ == "__main__":
    found = problems(tree.ROOT)
    print(*found, sizes(tree.ROOT), sep="\n")
    sys.exit(bool(found))
