"""What a bench says follows from what it measured, and the smallest bench runs on a real node."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator

import pytest

from bench import __main__ as command
from bench import local, machine, verify
from bench.guest import NotInstalled
from bench.report import Goal, Report, Row
from bench.rounds import WARM_ROUNDS, Rounds, Spread, measure
from kvstore.limits import KiB
from tests.tree import ROOT

TINY = local.Sizes(blocks=4, block_bytes=64 * KiB, strip_bytes=(16 * KiB, 8 * KiB), dram="64MiB")


def row(ratio: float | None, counted: bool = True) -> Row:
    return Row("r", {"blocks": 4}, 3, 2.0, 1.0, ratio, Spread.of([0.4, 0.5, 0.9]), counted)


def report(*rows: Row, sense: Goal = Goal.AT_LEAST, goal: float = 0.8) -> Report:
    return Report("local", "ms", "memcpy", "memcpy time / get time", goal, sense, rows)


def quiet(_: str) -> None:
    pass


def test_ways_take_turns_in_one_order_and_warm_rounds_are_not_counted() -> None:
    called: list[str] = []
    times = {"a": iter(range(100, 110)), "b": iter(range(200, 210))}

    def way(name: str) -> float:
        called.append(name)
        return float(next(times[name]))

    rounds = measure({name: lambda n=name: way(n) for name in times}, 3, quiet)
    assert called == ["a", "b"] * (WARM_ROUNDS + 3)
    assert rounds.seconds == {"a": [102.0, 103.0, 104.0], "b": [202.0, 203.0, 204.0]}
    assert rounds.count == 3


def test_each_round_is_prepared_once() -> None:
    prepared: list[int] = []
    measure({"a": lambda: 1.0, "b": lambda: 1.0}, 2, quiet, before=prepared.append)
    assert prepared == [*range(-WARM_ROUNDS, 0), 0, 1]


def test_ratio_and_spread_are_those_within_single_rounds() -> None:
    """A slow moment slows both ways of its rounds and leaves their ratio alone."""
    rounds = Rounds({"fast": [1.0, 20.0, 30.0], "slow": [2.0, 40.0, 5.0]})
    assert rounds.ratio("fast", "slow") == 0.5
    spread = rounds.spread("fast", "slow")
    assert (spread.min, spread.median, spread.max) == (0.5, 0.5, 6.0)
    assert spread.q1 <= spread.median <= spread.q3


def test_drift_that_slows_both_ways_leaves_the_spread_alone() -> None:
    drift = [1.0, 1.5, 4.0]
    spread = Rounds({"a": drift, "b": [2 * one for one in drift]}).spread("a", "b")
    assert spread.min == spread.max == 0.5


@pytest.mark.parametrize(("sense", "worst"), [(Goal.AT_LEAST, 0.7), (Goal.AT_MOST, 0.9)])
def test_the_worst_counted_row_decides(sense: Goal, worst: float) -> None:
    rows = (row(0.7), row(0.9), row(0.1, counted=False), row(5.0, counted=False))
    assert report(*rows, sense=sense).ratio == worst
    assert not report(*rows, sense=sense).holds


def test_a_goal_is_met_where_it_is_reached_exactly() -> None:
    assert report(row(0.8)).holds
    assert report(row(0.8), sense=Goal.AT_MOST).holds
    assert not report(row(0.79)).holds
    assert not report(row(0.81), sense=Goal.AT_MOST).holds


def test_a_row_with_a_goal_of_its_own_counts_by_its_distance_from_that() -> None:
    own = Row("own", {}, 3, 2.0, 1.0, 1.2, Spread.of([1.2]), goal=1.6)
    found = report(row(0.9), own, goal=0.8)
    assert found.ratio == pytest.approx(1.2 / 1.6 * 0.8)
    assert not found.holds
    assert report(row(0.9), Row("own", {}, 3, 2.0, 1.0, 1.6, goal=1.6), goal=0.8).holds
    assert "goal 1.6" in found.table()


def test_a_row_that_counts_needs_a_ratio_and_a_report_a_row_that_counts() -> None:
    with pytest.raises(ValueError, match="needs a ratio"):
        row(None)
    with pytest.raises(ValueError, match="no row counts"):
        _ = report(row(0.9, counted=False)).ratio


def test_the_json_is_one_line_and_says_all_that_a_reader_needs() -> None:
    line = report(row(0.123456789), row(None, counted=False)).line(machine.facts())
    assert "\n" not in line
    said = json.loads(line)
    assert said.keys() == {
        *("name", "unit", "against", "ratio_is", "rows", "ratio", "goal", "sense", "holds"),
        "machine",
    }
    assert said["ratio"] == said["rows"][0]["ratio"] == 0.12346
    assert said["holds"] is False
    assert said["rows"][0]["spread"].keys() == {"median", "min", "q1", "q3", "max"}
    assert said["rows"][0]["sizes"] == {"blocks": 4}
    assert said["machine"].keys() >= {"cpu", "cores", "python", "numpy"}


def test_the_table_brackets_what_does_not_count() -> None:
    text = report(row(0.9), row(None, counted=False)).table()
    assert "(r)" in text
    assert "holds" in text


@pytest.fixture(scope="module")
def tiny() -> Iterator[Report]:
    yield local.run(2, quiet, TINY)


def test_the_local_bench_runs_at_any_size_and_checks_what_it_fetched(tiny: Report) -> None:
    names = ["get, strips of 16 KiB", "pinned view", "get, strips of 8 KiB"]
    assert [one.name for one in tiny.rows[:3]] == names
    assert [one.counted for one in tiny.rows[:3]] == [True, False, False]
    assert not any(one.counted for one in tiny.rows[3:]), "more threads are printed only"
    for one in tiny.rows:
        assert one.limit is not None
        assert one.spread is not None and one.ratio == one.spread.median
        assert one.sizes["blocks"] == 4
        assert one.runs == 2
    assert tiny.ratio == tiny.rows[0].ratio


def test_a_pinned_view_is_the_nodes_memory_and_no_copy(tiny: Report) -> None:
    assert tiny.rows[1].also["views_alias_the_arena"] is True


@pytest.fixture
def found(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The command, over a bench that finds the ratio in this list."""
    ratios = [0.9]
    monkeypatch.setattr(command, "BENCHES", {"local": "a bench"})
    monkeypatch.setattr(local, "run", lambda runs, say: report(row(ratios[0])))
    return ratios


def test_the_last_line_is_json_and_a_table_comes_before_it_unless_told(
    found: list[float], capsys: pytest.CaptureFixture[str]
) -> None:
    assert command.main(["local"]) == 0
    *table, last = capsys.readouterr().out.splitlines()
    assert table and json.loads(last)["name"] == "local"
    assert command.main(["all", "--json"]) == 0
    assert [json.loads(one)["name"] for one in capsys.readouterr().out.splitlines()] == ["local"]


def test_a_missed_goal_fails_only_a_check(found: list[float]) -> None:
    assert command.main(["local", "--check"]) == 0
    found[0] = 0.5
    assert command.main(["local"]) == 0
    assert command.main(["local", "--check"]) == 1


def test_one_that_cannot_run_here_says_so_and_is_no_finding(
    found: list[float], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def lacks(*_: object) -> Report:
        raise NotInstalled("a GPU is needed")

    monkeypatch.setattr(local, "run", lacks)
    assert command.main(["local", "--json"]) == 2
    said = capsys.readouterr()
    assert said.err.endswith("local: a GPU is needed\n") and not said.out
    assert command.main(["all"]) == 0 and command.main(["all", "--check"]) == 1


def test_one_that_fails_keeps_none_of_all_from_running(
    found: list[float], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fails(*_: object, **__: object) -> Report:
        raise RuntimeError("a block came back late")

    monkeypatch.setattr(command, "BENCHES", {"verify": "fails", "local": "a bench"})
    monkeypatch.setattr(verify, "run", fails)
    assert command.main(["all", "--json"]) == 1
    said = capsys.readouterr()
    assert json.loads(said.out)["name"] == "local" and "a block came back late" in said.err


def test_an_option_that_a_bench_does_not_take_is_refused(
    found: list[float], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        command.main(["local", "--requests", "7"])
    assert ended.value.code == 2
    assert "local takes no --requests" in capsys.readouterr().err


def test_save_keeps_the_json_under_its_name_and_day(
    found: list[float], monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("saved") / "results"
    monkeypatch.setattr(command, "RESULTS", folder)
    command.main(["local", "--save"])
    (saved,) = folder.iterdir()
    assert saved.name.startswith("local-2") and saved.suffix == ".json"
    assert json.loads(saved.read_text())["ratio"] == 0.9


def test_help_names_every_bench() -> None:
    asked = [sys.executable, "-m", "bench", "--help"]
    said = subprocess.run(asked, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    for name in ("local", "publish", "overlap", "verify", "all"):
        assert f"  {name} " in said
