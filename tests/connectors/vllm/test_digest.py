"""One digest for one value, whatever it is and however it lies; none for what nobody knows."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from kvstore.engine.connectors.vllm.digest import digest


def test_values_that_differ_in_anything_have_other_digests() -> None:
    values: list[Any] = [
        *(None, True, 1, 1.0, "1", b"1", [], {}, [1], [[1]], [1, 2], [[1], 2], {"1": 1}),
        *(torch.tensor([1.0]), torch.tensor([[1.0]]), torch.tensor([1.0], dtype=torch.bfloat16)),
        *(torch.tensor([1]), torch.tensor([2]), torch.tensor([]), torch.tensor(1.0)),
        *(np.ones(1), np.ones((1, 1)), np.ones(1, np.float32)),
    ]
    found = [digest(one) for one in values]
    assert len(set(found)) == len(found)


def test_the_same_values_have_one_digest_however_they_lie() -> None:
    wide = torch.arange(12.0).reshape(3, 4)
    assert digest(wide.T) == digest(wide.T.contiguous())
    assert digest({"a": 1, "b": 2}) == digest({"b": 2, "a": 1})
    assert digest([1, 2]) == digest((1, 2))


def test_what_nobody_knows_has_none() -> None:
    with pytest.raises(TypeError, match="SimpleNamespace"):
        digest({"a": [SimpleNamespace()]})
