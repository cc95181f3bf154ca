"""A launch is the device's own where the table has one, and the default whatever else is there."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import triton

from kvstore.kernels.gpu import tuned
from kvstore.kernels.gpu.launch import CANDIDATES, attention_shape, default, fitted
from kvstore.kernels.gpu.launch_table import Tuned, formatted

HERE = torch.device("cuda", 0)
WON = CANDIDATES["gather_strip"][-1]
SHAPE = "longer strips"


@pytest.fixture
def table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A table of some GPU that is here, as far as torch says."""
    path = tmp_path / "launches.json"
    found = Tuned("2.13.0", triton.__version__, "", "", {("gather_strip", SHAPE): WON})
    path.write_text(formatted({"Some GPU, 9.0": found}))
    monkeypatch.setattr(tuned, "PATH", path)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "Some GPU")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    forget()
    yield path
    forget()


def forget() -> None:
    for one in (tuned.launch_of, tuned.attention_of, tuned._launches):
        one.cache_clear()


def test_a_device_has_what_won_there_and_else_the_default(
    table: Path, caplog: pytest.LogCaptureFixture
) -> None:
    assert tuned.launch_of(HERE, "gather_strip", SHAPE) == WON != default("gather_strip")
    assert tuned.launch_of(HERE, "gather_strip", "strips to 8 KiB") == default("gather_strip")
    assert tuned.launch_of(HERE, "scatter_strip", SHAPE) == default("scatter_strip")
    assert not caplog.records


@pytest.mark.parametrize(("name", "capability"), [("Another GPU", (9, 0)), ("Some GPU", (8, 0))])
def test_a_device_that_nobody_measured_has_the_defaults_and_nothing_is_said(
    table: Path,
    name: str,
    capability: tuple[int, int],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: name)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    assert tuned.launch_of(HERE, "gather_strip", SHAPE) == default("gather_strip")
    assert not caplog.records


@pytest.mark.parametrize("content", [b"{", b"\xff\xfe", None], ids=["cut", "no text", "gone"])
def test_a_damaged_table_costs_one_line_of_the_log_and_no_launch(
    table: Path, content: bytes | None, caplog: pytest.LogCaptureFixture
) -> None:
    table.unlink() if content is None else table.write_bytes(content)
    for program in CANDIDATES:
        for shape in (SHAPE, "strips to 8 KiB"):
            assert tuned.launch_of(HERE, program, shape) == default(program)
    (said,) = caplog.messages
    assert said.startswith("the kernels of Some GPU, 9.0 are launched by default: ")


def test_a_table_of_another_compiler_costs_one_line_too(
    table: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(triton, "__version__", "2.0.0")
    assert tuned.launch_of(HERE, "gather_strip", SHAPE) == default("gather_strip")
    assert len(caplog.messages) == 1 and "this is 2.0.0" in caplog.messages[0]


def test_the_table_is_read_once(table: Path) -> None:
    tuned.launch_of(HERE, "gather_strip", SHAPE)
    table.unlink()
    assert tuned.launch_of(HERE, "gather_strip", SHAPE) == WON
    assert tuned.launch_of(HERE, "enter_strip", SHAPE) == default("enter_strip")


def test_a_cpu_has_the_defaults_and_no_table_is_read(table: Path) -> None:
    table.unlink()
    assert tuned.launch_of(torch.device("cpu"), "attend", "any") == default("attend")


WIDE = (4, 256, 32)  # float32, of wide heads


@pytest.fixture
def small(table: Path, monkeypatch: pytest.MonkeyPatch) -> int:
    """What Triton says of the shared memory of that GPU."""
    given = 99 << 10
    told = {0: {"max_shared_mem": given}}
    active = SimpleNamespace(utils=SimpleNamespace(get_device_properties=told.__getitem__))
    monkeypatch.setattr(triton.runtime, "driver", SimpleNamespace(active=active))
    return given


def test_attention_that_nobody_measured_fits_the_device_there_is(small: int) -> None:
    assert tuned.attention_of(HERE, *WIDE, 16) == fitted(*WIDE, small) != default("attend")


def test_attention_that_was_measured_is_as_it_won_there(small: int, table: Path) -> None:
    won, where = CANDIDATES["attend"][-1], ("attend", attention_shape(*WIDE, 16))
    table.write_text(
        formatted({"Some GPU, 9.0": Tuned("2.13.0", triton.__version__, "", "", {where: won})})
    )
    assert tuned.attention_of(HERE, *WIDE, 16) == won
    assert tuned.attention_of(HERE, *WIDE, 8) == fitted(*WIDE, small)


def test_a_cpu_lacks_nothing(table: Path) -> None:
    assert tuned.attention_of(torch.device("cpu"), *WIDE, 16) == default("attend")
