"""What an operator grants reaches the node in a few seconds, and nothing bad stops it."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from kvstore.cli.main import main
from kvstore.clock import SimClock
from kvstore.core.shares import Share, Shares
from kvstore.errors import Unavailable
from kvstore.metadata import open_metadata
from kvstore.metadata.records import ShareRecord
from kvstore.node.grants import READ_SECONDS, Grants
from tests.nodes import NodeProcess, eventually


def test_a_change_is_taken_up_and_one_bad_record_is_logged_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def story() -> None:
        metadata, shares = open_metadata(str(tmp_path / "metadata.db")), Shares()
        grants = Grants(metadata, shares, SimClock())
        await metadata.put("shares/bad", b'{"name":"bad","weight":-1,"bytes_max":0}')
        good = ShareRecord("good", 2.0, 100)
        await metadata.put(good.key(), good.encode())
        for _ in range(3):
            await grants.load()
            assert shares.granted == {"good": Share(2.0, 100)}
        assert caplog.text.count("shares/bad: weight must be") == 1
        await metadata.put(good.key(), ShareRecord("good", 1.0, 0).encode())
        await grants.load()
        assert shares.granted == {"good": Share(1.0, None)}
        await metadata.delete(good.key())
        await grants.load()
        assert shares.granted == {}
        await metadata.close()

    asyncio.run(story())


def test_metadata_that_does_not_answer_changes_nothing_until_it_does() -> None:
    class Metadata:
        away, read = True, 0

        async def list(self, prefix: str) -> tuple[list[Any], int]:
            self.read += 1
            if self.away:
                raise Unavailable("away")
            return [], 1

    async def story() -> None:
        clock, shares, metadata = SimClock(), Shares({"a": Share(2.0)}), Metadata()
        grants: Any = Grants(metadata, shares, clock)  # type: ignore[arg-type]
        task = asyncio.create_task(grants.keep())
        await clock.advance(3 * READ_SECONDS)
        assert metadata.read == 3 and shares.granted == {"a": Share(2.0)}
        metadata.away = False
        await clock.advance(READ_SECONDS)
        assert shares.granted == {} and not task.done()
        task.cancel()

    asyncio.run(story())


def test_what_the_operator_sets_a_node_goes_by(
    node: NodeProcess, capsys: pytest.CaptureFixture[str]
) -> None:
    def said(*arguments: str) -> Any:
        assert main(["share", *arguments, "--dir", str(node.directory), "--json"]) == 0
        return json.loads(capsys.readouterr().out)

    assert main(["tenant", "add", "a", "--dir", str(node.directory)]) == 0
    capsys.readouterr()
    granted = {"tenant": "a", "weight": 2.0, "quota_bytes": 8 << 30}
    uses = {"dram_bytes": 0, "ssd_bytes": 0, "hbm_bytes": 0}
    assert said("a", "--weight", "2", "--quota", "8GiB") == granted
    eventually(lambda: said() == {"tenants": [granted | uses]})
    assert said("a", "--quota", "none") == granted | {"quota_bytes": None}
    eventually(lambda: said() == {"tenants": [granted | {"quota_bytes": None} | uses]})


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (["a", "--weight", "0"], "--weight 0: write 0.001 to 1000"),
        (["a", "--quota", "0"], "write a size above 0, or none"),
        (["a"], "say what a is granted"),
        (["--weight", "2"], "whose share?"),
        (["nobody", "--weight", "2"], "there is no tenant 'nobody'"),
    ],
)
def test_a_wrong_share_is_refused_with_the_fix(
    arguments: list[str], why: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "metadata.db").touch()
    assert main(["share", *arguments, "--dir", str(tmp_path)]) == 2
    assert why in capsys.readouterr().err
