"""The format of the Qwen-Bailian usage traces, read: JSON lines, 16 tokens a block.

    {"chat_id": 159, "parent_chat_id": 55, "timestamp": 61.114, "input_length": 33,
     "output_length": 132, "type": "text", "turn": 2, "hash_ids": [1089, 1090, 6326]}

The timestamp is in seconds. An id is a hash of what is in its block alone, whatever stands before:
the same id behind other blocks is other KV, and is given another number here. Which chat a request
belongs to is not used: what it shares with the turn before is in its ids.
"""

from __future__ import annotations

from pathlib import Path

from kvstore.planner.lines import Line, Record, lines, record
from kvstore.planner.load import Load
from kvstore.planner.requests import Requests

BLOCK_TOKENS = 16
FIELDS: tuple[str, ...] = (
    *("chat_id", "parent_chat_id", "timestamp", "input_length", "output_length"),
    *("type", "turn", "hash_ids"),
)
_ROOT = -1  # parent_chat_id of a chat's first turn


def recognises(line: Line) -> bool:
    """Whether a file with this first line is one."""
    return line.text.startswith("{") and record(line).values.keys() >= {"chat_id", "hash_ids"}


def read(path: Path) -> Load:
    """Raises Invalid, which names line and field."""
    requests = Requests(BLOCK_TOKENS)
    for line in lines(path):
        fields = record(line)
        _check_chat(fields)
        stamp_s = fields.seconds("timestamp", 0)
        tokens = fields.count("input_length", least=1)
        answer = fields.count("output_length", least=0)
        ids = fields.ids("hash_ids", requests.blocks(tokens), tokens)
        requests.add(line, stamp_s, tokens, answer, ids)
    return requests.by_prefix()


def _check_chat(fields: Record) -> None:
    """What is not used is looked at all the same: a file that is another thing is found out."""
    for field, least in (("chat_id", 0), ("parent_chat_id", _ROOT), ("turn", 0)):
        value = fields.get(field)
        if type(value) is not int or value < least:
            raise fields.line.wrong(field, value, f"wants a whole number from {least}")
    if type(kind := fields.get("type")) is not str:
        raise fields.line.wrong("type", kind, 'wants a word, as in "text"')
