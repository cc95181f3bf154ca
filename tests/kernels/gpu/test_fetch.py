"""What is fetched from a device: its values, once they are made; other threads are not held up."""

from __future__ import annotations

import threading

import pytest
import torch

from kvstore.kernels.gpu.fetch import fetched
from tests.gpu import DEVICE

needs_gpu = pytest.mark.skipif(DEVICE.type != "cuda", reason="there is no GPU here")
LONG = 400_000_000  # cycles: some 0.2 s


@pytest.mark.parametrize("shape", [(), (0, 4), (5,), (3, 2)])
@pytest.mark.parametrize("dtype", [torch.int64, torch.bool, torch.float32])
def test_it_has_the_values_and_shape_of_what_is_there(
    shape: tuple[int, ...], dtype: torch.dtype
) -> None:
    one = torch.randint(0, 2, shape).to(dtype)
    found = fetched(one.to(DEVICE))
    assert found.device.type == "cpu" and found.dtype == dtype and torch.equal(found, one)


@needs_gpu
def test_it_waits_for_what_makes_the_values_and_no_other_thread_waits_with_it() -> None:
    made, beside = torch.zeros(4, device=DEVICE), torch.cuda.Stream()
    torch.cuda.synchronize()
    with torch.cuda.stream(beside):  # what is loaded or pinned once is, before
        assert not fetched(made + 2 == 1).any()
    moments = list[bool]()

    def tell() -> None:
        with torch.cuda.stream(beside):
            told = fetched(made + 2 == 2)
            moments.append(bool(told.all()) and not late.query())

    made.add_(0)
    torch.cuda.synchronize()
    torch.cuda._sleep(LONG)
    made.add_(1)
    late = torch.cuda.Event()
    late.record()
    other = threading.Timer(0.02, tell)
    other.start()
    assert torch.equal(fetched(made), torch.ones(4))
    other.join()
    assert moments == [True]
