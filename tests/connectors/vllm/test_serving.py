"""Over HTTP, as people run it: a prefill server and a decode server behind a small proxy."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from kvstore.dashboard.panels import VLLM_PANELS
from kvstore.dashboard.scrape import read
from kvstore.dashboard.watch import Watch
from tests.connectors.vllm.models import prompt
from tests.connectors.vllm.server import Proxy, Server, servers
from tests.nodes import NodeProcess

# `vllm bench serve`, whose command does not start under the name of the CPU's package.
BENCH_SERVE = """
from vllm.benchmarks.serve import add_cli_args, main
from vllm.utils.argparse_utils import FlexibleArgumentParser
parser = FlexibleArgumentParser()
add_cli_args(parser)
main(parser.parse_args())
"""
PROMPTS = [prompt(41, 600), prompt(42, 333), prompt(43, 97)]


def test_two_servers_behind_a_proxy_say_what_one_says(
    model: Callable[[str], Path], node: NodeProcess, tmp_path: Path
) -> None:
    folder = model("llama")
    one = Server(folder, tmp_path / "one.log")
    with servers(one):
        alone = [one.complete(tokens, 8) for tokens in PROMPTS]
    prefill = Server(folder, tmp_path / "prefill.log", node=node.address, role="kv_producer")
    decode = Server(folder, tmp_path / "decode.log", node=node.address, role="kv_consumer")
    with servers(prefill, decode):
        proxy = Proxy(prefill, decode)
        found = [proxy.complete(tokens, 8) for tokens in PROMPTS]
        metrics = decode.metrics()
    assert [said["tokens"] for said in found] == [said["tokens"] for said in alone]
    for mine, theirs in zip(found, alone, strict=True):
        assert mine["logprobs"] == pytest.approx(theirs["logprobs"], abs=1e-4)
    handed_over = sum((len(tokens) - 1) // 32 * 32 for tokens in PROMPTS)
    assert metrics["moonpool:followed_tokens_total"] == handed_over
    assert metrics["moonpool:query_tokens_total"] == metrics["moonpool:loaded_tokens_total"] == 0


def test_a_client_s_workload_is_counted_alike_by_vllm_by_the_connector_and_by_the_node(
    model: Callable[[str], Path], node: NodeProcess, tmp_path: Path
) -> None:
    """`vllm bench serve` with shared prefixes, twice, with the server restarted in between."""
    folder, caller = model("llama"), node.caller()
    workload = ["--dataset-name", "prefix_repetition", "--num-prompts", "24"]
    workload += ["--prefix-repetition-prefix-len", "300", "--prefix-repetition-suffix-len", "60"]
    workload += ["--prefix-repetition-num-prefixes", "4", "--prefix-repetition-output-len", "4"]
    for run in range(2):
        server = Server(folder, tmp_path / f"{run}.log", node=node.address)
        with servers(server):
            before = caller.counters()
            subprocess.run(
                [
                    *(sys.executable, "-c", BENCH_SERVE),
                    *("--base-url", server.address, "--model", "tiny", "--seed", "1"),
                    *("--tokenizer", str(folder), "--max-concurrency", "4", *workload),
                ],
                check=True,
                stdout=subprocess.DEVNULL,
                timeout=300,
            )
            said, after = server.metrics(), caller.counters()
        queries, hits = (
            int(said[f"vllm:external_prefix_cache_{what}_total"]) for what in ("queries", "hits")
        )
        assert said["moonpool:query_tokens_total"] == queries
        assert said["moonpool:hit_tokens_total"] == hits
        assert after["query_tokens"] - before["query_tokens"] == queries
        assert after["hit_tokens"] - before["hit_tokens"] == hits
        if run == 1:
            assert hits >= 4 * 256, "the first server's prefixes were not reused"


def test_every_chart_of_vllm_shows_data_where_a_server_is_watched(
    model: Callable[[str], Path], node: NodeProcess, tmp_path: Path
) -> None:
    prompts = [prompt(60 + number, 300) for number in range(16)]
    first = Server(model("llama"), tmp_path / "first.log", node=node.address)
    with servers(first):
        for tokens in prompts:
            first.complete(tokens, 1)
    options = {"audit_rate": 0.5, "audit_seed": 3, "self_test": True, "self_test_hits": 1}
    second = Server(model("llama"), tmp_path / "second.log", node=node.address, **options)
    with servers(second):
        watch = Watch([second.place])
        for number, tokens in enumerate(prompts):
            second.complete(tokens, 2)
            if number in (7, 15):
                moment = float(number)
                watch.take(moment, moment, [(second.place, read(second.place))])
    for panel in VLLM_PANELS:
        shown = watch.history.last[panel.key]
        assert shown and {one.name for one in panel.lines if one.name} <= shown.keys(), panel.key
    assert watch.history.last["vllm_checks"]["drawn at random"] > 0.0
