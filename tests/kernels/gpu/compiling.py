"""A GPU that is not there: programs are compiled for it, as for one that is, and never run.

What is real: how a call's arguments make a program, Triton's compiler for NVIDIA and `ptxas`, and
that what a program needs is compared with what a GPU of compute capability 9.0 has. Tensors are the
CPU's, of which alignment alone counts. Run as a command, in a process that was not told to
interpret, it says of some launches of every program what became of them.
"""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import torch
import triton
from triton.backends.compiler import GPUTarget

SHARED_BYTES = 232_448  # that a program may have
THREADS = 1024


class Absent:
    """What Triton asks of a device's driver, from compiling to the launch."""

    utils = SimpleNamespace(
        get_device_properties=lambda device: {"max_shared_mem": SHARED_BYTES},
        load_binary=lambda name, kernel, shared, device: (object(), object(), 0, 0, THREADS),
        unload_module=lambda module: None,
    )

    def __init__(self) -> None:
        self.launched: list[Any] = []  # of each launch, what Triton says of its program

    def get_current_target(self) -> GPUTarget:
        return GPUTarget("cuda", 90, 32)

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int) -> int:
        return 0

    def launcher_cls(self, source: Any, metadata: Any) -> Any:
        return lambda *about: self.launched.append(metadata)


def main() -> None:
    """A line of JSON a launch: its program and shape; warps, stages and block as asked for; of what
    was compiled the name, the warps, and bytes of shared memory that it wants."""
    assert not triton.knobs.runtime.interpret
    driver = Absent()
    triton.runtime.driver.set_active(driver)
    from bench.launched import Sizes, tasks
    from kvstore.kernels.gpu.attention import Span
    from kvstore.kernels.gpu.launch import CANDIDATES

    sizes = Sizes(1 << 20, 1, (16,), 16, (128,), (1, Span(1, 1023)), (1, Span(16, 16)))
    for task in tasks(sizes, torch.device("cpu")):
        every = CANDIDATES[task.program]
        largest = max(every, key=lambda one: (one.stages * one.block, one.warps))
        for launch in dict.fromkeys((every[0], every[-1], largest)):
            driver.launched.clear()
            task.act(launch)
            made = driver.launched[-1 if task.program == "join_parts" else 0]
            asked = (task.program, task.shape, launch.warps, launch.stages, launch.block)
            print(json.dumps([*asked, made.name, made.num_warps, made.shared]))


if __name__ == "__main__":
    main()
