"""Kernels reach nothing beside slots and pages: what lies there stays, and changes no result.

On a GPU too, where the fences do not stand: arena and pages are at odd places in memory that is
full of poison else.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from kvstore.kernels.gpu import attention, batch, pages, strips
from kvstore.kernels.gpu.attention import Span
from kvstore.kernels.gpu.resident import Resident
from kvstore.kernels.gpu.turn import Turn
from kvstore.kernels.pieces import Places
from kvstore.kernels.shapes import Coding
from tests.gpu import DEVICE
from tests.kernels.gpu import fences
from tests.kernels.gpu.fences import PAGES, Outside, standing
from tests.kernels.gpu.machine import There
from tests.kernels.gpu.test_attention import Scene
from tests.kernels.gpu.test_straight import straight
from tests.kernels.gpu.test_strips import case_with

POISONS = (0x00, 0xFF)  # numbers that are none, in every float
BESIDE = 4_096  # bytes of poison before and behind
CODED = Coding("int8", "float16", 16)
Found = list[torch.Tensor]

pytestmark = pytest.mark.filterwarnings("ignore:.*encountered in:RuntimeWarning")
interpreted = pytest.mark.skipif(not fences.INTERPRETED, reason="of programs that are interpreted")


class Poisoned:
    """Memory that is full of poison but for what is placed in it."""

    def __init__(self, poison: int, step: int) -> None:
        """Of what is placed the address is a multiple of `step`, and of no larger power of two."""
        self._poison, self._before = poison, BESIDE + step
        self._beside = list[torch.Tensor]()

    def place(self, memory: np.ndarray, device: torch.device = DEVICE) -> torch.Tensor:
        room = (self._before + len(memory) + BESIDE,)
        whole = torch.full(room, self._poison, dtype=torch.uint8, device=device)
        placed = whole[self._before : -BESIDE]
        placed.copy_(torch.from_numpy(memory))
        self._beside += whole[: self._before], whole[-BESIDE:]
        return placed

    def on_host(self, memory: np.ndarray) -> np.ndarray:
        return self.place(memory, torch.device("cpu")).numpy()

    def is_whole(self) -> bool:
        return all((one == self._poison).all() for one in self._beside)


def moved(kind: Any, case: Any, around: Poisoned) -> Found:
    there = There(case, around.place)
    kind.gather(there.arena, *there.asked)
    gathered = there.arena.clone()
    there.engine.fill_(0x33)
    good = kind.scatter(there.arena, *there.asked)
    return [gathered, there.arena, there.engine, *([] if good is None else [good])]


def by_pages(case: Any, around: Poisoned) -> Found:
    return moved(pages, case, around)


def by_strips(case: Any, around: Poisoned) -> Found:
    good = moved(strips, case, around)
    about = (case.geometry, case.blocks, *case.span)
    return [*good, strips.verify(good[1], *about)]


def by_straight(case: Any, around: Poisoned) -> Found:
    there, host = There(case, around.place), around.on_host(case.arena)
    mover = straight(case, 1)
    about = (Places(host, case.geometry, case.span, case.blocks), there.pages, case.block_table)
    mover.gathered(*about)
    gathered = torch.from_numpy(host.copy())
    there.engine.fill_(0x33)
    good = mover.scattered(*about)
    return [gathered, torch.from_numpy(host), there.engine, torch.from_numpy(good)]


def by_resident(case: Any, around: Poisoned) -> Found:
    there, host = There(case, around.place), around.on_host(case.arena)
    mover = Resident(there.arena, 0, Turn(DEVICE))
    about = (Places(host, case.geometry, case.span, case.blocks), there.pages, case.block_table)
    mover.gathered(*about)
    gathered = there.arena.clone()
    there.engine.fill_(0x33)
    good = mover.scattered(*about)
    return [gathered, there.arena, torch.from_numpy(host), there.engine, torch.from_numpy(good)]


WAYS: dict[str, tuple[Callable[[Any, Poisoned], Found], Coding | None, tuple[int, ...]]] = {
    "pages in words of every width": (by_pages, None, (1, 2, 4, 8)),
    "strips": (by_strips, None, (8,)),
    "strips under a codec": (by_strips, CODED, (8,)),
    "straight": (by_straight, None, (8,)),
    "straight, under a codec": (by_straight, CODED, (8,)),
    "within the device": (by_resident, None, (8,)),
}


def by(way: str, case_of: Any, seed: int, poison: int) -> tuple[Found, Poisoned]:
    move, coding, steps = WAYS[way]
    around = Poisoned(poison, steps[seed % len(steps)])
    return move(case_with(case_of, seed, coding=coding), around), around


def alike(one: Found, other: Found) -> bool:
    pairs = zip(one, other, strict=True)
    return all(torch.equal(a.view(torch.uint8), b.view(torch.uint8)) for a, b in pairs)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("way", WAYS)
def test_what_lies_beside_slots_and_pages_stays_and_changes_nothing(
    case_of: Any, way: str, seed: int
) -> None:
    found = []
    for poison in POISONS:
        one, around = by(way, case_of, seed, poison)
        assert around.is_whole()
        found.append(one)
    assert alike(*found)


SPANS = [Span(1, 70), Span(9, 20), Span(1, 0)]


def attended(seed: int, poison: int) -> tuple[Found, Poisoned, bool]:
    """With poison between each token's K and V too; the last: whether that stayed."""
    around, scene = Poisoned(poison, 4), Scene(seed, SPANS, torch.float32)
    axes = np.argsort(scene.layer.stride())[::-1].tolist()
    memory = scene.layer.permute(axes).contiguous()
    filled = torch.full_like(memory.view(torch.uint8), poison).view(memory.dtype)
    both = torch.stack([memory, filled], dim=-2)
    placed = around.place(both.cpu().numpy().view(np.uint8).ravel())
    both = placed.view(memory.dtype).reshape(both.shape)
    scene.layer = both[..., 0, :].permute(np.argsort(axes).tolist())
    for name in ("q", "tables"):
        one = getattr(scene, name)
        placed = around.place(one.cpu().numpy().view(np.uint8).ravel())
        setattr(scene, name, placed.view(one.dtype).reshape(one.shape))
    found = scene.attended()
    left = both[..., 1, :].contiguous().view(torch.uint8)
    return [found], around, bool((left == poison).all())


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("parts", [1, 3])
def test_what_lies_beside_and_between_pages_changes_no_attention(
    monkeypatch: pytest.MonkeyPatch, seed: int, parts: int
) -> None:
    monkeypatch.setattr(attention, "_parts", lambda *_: parts)
    found = []
    for poison in POISONS:
        one, around, stayed = attended(seed, poison)
        assert stayed and around.is_whole()
        found.append(one)
    assert alike(*found)


@interpreted
def test_each_kernel_writes_all_that_it_is_said_to_write(
    case_of: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    with standing() as around:
        for way in WAYS:
            by(way, case_of, 3, 0)
        for parts in (1, 2):
            monkeypatch.setattr(attention, "_parts", lambda *_, parts=parts: parts)
            attended(0, 0)
    assert around.stored == {(name, one) for name, each in fences.WRITES.items() for one in each}


MOVES = {
    "gather_tile": (pages.gather, None),
    "scatter_tile": (pages.scatter, None),
    "gather_strip": (strips.gather, None),
    "scatter_strip": (strips.scatter, None),
    "encode_group": (strips.gather, CODED),
    "decode_group": (strips.scatter, CODED),
}
HARMS = {"payloads": "slots", "table": "table", "page": PAGES, "layers": PAGES}


def harm(change: pytest.MonkeyPatch, what: str, there: There) -> None:
    """From now on programs are told of something that is outside, whatever was checked before."""
    checked, on = batch.checked, batch.on

    def slots(*asked: Any) -> Any:
        payloads, *rest = checked(*asked)
        return payloads + (there.arena.numel() if what == "payloads" else 0), *rest

    def pages_of(*asked: Any) -> Any:
        layers, table, *rest = on(*asked)
        if what == "table":
            table = table[:0]
        if what == "page":
            table = table + 1_000_000
        return layers + (8 * there.engine.numel() if what == "layers" else 0), table, *rest

    for module in (pages, batch):
        change.setattr(module, "checked", slots)
        change.setattr(module, "on", pages_of)


@interpreted
@pytest.mark.parametrize("what", HARMS)
@pytest.mark.parametrize("kernel", MOVES)
def test_what_goes_wrong_behind_the_checks_is_found_before_it_is_done(
    case_of: Any, monkeypatch: pytest.MonkeyPatch, kernel: str, what: str
) -> None:
    move, coding = MOVES[kernel]
    there = There(case_with(case_of, 3, coding=coding, run_bytes=64, block_tokens=16))
    strips.gather(there.arena, *there.asked)
    before = there.arena.clone(), there.engine.clone()
    harm(monkeypatch, what, there)
    found = "verify_strip" if (kernel, what) == ("decode_group", "payloads") else kernel
    why = rf"^{found}, .* of {HARMS[what]}, outside of what it was told of"
    with pytest.raises(Outside, match=why), standing():
        move(there.arena, *there.asked)
    assert torch.equal(before[0], there.arena) and torch.equal(before[1], there.engine)


@interpreted
@pytest.mark.parametrize("page", [-1, 1])
@pytest.mark.parametrize("spans", [[Span(1, 20)], [Span(5, 0)]])
def test_a_page_that_is_not_there_is_found_in_attention(page: int, spans: list[Span]) -> None:
    scene = Scene(3, spans, torch.float32)
    scene.tables[0, 0] = -1 if page < 0 else scene.layer.shape[0]
    with pytest.raises(Outside, match=r"^attend_rows.*loads 4 bytes at byte .* of kv"), standing():
        scene.attended()
