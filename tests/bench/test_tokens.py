"""Tokens held against transformers' on one device: all are in float32, and a wrong one is found."""

from __future__ import annotations

from pathlib import Path

from bench.engine import Shape
from bench.tokens import Sizes, differing, measured
from kvstore.engine.core import EngineCore, EngineSettings
from kvstore.engine.device import Device
from kvstore.engine.reference import Reference
from tests.engine.runs import prompt
from tests.gpu import DEVICE

SHAPE = Shape(2, 64, 4, 2, 16, 96)
SHORT = "bfloat16" if DEVICE.type == "cuda" else "float16"  # the interpreter has no bfloat16


def test_float32_decides_and_has_every_token_and_a_shorter_type_is_told() -> None:
    sizes = Sizes(SHAPE, prompt_tokens_max=70, new_tokens=5, dtypes=("float32", SHORT))
    report = measured(3, lambda _: None, sizes, Device.with_kernels(DEVICE))
    assert [(row.name, row.counted) for row in report.rows] == [
        ("greedy tokens in float32", True),
        (f"greedy tokens in {SHORT}", False),
    ]
    assert report.holds and report.rows[0].value == report.rows[0].limit == 15
    assert report.rows[1].ratio and report.rows[1].ratio > 0.5
    assert all(row.also["recorded"] for row in report.rows)


def test_a_token_that_is_not_the_engines_is_counted_once_wherever_it_stands(
    tmp_path: Path,
) -> None:
    folder, tokens = SHAPE.make(tmp_path), prompt(9)
    core = EngineCore.load(folder, EngineSettings(pages=4))
    its = Reference(folder).tokens(tokens, 6)
    assert differing(core, {tuple(tokens): its}) == 0
    assert differing(core, {tuple(tokens): [*its[:-1], its[-1] + 1]}) == 1
    # Behind a token that nobody would have taken both go on alike.
    wrong = its[2] + 1
    rest = Reference(folder).tokens([*tokens, *its[:2], wrong], 3)
    assert differing(core, {tuple(tokens): [*its[:2], wrong, *rest]}) == 1
