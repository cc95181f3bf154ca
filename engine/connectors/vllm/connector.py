"""`MoonpoolConnector`: vLLM's own interface, each call handed to the side that answers it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from vllm import envs
from vllm.distributed.kv_transfer.kv_connector.v1.base import (
    KVConnectorBase_V1,
    KVConnectorRole,
    KVConnectorTransferResults,
    SupportsHMA,
)
from vllm.logger import init_logger

from ..unsupported import Unsupported
from .settings import Settings

if TYPE_CHECKING:
    from .messages import Ready, Report, Step
    from .metrics import MoonpoolProm, MoonpoolStats
    from .scheduler import SchedulerSide
    from .worker import WorkerSide

# Either side is imported when vLLM makes it, and no earlier: on the CPU vLLM looks through every
# imported module as a worker starts, and stumbles over llvmlite, on which our kernels stand.

log = init_logger("vllm.moonpool")


class MoonpoolConnector(KVConnectorBase_V1, SupportsHMA):
    """See `KVConnectorBase_V1` for what each call promises."""

    def __init__(self, vllm_config: Any, role: KVConnectorRole, kv_cache_config: Any) -> None:
        super().__init__(vllm_config, role, kv_cache_config)
        transfer = vllm_config.kv_transfer_config
        self._settings = Settings.of(transfer.kv_connector_extra_config)
        self._scheduler: SchedulerSide | None = None
        self._worker: WorkerSide | None = None
        self._ready: Ready | None = None  # what the worker says at the start
        if role is KVConnectorRole.SCHEDULER:
            from .contents import Contents
            from .fleet import place_of
            from .scheduler import SchedulerSide

            told, does = bool(self._settings.conductors), self._settings.fleet_role
            self._scheduler = SchedulerSide(
                self._settings,
                vllm_config.cache_config.block_size,
                reads=transfer.is_kv_consumer,
                writes=transfer.is_kv_producer,
                # An engine in its caller's process has steps for as long as that has requests.
                goes_on=envs.VLLM_ENABLE_V1_MULTIPROCESSING,
                place=place_of(vllm_config, kv_cache_config, does) if told else None,
                contents=Contents.of_engine(vllm_config),
            )
            if vllm_config.weight_transfer_config is not None:
                # They come whether or not vLLM is told to forget what it cached by the old ones.
                self._scheduler.keep_apart("weights may come in place (--weight-transfer-config)")

    @property
    def requires_kv_delivery(self) -> bool:
        """A block that is not published is a miss later, and no fault."""
        return False

    # Worker side

    def register_kv_caches(self, kv_caches: dict[str, Any]) -> None:
        from .facts import facts_of
        from .outer import outer_of
        from .worker import WorkerSide

        config, outer = self._vllm_config, outer_of(self)
        if outer.shaking and self._settings.conductors:
            raise Unsupported(
                f"kv_connector_extra_config.conductors beside {outer.shaking[0]}: they would hear "
                "of this engine with its first request, which they are to send; set none"
            )
        facts = facts_of(config, self._kv_cache_config, self._settings)
        if config.lora_config is not None:
            from .loaded_adapters import LOADED

            LOADED.watch_vllm()
        transfer = config.kv_transfer_config
        self._worker = WorkerSide(
            *(self._settings, facts, kv_caches, transfer.engine_id),
            *(config.parallel_config.rank, config.parallel_config.world_size),
        )
        ready = self._worker.ready(outer.policy)
        if outer.shaking:  # a handshake would end the engine: who is no reader of it reads it too
            self._worker.tell(ready)
        else:
            self._ready = ready

    def unregister_kv_caches(self) -> None:
        """The pages' memory goes, as where vLLM sleeps. It comes back at the same addresses, so
        there is nothing to be done then. vLLM calls this from 0.33 on."""
        if self._worker is not None:
            self._worker.drain()

    def get_handshake_metadata(self) -> Ready | None:
        return self._ready

    def bind_connector_metadata(self, connector_metadata: Any) -> None:
        super().bind_connector_metadata(connector_metadata)
        if self._worker is not None:
            self._worker.begin(connector_metadata)

    def start_load_kv(self, forward_context: Any, **kwargs: Any) -> None:
        if self._worker is not None:
            self._worker.load()

    def wait_for_layer_load(self, layer_name: str) -> None:
        """Nothing to wait for: every load is asynchronous and ends before its request runs."""

    def save_kv_layer(
        self, layer_name: str, kv_layer: Any, attn_metadata: Any, **kwargs: Any
    ) -> None:
        if self._worker is not None:
            self._worker.layer(layer_name)

    def wait_for_save(self) -> None:
        if self._worker is not None:
            self._worker.save()

    def get_transfer_results(self, finished_req_ids: set[str]) -> KVConnectorTransferResults:
        if self._worker is None:
            return KVConnectorTransferResults()
        sent, received, failed = self._worker.ended()
        return KVConnectorTransferResults(sent, received, failed)

    def get_block_ids_with_load_errors(self) -> set[int]:
        return self._worker.bad_pages() if self._worker is not None else set()

    def build_connector_worker_meta(self) -> Report | None:
        return self._worker.report() if self._worker is not None else None

    # Scheduler side

    def set_xfer_handshake_metadata_pp_aware(self, metadata: dict[tuple[int, int], Any]) -> None:
        from .messages import Ready

        assert self._scheduler is not None
        if metadata and all(isinstance(one, Ready) for one in metadata.values()):  # else another's
            self._scheduler.ready(metadata)

    def on_new_request(self, request: Any) -> None:
        assert self._scheduler is not None
        self._scheduler.arrived(request)

    def get_num_new_matched_tokens(
        self, request: Any, num_computed_tokens: int
    ) -> tuple[int | None, bool]:
        assert self._scheduler is not None
        return self._scheduler.matched(request, num_computed_tokens)

    def update_state_after_alloc(self, request: Any, blocks: Any, num_external_tokens: int) -> None:
        assert self._scheduler is not None
        self._scheduler.allocated(request, blocks.get_block_ids(), num_external_tokens)

    def build_connector_meta(self, scheduler_output: Any) -> Step:
        assert self._scheduler is not None
        return self._scheduler.step(scheduler_output)

    def update_connector_output(self, connector_output: Any) -> None:
        assert self._scheduler is not None
        report = connector_output.kv_connector_worker_meta
        self._scheduler.heard(report, set(connector_output.finished_recving or ()))

    def request_finished(
        self, request: Any, block_ids: list[int]
    ) -> tuple[bool, dict[str, Any] | None]:
        return self.request_finished_all_groups(request, (block_ids,))

    def request_finished_all_groups(
        self, request: Any, block_ids: tuple[list[int], ...]
    ) -> tuple[bool, dict[str, Any] | None]:
        assert self._scheduler is not None
        return self._scheduler.finished(request, block_ids), None

    def reset_cache(self) -> bool:
        assert self._scheduler is not None
        # vLLM calls this also where its own reset failed, as blocks were in use.
        manager = getattr(self, "_kv_cache_manager", None)
        self._scheduler.reset(empty=getattr(manager, "usage", 1.0) == 0)
        return True

    # Figures

    def get_kv_connector_stats(self) -> MoonpoolStats | None:
        if self._scheduler is None or self._scheduler.stats.is_empty():
            return None
        return self._scheduler.taken()

    @classmethod
    def build_kv_connector_stats(cls, data: dict[str, Any] | None = None) -> MoonpoolStats:
        from .metrics import MoonpoolStats

        return MoonpoolStats(data or {})

    @classmethod
    def build_prom_metrics(
        cls,
        vllm_config: Any,
        metric_types: Any,
        labelnames: list[str],
        per_engine_labelvalues: dict[int, list[object]],
    ) -> MoonpoolProm:
        from .metrics import MoonpoolProm

        return MoonpoolProm(vllm_config, metric_types, labelnames, per_engine_labelvalues)

    @classmethod
    def requires_piecewise_for_cudagraph(cls, extra_config: dict[str, Any]) -> bool:
        """A prefill that is followed is stored between its layers. Asked on a GPU, before a model
        is loaded: what is wrong with the settings is said before anybody has waited for that."""
        Settings.of(extra_config)
        return True

    def take_events(self) -> Iterable[Any]:
        """None of ours. vLLM asks once for each step, when it knows what came of it."""
        if self._scheduler is not None and self._scheduler.fleet is not None:
            self._scheduler.fleet.computed()
        return ()

    def shutdown(self) -> None:
        for side in (self._scheduler, self._worker):
            if side is not None:
                side.close()
