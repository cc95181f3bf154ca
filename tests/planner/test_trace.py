"""A trace is told by its first line; what cannot be read at all is refused in one line."""

from __future__ import annotations

import gzip
import os
import threading
from pathlib import Path

import pytest

from kvstore.errors import ConfigError, Invalid
from kvstore.planner import lines, requests, trace
from tests.planner.loads import write

MOONCAKE = '{"timestamp": %d, "input_length": 3, "output_length": 1, "hash_ids": [0]}'
QWEN = (
    '{"chat_id": 0, "parent_chat_id": -1, "timestamp": 0.5, "input_length": 3,'
    ' "output_length": 1, "type": "text", "turn": 1, "hash_ids": [0]}'
)
AZURE = ("TIMESTAMP,ContextTokens,GeneratedTokens", "2023-11-16 18:17:03.9799600,3,1")


@pytest.mark.parametrize(
    "text, name, block_tokens",
    [((MOONCAKE % 0,), "mooncake", 512), ((QWEN,), "qwen", 16), (AZURE, "azure", 512)],
)
def test_a_format_is_told_by_the_first_line(
    tmp_path: Path, text: tuple[str, ...], name: str, block_tokens: int
) -> None:
    path = write(tmp_path / "t", "", *text)
    assert trace.read(path) == trace.read(path, format=name)
    assert trace.read(path).block_tokens == block_tokens


@pytest.mark.parametrize("text", ["a,b,c", '{"a": 1}', '{"timestamp": 1}', "[1]", "7"])
def test_a_file_of_no_format_is_told_which_there_are(tmp_path: Path, text: str) -> None:
    with pytest.raises(Invalid, match=r"t:1: of no format known.* azure \(TIMESTAMP.* qwen \(chat"):
        trace.read(write(tmp_path / "t", text))


def test_a_format_there_is_not_is_told_which_there_are(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="format = 'csv': is one of auto, azure, qwen, mooncake"):
        trace.read(tmp_path / "t", format="csv")


@pytest.mark.parametrize("name", [trace.AUTO, *trace.FORMATS])
@pytest.mark.parametrize(
    "content, story",
    [
        (b"", r"t: no request in it"),
        (b"\n \n", r"t: no request in it"),
        (b"\xff\xfe\n", r"t:1: not text in UTF-8"),
        (b"x" * 99, r"t:1: a line of more than 64 bytes"),
        (b"\n" + b"\0" * 99, r"t:2: a line of more than 64 bytes"),
    ],
)
def test_what_is_no_trace_is_refused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, content: bytes, story: str, name: str
) -> None:
    monkeypatch.setattr(lines.bounds, "LINE_BYTES_MAX", 64)
    (tmp_path / "t").write_bytes(content)
    with pytest.raises(Invalid, match=story):
        trace.read(tmp_path / "t", format=name)


def test_a_file_that_cannot_be_opened_is_refused(tmp_path: Path) -> None:
    with pytest.raises(Invalid, match="absent: No such file"):
        trace.read(tmp_path / "absent")
    with pytest.raises(Invalid, match=f"{tmp_path.name}: Is a directory"):
        trace.read(tmp_path)


@pytest.mark.parametrize(
    "text", ["{", '{"a": 1', '{"a": 1} {"b": 2}', '{"a": ' * 9**5, '{"a": 1e99999999999999999999}']
)
def test_what_is_not_json_is_refused(tmp_path: Path, text: str) -> None:
    path = write(tmp_path / "t", MOONCAKE % 0, text)
    with pytest.raises(Invalid, match=r"t:2: not JSON"):
        trace.read(path)


@pytest.mark.parametrize("text", ["[1, 2]", "7", '"a"', "null"])
def test_json_that_is_no_object_is_refused(tmp_path: Path, text: str) -> None:
    path = write(tmp_path / "t", MOONCAKE % 0, text)
    with pytest.raises(Invalid, match=r"t:2: not a JSON object"):
        trace.read(path)


@pytest.mark.parametrize("name, most", [("REQUESTS_MAX", 2), ("BLOCKS_MAX", 2)])
def test_a_trace_too_large_to_hold_is_refused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str, most: int
) -> None:
    path = write(tmp_path / "t", *[MOONCAKE % 0] * 3)
    assert len(trace.read(path)) == 3
    monkeypatch.setattr(requests.bounds, name, most)
    with pytest.raises(Invalid, match=r"t:3: a trace of more than .* plan with its first lines"):
        trace.read(path)


def test_rounded_times_are_spread_by_a_seed(tmp_path: Path) -> None:
    path = write(tmp_path / "t", *(MOONCAKE % (3000 * (i // 10)) for i in range(100)))
    rounded, spread = trace.read(path), trace.read(path, spread_seed=1)
    spread.check()
    assert spread == trace.read(path, spread_seed=1)
    assert spread != trace.read(path, spread_seed=2)
    assert len(set(spread.arrival.tolist())) == 100 > len(set(rounded.arrival.tolist()))


@pytest.mark.parametrize("name", [trace.AUTO, "mooncake"])
def test_a_file_of_gzip_is_unpacked(tmp_path: Path, name: str) -> None:
    plain = write(tmp_path / "t", "", MOONCAKE % 0, MOONCAKE % 5)
    packed = tmp_path / "t.gz"
    packed.write_bytes(gzip.compress(plain.read_bytes()))
    assert trace.read(packed, format=name) == trace.read(plain)


def test_a_file_of_gzip_that_is_cut_off_or_spoiled_is_refused(tmp_path: Path) -> None:
    packed, path = gzip.compress(((MOONCAKE % 0) + "\n").encode() * 999), tmp_path / "t"
    for wrong in (packed[:40], packed[:-8] + b"\0" * 8, packed[:20] + b"\xff" * 40):
        path.write_bytes(wrong)
        with pytest.raises(Invalid, match="t: gzip cannot unpack it to its end"):
            trace.read(path)


def test_of_a_pipe_the_format_is_to_be_said_since_what_is_read_is_gone(tmp_path: Path) -> None:
    plain = write(tmp_path / "t", "", *(MOONCAKE % at for at in range(999)))
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with pytest.raises(ConfigError, match="pipe: is a pipe: say what it has, with --format azure"):
        trace.read(pipe)
    writer = threading.Thread(target=lambda: pipe.write_bytes(plain.read_bytes()))
    writer.start()
    found = trace.read(pipe, format="mooncake")
    writer.join()
    assert found == trace.read(plain)
