"""What a pool of one host is made of, and each process's command line.

A process that is started again serves where it did: others know it by that. Only a node is found by
its directory, and may move.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from kvstore.config import TlsConfig

FREE = "127.0.0.1:0"
ENGINES = ("prefill", "decode")
At: TypeAlias = Mapping[str, tuple[str, str]]  # by name: where it serves, and its metrics


@dataclass(frozen=True, slots=True)
class Plan:
    """What a stack runs."""

    directory: Path
    dram: str
    slab: str
    model: Path | None  # None: no engines, and nothing before them
    node_listen: str = FREE
    node_options: tuple[str, ...] = ()  # any others
    # None: the node serves without TLS, and whatever the environment says of certificates is not
    # for its engines, who talk to this node alone.
    tls: TlsConfig | None = None
    gateway: str = ""  # HOST:PORT at which it answers; empty: no gateway, and no conductor for it
    etcd: tuple[str, ...] = ()  # options that say where a pool of several hosts has its metadata

    @property
    def stages(self) -> list[tuple[str, ...]]:
        """Names, in the order in which they start; those of one stage start side by side."""
        stages: list[tuple[str, ...]] = [("node",)]
        if self.gateway:
            stages.append(("conductor",))
        if self.model is not None:
            stages.append(ENGINES)
        if self.gateway:
            stages.append(("gateway",))
        return stages

    def command(self, name: str, at: At) -> list[str]:
        """Arguments of a process, once those of the stages before it serve."""
        where = ["--dir", os.fspath(self.directory)]
        told = ["--metrics", at[name][1] or FREE] if self.gateway else []
        listen = ["--listen", at[name][0] or FREE]
        if name == "node":
            memory = ["--dram", self.dram, "--slab", self.slab, "--listen", self.node_listen]
            options = [*memory, *self.node_options, *self.etcd, *self._shown()]
            return ["node", *where, *options, *told]
        if name == "conductor":
            return ["conductor", *where, *self.etcd, *listen, *told]
        assert self.model is not None, "a gateway is before engines"
        model, knows = ["--model", os.fspath(self.model)], []
        if self.gateway:
            knows = ["--conductor", at["conductor"][0]]
        if name in ENGINES:
            return ["engine", *where, *model, "--role", name, *listen, *knows, *told]
        for engine in ENGINES:
            knows += ["--engine", at[engine][0]]
        for watched in ("node", "conductor", *ENGINES):
            knows += ["--watch", at[watched][1]]
        return ["serve", *model, "--listen", at[name][0] or self.gateway, *knows, *told]

    def _shown(self) -> list[str]:
        shown = []
        if self.tls is not None:
            for name in ("ca", "cert", "key"):
                shown += [f"--tls-{name}", os.fspath(getattr(self.tls, name))]
        return shown
