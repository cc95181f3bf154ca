"""The follow bench runs a real conductor again and again, and its figures are of what was sent."""

from __future__ import annotations

import json

import pytest

from bench import __main__ as command
from bench import follow

BLOCKS, CHANGES = 5_000, 6_000


def test_a_conductor_is_caught_up_and_hears_of_changes_in_every_run(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(follow, "CHANGES", CHANGES)
    monkeypatch.setattr(follow, "DEADLINE_S", 60.0)
    command.main(["follow", "--json", "--runs", "2", "--blocks", str(BLOCKS)])
    said = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert (said["name"], said["unit"], said["sense"]) == ("follow", "s", "at most")
    caught, snapshot, told, heard = said["rows"]
    assert [one["counted"] for one in said["rows"]] == [True, False, False, False]
    assert {one["runs"] for one in said["rows"]} == {2}
    assert said["ratio"] == caught["ratio"] == pytest.approx(caught["value"] / 10, rel=1e-2)
    assert 9 <= snapshot["also"]["wire_bytes_per_block"] < 12
    assert 9 <= told["also"]["wire_bytes_per_change"] < 12
    assert min(one["value"] for one in (snapshot, told, heard)) > 0


def test_a_conductor_that_never_hears_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """The test of the test: nobody tells the conductor of the node."""

    async def nobody(*_: object) -> None:
        pass

    monkeypatch.setattr(follow, "_announce", nobody)
    monkeypatch.setattr(follow, "DEADLINE_S", 2.0)
    with pytest.raises(RuntimeError, match="did not know every block within 2 s"):
        follow.run(1, lambda _: None, [BLOCKS])
