"""Two folders have one name only if engines load the same weights from them, and use them alike."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from kvstore.client import Invalid, processors_digest, weights_digest

Folders = Callable[..., Path]


@pytest.fixture
def folder(tmp_path: Path) -> Folders:
    """Makes folders of files, each with its name for content."""
    made: list[Path] = []

    def of(*names: str) -> Path:
        made.append(tmp_path / str(len(made)))
        for name in names:
            path = made[-1] / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(name)
        return made[-1]

    return of


PLAIN = ("config.json", "model.safetensors")


def test_a_copy_has_the_same_name_wherever_it_lies(folder: Folders, tmp_path: Path) -> None:
    ours = folder(*PLAIN, "text/model.safetensors")
    shutil.copytree(ours, tmp_path / "copy")
    assert weights_digest(tmp_path / "copy") == weights_digest(ours)


@pytest.mark.parametrize("kind", ["safetensors", "bin", "pt"])
def test_weights_of_every_kind_that_engines_load_are_in_the_name(
    folder: Folders, kind: str
) -> None:
    ours, theirs = folder("config.json", f"model.{kind}"), folder("config.json")
    (theirs / f"model.{kind}").write_text("trained further")
    assert weights_digest(ours) != weights_digest(theirs)


@pytest.mark.parametrize(
    "name",
    [
        "text/model.safetensors",
        "model.safetensors.index.json",
        "hf_quant_config.json",
        "quantize_config.json",
        "params.json",
        "modeling.py",
    ],
)
def test_what_engines_read_beside_the_weights_at_the_top_is_in_the_name(
    folder: Folders, name: str
) -> None:
    without, ours, theirs = folder(*PLAIN), folder(*PLAIN, name), folder(*PLAIN, name)
    (theirs / name).write_text("other")
    assert len({weights_digest(one) for one in (without, ours, theirs)}) == 3


@pytest.mark.parametrize(
    "name",
    ["model.bin", "tokenizer.json", "README.md", "checkpoint-500/model.safetensors"],
)
def test_what_engines_do_not_load_is_not(folder: Folders, name: str) -> None:
    assert weights_digest(folder(*PLAIN, name)) == weights_digest(folder(*PLAIN))


def test_what_training_left_is_no_weight(folder: Folders) -> None:
    legacy = ("config.json", "pytorch_model.bin")
    assert weights_digest(folder(*legacy, "training_args.bin")) == weights_digest(folder(*legacy))
    with pytest.raises(Invalid, match="there are no weights here to name"):
        weights_digest(folder("config.json", "optimizer.pt"))


def test_a_load_format_that_looks_for_one_kind_alone_is_named_by_that(folder: Folders) -> None:
    ours, theirs = folder(*PLAIN, "model.pt"), folder(*PLAIN)
    (theirs / "model.pt").write_text("trained further")
    assert weights_digest(ours) == weights_digest(theirs)
    assert weights_digest(ours, "pt") != weights_digest(theirs, "pt")


def test_a_model_without_a_config_of_hugging_face_s_has_a_name(folder: Folders) -> None:
    assert weights_digest(folder("params.json", "consolidated.safetensors"))


PROCESSORS = ["preprocessor_config.json", "processor_config.json", "video_preprocessor_config.json"]


@pytest.mark.parametrize("name", PROCESSORS)
def test_what_becomes_of_images_is_in_a_name_of_its_own(folder: Folders, name: str) -> None:
    without, ours, theirs = folder(*PLAIN), folder(*PLAIN, name), folder(*PLAIN, name)
    assert processors_digest(without) == ""
    assert processors_digest(ours) == processors_digest(theirs) != ""
    (theirs / name).write_text("other")
    assert processors_digest(ours) != processors_digest(theirs)
    assert len({weights_digest(one) for one in (without, ours, theirs)}) == 1, "nothing of text"


def test_which_file_says_it_is_in_the_name(folder: Folders) -> None:
    ours, theirs = folder(PROCESSORS[0]), folder(PROCESSORS[1])
    (theirs / PROCESSORS[1]).write_text(PROCESSORS[0])
    assert processors_digest(ours) != processors_digest(theirs)
    assert processors_digest(folder("config.json", "model.safetensors", "tokenizer.json")) == ""
