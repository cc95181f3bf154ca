"""What a device has made, on the host, while other threads go on telling the device of more.

A copy to memory that is not pinned, which `Tensor.cpu` and `tolist` make, may keep a lock of CUDA's
until all is done that came before it: no other thread's launches get through meanwhile.
"""

from __future__ import annotations

import torch


def fetched(tensor: torch.Tensor) -> torch.Tensor:
    """Its values on the host, once the current stream has come so far. A CPU's is itself."""
    if not tensor.is_cuda or not tensor.numel():
        return tensor.cpu()
    host = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
    host.copy_(tensor, non_blocking=True)
    there = torch.cuda.Event()
    there.record(torch.cuda.current_stream(tensor.device))
    there.synchronize()
    return host
