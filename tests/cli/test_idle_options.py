"""Options that would change nothing are refused, with what they would be of use to, before anybody
is asked."""

from __future__ import annotations

import pytest

from kvstore.cli.main import main

IDLE = {
    "doctor --dram 64GiB": ("--dram", "without --before-start"),
    "doctor --node 127.0.0.1:1 --ssd /data:1GiB": ("--ssd", "without --before-start"),
    "doctor --tls-ca ca.pem": ("--tls-ca", "without --before-start"),
    "purge --tenant a --yes --etcd http://127.0.0.1:1": ("--etcd", "without --everywhere"),
    "purge --tenant a --yes --metadata pool.db": ("--metadata", "without --everywhere"),
    "share --etcd http://127.0.0.1:1": ("--etcd", "without NAME"),
    "share --metadata pool.db": ("--metadata", "without NAME"),
    "drain --no-move --seconds 5": ("--seconds", "with --no-move"),
    "node --ssd-buffered": ("--ssd-buffered", "without --ssd"),
    "node --hbm-device 1": ("--hbm-device", "without --hbm"),
    "serve --model m --keys k.toml --watch 127.0.0.1:1": (
        "--watch",
        "with --keys, without --board",
    ),
    "up --no-engines --model ./tiny": ("--model", "with --no-engines"),
    "up --no-engines --listen 127.0.0.1:0": ("--listen", "with --no-engines"),
    "up --no-gateway --listen 127.0.0.1:0": ("--listen", "with --no-gateway"),
}


@pytest.mark.parametrize("asked", IDLE)
def test_an_option_that_changes_nothing_is_told_with_what_it_is_for(
    asked: str, capsys: pytest.CaptureFixture[str]
) -> None:
    option, why = IDLE[asked]
    assert main(asked.split()) == 2
    assert f"moonpool: {option} changes nothing {why}" in capsys.readouterr().err
