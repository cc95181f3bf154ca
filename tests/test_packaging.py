"""What a user installs: one package with the linked folders inside it, and nothing else.

Built without network, from a copy of the tree, and once more from the sdist.
"""

from __future__ import annotations

import configparser
import os
import re
import stat
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from email.parser import Parser
from pathlib import Path

import pytest

from tests import tree

pytest.importorskip("hatchling", reason="hatchling, which builds the wheel, is not installed")

VERSION = tomllib.loads((tree.ROOT / "pyproject.toml").read_text())["project"]["version"]
INFO = f"moonpool-{VERSION}.dist-info"


def built(kind: str, source: Path, target: Path) -> Path:
    """The wheel or sdist that hatchling makes of `source`."""
    command = [sys.executable, "-m", "hatchling", "build", "-t", kind, "-d", str(target)]
    ran = subprocess.run(command, cwd=source, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr
    [made] = target.iterdir()
    return made


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    copy = tmp_path_factory.mktemp("checkout")
    tree.copy(tree.ROOT, copy)
    return copy


@pytest.fixture(scope="module")
def sdist(checkout: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return built("sdist", checkout, tmp_path_factory.mktemp("sdist"))


@pytest.fixture(scope="module")
def unpacked(sdist: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("unpacked")
    with tarfile.open(sdist) as archive:
        archive.extractall(folder, filter="data")
    return folder / f"moonpool-{VERSION}"


@pytest.fixture(scope="module", params=["checkout", "unpacked"])
def wheel(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    source: Path = request.getfixturevalue(request.param)
    return built("wheel", source, tmp_path_factory.mktemp("wheel"))


def test_the_links_are_committed_as_links() -> None:
    for name in tree.LINKED:
        assert os.readlink(tree.ROOT / "kvstore" / name) == f"../{name}"


def test_an_install_puts_one_package_into_site_packages(wheel: Path) -> None:
    assert {name.split("/")[0] for name in names_in(wheel)} == {"kvstore", INFO}


def test_the_wheel_holds_every_module_of_the_product(wheel: Path) -> None:
    expected = {
        str(Path("kvstore", path) if path.parts[0] in tree.LINKED else path)
        for path in tree.files(tree.ROOT)
        if path.parts[0] in ("kvstore", *tree.LINKED) and not (tree.ROOT / path).is_symlink()
    }
    assert {name for name in names_in(wheel) if name.startswith("kvstore/")} == expected
    for folder in ("engine", "kernels", "wire/v1"):
        assert any(re.fullmatch(rf"kvstore/{folder}/\w+\.py", name) for name in expected)


def test_who_installs_it_is_told_that_it_has_types(wheel: Path) -> None:
    assert "kvstore/py.typed" in names_in(wheel)  # of the tree, and of the sdist


def test_the_wheel_holds_regular_files_only(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        modes = {entry.filename: entry.external_attr >> 16 for entry in archive.infolist()}
    assert not [name for name, mode in modes.items() if stat.S_ISLNK(mode) or name[-1] == "/"]


def test_a_plain_install_needs_no_torch(wheel: Path) -> None:
    needed = Parser().parsestr(text_in(wheel, "METADATA")).get_all("Requires-Dist") or []
    base = {re.split(r"[^\w-]", one)[0] for one in needed if "extra ==" not in one}
    assert "grpcio" in base
    assert not base & {"torch", "transformers", "safetensors", "tokenizers"}


def test_the_command_is_moonpool(wheel: Path) -> None:
    entries = configparser.ConfigParser()
    entries.read_string(text_in(wheel, "entry_points.txt"))
    assert dict(entries["console_scripts"]) == {"moonpool": "kvstore.__main__:main"}
    assert "kvstore/cli/main.py" in names_in(wheel)


def test_the_sdist_holds_what_the_stubs_are_made_from(unpacked: Path) -> None:
    held = {str(path) for path in tree.files(unpacked)}
    assert {"proto/generate.py", "proto/moonpool/v1/kv.proto", "README.md", "LICENSE"} <= held
    assert not [name for name in held if name.startswith(("tests/", "bench/"))]


def test_the_wheel_works_where_there_is_no_tree(wheel: Path, tmp_path: Path) -> None:
    code = (
        "import kvstore.node.daemon, kvstore.engine as engine, kvstore.kernels as kernels\n"
        "print(engine.__file__, kernels.__file__, sep='\\n')"
    )
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path)
    command, path = [sys.executable, "-P", "-c", code], {**os.environ, "PYTHONPATH": str(tmp_path)}
    ran = subprocess.run(command, cwd=tmp_path, env=path, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.split() == [
        str(tmp_path / "kvstore" / name / "__init__.py") for name in tree.LINKED
    ]


def names_in(wheel: Path) -> set[str]:
    with zipfile.ZipFile(wheel) as archive:
        return set(archive.namelist())


def text_in(wheel: Path, name: str) -> str:
    with zipfile.ZipFile(wheel) as archive:
        return archive.read(f"{INFO}/{name}").decode()
