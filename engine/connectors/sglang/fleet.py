"""This engine as conductors know it: who it is, what happens here, and what SGLang's own cache on
the device holds. It begins once its scheduler is seen at work, which says what no storage is told.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Any

import torch
from sglang.srt.disaggregation.kv_events import KVEventsConfig
from sglang.srt.environ import envs
from sglang.srt.mem_cache.hicache_storage import HiCacheStorageConfig
from sglang.srt.runtime_context import get_disagg, get_observability, get_parallel

from kvstore.client import Client, names_of
from kvstore.client.kv_events.own_cache import OwnCache
from kvstore.client.kv_events.subscription import Source
from kvstore.client.kv_events.translation import Translation
from kvstore.client.reporter import Reporter
from kvstore.client.who import Runs, Who

from ..own_events import source_of
from ..unsupported import Unsupported
from . import hooks
from .settings import WHERE, Settings
from .telling import Telling
from .told import published

logger = logging.getLogger(__name__)


def check_fleet(config: HiCacheStorageConfig) -> None:
    """Raise `Unsupported` for a server that conductors cannot be told of as one engine."""
    apart = published(get_disagg)
    if apart and apart.disaggregation_mode != "null":
        mode = apart.disaggregation_mode
        raise Unsupported(f"--disaggregation-mode {mode} beside conductors of {WHERE}")
    for name, value in (("pp_size", config.pp_size), ("data-parallel ranks:", _engines())):
        if value != 1:
            raise Unsupported(f"{name} {value} is not supported beside conductors of {WHERE}")


def reports(config: HiCacheStorageConfig) -> bool:
    """One rank does, for all."""
    return bool(config.tp_rank == 0)


@dataclass(frozen=True, slots=True)
class Part:
    """What a storage knows of its engine."""

    settings: Settings
    client: Client
    weights: str  # their revision, by which a gateway finds who has them
    naming: str  # of pages
    ranks: int  # whose KV heads make a token's KV together


class Fleet:
    """This engine's part in one, until `close`."""

    def __init__(self, part: Part) -> None:
        self._part = part
        self._telling: Telling | None = None
        self._reporter: Reporter | None = None
        self._own: OwnCache | None = None
        hooks.watch(self)

    def close(self) -> None:
        hooks.watch(None)
        for one in (self._own, self._reporter):
            if one is not None:
                one.close()

    def queued(self, scheduler: Any, request: Any) -> None:
        self._begun(scheduler).queued(request)

    def scheduled(self, scheduler: Any, batch: Any) -> None:
        telling = self._begun(scheduler)
        if batch is not None:
            telling.scheduled(batch)
        elif telling.busy and scheduler.is_fully_idle():
            telling.idle()

    def computed(self, scheduler: Any, batch: Any) -> None:
        self._begun(scheduler).computed(batch)

    def gone(self, scheduler: Any, request: Any) -> None:
        self._begun(scheduler).gone(request)

    def _begun(self, scheduler: Any) -> Telling:
        if self._telling is None:
            try:
                self._telling = self._begin(scheduler)
            except Exception:
                self.close()
                raise
        return self._telling

    def _begin(self, scheduler: Any) -> Telling:
        part, spec = self._part, self._part.client.space.spec
        (group,) = spec.groups
        names = names_of(spec.digest, 0, group.block_tokens, part.naming)
        settings = part.settings
        who = Who(
            engine_id=f"sglang {settings.address}",
            address=settings.told_address,
            namespace=spec.digest,
            group=0,
            block_tokens=group.block_tokens,
            token_bytes=len(group.layers) * group.kv_heads * spec.token_bytes(0) * part.ranks,
            room_tokens=_room(scheduler),
            prefills=True,
            decodes=True,
            stands=settings.stands(),
            revision=part.weights,
            runs=Runs(scheduler.model_config.hf_config.to_dict(), _device(), part.ranks),
            naming=part.naming,
        )
        if not envs.SGLANG_RETURN_ORIGINAL_LOGPROB.get():
            logger.warning(
                "Moonpool: the logprobs of tokens that are drawn are those after temperature and "
                "penalties, and not the model's own as other engines say them: "
                "SGLANG_RETURN_ORIGINAL_LOGPROB=1 has SGLang say these"
            )
        client = part.client
        self._reporter = Reporter(who.message(), settings.conductors, node=lambda: client.node_id)
        source = _source()
        if source is not None:
            translation = Translation(names, group.block_tokens)
            self._own = OwnCache(source, translation, self._reporter)
        return Telling(self._reporter, names, group.block_tokens)


def _room(scheduler: Any) -> int:
    """Tokens of KV. Of a prompt that has all of it SGLang keeps some back."""
    total, request = int(scheduler.max_total_num_tokens), int(scheduler.max_req_len)
    return total if total > request + 1 else int(scheduler.max_req_input_len) - 1


def _engines() -> int:
    """Schedulers behind the server's address."""
    try:
        return int(get_parallel().num_dp_ranks)
    except (ValueError, RuntimeError):  # nothing is published: outside a server
        return 1


def _device() -> str:
    """As its driver names it; empty where nothing does."""
    return str(torch.cuda.get_device_name()) if torch.cuda.is_available() else ""


def _source() -> Source | None:
    """Where this engine publishes KV events, as seen from this process."""
    seen = published(get_observability)
    said = seen.kv_events_config if seen else None
    if not said:
        logger.warning(
            "Moonpool: conductors are not told what SGLang's own cache holds: --kv-events-config "
            '\'{"publisher": "zmq", "endpoint": "tcp://*:5557", "format": "dynamo"}\' tells them'
        )
        return None
    events = KVEventsConfig.from_cli(said)
    if events.format != "dynamo":
        logger.warning(
            'Moonpool: without "format": "dynamo" in --kv-events-config SGLang tells of a prompt '
            "under an extra_key as of the plain one, and conductors send the plain one after it"
        )
    where = events.endpoint, events.replay_endpoint or "", events.topic
    return source_of(logger, "SGLang", events.publisher, *where, binds=bool(events.bind))
