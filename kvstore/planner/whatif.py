"""One question of the what-if page: a load made up, a cluster, and what becomes of it.

`python -m kvstore.planner.whatif` reads the question as JSON from its input and writes the answer
as JSON, so that who asks need not have the simulator in its own memory; others' work comes first.
Every setting has its bounds here; one that is left out is as `FIELDS` says.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from kvstore.errors import ConfigError, Invalid
from kvstore.limits import GiB
from kvstore.planner import presets
from kvstore.planner.cluster import Cluster, Pool, Role
from kvstore.planner.kinds import KINDS, made

DURATION_S = 300.0
SEED = 1
_NICE = 10


@dataclass(frozen=True, slots=True)
class Choice:
    """One of some names."""

    text: str
    usual: str
    names: tuple[str, ...]

    def read(self, name: str, said: str) -> str:
        if said not in self.names:
            raise ConfigError(f"{name} = {said[:64]!r}: is one of {', '.join(self.names)}")
        return said


@dataclass(frozen=True, slots=True)
class Number:
    """In steps from the least."""

    text: str
    usual: float
    least: float
    most: float
    step: float

    def read(self, name: str, said: str) -> float:
        try:
            value = float(said)
        except ValueError:
            value = float("nan")
        if not self.least <= value <= self.most or (value - self.least) % self.step:
            text = f"wants a number from {self.least:g} to {self.most:g}, in steps of {self.step:g}"
            raise ConfigError(f"{name} = {said[:64]!r}: {text}")
        return value


FIELDS: Mapping[str, Choice | Number] = {
    "load": Choice("prompts", "multi-turn", tuple(KINDS)),
    "rate": Number("requests a second", 6, 0.5, 60, 0.5),
    "model": Choice("model", "llama-3-8b", tuple(presets.MODELS)),
    "gpu": Choice("GPU", "h100", tuple(presets.CARDS)),
    "gpus": Choice("GPUs of an engine", "1", ("1", "2", "4", "8", "16")),
    "prefill": Number("engines that prefill", 2, 1, 32, 1),
    "decode": Number("engines that decode", 2, 1, 32, 1),
    "dram": Number("GiB of DRAM a host", 64, 0, 1024, 16),
    "ssd": Number("GiB of SSD a host", 0, 0, 8192, 128),
    "fabric": Choice("link between hosts", "rdma-200", tuple(presets.LINKS)),
    "ttft": Number("seconds to the first token", 10, 0.5, 60, 0.5),
    "tpot": Number("milliseconds a token", 100, 10, 500, 10),
}


def choices() -> dict[str, dict[str, Any]]:
    """As JSON: what there is to set."""
    return {name: asdict(field) for name, field in FIELDS.items()}


def read(said: Mapping[str, str]) -> dict[str, Any]:
    """Raises `ConfigError` for what is no setting, or out of its bounds."""
    if unknown := sorted(said.keys() - FIELDS.keys()):
        raise ConfigError(f"{unknown[0][:64]!r}: there are {', '.join(FIELDS)}")
    return {
        name: field.read(name, said[name]) if name in said else field.usual
        for name, field in FIELDS.items()
    }


def cluster_of(asked: Mapping[str, Any]) -> Cluster:
    """Raises `ConfigError` for memory that nobody means, and `Invalid` where the model does not fit
    that many GPUs, or cannot be split so."""
    gpu, degree = presets.CARDS[asked["gpu"]], int(asked["gpus"])
    roles = (Role.PREFILL, Role.DECODE)
    cluster = Cluster(
        presets.MODELS[asked["model"]],
        tuple(Pool(role, int(asked[role]), gpu, degree) for role in roles),
        presets.LINKS[asked["fabric"]],
        dram_bytes=int(asked["dram"]) * GiB,
        ssd_bytes=int(asked["ssd"]) * GiB,
        ttft_seconds=asked["ttft"],
        tpot_seconds=asked["tpot"] / 1e3,
    )
    cluster.check_asked()
    return cluster


def answer(asked: Mapping[str, Any]) -> dict[str, Any]:
    """Of what `read` gave: what became of the load, and how full the cluster was over time."""
    # The simulator brings a compiler.
    from kvstore.planner import outcome, replay
    from kvstore.planner.policies import named
    from kvstore.planner.timeline import timeline

    cluster = cluster_of(asked)
    load = made(asked["load"], asked["rate"], DURATION_S, SEED)
    world = replay.ran(load, cluster, named("ours"), SEED)
    return {
        "asked": dict(asked),
        "outcome": asdict(outcome.of(world)),
        "timeline": asdict(timeline(world)),
    }


def main() -> int:
    os.nice(_NICE)
    try:
        print(json.dumps(answer(read(json.load(sys.stdin)))))
    except (ConfigError, Invalid) as error:
        print(json.dumps({"error": str(error)}))
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
