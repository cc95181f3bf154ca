"""Engines that differ in anything that changes KV share nothing; what cannot be kept is refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from kvstore.engine.connectors.lmcache import MoonpoolBackend
from kvstore.engine.connectors.lmcache.facts import facts_of
from kvstore.engine.connectors.lmcache.settings import Settings
from kvstore.engine.connectors.unsupported import Unsupported
from tests.connectors.lmcache.engine import CHUNK, DIM, HEADS, LAYERS, PLUGIN, Engine, settings
from tests.nodes import NodeProcess

Engines = Callable[..., Engine]
TOKENS = [1] * 2 * CHUNK
OF_FOUR = {"world_size": 4, "worker_id": 1}


@pytest.fixture
def stored(engine_of: Engines) -> Engine:
    ours = engine_of(metadata=OF_FOUR)
    ours.kv.fill(1)
    ours.store(TOKENS)
    assert engine_of(metadata=OF_FOUR).lookup(TOKENS) == len(TOKENS)
    return ours


@pytest.mark.parametrize(
    ("metadata", "more"),
    [
        ({}, {"revision": "r2"}),
        ({"model_name": "another"}, {}),
        ({"worker_id": 2}, {}),
        ({"world_size": 2}, {}),
        ({"kv_dtype": torch.float16}, {}),
        ({"kv_shape": (LAYERS, 2, CHUNK, DIM, HEADS)}, {}),
        ({"kv_shape": (LAYERS - 1, 2, CHUNK, HEADS, DIM)}, {}),
    ],
    ids=str,
)
def test_another_engine_never_hits(
    stored: Engine, engine_of: Engines, metadata: Any, more: Any
) -> None:
    theirs = engine_of(metadata={**OF_FOUR, **metadata}, **more)
    assert theirs.lookup(TOKENS) == theirs.retrieve(TOKENS) == 0


def test_a_key_s_tags_are_in_its_name(stored: Engine) -> None:
    assert stored.lookup(TOKENS, tags={"lmcache.tag.user": "another"}) == 0


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"config": {"use_layerwise": True}}, "use_layerwise is not supported"),
        ({"config": {"remote_serde": "cachegen"}}, "remote_serde 'cachegen': chunks come back"),
        ({"revision": None}, "nothing here says what 'a/model' is and how it is computed: set "
         "extra_config 'storage_plugin.pool.revision'"),
        ({"revison": "r1"}, "extra_config 'storage_plugin.pool.revison' is unknown; known after"),
        ({"deadline_ms": "100"}, "'storage_plugin.pool.deadline_ms' is '100'; int is wanted"),
        ({"deadline_ms": 0}, "'storage_plugin.pool.deadline_ms' is 0; 1 to 60000 is right"),
        ({"pin_ms": True}, "'storage_plugin.pool.pin_ms' is True; int is wanted"),
        ({"metadata": {"kv_dtype": torch.float64}}, "dtype 'float64' is not one of"),
    ],
    ids=str,
)  # fmt: skip
def test_what_cannot_be_kept_is_refused_by_name_and_lmcache_serves_without(
    engine_of: Engines, heard: list[str], options: Any, said: str
) -> None:
    ours = engine_of(**options)
    assert ours.plugin is None
    [refused] = heard
    assert refused.startswith(f"Failed to create backend {PLUGIN}: ") and said in refused


@pytest.mark.parametrize("name", ["enable_pd", "enable_blending"])
def test_what_lmcache_itself_does_on_a_gpu_alone_is_refused_by_name(
    engine_of: Engines, name: str
) -> None:
    ours = engine_of()
    setattr(ours.engine.config, name, True)
    with pytest.raises(Unsupported, match=f"{name} is not supported; set it to false"):
        facts_of(ours.engine.config, ours.metadata, Settings("pool", revision="r1"))


def test_two_of_them_in_one_engine_are_refused(
    shared_node: NodeProcess, make: Engines, heard: list[str]
) -> None:
    extra = settings(shared_node.address)
    extra |= {one.replace(".pool.", ".pool.two."): value for one, value in extra.items()}
    ours = make(extra, config={"storage_plugins": ["pool", "pool.two"]})
    assert ours.plugin is None
    assert sum("names this plug-in 2 times; once is right" in one for one in heard) == 2


def test_a_plug_in_of_another_kind_beside_it_is_let_be(
    shared_node: NodeProcess, make: Engines
) -> None:
    extra = settings(shared_node.address) | {"storage_plugin.pool.two.anything": 1}
    ours = make(extra, config={"storage_plugins": ["pool", "pool.two"]})
    ours.store(TOKENS)
    assert ours.lookup(TOKENS) == len(TOKENS)


def test_a_plug_in_beside_it_that_cannot_be_imported_is_not_its_own_failure(
    shared_node: NodeProcess, make: Engines, heard: list[str]
) -> None:
    extra = settings(shared_node.address) | {
        "storage_plugin.other.module_path": "of_nobody",
        "storage_plugin.other.class_name": "Theirs",
    }
    ours = make(extra, config={"storage_plugins": ["other", PLUGIN]})
    assert ours.plugin is not None
    [refused] = heard
    assert "backend other" in refused and "of_nobody" in refused


def test_without_cpu_memory_it_is_refused(shared_node: NodeProcess, engine_of: Engines) -> None:
    ours = engine_of()
    with pytest.raises(ValueError, match="set max_local_cpu_size"):
        MoonpoolBackend(config=ours.engine.config, metadata=ours.metadata)


class Kinds:
    """What LMCache learns of the layers when an engine registers its KV, as far as it is asked."""

    num_kernel_groups = 2

    def __init__(self, ours: Engine) -> None:
        [dtype], [shape] = ours.metadata.get_dtypes(), ours.metadata.get_shapes()

        class One:
            num_layers, hidden_dim_size = 1, shape[3]

            class shape_desc:
                kv_size, nh, hs = 2, HEADS, DIM

        One.dtype = dtype
        self.kernel_groups = [One, One]


def test_layers_of_two_kinds_are_refused_also_when_they_show_late(
    engine_of: Engines, heard: list[str]
) -> None:
    ours = engine_of(revision="late")
    ours.store(TOKENS)
    assert ours.lookup(TOKENS) == len(TOKENS)
    ours.metadata.kv_layer_groups_manager = Kinds(ours)
    assert ours.lookup(TOKENS) == ours.retrieve(TOKENS) == 0
    one = ours.manager.allocate(ours.metadata.get_shapes(), ours.metadata.get_dtypes())
    ours.manager.batched_put(ours.keys([2] * CHUNK), [one])
    assert ours.memory_in_use == 0
    assert len(heard) == 2 and "they are not kept" in heard[0], heard
    with pytest.raises(Unsupported, match="2 kinds of layers; models of one are kept"):
        facts_of(ours.engine.config, ours.metadata, Settings("pool", revision="r1"))
