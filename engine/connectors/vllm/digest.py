"""One digest of nested values, tensors by their bytes: where anything in them differs, it does.

So what vLLM holds is named by what it is, whatever it is called there.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from blake3 import blake3


def digest(value: Any) -> bytes:
    """32 bytes. Raises `TypeError` for what it does not know, wherever that stands."""
    hasher = blake3(max_threads=blake3.AUTO)
    _add(hasher, value)
    return hasher.digest()


def _add(hasher: Any, value: Any) -> None:
    """Each says of what kind and how large it is before what it has: no two can be read alike."""
    if isinstance(value, torch.Tensor):
        here = value.detach().cpu().contiguous()
        _begin(hasher, "tensor", str(here.dtype), list(here.shape))
        hasher.update(here.reshape(-1).view(torch.uint8).numpy())
    elif isinstance(value, np.ndarray) and value.dtype.kind in "biufc":
        dense = np.ascontiguousarray(value)
        _begin(hasher, "array", dense.dtype.str, list(value.shape))
        hasher.update(dense.reshape(-1).view(np.uint8))
    elif isinstance(value, Mapping):
        _begin(hasher, "mapping", len(value))
        for key in sorted(value):
            _add(hasher, key)
            _add(hasher, value[key])
    elif isinstance(value, list | tuple):
        _begin(hasher, "sequence", len(value))
        for one in value:
            _add(hasher, one)
    elif isinstance(value, bytes):
        _begin(hasher, "bytes", len(value))
        hasher.update(value)
    elif value is None or isinstance(value, bool | int | float | str):
        _begin(hasher, type(value).__name__, value)
    else:
        raise TypeError(f"a {type(value).__name__} has no digest")


def _begin(hasher: Any, *said: Any) -> None:
    text = json.dumps(said).encode()
    hasher.update(len(text).to_bytes(8, "little") + text)
