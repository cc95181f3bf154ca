"""What deploy/ has its commands run, read as Compose, Kubernetes and systemd read it."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from tests.tree import ROOT

DEPLOY = ROOT / "deploy"
COMPOSE = DEPLOY / "compose" / "compose.yaml"
BASE = DEPLOY / "kubernetes" / "base"
UNITS = sorted((DEPLOY / "systemd").glob("*.service"))
GIVEN = {"MODEL": "/srv/model"}  # what compose.yaml asks of whoever starts it
IMAGE = "moonpool"


@dataclass(frozen=True)
class Run:
    """One command of Moonpool's that a file has run somewhere."""

    where: str
    arguments: tuple[str, ...]
    environment: Mapping[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        return f"{self.where}: {self.arguments[0]}"


def compose(given: Mapping[str, str] = GIVEN) -> dict[str, Any]:
    """compose.yaml with `${NAME:-default}` and `${NAME:?why}` filled in."""

    def filled(found: re.Match[str]) -> str:
        value = given.get(found[1], found[3] if found[2] == ":-" else None)
        assert value is not None, f"{found[1]} is not given: {found[3]}"
        return value

    text = re.sub(r"\$\{(\w+)(:[-?])([^}]*)\}", filled, COMPOSE.read_text())
    return dict(yaml.safe_load(text))


def compose_runs() -> Iterator[Run]:
    for name, service in compose()["services"].items():
        if service["image"] != IMAGE:
            continue
        env = service.get("environment", {})
        if "entrypoint" not in service:
            yield Run(f"compose {name}", tuple(service["command"]), env)
        test = service["healthcheck"].get("test")
        if test:
            assert test[:2] == ["CMD", "moonpool"]
            yield Run(f"compose {name}'s health", tuple(test[2:]), env)


def objects(folder: Path = BASE) -> list[dict[str, Any]]:
    """Of every file that the folder's kustomization names."""
    names = yaml.safe_load((folder / "kustomization.yaml").read_text())["resources"]
    files = [folder / name for name in names if name.endswith(".yaml")]
    return [one for file in files for one in yaml.safe_load_all(file.read_text())]


def pods() -> Iterator[tuple[str, dict[str, Any]]]:
    for one in objects():
        if "template" in one.get("spec", {}):
            yield one["metadata"]["name"], one["spec"]["template"]["spec"]


def containers(pod: Mapping[str, Any]) -> list[dict[str, Any]]:
    return [*pod.get("initContainers", ()), *pod["containers"]]


def kubernetes_runs() -> Iterator[Run]:
    for name, pod in pods():
        for one in containers(pod):
            if one["image"] != IMAGE:
                continue
            env = environment(one)
            where = f"{name} {one['name']}"
            yield Run(where, tuple(expanded(text, env) for text in one["args"]), env)
            probes = {key: one[key] for key in one if key.endswith("Probe")}
            probes |= one.get("lifecycle", {})
            for kind, probe in probes.items():
                command = probe.get("exec", {}).get("command", [""])
                if command[0] == "moonpool":
                    yield Run(f"{where}'s {kind}", tuple(command[1:]), env)


def environment(container: Mapping[str, Any]) -> dict[str, str]:
    """As its pod would have it: what the cluster fills in has the name of the field."""
    kustomization = yaml.safe_load((BASE / "kustomization.yaml").read_text())
    literals = {
        (one["name"], *literal.split("=", 1)[:1]): literal.split("=", 1)[1]
        for one in kustomization["configMapGenerator"]
        for literal in one.get("literals", ())
    }
    found = {}
    for one in container.get("env", ()):
        source = one.get("valueFrom", {})
        if "fieldRef" in source:
            found[one["name"]] = source["fieldRef"]["fieldPath"].replace(".", "-")
        elif "configMapKeyRef" in source:
            found[one["name"]] = literals[tuple(source["configMapKeyRef"].values())]
        else:
            found[one["name"]] = expanded(one["value"], found)
    return found


def expanded(text: str, env: Mapping[str, str]) -> str:
    """`$(NAME)`, of those that stand before it."""
    return re.sub(r"\$\((\w+)\)", lambda found: env[found[1]], text)


def unit_lines(unit: Path) -> list[tuple[str, str]]:
    lines = [line for line in unit.read_text().splitlines() if "=" in line and line[0] != "#"]
    return [(key, value) for key, _, value in (line.partition("=") for line in lines)]


def env_file(path: Path) -> dict[str, str]:
    pairs = [line.partition("=") for line in path.read_text().splitlines() if line[:1] not in "# "]
    return {key: value.strip('"') for key, _, value in pairs}


def systemd_runs() -> Iterator[Run]:
    for unit in UNITS:
        lines = unit_lines(unit)
        named = dict(lines)["EnvironmentFile"].replace("%i", "prefill")
        env = env_file(DEPLOY / "systemd" / Path(named).name)
        for key, value in lines:
            if key.startswith("Exec"):
                words = shlex.split(value.lstrip("-"))
                assert words[0] == "/opt/moonpool/bin/moonpool"
                split = [env[word[1:]].split() if word[0] == "$" else [word] for word in words[1:]]
                yield Run(f"{unit.name} {key}", tuple(word for part in split for word in part), env)


def runs() -> list[Run]:
    return [*compose_runs(), *kubernetes_runs(), *systemd_runs()]
