"""How long prompts were is read from a log or a trace, or what is wrong with it is said."""

from __future__ import annotations

from pathlib import Path

import pytest

from kvstore.attach.lengths import fitting, of_log, of_trace
from kvstore.errors import Invalid


def test_a_log_has_a_number_of_tokens_a_line_and_anything_else(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text('{"prompt_tokens": 7, "id": "a"}\n\n{"prompt_tokens": 300}\n')
    assert of_log(log) == [7, 300]
    assert fitting([7, 300], 307) and not fitting([7, 300], 306)


def test_a_trace_is_read_as_the_planner_does(tmp_path: Path) -> None:
    trace = tmp_path / "trace"
    line = '{"timestamp": %d, "input_length": %d, "output_length": 1, "hash_ids": [0]}\n'
    trace.write_text(line % (0, 500) + line % (9, 20))
    assert of_trace(trace) == [500, 20]


@pytest.mark.parametrize("line", ['{"prompt_tokens": 0}', '{"prompt_tokens": "7"}', "{}", "7"])
def test_what_is_wrong_is_told_by_its_line(line: str, tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text(f'{{"prompt_tokens": 7}}\n{line}\n')
    with pytest.raises(Invalid, match=f"{log}:2: "):
        of_log(log)
