"""What `moonpool top` prints of what was read."""

from __future__ import annotations

from kvstore.cli.top import text
from kvstore.dashboard.samples import Sample
from kvstore.dashboard.watch import Watch
from kvstore.errors import Unavailable
from kvstore.telemetry import CONNECTOR


def test_what_a_vllm_server_has_saved_is_shown_beside_the_pools_own_figures() -> None:
    watch = Watch(["a:1"])
    saved = Sample(CONNECTOR["connector_ttft_saved_seconds"].exposed, frozenset(), 12.5, False)
    watch.take(0.0, 0.0, [("a:1", [saved])])
    [line] = [one for one in text(watch, 120).splitlines() if "time to first token saved" in one]
    assert line.endswith("saved 12.5 s")


def test_a_process_that_does_not_answer_is_named_once_with_the_reason() -> None:
    watch = Watch(["127.0.0.1:9"])
    watch.take(0.0, 0.0, [("127.0.0.1:9", Unavailable("127.0.0.1:9: Connection refused", 1))])
    [line] = text(watch, 80).splitlines()
    assert line.split() == ["?", "127.0.0.1:9", "Connection", "refused"]
