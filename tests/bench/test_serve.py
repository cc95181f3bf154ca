from __future__ import annotations

from bench.serve import Load, prompt, run

LOAD = Load(requests=60, clients=8, beginnings=3, output_tokens=3)


def test_every_request_is_answered_and_everybodys_memory_is_told() -> None:
    said: list[str] = []
    report = run(1, said.append, load=LOAD)
    rows = {row.name: row for row in report.rows}
    assert {f"{name}, RSS" for name in ("node", "conductor", "prefill", "decode", "gateway")} < (
        rows.keys()
    )
    lost = rows["requests lost"]
    assert lost.value == 0 and lost.ratio == 0, lost.also
    assert all(row.value > 10 for name, row in rows.items() if "RSS" in name)


def test_prompts_share_their_beginnings_and_no_two_are_alike() -> None:
    prompts = [prompt(LOAD, number) for number in range(30)]
    assert len({tuple(one) for one in prompts}) == 30
    assert len({tuple(one[: LOAD.beginning_tokens]) for one in prompts}) == LOAD.beginnings
    assert prompts == [prompt(LOAD, number) for number in range(30)]
