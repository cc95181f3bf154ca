"""Every command that deploy/ has run somewhere is one that Moonpool takes, settings and all."""

from __future__ import annotations

import importlib.util
import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from kvstore.cli.copies import run_drain
from kvstore.cli.main import command_line
from kvstore.cli.node_options import node_config
from kvstore.config import CREDENTIALS, GatewayConfig
from kvstore.rpc.identity import announced_host, listen_address, loopback_address, on_loopback
from tests.deploy.files import (
    COMPOSE,
    DEPLOY,
    Run,
    compose,
    compose_runs,
    containers,
    environment,
    expanded,
    kubernetes_runs,
    objects,
    pods,
    runs,
    systemd_runs,
)
from tests.tree import ROOT


def parsed(run: Run) -> Any:
    try:
        return command_line().parse_args(run.arguments)
    except SystemExit:
        raise AssertionError(f"{run.where}: {' '.join(run.arguments)}") from None


def test_there_is_something_of_every_kind() -> None:
    kinds = {one.arguments[0] for one in compose_runs()}
    assert kinds == {"node", "conductor", "engine", "serve", "health", "doctor"}
    kinds = {one.arguments[0] for one in kubernetes_runs()}
    assert kinds == {"node", "conductor", "serve", "health", "doctor", "drain"}
    kinds = {one.arguments[0] for one in systemd_runs()}
    assert kinds == {"node", "conductor", "engine", "serve", "doctor", "drain"}


@pytest.mark.parametrize("run", runs(), ids=str)
def test_a_command_is_taken_with_its_settings(run: Run) -> None:
    args = parsed(run)
    if run.arguments[0] == "node" or "--before-start" in run.arguments:
        config = node_config(args)
        listen_address(config.listen, config.tls)
        announced_host(config.listen, config.advertise)
        assert config.etcd is not None and config.data_port, "others have to reach both ports"
    elif run.arguments[0] == "conductor":
        listen_address(args.listen, args.tls_ca)
        announced_host(args.listen, args.advertise)
    elif run.arguments[0] == "serve":
        GatewayConfig(model=args.model, listen=args.listen, conductors=tuple(args.conductor))
        assert on_loopback(args.listen.rpartition(":")[0])
    elif run.arguments[0] == "engine":
        loopback_address(args.listen)
        assert args.conductor
    elif run.arguments[0] == "drain":
        assert args.run is run_drain and args.seconds


@pytest.mark.parametrize("run", runs(), ids=str)
def test_whoever_calls_others_shows_who_it_is(run: Run) -> None:
    args = parsed(run)
    calls = run.arguments[0] in ("engine", "serve", "drain", "doctor")
    calls |= run.arguments[0] == "health" and "http" not in args.address and not args.plain
    if calls:
        assert set(CREDENTIALS[:3]) <= run.environment.keys()
    if run.arguments[0] in ("engine", "serve"):
        assert "MOONPOOL_TOKEN_FILE" in run.environment


def test_what_a_node_is_asked_before_its_start_is_what_it_is_started_with() -> None:
    for found in (list(kubernetes_runs()), list(systemd_runs())):
        (doctor,) = (one for one in found if one.arguments[0] == "doctor")
        assert doctor.arguments[1] == "--before-start"
        asked = set(doctor.arguments[2:])
        told = next(
            set(one.arguments[1:])
            for one in found
            if one.arguments[0] == "node" and one.where.split()[0] == doctor.where.split()[0]
        )
        assert asked == {one for one in told if not one.startswith("--metrics=")}


def test_services_of_compose_are_called_by_names_that_are_there() -> None:
    services = compose()["services"]
    for name, service in services.items():
        text = " ".join(map(str, service.get("command", ())))
        called = re.findall(r"--conductor=([\w-]+):7420|http://([\w-]+):2379", text)
        for one in called:
            assert "".join(one) in services, f"{name} calls {one}"
        owner = service.get("network_mode", "").removeprefix("service:")
        assert not owner or owner in services


def test_engines_of_compose_are_on_the_host_of_a_node() -> None:
    """They map its memory: they have its folder, its host's name, and its user."""
    services = compose()["services"]
    for name, service in services.items():
        if service.get("command", [""])[0] != "engine":
            continue
        node = services[Path(command_value(service, "--dir")).name]
        assert command_value(node, "--dir") == command_value(service, "--dir"), name
        assert service["environment"]["MOONPOOL_HOST"] == node["environment"]["MOONPOOL_HOST"]
        shared = [one.split(":")[0] for one in node["volumes"] if ":/var/lib/moonpool" in one]
        assert f"{shared[0]}:/var/lib/moonpool:ro" in service["volumes"], name


def command_value(service: dict[str, Any], option: str) -> str:
    return next(one.partition("=")[2] for one in service["command"] if one.startswith(option + "="))


def test_files_that_compose_mounts_are_there() -> None:
    document = compose()
    for name, service in document["services"].items():
        for volume in service.get("volumes", ()):
            source = volume.split(":")[0]
            if source.startswith("."):
                assert (COMPOSE.parent / source).exists(), f"{name} mounts {source}"
            elif not source.startswith("/"):
                assert source in document["volumes"], f"{name} mounts {source}"


def test_prometheus_reads_every_process_of_compose_at_its_port() -> None:
    told = yaml.safe_load((DEPLOY / "prometheus" / "prometheus.yml").read_text())
    read = {
        (target, job["job_name"])
        for job in told["scrape_configs"]
        for config in job["static_configs"]
        for target in config["targets"]
    }
    jobs = {"serve": "gateway"}
    there = set()
    for name, service in compose()["services"].items():
        command = service.get("command", ())
        if any(str(one).startswith("--metrics=") for one in command):
            port = command_value(service, "--metrics").rpartition(":")[2]
            owner = service.get("network_mode", f"service:{name}").removeprefix("service:")
            there.add((f"{owner}:{port}", jobs.get(command[0], command[0])))
    assert read == there


def test_vllm_is_told_what_its_connector_takes() -> None:
    ((name, engine),) = (
        (name, one)
        for name, pod in pods()
        for one in containers(pod)
        if one["image"] == "moonpool-vllm"
    )
    env = environment(engine)
    (option,) = (one for one in engine["args"] if one.startswith("--kv-transfer-config="))
    told = json.loads(expanded(option, env).partition("=")[2])
    made = vllm_settings().of(told["kv_connector_extra_config"])
    assert made.address.startswith("metadata-name.") and made.address.endswith(":8000")
    node = next(one for run_name, one in node_commands() if run_name == f"{name} node")
    assert made.node == node["dir"]


def vllm_settings() -> Any:
    """The connector's own class: its package cannot be imported where there is no vLLM."""
    path = ROOT / "engine" / "connectors" / "vllm" / "settings.py"
    spec = importlib.util.spec_from_file_location("kvstore.engine.connectors.vllm.settings", path)
    assert spec is not None and spec.loader is not None
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    finally:
        del sys.modules[spec.name]
    return module.Settings


def node_commands() -> list[tuple[str, dict[str, str]]]:
    return [
        (run.where, {"dir": str(parsed(run).dir)})
        for run in kubernetes_runs()
        if run.arguments[0] == "node"
    ]


def test_names_of_pods_are_those_of_their_sets_and_services() -> None:
    """`NAME-0.SERVICE.NAMESPACE...` is in DNS only if there are such a set and such a service."""
    kinds = {(one["kind"], one["metadata"]["name"]): one for one in objects()}
    texts = [text for run in kubernetes_runs() for text in run.arguments]
    for text in texts:
        for pod, service in re.findall(r"([\w-]+)\.([\w-]+)\.moonpool\.svc", text):
            assert kinds["Service", service]["spec"]["clusterIP"] == "None"
            found = kinds["StatefulSet", service]
            assert found["spec"]["serviceName"] == service
            name, _, number = pod.rpartition("-")
            if pod != "metadata-name":
                assert name == service and int(number) < found["spec"]["replicas"]
