"""The codec bench runs on a real node, and says that codec none changes nothing and others do."""

from __future__ import annotations

from bench import codec

TINY = codec.Sizes(prompts=3, prompt_tokens=130, moved_layers=1, moved_blocks=2)


def test_codec_none_changes_no_token_and_the_others_move_it_a_little() -> None:
    report = codec.run(1, lambda _: None, TINY)
    rows = {row.name: row for row in report.rows}
    assert report.holds and rows["none"].ratio == 1.0
    assert rows["none"].value < 1e-3 < rows["int8"].value < rows["fp8"].value < 2.0
    sizes = {name: row.also["llama_8b_bytes_per_token"] for name, row in rows.items()}
    assert sizes["none"] == 131_072 and sizes["fp8"] == sizes["int8"] == 65_792
    assert [row.counted for row in report.rows] == [True, False, False]
