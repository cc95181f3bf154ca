"""What is sent to a device: as it was when it was sent, whatever the host writes there later."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from kvstore.kernels.gpu.upload import APART, sent, uploaded
from tests.gpu import DEVICE


@pytest.mark.parametrize("dtype", [np.int32, np.int64])
@pytest.mark.parametrize("cut", [slice(None), slice(1, None, 2), slice(0, 0)])
def test_an_array_is_there_as_it_was(dtype: Any, cut: slice) -> None:
    here = np.arange(60, dtype=dtype).reshape(20, 3)[cut]
    before = here.copy()
    there = sent(here, DEVICE)
    here[...] = -1
    assert there.device.type == DEVICE.type and there.is_contiguous()
    assert np.array_equal(there.cpu().numpy(), before) and there.cpu().numpy().dtype == dtype


def test_many_go_in_one_piece_each_at_an_even_place() -> None:
    arrays = [np.arange(5), np.arange(33, dtype=np.int32).reshape(3, 11), np.empty(0, np.int64)]
    before = [one.ravel().copy() for one in arrays]
    there = uploaded(arrays, DEVICE)
    arrays[0][:] = -1
    for found, one in zip(there, before, strict=True):
        assert np.array_equal(found.cpu().numpy(), one)
    first = there[0].data_ptr()
    assert all((one.data_ptr() - first) % (8 * APART) == 0 for one in there if one.numel())
