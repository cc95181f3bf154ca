"""What `moonpool top` prints of what was read."""

from __future__ import annotations

import subprocess
import sys

from kvstore.cli.top import _folded, text
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


def test_what_is_no_terminal_is_sent_no_control_codes() -> None:
    command = [sys.executable, "-m", "kvstore", "top", "127.0.0.1:1"]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as top:
        try:
            assert top.stdout is not None
            assert top.stdout.readline().split()[:2] == [b"?", b"127.0.0.1:1"]
            assert top.stdout.readline() == b"\n", "between one look and the next"
        finally:
            top.kill()


def test_in_few_columns_no_figure_is_cut() -> None:
    watch = Watch(["127.0.0.1:9"])
    saved = Sample(CONNECTOR["connector_ttft_saved_seconds"].exposed, frozenset(), 12.5, False)
    watch.take(0.0, 0.0, [("127.0.0.1:9", [saved])])
    for columns in (20, 40, 60, 200):
        assert "12.5 s" in text(watch, columns)
        assert "127.0.0.1:9  answers" in text(watch, columns)


def test_figures_that_do_not_fit_a_line_stand_on_the_next() -> None:
    told = ["p50 123 ms", "p99 1.25 s", "token p50 8.0 ms"]
    assert list(_folded("TTFT", told, 6, 80)) == [
        "TTFT    p50 123 ms   p99 1.25 s   token p50 8.0 ms"
    ]
    assert list(_folded("TTFT", told, 6, 31)) == [
        "TTFT    p50 123 ms   p99 1.25 s",
        "        token p50 8.0 ms",
    ]
    assert list(_folded("time to first token", told, 19, 20)) == [
        *("time to first token", "  p50 123 ms", "  p99 1.25 s", "  token p50 8.0 ms")
    ]
