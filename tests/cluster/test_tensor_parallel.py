"""A prefill engine on one host, a decode engine on another, each of one rank or two: the tokens are
those of one process, and the KV is the other host's.

prefill, 1 or 2 ranks ──▶ node a ──▶ node b ◀── decode, 1 or 2 ranks          node c is not asked
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from kvstore.engine.reference import Reference
from tests.cluster.apart import TENANT, Apart, run_in
from tests.cluster.engines import NEW, Answer, Engine
from tests.cluster.three import SOON_SECONDS
from tests.engine.runs import prompt
from tests.nodes import eventually

# Tokens: three whole blocks of 64 and a short one; and what takes so many steps to compute that
# another engine begins to follow before the end.
LENGTH, LONG = 200, 1_700
TOKEN_BYTES = 3 * 2 * 2 * 16 * 4  # layers, KV heads, K and V, floats of 4 bytes
PREFILL, DECODE = "a", "b"


class Engines:
    """Each started when it is first asked for: to start one takes seconds."""

    def __init__(self, apart: Apart, model: Path, stack: ExitStack) -> None:
        self._apart, self._model, self._stack = apart, model, stack
        self._made: dict[tuple[str, int], Engine] = {}
        self.seeds = itertools.count(400)

    def of(self, role: str, at: str, ranks: int) -> Engine:
        if (role, ranks) not in self._made:
            node, host = self._apart.nodes[at], self._apart.hosts[at]
            made = Engine(role, node.directory, self._model, ranks)
            with self._apart.shown_by_children(TENANT):
                run_in(host, made.start, made.close, self._stack)
            made.wait_ready(lambda address: self._stack.enter_context(host.door(address)))
            self._made[role, ranks] = made
        return self._made[role, ranks]

    def stop(self) -> None:
        """All at once; each takes its time."""
        for one in self._made.values():
            one.stop()


@pytest.fixture(scope="module")
def engines(standing_apart: Apart, model_dir: Path) -> Iterator[Engines]:
    with ExitStack() as stack:
        made = Engines(standing_apart, model_dir, stack)
        yield made
        made.stop()


@pytest.mark.parametrize("how", ["loaded", "followed"])
@pytest.mark.parametrize(("writers", "readers"), [(1, 1), (2, 1), (1, 2), (2, 2)])
def test_tokens_are_those_of_one_process_and_their_kv_came_from_the_other_host(
    apart: Apart, engines: Engines, reference: Reference, writers: int, readers: int, how: str
) -> None:
    prefill = engines.of("prefill", PREFILL, writers)
    decode = engines.of("decode", DECODE, readers)
    counted = f"{'fetched' if how == 'loaded' else 'followed'}_blocks"
    length = LENGTH if how == "loaded" else LONG
    others = apart.at["c"].counters()["data_sent_bytes"]

    def loaded(name: str, tokens: list[int]) -> Answer:
        *_, last = prefill.prefill(name, tokens)
        assert last.done.published and last.done.computed_tokens == length
        return decode.generate(name, tokens)

    def followed(name: str, tokens: list[int]) -> Answer:
        replies = prefill.prefill(name, tokens)
        answer = decode.generate(name, tokens, next(replies).hand_off)
        list(replies)
        return answer

    def once(seed: int) -> bool:
        tokens, before = prompt(length, seed), apart.at[DECODE].counters()[counted]
        sent = apart.at[PREFILL].counters()["data_sent_bytes"]
        answer = (loaded if how == "loaded" else followed)(f"{seed}", tokens)
        assert answer.tokens == reference.tokens(tokens, NEW)
        late = answer.fetched + answer.followed < length
        if late or (how == "followed") != (answer.followed > 0):
            return False  # it was right all the same
        assert answer.computed == 1, "the last token of a prompt is always computed"
        blocks = -(-length // 64)  # each came once, for all the ranks
        eventually(lambda: apart.at[DECODE].counters()[counted] == before + blocks, SOON_SECONDS)
        assert apart.at[PREFILL].counters()["data_sent_bytes"] - sent >= length * TOKEN_BYTES
        return True

    eventually(lambda: once(next(engines.seeds)), SOON_SECONDS)
    assert apart.at["c"].counters()["data_sent_bytes"] == others
