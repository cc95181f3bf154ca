"""Losing the node costs recompute, not a request: vLLM serves as without it, and says so once.

The reference is vLLM alone. Where a prompt's load fails it is computed whole, as there, so even
the bits are those.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.connectors.vllm.engine import Engine, Round, engine
from tests.connectors.vllm.models import prompt
from tests.nodes import NodeProcess

BLOCK = 64
STORED = [prompt(80 + n, 4 * BLOCK + 20) for n in range(3)]
NEW = [prompt(90 + n, 3 * BLOCK + 7) for n in range(2)]
LATER = [prompt(300 + n, 2 * BLOCK + 7) for n in range(16)]
LATE = {"deadline_ms": 2_000}
WAITING_SECONDS = 15.0  # these sixteen may wait, all together: less than a deadline each
TELLING = "Moonpool:"  # begins what the connector says of the pool


@dataclass(frozen=True)
class Alone:
    stored: Round
    new: Round
    later: Round
    later_seconds: float


@pytest.fixture(scope="module")
def alone(model: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> Alone:
    log = tmp_path_factory.mktemp("alone") / "engine.log"
    with engine(model("llama"), log) as made:
        stored, new, begun = made.run(*STORED), made.run(*NEW), time.monotonic()
        return Alone(stored, new, made.run(*LATER), time.monotonic() - begun)


def serves_as_alone(served: Engine, alone: Alone) -> None:
    """Later prompts cost no waiting, and give what they give without a connector."""
    begun = time.monotonic()
    assert served.run(*LATER).outputs == alone.later.outputs
    # Four times as long: the machine may be busier now than it was then.
    assert time.monotonic() - begun < 4 * alone.later_seconds + WAITING_SECONDS


def lines(served: Engine, text: str) -> list[str]:
    return [line for line in served.log.splitlines() if text in line]


def test_a_node_that_was_never_there_is_no_hindrance(
    model: Callable[[str], Path], tmp_path: Path, alone: Alone
) -> None:
    nobody = "127.0.0.1:9"  # the discard port
    with engine(model("llama"), tmp_path / "engine.log", node=nobody, extra=LATE) as served:
        assert served.run(*NEW).outputs == alone.new.outputs
        serves_as_alone(served, alone)
        assert len(lines(served, TELLING)) == 1, "one line says that the node is not there"
        assert nobody in lines(served, TELLING)[0]


@pytest.mark.parametrize("opened", [False, True], ids=["before it opens them", "before it copies"])
def test_a_node_that_dies_while_blocks_are_loaded_costs_their_recompute(
    node: NodeProcess,
    model: Callable[[str], Path],
    tmp_path: Path,
    alone: Alone,
    opened: bool,
) -> None:
    with engine(model("llama"), tmp_path / "engine.log", node=node.address, extra=LATE) as served:
        served.run(*STORED)
        served.forget()
        served.signal_at_load(node.pid, signal.SIGKILL, opened=opened)
        loaded = served.run(*STORED)
        assert node.exited is not None, "no load was begun"
        assert loaded.tokens == alone.stored.tokens
        assert [one.finish for one in loaded.outputs] == ["length"] * len(STORED)
        serves_as_alone(served, alone)
        assert len(lines(served, TELLING)) == 1, "one line says that the node is gone"


def test_with_the_policy_fail_the_requests_that_load_end_in_an_error_and_no_others(
    node: NodeProcess, model: Callable[[str], Path], tmp_path: Path, alone: Alone
) -> None:
    with engine(
        model("llama"), tmp_path / "engine.log", node=node.address, policy="fail", extra=LATE
    ) as served:
        assert len(lines(served, "kv_load_failure_policy is 'fail'")) == 1
        served.run(*STORED)
        served.forget()
        served.signal_at_load(node.pid, signal.SIGKILL, opened=False)
        both = served.run(*STORED, *NEW, together=True)
        stored, new = both.outputs[: len(STORED)], both.outputs[len(STORED) :]
        assert [one.finish for one in stored] == ["error"] * len(STORED)
        assert [one.tokens for one in new] == alone.new.tokens
        serves_as_alone(served, alone)


def test_a_node_that_hangs_costs_its_deadline_and_is_used_again_when_it_answers(
    node: NodeProcess, model: Callable[[str], Path], tmp_path: Path, alone: Alone
) -> None:
    with engine(model("llama"), tmp_path / "engine.log", node=node.address, extra=LATE) as served:
        served.run(*STORED)
        served.forget()
        served.signal_at_load(node.pid, signal.SIGSTOP, opened=False)
        begun = time.monotonic()
        loaded = served.run(STORED[0])
        assert time.monotonic() - begun < alone.later_seconds + WAITING_SECONDS
        assert loaded.outputs[0].tokens == alone.stored.outputs[0].tokens
        serves_as_alone(served, alone)
        node.signal(signal.SIGCONT)
        deadline = time.monotonic() + 30.0
        hit = 0
        while not hit and time.monotonic() < deadline:
            served.forget()
            again = served.run(STORED[1])
            assert again.tokens == [alone.stored.outputs[1].tokens]
            hit = again.external[1]
        assert hit == 4 * BLOCK, "the node is back and not used"
