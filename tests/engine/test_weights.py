"""A checkpoint that does not fit its config is refused; no tensor is guessed, none is ignored."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from kvstore.engine.errors import BrokenCheckpoint
from kvstore.engine.model import Model

Tensors = dict[str, torch.Tensor]


def _edited(folder: Path, model_dir: Path, edit: Callable[[Tensors], object]) -> Path:
    """A copy of the model whose tensors went through `edit`."""
    shutil.copytree(model_dir, folder)
    tensors = load_file(folder / "model.safetensors")
    edit(tensors)
    save_file(tensors, folder / "model.safetensors")
    return folder


def test_a_missing_tensor_is_named(model_dir: Path, tmp_path: Path) -> None:
    folder = _edited(tmp_path / "m", model_dir, lambda t: t.pop("lm_head.weight"))
    with pytest.raises(BrokenCheckpoint, match=r"lacks lm_head\.weight"):
        Model.load(folder)


def test_a_tensor_of_another_shape_is_named(model_dir: Path, tmp_path: Path) -> None:
    name = "model.layers.1.self_attn.k_proj.weight"
    folder = _edited(tmp_path / "m", model_dir, lambda t: t.update({name: torch.zeros(4, 4)}))
    with pytest.raises(BrokenCheckpoint, match=r"k_proj\.weight is \(4, 4\)"):
        Model.load(folder)


def test_a_tensor_nobody_uses_is_named(model_dir: Path, tmp_path: Path) -> None:
    name = "model.layers.0.self_attn.q_norm.weight"
    folder = _edited(tmp_path / "m", model_dir, lambda t: t.update({name: torch.ones(16)}))
    with pytest.raises(BrokenCheckpoint, match=r"q_norm\.weight"):
        Model.load(folder)


def test_frequencies_that_old_exports_carry_are_derived_instead(
    model_dir: Path, tmp_path: Path
) -> None:
    name = "model.layers.0.self_attn.rotary_emb.inv_freq"
    Model.load(_edited(tmp_path / "m", model_dir, lambda t: t.update({name: torch.ones(8)})))


def test_a_folder_without_weights_is_refused(model_dir: Path, tmp_path: Path) -> None:
    shutil.copy(model_dir / "config.json", tmp_path)
    with pytest.raises(BrokenCheckpoint, match="neither"):
        Model.load(tmp_path)


@pytest.mark.parametrize("kept", [b"version https://git-lfs.github.com/spec/v1\n", None])
def test_a_file_that_is_not_all_there_is_named(
    kept: bytes | None, model_dir: Path, tmp_path: Path
) -> None:
    folder = Path(shutil.copytree(model_dir, tmp_path / "m"))
    weights = folder / "model.safetensors"
    weights.write_bytes(kept or weights.read_bytes()[:-1])  # a pointer of Git LFS, or cut off
    with pytest.raises(BrokenCheckpoint, match=r"model\.safetensors is no .*: download it again"):
        Model.load(folder)


@pytest.mark.parametrize("text", ["{", "[]", '{"weight_map": []}', '{"weight_map": {"a": 1}}'])
def test_an_index_that_says_of_no_file_is_named(text: str, model_dir: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(model_dir, tmp_path / "m"))
    (folder / "model.safetensors.index.json").write_text(text)
    with pytest.raises(BrokenCheckpoint, match=r"index\.json does not say which file"):
        Model.load(folder)
