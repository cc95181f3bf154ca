"""What a node of a configuration takes besides memory, ports and disks, and this host has not."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.util import find_spec
from itertools import combinations
from pathlib import Path

from kvstore.cli.host_folders import refusal
from kvstore.config import NodeConfig

_EVERYWHERE = ("0.0.0.0", "[::]")


def lacking(config: NodeConfig) -> Iterator[str]:
    """Each in one sentence, which names the option."""
    if config.hbm_bytes >= config.slab_bytes and (why := _no_gpu(config.hbm_device)):
        yield f"--hbm: {why}"
    if "ucx" in config.transports and find_spec("nixl_cu12") is None:
        yield "--transport ucx: NIXL is not installed: pip install 'moonpool[ucx]'"
    if config.etcd is None and config.metadata is not None:
        path = Path(config.metadata)
        if not path.exists() and (why := refusal(path.absolute().parent)):
            yield f"--metadata {path}: {why}"
    for (option, one), (other, same) in combinations(_addresses(config).items(), 2):
        if _meet(one, same):
            yield f"{option} and {other} name one port, {one}: give each a port of its own"


def _no_gpu(index: int) -> str:
    from kvstore.transfer.lending import hindrance  # late: it loads torch

    return hindrance(index)


def _addresses(config: NodeConfig) -> dict[str, str]:
    """Where it is to listen, by option; not where it takes a port that is free."""
    host = config.listen.rpartition(":")[0]
    told = {
        "--listen": config.listen,
        "--data-port": f"{host}:{config.data_port}",
        "--metrics": config.metrics,
    }
    return {name: one for name, one in told.items() if one.rpartition(":")[2].strip("0")}


def _meet(one: str, other: str) -> bool:
    """Whether only one of two can listen there."""
    (host, _, port), (its, _, same) = one.rpartition(":"), other.rpartition(":")
    return port == same and (host == its or host in _EVERYWHERE or its in _EVERYWHERE)
