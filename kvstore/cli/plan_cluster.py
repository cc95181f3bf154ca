"""Options of `moonpool plan` that say what is simulated, and the cluster they make."""

from __future__ import annotations

import argparse
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

from kvstore.cli.options import check_output
from kvstore.config import parse_bytes
from kvstore.core.hardware import NVLINK5, Gpu
from kvstore.core.model_shape import ModelShape
from kvstore.errors import ConfigError
from kvstore.planner import cluster_file, policies, presets
from kvstore.planner.cluster import Cluster, Failure, Pool, Role

DRAM, FABRIC = "256GiB", "rdma-200"
_ENGINE = ("model", "gpu", "tensor_parallel")  # that a file says of its own
_PLACES = ("racks", "cross_rack_bytes_per_second", "domains", "nvlink_bytes_per_second")
_OF_A_CLUSTER = (
    *("dram", "ssd", "decode_dram", "fabric", "ttft", "tpot", "fail", "elastic"),
    *("policy", "compare", "html"),
    *_PLACES,
)
_SECONDS = r"(\d+\.?\d*|\.\d+)"
_FAILURE = re.compile(rf"(prefill|decode|mixed):(\d+)@{_SECONDS}(?:\+{_SECONDS})?")


def add(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group(
        "a cluster, simulated", "given with --prefill and --decode, or with --cluster"
    )
    group.add_argument("--prefill", type=int, metavar="N", help="engines that prefill")
    group.add_argument("--decode", type=int, metavar="N", help="engines that decode")
    group.add_argument(
        "--cluster", type=Path, metavar="FILE", help="TOML that describes it; options replace parts"
    )
    group.add_argument(
        "--dram", metavar="SIZE", help=f"for KV, of each host that prefills (default {DRAM})"
    )
    group.add_argument("--ssd", metavar="SIZE", help="likewise (default none)")
    group.add_argument(
        "--decode-dram",
        metavar="SIZE",
        help="for KV, of each host that only decodes: what it was handed is not handed over again"
        " (default none)",
    )
    group.add_argument(
        "--fabric",
        metavar="NAME",
        help=f"link between hosts: one of {', '.join(presets.LINKS)} (default {FABRIC})",
    )
    group.add_argument(
        "--racks", type=int, metavar="N", help="that hosts stand in, in turn (default: one)"
    )
    group.add_argument(
        "--cross-rack-bytes-per-second",
        type=float,
        metavar="B",
        help="of a host, to other racks (default: as the fabric)",
    )
    group.add_argument(
        "--domains", type=int, metavar="N", help="of NVLink, that hosts are in (default: none)"
    )
    group.add_argument(
        "--nvlink-bytes-per-second",
        type=float,
        metavar="B",
        help=f"of a host, within its domain (default {NVLINK5.bytes_per_second:g})",
    )
    group.add_argument(
        "--ttft", type=float, metavar="S", help="seconds to the first token, at most (default 30)"
    )
    group.add_argument(
        "--tpot", type=float, metavar="S", help="seconds a token after it, at most (default 0.1)"
    )
    group.add_argument(
        "--fail",
        action="append",
        metavar="ROLE:N@T[+S]",
        help="engine N of a role (the first is 0) dies T seconds into the load, with its host's"
        " memory, and is back S later; may be given several times",
    )
    group.add_argument(
        "--elastic",
        action="store_true",
        default=None,
        help="engines that prefill and that decode take each other's role where that is busier",
    )
    group.add_argument(
        "--policy", metavar="NAME", help="who decides; raw-NAME is without a gate (default ours)"
    )
    group.add_argument(
        "--compare", action="store_true", default=None, help="with all other policies, gated"
    )
    group.add_argument(
        "--html", type=Path, metavar="FILE", help="write a page with plots, in one file"
    )


def wanted(args: argparse.Namespace) -> bool:
    """Whether a cluster is to be simulated. Raises ConfigError where half of one is given."""
    if args.cluster or (args.prefill is not None and args.decode is not None):
        return True
    halves = [name for name in ("prefill", "decode") if getattr(args, name) is not None]
    given = halves + [name for name in _OF_A_CLUSTER if getattr(args, name) is not None]
    if given:
        wants = "give --prefill N and --decode N, or --cluster FILE"
        raise ConfigError(f"--{given[0].replace('_', '-')}: is of a simulated cluster: {wants}")
    return False


def check(args: argparse.Namespace) -> None:
    """What is only used once all is simulated is looked at before. Raises ConfigError."""
    policies.named(args.policy or "ours")
    if args.html is not None:
        check_output("--html", args.html)


def cluster(args: argparse.Namespace, shape: ModelShape, gpu: Gpu, degree: int) -> Cluster:
    """Raises ConfigError or Invalid for one that cannot be."""
    found = _asked(args, shape, gpu, degree)
    found.check_asked()
    return found


def _asked(args: argparse.Namespace, shape: ModelShape, gpu: Gpu, degree: int) -> Cluster:
    changes: dict[str, Any] = {}
    for name in ("dram", "ssd", "decode_dram"):
        if (text := getattr(args, name)) is not None:
            changes[f"{name}_bytes"] = parse_bytes(f"--{name.replace('_', '-')}", text)
    for name in ("ttft", "tpot"):
        if (seconds := getattr(args, name)) is not None:
            changes[f"{name}_seconds"] = seconds
    changes |= {name: said for name in _PLACES if (said := getattr(args, name)) is not None}
    if args.fabric is not None:
        changes["fabric"] = presets.named("--fabric", args.fabric, presets.LINKS)
    failures = tuple(_failure(text) for text in args.fail or ())
    if args.cluster:
        found = _of_file(args, changes)
        found = replace(found, failures=found.failures + failures)
        return found.switching() if args.elastic else found
    changes["failures"] = failures
    changes.setdefault("fabric", presets.LINKS[FABRIC])
    changes.setdefault("dram_bytes", parse_bytes("--dram", DRAM))
    counts = ((Role.PREFILL, args.prefill), (Role.DECODE, args.decode))
    pools = tuple(Pool(role, count, gpu, degree) for role, count in counts)
    made = Cluster(shape, pools, **changes)
    return made.switching() if args.elastic else made


def _failure(text: str) -> Failure:
    found = _FAILURE.fullmatch(text)
    if found is None:
        raise ConfigError(f"--fail {text}: wants ROLE:N@T or ROLE:N@T+S, like decode:0@60+30")
    role, number, at, back = found.groups()
    return Failure(Role(role), int(number), float(at), float(back or "inf"))


def _of_file(args: argparse.Namespace, changes: dict[str, Any]) -> Cluster:
    for name in _ENGINE:
        if getattr(args, name) is not None:
            option = name.replace("_", "-")
            raise ConfigError(f"--{option}: {args.cluster} says what the engines are: leave it out")
    given = ((Role.PREFILL, args.prefill), (Role.DECODE, args.decode))
    engines = {role: count for role, count in given if count is not None}
    return cluster_file.read(args.cluster, changes, engines)
