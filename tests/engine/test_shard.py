"""Each rank's part of a model, and all parts together: nothing is lost, nothing counted twice."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from kvstore.engine.batch import Batch, Span
from kvstore.engine.cache import PagedKV
from kvstore.engine.config import ModelConfig
from kvstore.engine.errors import BrokenCheckpoint, UnsupportedModel
from kvstore.engine.model import Model
from kvstore.engine.shard import KVHeads, Shard
from tests.engine.runs import prompt
from tests.engine.styles import save_model
from tests.engine.teams import ThreadTeam, each, teams

WHOLE = ModelConfig(
    architecture="LlamaForCausalLM",
    hidden_size=64,
    intermediate_size=96,
    layers=2,
    heads=8,
    kv_heads=4,
    head_dim=8,
    vocab_size=301,
    max_positions=512,
    rms_eps=1e-6,
)


@pytest.mark.parametrize("ranks", [1, 2, 4, 8])
def test_the_parts_of_all_ranks_make_the_whole(ranks: int) -> None:
    shards = [Shard(WHOLE, rank, ranks) for rank in range(ranks)]
    rows = [row for shard in shards for row in shard.q_rows]
    assert rows == list(range(8 * 8))
    assert [row for shard in shards for row in shard.mlp_rows] == list(range(96))
    vocabulary = [row for shard in shards for row in shard.vocab_rows]
    assert vocabulary[:301] == list(range(301)) and len(vocabulary) < 301 + ranks
    for shard in shards:
        heads = range(shard.kv.first * 8, (shard.kv.first + shard.kv.count) * 8)
        assert shard.kv_rows == heads and shard.part.kv_heads == shard.kv.count
        assert shard.part.heads == 8 // ranks


@pytest.mark.parametrize("kv_heads", [1, 2, 4, 8, 32])
@pytest.mark.parametrize("ranks", [1, 2, 4, 8])
def test_every_kv_head_has_exactly_one_writer(ranks: int, kv_heads: int) -> None:
    parts = [KVHeads.of(kv_heads, rank, ranks) for rank in range(ranks)]
    written = [head for p in parts if p.writes for head in range(p.first, p.first + p.count)]
    assert written == list(range(kv_heads))
    assert parts[0].writes, "the first rank's windows are the hand-off"


def test_a_rank_has_the_kv_head_that_its_query_heads_read() -> None:
    config = replace(WHOLE, kv_heads=2)
    for rank in range(8):
        shard = Shard(config, rank, 8)
        (query,) = {row // 8 for row in shard.q_rows}
        assert (shard.kv.first, shard.kv.count) == (query // 4, 1)


@pytest.mark.parametrize(
    ("change", "ranks"),
    [({}, 3), ({"kv_heads": 8, "intermediate_size": 97}, 2), ({"heads": 12, "kv_heads": 3}, 2)],
)
def test_ranks_that_do_not_divide_a_model_are_refused(change: dict[str, int], ranks: int) -> None:
    with pytest.raises(UnsupportedModel, match=f"{ranks} ranks"):
        Shard(replace(WHOLE, **change), 0, ranks)


@pytest.mark.parametrize(
    ("style", "ranks"),
    [
        ("qwen2 with its biases", 2),
        ("qwen3 with q and k norms", 4),
        ("llama with every bias", 4),
        ("llama with tied embeddings", 2),
        ("llama with one KV head", 4),
        ("llama with as many KV heads as heads", 4),
    ],
)
def test_ranks_together_give_the_logits_of_one(style: str, ranks: int, tmp_path: Path) -> None:
    folder = save_model(tmp_path, style, vocab_size=301)
    tokens = prompt(90, vocab=300)
    alone = _logits(Model.load(folder), tokens)
    found = each([_forward(folder, tokens, team) for team in teams(ranks)])
    for logits in found:
        assert torch.equal(logits, found[0]), "all take the same token"
    torch.testing.assert_close(found[0], alone, atol=1e-3, rtol=0)


def test_a_rank_reads_its_part_of_the_weights_and_still_checks_them_all(
    model_dir: Path, tmp_path: Path
) -> None:
    (_, second) = teams(2)
    whole, part = Model.load(model_dir), Model.load(model_dir, second)
    assert part._weights.layers[0].down.weight.numel() * 2 == (
        whole._weights.layers[0].down.weight.numel()
    )
    folder = tmp_path / "m"
    shutil.copytree(model_dir, folder)
    tensors = load_file(folder / "model.safetensors")
    tensors["model.layers.0.self_attn.o_proj.bias"] = torch.zeros(128)
    save_file(tensors, folder / "model.safetensors")
    with pytest.raises(BrokenCheckpoint, match=r"o_proj\.bias"):
        Model.load(folder, second)


def _forward(folder: Path, tokens: list[int], team: ThreadTeam) -> Callable[[], torch.Tensor]:
    return lambda: _logits(Model.load(folder, team), tokens)


def _logits(model: Model, tokens: list[int]) -> torch.Tensor:
    """Logits after `tokens`, in two chunks."""
    cache = PagedKV(model.config, pages=4)
    table = cache.allocate("a", len(tokens))
    assert table is not None
    model.forward(Batch([Span(tokens[:50], 0, table, False)], 64), cache)
    return model.forward(Batch([Span(tokens[50:], 50, table, True)], 64), cache)[0]
