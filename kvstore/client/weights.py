"""What names a local model: a digest of its weights' bytes, never its folder's name.

Two hosts with copies of one checkpoint share blocks, and two checkpoints under one name never do.
"""

from __future__ import annotations

from pathlib import Path

from blake3 import blake3

from kvstore.errors import Invalid


def weights_digest(folder: str | Path) -> str:
    """Hex digest over config.json and every safetensors file, by name. Reads every byte once."""
    weights = sorted(Path(folder).glob("*.safetensors"))
    if not weights:
        raise Invalid(f"{folder} has no *.safetensors: there are no weights here to name")
    whole = blake3()
    for path in [*weights, Path(folder) / "config.json"]:
        part = blake3(max_threads=blake3.AUTO)
        part.update_mmap(path)
        whole.update(path.name.encode() + b"\0" + part.digest())
    return whole.hexdigest()
