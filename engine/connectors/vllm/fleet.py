"""This engine as conductors know it: who it is, what happens here, and what vLLM's own cache holds.

Whatever goes wrong with that is told in the log once, and vLLM goes on.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from vllm.distributed.kv_events import ZmqEventPublisher
from vllm.platforms import current_platform

from kvstore.client import Client, names_of
from kvstore.client.kv_events.own_cache import OwnCache
from kvstore.client.kv_events.subscription import Source
from kvstore.client.kv_events.translation import Translation
from kvstore.client.reporter import Reporter
from kvstore.client.who import Runs, Who

from ..own_events import source_of
from .messages import Adapter, Ready
from .settings import Settings
from .telling import Telling

log = logging.getLogger("vllm.moonpool")


@dataclass(frozen=True, slots=True)
class Place:
    """What vLLM's configuration says of an engine in a fleet."""

    engine_id: str
    room_tokens: int
    prefills: bool
    decodes: bool
    rank: int | None  # of data-parallel engines behind one address; None: there is one
    events: Source | None  # where it publishes what its own cache holds
    runs: Runs


def place_of(config: Any, caches: Any, role: str = "both") -> Place:
    """`role` is what it is to do of what vLLM's kv_role lets it: raises `ValueError` where that is
    nothing."""
    transfer, groups = config.kv_transfer_config, caches.kv_cache_groups
    pages = caches.num_blocks // max(1, len(groups))  # which all groups take from one pool
    # A group that sees a window needs few for the longest request: that it fits, vLLM has checked.
    least = config.model_config.max_model_len
    prefills = transfer.is_kv_producer and role != "decode"
    decodes = transfer.is_kv_consumer and role != "prefill"
    if not (prefills or decodes):
        raise ValueError(
            f"kv_connector_extra_config.fleet_role is {role!r}, and the engine a "
            f"{transfer.kv_role}: with kv_role 'kv_both' it may have any"
        )
    return Place(
        engine_id=str(transfer.engine_id),
        room_tokens=max(least, pages * config.cache_config.block_size),
        prefills=prefills,
        decodes=decodes,
        rank=_rank(str(transfer.engine_id), config.parallel_config),
        events=_source(config),
        runs=Runs(
            config.model_config.hf_config.to_dict(),
            _device(),
            config.parallel_config.tensor_parallel_size,
        ),
    )


class Fleet:
    """This engine's part in one, until `close`. Used by vLLM's scheduler thread only."""

    def __init__(self, settings: Settings, place: Place, ready: Ready, client: Client) -> None:
        spec = client.space.spec
        # Prompts are named by the blocks of one group: of the first that needs all of a prefix.
        self.group = next((at for at, window in enumerate(ready.windows) if not window), 0)
        block_tokens = spec.groups[self.group].block_tokens
        sizes = (
            len(one.layers) * one.kv_heads * spec.token_bytes(at)
            for at, one in enumerate(spec.groups)
        )
        who = Who(
            place.engine_id,
            settings.told_address,
            spec.digest,
            self.group,
            block_tokens,
            sum(sizes),
            place.room_tokens,
            place.prefills,
            place.decodes,
            place.rank,
            settings.stands(),
            spec.revision,
            place.runs,
            followed=not any(ready.windows),  # of windows only full blocks are stored
        )
        self._reporter = Reporter(who.message(), settings.conductors, node=lambda: client.node_id)
        self._telling, self._well = Telling(self._reporter), True
        self._own: OwnCache | None = None
        if place.events is not None:
            names = names_of(spec.digest, self.group, block_tokens)
            translation = Translation(names, block_tokens)
            vllm_group = ready.vllm_groups[self.group]
            self._own = OwnCache(place.events, translation, self._reporter, vllm_group)

    def arrived(self, request: Any, hashes: Sequence[bytes], follows: bool) -> None:
        with self._goes_on():
            self._telling.arrived(request, hashes, follows)

    def loaded(self, adapters: Iterable[Adapter]) -> None:
        """The workers compute under these, which requests name as their model."""
        with self._goes_on():
            for one in adapters:
                self._reporter.adapter(one.name, bytes.fromhex(one.weights))

    def scheduled(self, output: Any) -> None:
        with self._goes_on():
            self._telling.scheduled(output)

    def computed(self) -> None:
        with self._goes_on():
            self._telling.computed()

    def finished(self, request: Any) -> None:
        with self._goes_on():
            self._telling.finished(request)

    def close(self) -> None:
        self._reporter.close()
        if self._own is not None:
            self._own.close()

    @contextmanager
    def _goes_on(self) -> Iterator[None]:
        try:
            yield
        except Exception:
            if self._well:
                log.exception("conductors may hear wrong things of this engine")
            self._well = False


def _device() -> str:
    """As its driver names it; empty where nothing does."""
    try:
        return str(current_platform.get_device_name())
    except Exception as error:  # whatever kind of platform and driver it is
        log.debug("the device has no name: %s", error)
        return ""


def _rank(engine_id: str, parallel: Any) -> int | None:
    """vLLM names its data-parallel engines so, and forgets of dense models how many there are. Each
    of them that has a server of its own has that one's address."""
    rank = int(parallel.data_parallel_index)
    alone = parallel.data_parallel_external_lb or not engine_id.endswith(f"_dp{rank}")
    return None if alone else rank


def _source(config: Any) -> Source | None:
    """Where this engine publishes KV events, as seen from this process."""
    events = config.kv_events_config
    if events is None or not events.enable_kv_cache_events:
        log.warning(
            "conductors are not told what vLLM's own cache holds: "
            "--kv-events-config '{\"enable_kv_cache_events\": true}' would tell them"
        )
        return None
    rank = config.parallel_config.data_parallel_index
    endpoint, replay = (
        ZmqEventPublisher.offset_endpoint_port(one, rank) or ""
        for one in (events.endpoint, events.replay_endpoint)
    )
    return source_of(log, "vLLM", events.publisher, endpoint, replay, events.topic)
