"""The bench of routing between vLLM servers, a small one: nothing is lost on the way, and what one
server prefills another decodes."""

from __future__ import annotations

from dataclasses import replace

import pytest

from bench import chats, drive, route, servers
from bench.engine import Shape as Model
from bench.fleet import Plan
from kvstore.client import conductors

SMALL = route.Sizes(
    Model(layers=2, hidden=64, heads=4, kv_heads=2, head_dim=32, intermediate=128),
    Plan(nodes=4, prefills=1, decodes=1, dram=("8MiB",), slab="1MiB", pages=96),
    replace(chats.Shape(), documents=2, document_tokens=512, chats=3, turns=2),
)


def test_a_small_round_hands_prompts_over_and_loses_none(monkeypatch: pytest.MonkeyPatch) -> None:
    # Who does not hear in time sends a request where it likes.
    monkeypatch.setattr(conductors, "ANSWER_SECONDS", 60.0)
    ran: list[drive.Ran] = []
    monkeypatch.setattr(route, "drive", lambda *given: ran.append(drive.drive(*given)) or ran[-1])
    report = servers.run(1, lambda text: None, SMALL, foretold=False)
    rows = {row.name: row for row in report.rows}
    lost = rows["requests lost or wrong"]
    assert lost.value == 0 and lost.also["requests"] == 3 * 6
    assert 0 < rows["token hit rate"].value < 1
    outcomes = [what for one in ran for _, what in one.done]
    assert any(one.hand_off_tokens for one in outcomes)
    asked = [coming.request.id for one in ran for coming in one.coming]
    assert len(set(asked)) == len(asked), "engines that remember are asked in other words"
