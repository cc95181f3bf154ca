"""Attention over pages on a GPU: what float64 says of it, whatever lies in pages beside."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from kvstore.kernels.gpu import attention, reference
from kvstore.kernels.gpu.attention import Heads, Span, Step
from tests.gpu import DEVICE

NEAR = {torch.float32: 2e-6, torch.float16: 2e-3}
if DEVICE.type == "cuda":  # the interpreter multiplies a bfloat16's bits, and has an exact `exp`
    NEAR[torch.bfloat16], NEAR[torch.float32] = 2e-2, 5e-6


class Scene:
    """Sequences with pages of their own in no order; all other pages, and the rest of each
    sequence's last one, are NaN."""

    def __init__(self, seed: int, spans: list[Span], dtype: torch.dtype, heads: int = 0) -> None:
        dice = np.random.default_rng(seed)
        self.spans = spans
        kv_heads = int(dice.choice([1, 2, 3]))
        group = heads or int(dice.choice([1, 2, 4, 7]))
        dim, page_tokens = int(dice.choice([16, 24, 64])), int(dice.choice([1, 8, 16, 40]))
        needed = [-(-(one.prefix + one.tokens) // page_tokens) for one in spans]
        pages = dice.permutation(sum(needed) + 3)
        shape = (len(pages), kv_heads, page_tokens, 2, dim)
        order = (*dice.permutation(4), 4)  # of the axes in memory
        memory = torch.full([shape[axis] for axis in order], torch.nan, dtype=dtype)
        layer = memory.permute(*np.argsort(order).tolist())
        tables = torch.full((len(spans), max(needed) + 2), -7, dtype=torch.int32)
        for row, (one, count) in enumerate(zip(spans, needed, strict=True)):
            own, pages = pages[:count], pages[count:]
            tables[row, :count] = torch.from_numpy(own.astype(np.int32))
            for at in range(one.prefix + one.tokens):
                some = dice.standard_normal((kv_heads, 2, dim))
                layer[own[at // page_tokens], :, at % page_tokens] = torch.from_numpy(some).to(
                    dtype
                )
        tokens = sum(one.tokens for one in spans)
        q = dice.standard_normal((tokens, group * kv_heads, dim))
        self.q = torch.from_numpy(q).to(dtype).to(DEVICE)
        self.layer, self.tables = layer.to(DEVICE), tables.to(DEVICE)

    @property
    def heads(self) -> Heads:
        return Heads(self.q.shape[1], self.layer.shape[1], self.q.shape[2])

    def attended(self) -> torch.Tensor:
        return self.step().attend(self.q, self.layer)

    def step(self) -> Step:
        return Step.of(self.spans, self.tables, self.layer.shape[2], self.heads)

    def truth(self) -> torch.Tensor:
        return reference.attend(self.q, self.layer, self.tables, self.spans)


SPANS = {
    "one token behind nothing": [Span(1, 0)],
    "decode of sequences of many lengths": [Span(1, n) for n in (0, 1, 7, 40, 129)],
    "prefill behind nothing": [Span(37, 0)],
    "prefill behind a prefix": [Span(21, 50)],
    "both side by side": [Span(1, 63), Span(33, 17), Span(1, 5), Span(9, 0)],
}


@pytest.mark.parametrize("dtype", NEAR, ids=str)
@pytest.mark.parametrize("spans", SPANS.values(), ids=SPANS)
@pytest.mark.parametrize("seed", range(3))
def test_it_is_softmax_over_all_that_a_token_sees(
    spans: list[Span], dtype: torch.dtype, seed: int
) -> None:
    scene = Scene(seed, spans, dtype)
    found = scene.attended()
    assert found.dtype == dtype and found.shape == scene.q.shape
    assert (found.double() - scene.truth()).abs().max() < NEAR[dtype]


@pytest.mark.parametrize("axis", [1, 2], ids=["heads", "tokens"])
def test_steps_may_reach_further_than_32_bits_count(axis: int) -> None:
    shape, far = [2, 3, 3, 2, 16], 1 << 30  # elements: the third begins where no int32 reaches
    steps = [288, 96, 32, 16, 1]
    steps[axis] = far
    memory = torch.empty(2 * far + 1_024, dtype=torch.float16, device=DEVICE)  # never touched
    scene = Scene(0, [Span(1, 4)], torch.float16, heads=2)
    scene.layer = memory.as_strided(shape, steps)
    scene.layer.copy_(torch.randn(shape, generator=torch.Generator().manual_seed(0)))
    scene.q = torch.ones((1, 6, 16), dtype=torch.float16, device=DEVICE)
    scene.tables = torch.tensor([[1, 0]], dtype=torch.int32, device=DEVICE)
    assert (scene.attended().double() - scene.truth()).abs().max() < NEAR[torch.float16]


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("parts", [2, 3, 7])
def test_parts_that_are_joined_are_one_softmax(
    parts: int, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attention, "_parts", lambda *_: parts)
    monkeypatch.setattr(attention, "PART_TOKENS", 64)
    scene = Scene(seed, [Span(1, 300), Span(1, 3), Span(12, 150)], torch.float32)
    found = scene.attended()
    assert (found.double() - scene.truth()).abs().max() < NEAR[torch.float32]


def test_few_rows_that_see_much_are_cut_in_parts_and_many_are_not() -> None:
    assert attention._parts(8, 32_768, processors=132) == 33
    assert attention._parts(8, 32_768, processors=66) == 17
    assert attention._parts(8, 400, processors=132) == 1
    assert attention._parts(4_096, 32_768, processors=132) == 1


class Kept:
    """A step of `rows` sequences that is told of others, in place, at each turn."""

    def __init__(self, scene: Scene, rows: int, positions_max: int) -> None:
        # Page numbers that nobody has: who reads by one of them ends the process, or sees NaN.
        self.tables = torch.full((rows, 600), -7, dtype=torch.int32, device=DEVICE)
        self.facts = torch.zeros((rows, 3), dtype=torch.int32, device=DEVICE)
        self.q = torch.full((rows, *scene.q.shape[1:]), torch.nan, device=DEVICE)
        page_tokens = scene.layer.shape[2]
        self.step = Step.kept(self.facts, self.tables, page_tokens, scene.heads, positions_max)

    def attended(self, scene: Scene) -> torch.Tensor:
        count, pages = scene.tables.shape
        self.tables.fill_(-7)
        self.tables[:count, :pages] = scene.tables
        told = [(row, 1, one.prefix) for row, one in enumerate(scene.spans)]
        told += [(row, 0, 0) for row in range(count, len(self.facts))]
        self.facts.copy_(torch.tensor(told, dtype=torch.int32))
        self.q[:count] = scene.q
        return self.step.attend(self.q, scene.layer)[:count]


def decodes(seed: int, *prefixes: int) -> Scene:
    return Scene(seed, [Span(1, one) for one in prefixes], torch.float32, heads=2)


@pytest.mark.parametrize(
    ("part_tokens", "positions_max"),
    [(64, 500), (64, 600), (64, 1_200), (512, 500), (512, 600), (512, 4_096)],
)
def test_a_kept_step_follows_what_its_tensors_hold_at_each_turn(
    part_tokens: int, positions_max: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attention, "PART_TOKENS", part_tokens)
    kept = Kept(decodes(3, 0), rows=4, positions_max=positions_max)
    held = kept.facts.data_ptr(), kept.tables.data_ptr()
    for prefixes in ((0,), (63, 64, 65), (499, 0, 130, 1), (5, 448), (127, 128, 129, 498)):
        scene = decodes(3, *prefixes)
        assert (kept.attended(scene).double() - scene.truth()).abs().max() < NEAR[torch.float32]
    assert held == (kept.facts.data_ptr(), kept.tables.data_ptr())
    assert held == (kept.step.facts.data_ptr(), kept.step.tables.data_ptr())


def test_what_a_kept_step_launches_depends_on_its_rows_and_its_bound_alone() -> None:
    scene = decodes(3, 0)
    parts = {
        (rows, most): Kept(scene, rows, most).step.parts for rows in (1, 8) for most in (500, 4_096)
    }
    assert parts == {(1, 500): 1, (1, 4_096): 8, (8, 500): 1, (8, 4_096): 8}
    assert Kept(scene, 600, 4_096).step.parts == 1, "rows enough are not cut in parts"


def test_wide_groups_take_several_programs_of_a_kept_row() -> None:
    scenes = [Scene(4, [Span(1, n) for n in (70, 3)], torch.float32, heads=70) for _ in range(2)]
    kept = Kept(scenes[0], rows=3, positions_max=128)
    for scene in scenes:
        assert (kept.attended(scene).double() - scene.truth()).abs().max() < NEAR[torch.float32]


def test_a_score_however_large_is_no_infinity() -> None:
    scene = Scene(1, [Span(5, 30)], torch.float32)
    scene.q *= 1e4
    assert (scene.attended().double() - scene.truth()).abs().max() < 1e-2


def test_every_layer_of_a_step_is_attended_by_what_the_device_was_told_once() -> None:
    scene = Scene(2, [Span(1, 20), Span(7, 3)], torch.float32)
    step = scene.step()
    for _ in range(2):
        found = step.attend(scene.q, scene.layer).double()
        assert (found - scene.truth()).abs().max() < 2 * NEAR[
            torch.float32
        ]  # of values twice those
        scene.layer = scene.layer * 2


def test_a_step_of_nothing_attends_to_nothing() -> None:
    heads = Heads(4, 2, 16)
    step = Step.of([], torch.zeros((0, 1), dtype=torch.int32, device=DEVICE), 8, heads)
    q = torch.zeros((0, 4, 16), device=DEVICE)
    assert step.attend(q, torch.zeros((3, 2, 8, 2, 16), device=DEVICE)).shape == q.shape


def _step(scene: Scene, tables: torch.Tensor) -> Step:
    return Step.of(scene.spans, tables, scene.layer.shape[2], scene.heads)


WRONG = {
    "q is": lambda s: s.step().attend(s.q[:3], s.layer),
    "no multiple": lambda s: Heads(3, 2, 16),
    "must be alike": lambda s: s.step().attend(s.q.half(), s.layer),
    "a row for each span": lambda s: _step(s, s.tables.long()),
    "positions": lambda s: _step(s, s.tables[:, :1]),
    "contiguous": lambda s: s.step().attend(s.q.transpose(0, 1), s.layer),
    "facts is": lambda s: Step.kept(s.tables, s.tables, 8, s.heads, 99),
    "a copy would not follow": lambda s: Step.kept(
        torch.zeros((1, 3), dtype=torch.int32), s.tables.repeat(1, 2)[:, ::2], 8, s.heads, 99
    ),
    "layer is": lambda s: s.step().attend(s.q, s.layer[..., :-1]),
}


@pytest.mark.parametrize("why", WRONG)
def test_what_does_not_fit_is_refused(why: str) -> None:
    seed = next(n for n in range(99) if Scene(n, [Span(5, 99)], torch.float32).layer.shape[1] == 2)
    with pytest.raises(ValueError, match=why):
        WRONG[why](Scene(seed, [Span(5, 99)], torch.float32))
