"""Images are named by what the encoder is given of them: whoever shows the same finds the same KV,
and nobody that of another image."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.connectors.vllm.engine import Engine, Image, Prompt, engine
from tests.connectors.vllm.models import prompt
from tests.connectors.vllm.vision import IMAGE
from tests.nodes import NodeProcess

CAT, DOG, LARGE = Image(1), Image(2), Image(3, side=224)
BEFORE, BETWEEN, AFTER = (prompt(950, 90), prompt(951, 20), prompt(952, 150))
SIZES: dict[str, Any] = {"max_model_len": 1024, "limit_mm_per_prompt": {"image": 2}}
APART = {"VLLM_ENABLE_V1_MULTIPROCESSING": "1"}


def showing(*images: Image, before: list[int] = BEFORE) -> Prompt:
    """Text, images with text between them, and text: 90 tokens, 18 for each small image, ..."""
    tokens = list(before)
    for index in range(len(images)):
        tokens += [*(BETWEEN if index else ()), *IMAGE]
    return Prompt([*tokens, *AFTER], images=images)


@pytest.fixture(scope="module")
def plain(
    model: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Engine]:
    """vLLM without a connector, and what it computes it computes anew."""
    log, seen = tmp_path_factory.mktemp("plain") / "log", model("paddleocr_vl")
    with engine(seen, log, enable_prefix_caching=False, **SIZES) as made:
        yield made


@pytest.fixture
def engines(
    model: Callable[[str], Path], node: NodeProcess, tmp_path: Path
) -> Iterator[tuple[Engine, Engine]]:
    sees = model("paddleocr_vl")
    with (
        # Of one the scheduler has a process of its own, to which images are sent.
        engine(
            sees, tmp_path / "first.log", node=node.address, environment=APART, **SIZES
        ) as first,
        engine(sees, tmp_path / "second.log", node=node.address, **SIZES) as second,
    ):
        yield first, second


def test_a_prompt_with_images_is_found_by_who_shows_the_same(
    engines: tuple[Engine, Engine], plain: Engine
) -> None:
    first, second = engines
    shown = [showing(CAT), showing(CAT, DOG), showing(LARGE)]
    wanted = plain.run(*shown, tokens=8).tokens
    assert first.run(*shown).tokens == wanted
    found = second.run(*shown)
    assert found.tokens == wanted and found.cached == [256, 256, 256]


def test_another_image_finds_the_text_before_it_and_no_more(
    engines: tuple[Engine, Engine], plain: Engine
) -> None:
    first, second = engines
    first.run(showing(CAT), showing(CAT, DOG), tokens=1)
    others = [
        showing(DOG),
        showing(DOG, CAT),
        replace(showing(CAT), tokens=[*BEFORE[:64], *BEFORE[68:], *BEFORE[:4], *IMAGE, *AFTER]),
    ]
    wanted = plain.run(*others)
    assert len({tuple(tokens) for tokens in wanted.tokens}) == 3
    found = second.run(*others)
    assert found.tokens == wanted.tokens
    # An image begins in the second block; a page of that vLLM itself has of the prompt before.
    assert found.cached == [64, 96, 64]


def test_a_hit_may_end_within_an_image(engines: tuple[Engine, Engine], plain: Engine) -> None:
    """What is left of it is computed, of the embeddings that this engine makes of it."""
    first, second = engines
    shown = showing(LARGE, before=BEFORE[:40])  # tokens 41 to 104 are the image's
    asked = replace(shown, tokens=[*BEFORE[:40], *IMAGE, *AFTER[1:]])
    wanted = plain.run(asked)
    first.run(shown, tokens=1)
    found = second.run(asked)
    assert found.cached == [64] and found.tokens == wanted.tokens


def test_a_prefill_with_an_image_is_handed_off_to_its_last_page(
    engines: tuple[Engine, Engine], plain: Engine
) -> None:
    prefills, decodes = engines
    shown = showing(CAT, DOG)  # 296 tokens
    handed = replace(shown, transfer={"moonpool": {"hand_off": "one"}})
    prefills.run(handed, tokens=1)
    found = decodes.run(replace(shown, transfer={"moonpool": {"follow": "one"}}))
    assert found.cached == [288] and found.tokens == plain.run(shown).tokens


def test_what_an_image_is_called_is_not_what_it_is(
    engines: tuple[Engine, Engine], plain: Engine
) -> None:
    first, second = engines
    named = [replace(CAT, name="mine"), replace(CAT, name="yours"), replace(DOG, name="mine")]
    first.run(showing(named[0]), tokens=1)
    wanted = plain.run(showing(CAT), showing(DOG))
    assert second.run(showing(named[1])).cached == [256], "it is the same cat"
    found = second.run(showing(named[2]))
    assert found.cached == [64] and found.tokens == wanted.tokens[1:], "and here it is a dog"


@pytest.mark.parametrize("together", [True, False])
def test_one_name_for_two_images_leaves_nothing_wrong_to_others(
    model: Callable[[str], Path], node: NodeProcess, plain: Engine, tmp_path: Path, together: bool
) -> None:
    """What vLLM makes of one it takes for the other, where it does not process them alike."""
    anew: dict[str, Any] = {**SIZES, "mm_processor_cache_gb": 0}
    cat, dog, two = (replace(one, name="mine") for one in (CAT, DOG, Image(7)))
    sees = model("paddleocr_vl")
    with engine(sees, tmp_path / "first.log", node=node.address, **anew) as first:
        first.run(showing(replace(two, name="two")), tokens=1)  # whose text is in the pool
        first.forget()
        if together:
            first.run(showing(cat), showing(dog, before=BEFORE[::-1]), together=True)
        else:
            first.run(showing(replace(CAT, name="two")), tokens=1)
            first.run(showing(replace(two, name="two"), dog), tokens=1)
            first.run(showing(cat), tokens=1)
    with engine(sees, tmp_path / "second.log", node=node.address, **SIZES) as second:
        assert second.run(showing(CAT)).tokens == plain.run(showing(CAT)).tokens
