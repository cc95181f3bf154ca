"""Which LoRA adapters the vLLM worker of this process has loaded, by their weights as it has them.

vLLM calls an adapter by a name and a path, and what lies there may be replaced; it computes by its
number, and what that stands for may be as well. So the weights are named in the moment in which
vLLM loads them, each time it does, and before anything that a step computes by them is stored.
"""

from __future__ import annotations

import functools
import logging
import os
from collections import OrderedDict
from typing import Any, NamedTuple, TypeAlias

from .digest import digest
from .messages import ADAPTERS_MAX, Adapter

log = logging.getLogger("vllm.moonpool")

Stamp: TypeAlias = tuple[tuple[str, int, int, int], ...]
"""Of the files in a folder, their names, numbers, sizes and times; of a name at the hub nothing."""


class _Load(NamedTuple):
    """The last one by a number."""

    number: int  # of it among all loads
    adapter: Adapter
    stamp: Stamp  # of its files, before it


class LoadedAdapters:
    """Of one process. Used by vLLM's worker thread only, where nothing else is said."""

    def __init__(self) -> None:
        # By number, in the order in which they were loaded last, and as which load.
        self._known: OrderedDict[int, _Load] = OrderedDict()
        self._watched = set[Any]()  # classes
        self.loads = 0

    def watch_vllm(self) -> None:
        """See what vLLM loads from now on. Of one that does it otherwise nothing is known."""
        try:
            from vllm.lora.worker_manager import WorkerLoRAManager

            self.watch(WorkerLoRAManager)
        except (ImportError, AttributeError) as error:
            log.warning("Moonpool: LoRA adapters are not kept, this vLLM hides them: %s", error)

    def watch(self, manager: Any) -> None:
        """See what is loaded from now on by a class that does as vLLM's `WorkerLoRAManager`."""
        if manager in self._watched:
            return
        load = manager._load_adapter

        @functools.wraps(load)
        def watched(loader: Any, request: Any, *more: Any, **named: Any) -> Any:
            stamp = _stamp(request.lora_path)
            model = load(loader, request, *more, **named)
            self.note(request, model, loader, stamp)
            return model

        manager._load_adapter = watched
        self._watched.add(manager)

    def note(self, request: Any, model: Any, loader: Any, stamp: Stamp) -> None:
        """An adapter was loaded. What is loaded in place has no name: vLLM reads it again in each
        step from where it lies."""
        weights = ""
        if not getattr(request, "load_inplace", False):
            try:
                weights = digest([_applied(loader.lora_config), _held(model)]).hex()
            except Exception as error:  # whatever a later vLLM has there, its worker goes on
                log.warning("Moonpool: LoRA adapter %s has no name: %s", request.lora_name, error)
        self.loads += 1
        number, called = request.lora_int_id, (request.lora_name, request.lora_path)
        self._known[number] = _Load(self.loads, Adapter(number, *called, weights), stamp)
        self._known.move_to_end(number)
        while len(self._known) > ADAPTERS_MAX:
            self._known.popitem(last=False)

    def since(self, loads: int) -> tuple[Adapter, ...]:
        """Those that were loaded after so many loads, as they are now."""
        found = []
        for one in reversed(self._known.values()):
            if one.number <= loads:
                break
            found.append(one.adapter)
        return tuple(found)

    def has(self, adapter: Adapter | None) -> bool:
        """Whether what was loaded last under an adapter's number is this one. None: the model
        without any, which it always has."""
        if adapter is None:
            return True
        known = self._known.get(adapter.number)
        return known is not None and known.adapter == adapter

    def stands(self, adapter: Adapter | None) -> bool:
        """Whether vLLM would find the same, too, if it had to load it anew. From any thread."""
        if adapter is None:
            return True
        known = self._known.get(adapter.number)
        if known is None or known.adapter != adapter:
            return False
        return known.stamp == _stamp(adapter.path)


LOADED = LoadedAdapters()


def _stamp(path: str) -> Stamp:
    try:
        with os.scandir(os.path.expanduser(path)) as files:
            told = [(one.name, one.stat()) for one in files]
    except (OSError, ValueError):
        return ()
    return tuple(sorted((name, one.st_ino, one.st_size, one.st_mtime_ns) for name, one in told))


def _held(model: Any) -> dict[str, Any]:
    """Of vLLM's `LoRAModel` all but the number by which this engine calls it."""
    told = {name: value for name, value in vars(model).items() if name != "id"}
    for name in ("loras", "modules_to_save"):
        told[name] = {module: vars(one) for module, one in told.get(name, {}).items()}
    return told


def _applied(config: Any) -> dict[str, Any]:
    """What an engine's `LoRAConfig` makes of an adapter, beside how it computes it."""
    names = ("enable_tower_connector_lora", "enable_mixed_moe_lora_format")
    told = {name: getattr(config, name, False) for name in (*names, "enable_moe_shared_loras")}
    told["target_modules"] = sorted(config.target_modules or ())
    return {name: value for name, value in told.items() if value}
