"""However a program is launched it makes the same; and each is launched as it was looked up.

Triton's interpreter takes warps and stages and does nothing by them. What it can tell is that the
pieces that a program looks at make no difference; `test_compiled` says that the rest compiles.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from triton.runtime.interpreter import InterpretedFunction

from kvstore.codec import GROUP_TOKENS
from kvstore.kernels.gpu import pages, strips, tuned
from kvstore.kernels.gpu.attention import Heads, Span, Step
from kvstore.kernels.gpu.batch import Batch
from kvstore.kernels.gpu.launch import (
    CANDIDATES,
    Launch,
    attention_bytes,
    attention_shape,
    default,
    fitted,
    group_shape,
    strip_shape,
    tile_shape,
)
from kvstore.kernels.gpu.pages import Tiles
from kvstore.kernels.shapes import Coding
from tests.gpu import DEVICE
from tests.kernels.gpu.machine import There
from tests.kernels.gpu.test_attention import NEAR, Scene

pytestmark = pytest.mark.filterwarnings("ignore:.*encountered in:RuntimeWarning")

SEED = 4


def each(*programs: str) -> pytest.MarkDecorator:
    """Every candidate but the default, each with random shapes of its own: interpreted, one of each
    size of pieces, since all of one size are the same run. From this seed on there are strips of
    more than one piece of each size: a step of another size is seen."""
    every = []
    for program in programs:
        others = CANDIDATES[program][1:]
        if DEVICE.type == "cpu":
            others = tuple({launch.block: launch for launch in others}.values())
        every += [(program, seed, launch) for seed, launch in enumerate(others, SEED)]
    ids = [f"{program}-{launch}" for program, _, launch in every]
    return pytest.mark.parametrize(("program", "seed", "launch"), every, ids=ids)


def words(case_of: Any, seed: int, coding: Coding | None = None) -> There:
    """A case all of whose steps are multiples of 8 bytes, of strips of many turns."""
    orders = case_of.ORDERS[1:]
    run = ((24, 64, 80) if coding else (320, 448, 640))[seed % 3]
    tokens = (5, 16, 24)[seed // 2 % 3] if coding else 24
    return There(case_of(seed, run, tokens, orders[seed % len(orders)], coding, kv_heads=2))


def batch(there: There) -> Batch:
    geometry, blocks, pages, table, *span = there.asked
    return Batch(there.arena, geometry, blocks, pages, table, tuple(span))


def both(
    there_of: Callable[[], There], act: Callable[[There, Launch], Any], program: str, launch: Launch
) -> None:
    """That `act` on the same makes the same, launched so and by default."""
    ends = []
    for one in (default(program), launch):
        there = there_of()
        before = there.arena.clone(), there.engine.clone()
        act(there, one)
        assert not (torch.equal(before[0], there.arena) and torch.equal(before[1], there.engine)), (
            "it did nothing"
        )
        ends.append((there.arena, there.engine))
    assert torch.equal(ends[0][0], ends[1][0]) and torch.equal(ends[0][1], ends[1][1])


@each("gather_tile", "scatter_tile")
def test_tiles_of_every_size_move_the_same_bytes(
    case_of: Any, program: str, seed: int, launch: Launch
) -> None:
    def act(there: There, launch: Launch) -> None:
        geometry, blocks, pages, table, *span = there.asked
        tiles = Tiles(there.arena, geometry, blocks, pages, table, tuple(span))
        (tiles.gather if program == "gather_tile" else tiles.scatter)(launch)

    both(lambda: There(case_of(seed, 1152, 24)), act, program, launch)


@each("gather_strip", "scatter_strip", "enter_strip")
def test_strips_have_the_same_bytes_and_entries(
    case_of: Any, program: str, seed: int, launch: Launch
) -> None:
    def there_of() -> There:
        there = words(case_of, seed)
        if program == "scatter_strip":
            strips.gather(there.arena, *there.asked)
            there.engine.zero_()
        return there

    def act(there: There, launch: Launch) -> None:
        told = batch(there)
        told.good.fill_(False)
        getattr(told, program)(launch)
        assert told.good.all() == (program == "scatter_strip")

    both(there_of, act, program, launch)


@each("verify_strip")
def test_the_same_strips_are_found_damaged(
    case_of: Any, program: str, seed: int, launch: Launch
) -> None:
    there = words(case_of, seed)
    strips.gather(there.arena, *there.asked)
    places = list(there.case.strips())
    there.arena[places[len(places) // 2][2].start] ^= 1
    found = []
    for one in (default(program), launch):
        told = batch(there)
        told.verify_strip(one)
        found.append(told.good)
    assert torch.equal(*found) and int((~found[0]).sum()) == 1


@pytest.mark.parametrize("codec", ["fp8", "int8"])
@each("encode_group", "decode_group")
def test_groups_have_the_same_codes_and_numbers(
    case_of: Any, program: str, seed: int, launch: Launch, codec: str
) -> None:
    def there_of() -> There:
        there = words(case_of, 2 + seed, Coding(codec, "bfloat16", GROUP_TOKENS))
        if program == "decode_group":
            strips.gather(there.arena, *there.asked)
            there.engine.zero_()
        return there

    def act(there: There, launch: Launch) -> None:
        told = batch(there)
        told.good.fill_(True)
        getattr(told, program)(launch)

    both(there_of, act, program, launch)


SPANS = {1: [Span(1, 40), Span(9, 100)], 3: [Span(1, 700), Span(1, 3)]}  # by parts


@pytest.mark.parametrize("parts", SPANS)
@each("attend", "join_parts")
def test_attention_is_near_however_it_looks_at_positions(
    program: str, seed: int, launch: Launch, parts: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kvstore.kernels.gpu.attention._parts", lambda *_: parts)
    scene = Scene(seed, SPANS[parts], torch.float32)
    launches = {"attend": default("attend"), "join_parts": default("join_parts"), program: launch}
    found = scene.step().attended(scene.q, scene.layer, *launches.values())
    assert (found.double() - scene.truth()).abs().max() < NEAR[torch.float32]


def test_by_default_programs_are_launched_as_before_any_was_measured() -> None:
    assert default("gather_tile") == default("scatter_tile") == Launch(4, 1, 1024)
    assert default("attend") == Launch(4, 3, 64)
    strip = {program for program in CANDIDATES if program.endswith("_strip")}
    assert {default(program) for program in strip} == {Launch(1, 1, 256)}
    rest = {"gather_tile", "scatter_tile", "attend", *strip} ^ set(CANDIDATES)
    assert {default(program) for program in rest} == {Launch(4)}


def test_attention_gives_up_no_more_than_a_device_lacks() -> None:
    bf16 = [fitted(2, 512, 16, kib << 10) for kib in (227, 163, 99)]
    assert bf16 == [default("attend"), default("attend"), Launch(4, 3, 32)]
    float32 = [fitted(4, 256, 32, kib << 10) for kib in (227, 163, 99)]
    assert float32 == [default("attend"), Launch(4, 3, 32), Launch(4, 1, 32)]
    for usual in ((2, 128, 64), (2, 256, 32), (4, 128, 16)):
        assert {fitted(*usual, kib << 10) for kib in (227, 163, 99)} == {default("attend")}


def test_heads_for_which_a_device_has_no_room_are_refused_by_their_size() -> None:
    least = attention_bytes(Launch(4, 1, 32), 4, 512, 16)
    assert fitted(4, 512, 16, least) == Launch(4, 1, 32)
    with pytest.raises(ValueError, match=f"heads of 512 .* wants {least} bytes"):
        fitted(4, 512, 16, least - 1)


@pytest.mark.parametrize(("dim", "rows"), [(64, 64), (128, 64), (129, 32), (256, 32), (512, 16)])
def test_a_program_has_fewer_rows_of_wide_heads(dim: int, rows: int) -> None:
    tables = torch.zeros((1, 64), dtype=torch.int32, device=DEVICE)
    assert Step.of([Span(99, 0)], tables, 16, Heads(2, 1, dim)).rows == rows


@pytest.mark.parametrize("program", CANDIDATES)
def test_candidates_are_what_triton_takes_and_each_is_there_once(program: str) -> None:
    every = CANDIDATES[program]
    assert len(set(every)) == len(every) == len(set(map(str, every)))
    for one in every:
        assert one.warps.bit_count() == 1 and 1 <= one.warps <= 8
        assert 1 <= one.stages <= 5
        assert one.block == 0 or one.block.bit_count() == 1


def test_shapes_are_told_apart_where_their_launches_may_differ() -> None:
    strip = [strip_shape(n) for n in (24, 8 << 10, (8 << 10) + 1, 32 << 10, 33 << 10, 1 << 20)]
    assert [strip.index(one) for one in strip] == [0, 0, 2, 2, 4, 4]
    assert tile_shape(8, 24) != tile_shape(2, 24) != tile_shape(2, 1 << 20)
    assert group_shape("fp8", 2, 2048) == group_shape("fp8", 2, 16)
    assert group_shape("fp8", 2, 2049) != group_shape("fp8", 2, 2048)
    assert group_shape("fp8", 4, 16) != group_shape("fp8", 2, 16) != group_shape("int8", 2, 16)
    attend = [(2, 128, 16, 16), (4, 128, 16, 16), (2, 64, 16, 16), (2, 128, 32, 16)]
    names = [attention_shape(*one) for one in [*attend, (2, 128, 16, 15)]]
    assert len(set(names)) == len(names)
    assert attention_shape(2, 128, 32, 16) == attention_shape(2, 128, 64, 64)


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[tuple[str, dict[str, Any]]]]:
    """Names of programs launched, and what Triton was told by name."""
    launched: list[tuple[str, dict[str, Any]]] = []
    run = InterpretedFunction.run

    def recorded(self: Any, *args: Any, **told: Any) -> Any:
        launched.append((self.fn.__name__, told))
        return run(self, *args, **told)

    monkeypatch.setattr(InterpretedFunction, "run", recorded)
    for found in (tuned.launch_of, tuned.attention_of):
        found.cache_clear()
    yield launched
    for found in (tuned.launch_of, tuned.attention_of):
        found.cache_clear()


class Others(dict[tuple[str, str], Launch]):
    """A table in which every program that is looked up has its last candidate."""

    def get(self, key: tuple[str, str], _: Any = None) -> Launch:
        return self.setdefault(key, CANDIDATES[key[0]][-1])


@pytest.mark.skipif(DEVICE.type == "cuda", reason="the interpreter is asked")
def test_every_program_is_launched_as_the_table_says(
    case_of: Any, told: list[tuple[str, dict[str, Any]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    others = Others()
    monkeypatch.setattr(tuned, "_launches", lambda device: others)
    for coding in (None, Coding("fp8", "bfloat16", GROUP_TOKENS)):
        there = words(case_of, 4, coding)
        for module in (strips,) if coding else (strips, pages):
            module.gather(there.arena, *there.asked)
            module.scatter(there.arena, *there.asked)
    scene = Scene(2, [Span(1, 40)], torch.float32)
    scene.attended()
    monkeypatch.setattr("kvstore.kernels.gpu.attention._parts", lambda *_: 2)
    scene.attended()
    assert {name for name, _ in told} ^ {"attend_rows", "attend_part", "attend"} == set(CANDIDATES)
    assert {program for program, _ in others} == set(CANDIDATES)
    for name, given in told:
        program = "attend" if name.startswith("attend") else name
        launch = CANDIDATES[program][-1]
        assert launch != default(program)
        assert (given["num_warps"], given["num_stages"]) == (launch.warps, launch.stages), name
        assert given.get("STAGES", launch.stages) == launch.stages
        assert ("STAGES" in given) == name.endswith("_strip")
        if program == "join_parts":  # which is to cut parts as those did that it joins
            launch = CANDIDATES["attend"][-1]
        assert given.get("BLOCK", given.get("POSITIONS", 0)) == launch.block, name
