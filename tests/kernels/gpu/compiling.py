"""A GPU that is not there: programs are compiled for it, as for one that is, and never run.

What is real: how a call's arguments make a program, Triton's compiler for NVIDIA and `ptxas`, and
that what a program needs is compared with what such a GPU has. Tensors are the CPU's, of which
alignment alone counts. Run as a command, in a process that was not told to interpret, it says what
became of some launches of every program on one GPU (`programs`), of attention as each GPU fits it
(`attention`), or of calls that differ in what calls differ in (`calls`).
"""

from __future__ import annotations

import itertools
import json
import sys
from collections.abc import Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import torch
import triton
from triton.backends.compiler import GPUTarget

# That a program may have, by compute capability: of an A100, an L40 or RTX 40, an H100.
SHARED_BYTES = {80: 166_912, 89: 101_376, 90: 232_448}
THREADS = 1024


class Absent:
    """What Triton asks of a device's driver, from compiling to the launch."""

    utils = SimpleNamespace(  # a device's number is its capability: what is compiled is kept by it
        get_device_properties=lambda device: {"max_shared_mem": SHARED_BYTES[device]},
        load_binary=lambda name, kernel, shared, device: (object(), object(), 0, 0, THREADS),
        unload_module=lambda module: None,
    )

    def __init__(self) -> None:
        self.launched: list[Any] = []  # of each launch, what Triton says of its program
        self.capability = 90

    def get_current_target(self) -> GPUTarget:
        return GPUTarget("cuda", self.capability, 32)

    def get_current_device(self) -> int:
        return self.capability

    def get_current_stream(self, device: int) -> int:
        return 0

    def launcher_cls(self, source: Any, metadata: Any) -> Any:
        return lambda *about: self.launched.append(metadata)


def programs(driver: Absent) -> Iterator[tuple[Any, ...]]:
    """Of a launch: its program and shape; warps, stages and block as asked for; of what was
    compiled the name, the warps, and bytes of shared memory that it wants."""
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
            yield *asked, made.name, made.num_warps, made.shared


def attention(driver: Absent) -> Iterator[tuple[Any, ...]]:
    """Of a program's launch: the GPU's capability; bytes of a number, numbers of a head, rows; what
    it was said to want at most, its name, and bytes of shared memory that it wants."""
    from kvstore.kernels.gpu.attention import Heads, Span, Step
    from kvstore.kernels.gpu.launch import attention_bytes, default, fitted

    page_tokens, tables = 16, torch.zeros((1, 64), dtype=torch.int32)
    dims = {torch.bfloat16: (128, 256, 512), torch.float32: (256,)}  # the last takes long
    kinds = [(dtype, dim) for dtype, some in dims.items() for dim in some]
    for driver.capability, (dtype, dim), many in itertools.product(
        SHARED_BYTES, kinds, (False, True)
    ):
        heads, item = Heads(1, 1, dim), dtype.itemsize
        tokens = heads.rows_max if many else 1  # of decode, and of prefill
        step = Step.of([Span(tokens, 600)], tables, page_tokens, heads)
        if many and step.rows == 16:
            continue  # there are no more rows than of decode
        layer = torch.zeros((1, 1, page_tokens, 2, dim), dtype=dtype)
        q = torch.zeros((tokens, 1, dim), dtype=dtype)
        launch = fitted(item, heads.wide, step.rows, SHARED_BYTES[driver.capability])
        for parts in (2, 1) if item == 2 else (2,):
            driver.launched.clear()
            replace(step, parts=parts).attended(q, layer, launch, default("join_parts"))
            made = driver.launched[0]
            most = attention_bytes(launch, item, heads.wide, step.rows)
            yield driver.capability, item, dim, step.rows, most, made.name, made.shared


def calls(driver: Absent) -> Iterator[tuple[Any, ...]]:
    """Of a launch: the name of what was compiled, and which of all that were compiled it is."""
    from bench.kernels import Problem
    from bench.kernels import Sizes as Moved
    from kvstore.kernels.gpu.attention import Heads, Span, Step
    from kvstore.kernels.gpu.batch import Batch
    from kvstore.kernels.gpu.launch import CANDIDATES, default
    from kvstore.kernels.gpu.pages import Tiles
    from kvstore.kernels.shapes import Coding

    for coding in (None, Coding("int8", "bfloat16", 16)):
        problem = Problem(Moved(1 << 22, 16, 16, 17), torch.device("cpu"), coding)
        geometry, blocks, pages, table, *_ = problem.asked
        strips = [one for one in CANDIDATES if one.endswith("_group" if coding else "_strip")]
        for (first, layers), count in itertools.product(((0, 17), (1, 1), (5, 2), (16, 1)), (1, 3)):
            there = replace(pages, layer_addresses=pages.layer_addresses[:layers])
            about = (geometry, blocks.pick(slice(count)), there, table, (first, layers, 0, 8))
            batch = Batch(problem.arena, *about)
            for program in strips:
                getattr(batch, program)(default(program))
            if not coding:
                tiles = Tiles(problem.arena, *about)
                tiles.gather(default("gather_tile"))
                tiles.scatter(default("scatter_tile"))
    for spans, pages_most, parts in itertools.product((1, 2, 3), (1, 16, 21), (1, 2, 16)):
        tables = torch.zeros((spans, pages_most), dtype=torch.int32)
        step = Step.of([Span(1, 9)] * spans, tables, 16, Heads(1, 1, 64))
        q, layer = torch.zeros((spans, 1, 64)).half(), torch.zeros((1, 1, 16, 2, 64)).half()
        both = default("attend"), default("join_parts")
        replace(step, parts=parts).attended(q, layer, *both)
    every = [one.hash for one in driver.launched]
    yield from ((one.name, every.index(one.hash)) for one in driver.launched)


def main() -> None:
    """A line of JSON a launch."""
    assert not triton.knobs.runtime.interpret
    driver = Absent()
    triton.runtime.driver.set_active(driver)
    for told in {"programs": programs, "attention": attention, "calls": calls}[sys.argv[1]](driver):
        print(json.dumps(told))


if __name__ == "__main__":
    main()
