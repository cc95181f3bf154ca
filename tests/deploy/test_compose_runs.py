"""compose.yaml's own commands, run here: a whole pool with TLS that answers a completion, and whose
processes are healthy, measured and drained as the file says."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from kvstore.config import TlsConfig
from kvstore.rpc.tls import data_client, valid_between
from tests.deploy.files import DEPLOY
from tests.deploy.stage import Stage
from tests.etcd import EtcdProcess, need_etcd
from tests.nodes import eventually, short_directory

PROMPT = list(range(1, 200))


@pytest.fixture(scope="module")
def stage() -> Iterator[Stage]:
    need_etcd()
    with short_directory() as folder:
        model = folder / "tiny"
        make = [sys.executable, "-m", "kvstore", "make-model", str(model)]
        subprocess.run(make, check=True, capture_output=True, env=os.environ)
        etcd = EtcdProcess(folder / "etcd").start()
        given = {"MODEL": str(model), "NODE_DRAM": "64MiB", "NODE_SLAB": "8MiB"}
        made = Stage(folder, etcd.url, given | {"NODE_SSD": "64MiB"})
        try:
            made.init()
            yield started(made)
        finally:
            made.close()
            etcd.stop()


def started(stage: Stage) -> Stage:
    """In the order that `depends_on` asks for."""
    for kinds in (("node", "conductor"), ("prefill", "decode", "gateway")):
        names = [name for name in stage.services if name.split("-")[0] in kinds]
        for name in names:
            stage.start(name)
        for name in names:
            stage.wait_healthy(name)
    return stage


def completed(stage: Stage) -> dict[str, Any]:
    body = {"model": "model", "prompt": PROMPT, "max_tokens": 8, "temperature": 0}
    asked = urllib.request.Request(
        f"http://{stage.address_of('gateway')}:8000/v1/completions",
        json.dumps({**body, "ignore_eos": True}).encode(),
        {"content-type": "application/json"},
    )
    with urllib.request.urlopen(asked, timeout=60) as reply:
        return dict(json.load(reply))


def test_it_answers_and_what_is_asked_again_comes_from_the_pool(stage: Stage) -> None:
    first = completed(stage)
    assert first["usage"]["completion_tokens"] == 8

    def cached() -> bool:
        again = completed(stage)
        assert again["choices"] == first["choices"]
        return bool(again["usage"]["prompt_tokens_details"]["cached_tokens"] >= 128)

    assert eventually(cached, 30)


def test_engines_map_their_own_nodes_memory(stage: Stage) -> None:
    """Else blocks went over TCP, though they are on the same host."""
    completed(stage)
    used = 0
    for name in ("node-0", "node-1"):
        asked = stage.run(name, "stat", "--node", "127.0.0.1:7410", "--json")
        assert asked.returncode == 0, asked.stderr
        used += json.loads(asked.stdout)["counters"]["opened_bytes"]
    assert used > 0


def test_prometheus_finds_metrics_where_it_looks(stage: Stage) -> None:
    told = yaml.safe_load((DEPLOY / "prometheus" / "prometheus.yml").read_text())
    for job in told["scrape_configs"]:
        for config in job["static_configs"]:
            for target in config["targets"]:
                host, _, port = target.partition(":")
                url = f"http://{stage.address_of(host)}:{port}/metrics"
                with urllib.request.urlopen(url, timeout=10) as reply:
                    assert b"moonpool_uptime_seconds" in reply.read(), target


def test_the_doctor_finds_every_node_well(stage: Stage) -> None:
    command = stage.services["operator"]["command"]
    asked = stage.run("operator", *command, "--json")
    said = json.loads(asked.stdout)
    assert asked.returncode == 0, said
    assert len(said["nodes"]) == 3
    assert all(one["reachable"] and one["tls"] for one in said["nodes"])


def test_init_leaves_what_is_there(stage: Stage) -> None:
    def all_of_it() -> dict[str, bytes]:
        files = [
            path
            for name in ("node-tls", "client-tls", "proxy-tls")
            for path in stage.volume(name).iterdir()
        ]
        return {str(path): path.read_bytes() for path in files}

    before = all_of_it()
    stage.init()
    assert all_of_it() == before
    assert not list(stage.volume("node-tls").glob("ca.key")), "the authority's key stays with it"


def test_init_makes_anew_what_is_about_to_end(stage: Stage, tmp_path: Path) -> None:
    again = stage.elsewhere(tmp_path)
    again.init()
    authority, shown = again.volume("authority"), again.volume("node-tls") / "node-pool.pem"
    first, token = shown.read_text(), again.volume("client-tls") / "engine.token"
    said = token.read_text()
    for file in authority.iterdir():
        file.unlink()
    names = ("--node=pool", "--conductor=pool", "--client=engine", "--client=operator")
    made = again.run("init", "certs", str(authority), *names, "--days=20")
    assert made.returncode == 0, made.stderr
    long_ago = time.time() - 340 * 86_400
    os.utime(token, (long_ago, long_ago))
    again.init()
    assert shown.read_text() != first and token.read_text() not in ("", said)
    tls = TlsConfig(shown.with_name("ca.pem"), shown, shown.with_suffix(".key"))
    assert valid_between(tls)[1] - time.time() > 80 * 86_400
    data_client(tls)  # what it shows and whom it believes fit together


def test_a_node_without_its_identity_is_refused(stage: Stage, tmp_path: Path) -> None:
    address = f"{stage.address_of('node-0')}:7410"
    assert stage.run("init", "health", address).returncode == 1
    assert stage.run("init", "stat", "--node", address).returncode == 1


def test_services_end_in_the_time_that_they_are_given(stage: Stage) -> None:
    """The last of these: what was started ends here."""
    drained = stage.run("node-2", "drain", "--node", "127.0.0.1:7410", "--seconds", "10")
    assert drained.returncode == 0, drained.stderr
    names = ["gateway", "prefill-0", "prefill-1", "decode-0", "decode-1"]
    for name in [*names, "conductor-0", "conductor-1", "node-0", "node-1", "node-2"]:
        assert stage.stop(name) == 0, stage.log(name)
