"""Coded strips are, byte for byte, what exact arithmetic says they are; and what comes back of them
is as near as promised, lies where it belongs, and nowhere else."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
import xxhash

from kvstore import codec
from kvstore.kernels.shapes import Coding, Geometry, Pages
from kvstore.kernels.strips import Blocks, gather, scatter
from tests.kernels import codec_reference as reference

POISON = 0xA5
CODECS = ("fp8", "int8")
KINDS = [*itertools.product(CODECS, reference.ITEM_BYTES)]
LARGEST = {"float32": float(np.finfo(np.float32).max), "float16": 65504.0, "bfloat16": 3.3895e38}


def coding_of(name: str, dtype: str) -> Coding:
    return Coding(name, dtype, codec.GROUP_TOKENS)


def fill(case, dtype: str, seed: int) -> None:
    """Numbers of one size with a few loud ones in odd cases, any bits in even ones."""
    if seed % 2:
        rng = np.random.default_rng(seed)
        count = case.engine.size // reference.ITEM_BYTES[dtype]
        x = rng.standard_normal(count) * 10.0 ** rng.uniform(-4, 3)
        x[rng.integers(0, count, 1 + count // 200)] *= 20
        case.engine[:] = reference.raw_of(x, dtype)


def runs(case, index: np.ndarray, tokens: int) -> np.ndarray:
    return case.engine[index].reshape(tokens, case.parts, case.geometry.run_bytes)


class Strip:
    """One strip of so many tokens, and an engine that has nothing else."""

    def __init__(self, raw: np.ndarray, name: str, dtype: str) -> None:
        self.raw, self.name, self.dtype = raw, name, dtype
        tokens, parts, run = raw.shape
        self.geometry = Geometry(1, 1, tokens, parts, run, coding_of(name, dtype))
        self.arena = np.full(64 + self.geometry.payload_bytes, POISON, np.uint8)
        self.blocks = Blocks(
            np.array([64]), np.array([0]), np.array([tokens], np.int32), np.array([0])
        )

    def pages(self, memory: np.ndarray) -> Pages:
        tokens, parts, run = self.raw.shape
        address = np.array([memory.ctypes.data], np.uint64)
        return Pages(address, memory.nbytes, 0, parts * run, run, tokens, 1)

    def coded(self) -> np.ndarray:
        self.arena[:8] = 0
        pages = self.pages(self.raw)
        gather(self.arena, self.geometry, self.blocks, pages, np.array([0]), 0, 1, 0, 1)
        return self.arena[64:]

    def decoded(self) -> np.ndarray:
        memory = np.full_like(self.raw, POISON)
        rest = (self.pages(memory), np.array([0]), 0, 1, 0, 1)
        assert scatter(self.arena, self.geometry, self.blocks, *rest).all()
        return memory


def strip(x: np.ndarray, name: str, dtype: str) -> Strip:
    """`x` is (tokens, parts, elements)."""
    return Strip(np.ascontiguousarray(reference.raw_of(x, dtype)), name, dtype)


@pytest.mark.parametrize("seed", range(40))
@pytest.mark.parametrize(("name", "dtype"), KINDS)
def test_a_gather_writes_exactly_the_coded_strips_and_no_byte_besides(case_of, name, dtype, seed):
    case = case_of(seed, coding=coding_of(name, dtype))
    fill(case, dtype, seed)
    expected, engine = case.arena.copy(), case.engine.copy()
    for i, row, place, index in case.strips():
        coded = reference.strip_of(runs(case, index, case.blocks.tokens[i]), dtype, name)
        expected[place] = coded
        entry = int(case.blocks.table_offsets[i]) + 8 * row
        digest = xxhash.xxh3_64_intdigest(coded)
        expected[entry : entry + 8] = np.frombuffer(digest.to_bytes(8, "little"), np.uint8)
    case.gather()
    assert (case.arena == expected).all()
    assert (case.engine == engine).all()
    assert case.verify().all()
    assert (case.written() == case.layer_count).all()


@pytest.mark.parametrize("seed", range(40))
@pytest.mark.parametrize(("name", "dtype"), KINDS)
def test_what_a_scatter_brings_is_as_near_as_promised_and_lies_nowhere_else(
    case_of, name, dtype, seed
):
    case = case_of(seed, coding=coding_of(name, dtype))
    fill(case, dtype, seed)
    case.gather()
    before, arena = case.engine.copy(), case.arena.copy()
    case.engine[:] = POISON
    assert case.scatter().all()
    assert (case.arena == arena).all()
    touched = np.zeros(case.engine.size, bool)
    for i, _, place, index in case.strips():
        touched[index] = True
        tokens = int(case.blocks.tokens[i])
        found = reference.numbers(runs(case, index, tokens), dtype)
        own = before[index].reshape(tokens, case.parts, case.geometry.run_bytes)
        x, coded = reference.numbers(own, dtype), case.arena[place]
        assert_same(found, reference.decoded(coded, x.shape, dtype, name))
        finite = np.isfinite(x)
        assert (np.isnan(found) == ~finite).all()
        scales = reference.scales_in(coded, *x.shape)
        room = reference.bound(x, scales, name, dtype, np.where(finite, found, 0))
        assert (np.abs(found - x) <= room)[finite].all()
    assert (case.engine[~touched] == POISON).all()


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("name", CODECS)
def test_a_flipped_bit_of_codes_scales_or_zeros_is_found(case_of, name, seed):
    case = case_of(seed, coding=coding_of(name, "bfloat16"))
    case.gather()
    i, _, place, index = list(case.strips())[-1]
    codes = index.size // 2
    scales = -(-int(case.blocks.tokens[i]) // 16) * case.parts * 4
    for at in {0, codes - 1, codes, codes + scales - 1, place.stop - place.start - 1}:
        case.arena[place.start + at] ^= 4
        expected = np.arange(len(case.blocks.tokens)) != i
        assert (case.verify() == expected).all()
        assert (case.scatter() == expected).all()
        case.arena[place.start + at] ^= 4
    assert case.scatter().all()


@pytest.mark.parametrize("loudest", [2.0**-90, 2.0**-13, 1.0, 1.75, 1.76, 300.0, 6e4, 1e30])
@pytest.mark.parametrize(("name", "dtype"), [k for k in KINDS if k[1] != "float32"])
def test_every_number_of_16_bits_has_the_nearest_code(name, dtype, loudest):
    every = np.arange(1 << 16, dtype="<u2").view(np.uint8).reshape(16, 1, -1).copy()
    x = reference.numbers(every, dtype)
    with np.errstate(invalid="ignore"):
        every.view("<u2")[np.abs(x) > loudest] = 0
    one = Strip(every, name, dtype)
    assert (one.coded() == reference.strip_of(every, dtype, name)).all()


@pytest.mark.parametrize(("name", "dtype"), KINDS)
def test_what_is_coded_already_codes_to_itself(name, dtype):
    codes = np.arange(256, dtype=np.uint8)
    scale = np.float32(2.0**-3)
    x = reference.meanings(codes, name) * scale
    x[np.isnan(x)] = np.nan
    if name == "int8":
        scale = np.float32(127 * scale) / np.float32(127)
    one = strip(x.reshape(1, 1, 256), name, dtype)
    again = one.coded()[:256]
    nan = np.isnan(x)
    assert (again == codes)[~nan].all()
    assert (one.decoded() == one.raw)[0, 0][np.repeat(~nan, reference.ITEM_BYTES[dtype])].all()


@pytest.mark.parametrize(("name", "dtype"), KINDS)
def test_silence_stays_silence(name, dtype):
    x = np.zeros((17, 2, 8))
    x[3, 0, 1], x[4, 1, 2] = -0.0, 2.0**-120  # of float16 a zero
    one = strip(x, name, dtype)
    coded = one.coded()
    assert (reference.scales_in(coded, 17, 2, 8) == 0).all()
    assert (reference.numbers(one.decoded(), dtype) == 0).all()


@pytest.mark.parametrize(("name", "dtype"), KINDS)
def test_what_is_no_finite_number_comes_back_as_none_and_harms_no_other(name, dtype):
    x = np.random.default_rng(3).standard_normal((16, 1, 32))
    clean = strip(x, name, dtype)
    clean.coded()
    x[2, 0, 5], x[7, 0, 0], x[15, 0, 31] = np.inf, -np.inf, np.nan
    one = strip(x, name, dtype)
    one.coded()
    found, known = (reference.numbers(s.decoded(), dtype) for s in (one, clean))
    broken = ~np.isfinite(x)
    assert np.isnan(found[broken]).all()
    # The clean one's own loudest number may have been where the broken ones are.
    room = 2 * np.abs(x[~broken]).max() / 16
    assert (np.abs(found - known)[~broken] <= room).all()
    assert (np.abs(found - reference.numbers(one.raw, dtype))[~broken] <= room).all()
    assert not np.isnan(found[~broken]).any()


@pytest.mark.parametrize(("name", "dtype"), KINDS)
def test_the_loudest_numbers_there_are_come_back_finite(name, dtype):
    x = np.full((1, 2, 40), LARGEST[dtype])
    x[0, 1] *= -1
    one = strip(x, name, dtype)
    one.coded()
    found = reference.numbers(one.decoded(), dtype)
    assert np.isfinite(found).all()
    assert (np.abs(found / x - 1) <= 1 / 16).all()


@pytest.mark.parametrize(("name", "dtype"), KINDS)
def test_a_thread_that_flushes_subnormal_numbers_codes_the_same(name, dtype):
    rng = np.random.default_rng(5)
    raw = rng.integers(0, 256, (32, 2, 256), dtype=np.uint8)
    raw[16:] = reference.raw_of(
        rng.standard_normal((16, 2, 256 // reference.ITEM_BYTES[dtype])) * 1e-30, dtype
    )
    calm, flushing = Strip(raw, name, dtype), Strip(raw, name, dtype)
    coded, decoded = calm.coded().copy(), calm.decoded()
    if not torch.set_flush_denormal(True):
        pytest.skip("this processor has no such mode")
    try:
        assert (flushing.coded() == coded).all()
        assert (flushing.decoded() == decoded).all()
    finally:
        torch.set_flush_denormal(False)


def test_the_kernels_and_the_layout_mean_the_same_strip():
    assert codec.SCALE_BYTES == 4 and codec.STRIP_ALIGN == reference.ALIGN
    assert codec.GROUP_TOKENS == reference.GROUP and codec.CODED_BYTES == reference.ITEM_BYTES
    for name, dtype in KINDS:
        ours = codec.Coding.of(name, dtype)
        for tokens, parts, elements in itertools.product(
            (1, 15, 16, 17, 528), (1, 2), (1, 80, 576)
        ):
            run = elements * reference.ITEM_BYTES[dtype]
            theirs = Geometry(1, 1, 528, parts, run, coding_of(name, dtype))
            size = theirs.strip_bytes(tokens)
            assert ours.strip_bytes(tokens, parts, run) == size
            assert (
                len(reference.strip_of(np.zeros((tokens, parts, run), np.uint8), dtype, name))
                == size
            )


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        (lambda: Coding("fp4", "bfloat16", 16), "codec is 'fp4'; it must be fp8 or int8"),
        (lambda: Coding("fp8", "int8", 16), "item is 'int8'; it must be one of bfloat16"),
        (lambda: Coding("fp8", "bfloat16", 0), "group_tokens is 0"),
        (lambda: Geometry(1, 1, 1, 1, 6, Coding("fp8", "float32", 16)), "run_bytes is 6"),
    ],
)
def test_a_coding_that_cannot_be_is_refused_by_name(wrong, why):
    with pytest.raises(ValueError, match=why):
        wrong()


def assert_same(found: np.ndarray, wanted: np.ndarray) -> None:
    assert ((found == wanted) | (np.isnan(found) & np.isnan(wanted))).all()
    assert (np.signbit(found) == np.signbit(wanted))[~np.isnan(found)].all()
