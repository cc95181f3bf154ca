"""Mooncake's trace format, read and written: JSON lines, 512 tokens a block.

    {"timestamp": 27482, "input_length": 6955, "output_length": 52, "hash_ids": [46, 47, 2353]}

The timestamp is in milliseconds. An id stands for a block and all before it, and the last block,
which may be short, has one too; an id with two parents is an error. The published files have their
times rounded to some 3 s: see `kvstore.planner.arrivals.spread`.
"""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path
from typing import TextIO

from kvstore.errors import Invalid
from kvstore.planner.lines import Line, lines, record
from kvstore.planner.load import Load
from kvstore.planner.requests import Requests

BLOCK_TOKENS = 512
FIELDS: tuple[str, ...] = ("timestamp", "input_length", "output_length", "hash_ids")
_MS = 3  # a millisecond is 10**-3 seconds


def recognises(line: Line) -> bool:
    """Whether a file with this first line is one."""
    return line.text.startswith("{") and record(line).values.keys() >= {*FIELDS}


def read(path: Path) -> Load:
    """Raises Invalid, which names line and field."""
    requests = Requests(BLOCK_TOKENS)
    for line in lines(path):
        fields = record(line)
        stamp_s = fields.seconds("timestamp", _MS)
        tokens = fields.count("input_length", least=1)
        answer = fields.count("output_length", least=0)
        ids = fields.ids("hash_ids", requests.blocks(tokens), tokens)
        requests.add(line, stamp_s, tokens, answer, ids)
    return requests.by_id(str(path), "hash_ids")


def to_mooncake(load: Load, file: TextIO) -> None:
    """Write a load so that `read` gives back an equal one. Raises Invalid for other blocks."""
    if load.block_tokens != BLOCK_TOKENS:
        raise Invalid(
            f"a load with {load.block_tokens} tokens a block:"
            f" Mooncake's format is of {BLOCK_TOKENS}, and nowhere says so"
        )
    columns = (load.arrival, load.input_tokens, load.output_tokens, load.first[:-1], load.first[1:])
    for row in zip(*(column.tolist() for column in columns), strict=True):
        arrival, tokens, answer, begin, end = row
        stamp = Decimal(repr(arrival)).scaleb(_MS)  # a product would be rounded
        ids = load.blocks[begin:end].tolist()
        file.write(
            f'{{"timestamp": {stamp:f}, "input_length": {tokens},'
            f' "output_length": {answer}, "hash_ids": {ids}}}\n'
        )
