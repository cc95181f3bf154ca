"""What names a local model: a digest of its weights' bytes, never its folder's name.

Two hosts with copies of one checkpoint share blocks, and two checkpoints under one name never do.
"""

from __future__ import annotations

from pathlib import Path

from blake3 import blake3

from kvstore.errors import Invalid

# As vLLM and SGLang look for weights at the top of a folder: the first kind that is there, unless
# a load format has them look for one alone. The pickled ones are older checkpoints'.
KINDS = ("*.safetensors", "*.bin", "*.pt")
ALONE = {"pt": ("*.pt",)}
# What training leaves among them, which nobody loads.
LEFT_BY_TRAINING = (
    *("training_args.bin", "optimizer.bin", "optimizer.pt", "scheduler.pt", "scaler.pt"),
    "checkpoint-*",
)
# What says which of the weights are loaded, how they are quantized and what is computed with them.
READ_WITH_THEM = ("config.json", "params.json", "*.safetensors.index.json", "*quant*.json", "*.py")
# What says what becomes of images, sound and videos before a model has them, and nothing of text.
PROCESSORS = "*processor_config.json"


def weights_digest(folder: str | Path, load_format: str = "auto") -> str:
    """Hex digest over the weights that engines load and what they read with them, by name.

    Reads every byte once. Raises `Invalid` where there are none.
    """
    folder, whole = Path(folder), blake3()
    for path in weights_files(folder, load_format):
        part = blake3(max_threads=blake3.AUTO)
        part.update_mmap(path)
        whole.update(str(path.relative_to(folder)).encode() + b"\0" + part.digest())
    return whole.hexdigest()


def weights_files(folder: Path, load_format: str = "auto") -> list[Path]:
    """Those that the digest is over. Some models have their weights in sub-folders. Raises
    `Invalid` where there are none."""
    kinds = ALONE.get(load_format, KINDS)
    top = next((found for kind in kinds if (found := list(folder.glob(kind)))), [])
    weights = [*top, *folder.glob("*/**/*.safetensors")]
    weights = sorted(path for path in weights if not _left_by_training(path.relative_to(folder)))
    if not weights:
        raise Invalid(f"{folder} has no {' or '.join(kinds)}: there are no weights here to name")
    beside = [path for name in READ_WITH_THEM for path in sorted(folder.glob(name))]
    return [*weights, *beside]


def processors_digest(folder: str | Path) -> str:
    """Hex digest over what says what becomes of images, sound and videos; empty where nothing does.

    It is apart from the weights' for what a model makes of text does not depend on it.
    """
    whole = blake3()
    said = sorted(Path(folder).glob(PROCESSORS))
    for path in said:
        whole.update(path.name.encode() + b"\0" + blake3(path.read_bytes()).digest())
    return whole.hexdigest() if said else ""


def _left_by_training(within: Path) -> bool:
    return any(Path(part).match(left) for part in within.parts for left in LEFT_BY_TRAINING)
