"""Engines on a coded pool: what one loads is what the codec leaves of what the other computed."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from kvstore.cli.parts import Plan
from kvstore.cli.stack import Stack
from kvstore.client import PAGED, Client
from kvstore.codec import CODECS
from kvstore.engine.core import EngineCore, EngineSettings
from kvstore.engine.model import Model
from kvstore.engine.namespace import spec_of
from kvstore.engine.pool import Pool
from kvstore.engine.pool_use import PoolUse
from kvstore.engine.sequence import Sequence
from tests.engine.runs import finish, prompt, request

TOKENS = 200  # three blocks and a short one


@pytest.fixture(scope="module")
def directory() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="mp") as path:
        plan = Plan(Path(path), "64MiB", "4MiB", None)
        with Stack(plan, restart=False) as stack:
            stack.start()
            yield plan.directory


def answer(core: EngineCore, client: Client) -> tuple[Sequence, PoolUse, list[int]]:
    pool, use = Pool(client, core.cache), PoolUse()
    core.hooks = pool
    pool.expect("r", use)
    sequence = core.add(request(prompt(TOKENS, seed=4), 8))
    return sequence, use, finish(core)["r"]


def kept(core: EngineCore, sequence: Sequence, tokens: int) -> torch.Tensor:
    """KV of a sequence's first tokens, as it lies in the pages that were the sequence's."""
    pages = torch.from_numpy(sequence.block_table.copy()).long()
    whole = [core.cache.gather(layer, pages) for layer in range(len(core.cache.layers))]
    return torch.stack(whole)[..., :tokens, :]


@pytest.mark.parametrize("codec", CODECS)
def test_an_engine_goes_on_from_what_the_codec_left_of_anothers_kv(
    model: Model, model_dir: Path, directory: Path, codec: str
) -> None:
    first, second = (EngineCore(model, EngineSettings(pages=48)) for _ in range(2))
    with Client.at(directory, spec_of(model_dir, codec=codec), deadline_seconds=20.0) as client:
        computed, use, alone = answer(first, client)
        assert use.pool_tokens == 0 and use.published_blocks >= 4
        loaded, use, reused = answer(second, client)
        assert use.pool_tokens == TOKENS
        full = TOKENS // 64 * 64
        exact = kept(first, computed, full).clone()
        memory = client.memory(first.cache.layers, PAGED, computed.block_table)
        client.recode(memory, full // 64)
        left = kept(first, computed, full)
        assert torch.equal(kept(second, loaded, full), left)
        assert torch.equal(left, exact) == (codec == "none")
        if codec == "none":
            assert reused == alone
