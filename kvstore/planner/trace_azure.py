"""The format of the Azure LLM inference traces of 2023 and 2024, read: CSV with a header.

    TIMESTAMP,ContextTokens,GeneratedTokens
    2023-11-16 18:17:03.9799600,4808,10             in 2023: local to the file
    2024-05-10 00:00:00.009930+00:00,2162,5         in 2024: with the zone

They say nothing of what is in a prompt. So no block is taken for another's: such a load has no
reuse, and a plan made from it is of arrivals and lengths only. Times are kept to the microsecond.
"""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

from kvstore.planner import bounds
from kvstore.planner.lines import Line, lines
from kvstore.planner.load import Load
from kvstore.planner.requests import Requests

BLOCK_TOKENS = 512
FIELDS: tuple[str, ...] = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")


def recognises(line: Line) -> bool:
    """Whether a file with this first line is one."""
    return {*FIELDS} <= {*_cells(line)}


def read(path: Path) -> Load:
    """Raises Invalid, which names line and field."""
    every = lines(path)
    header = next(every)
    names = _cells(header)
    for name in FIELDS:
        if name not in names:
            raise header.missing(name, f"wants a header with {', '.join(FIELDS)}")
    time, context, generated = map(names.index, FIELDS)
    requests = Requests(BLOCK_TOKENS)
    start: datetime | None = None
    for line in every:
        cells = _cells(line)
        if len(cells) != len(names):
            raise line.unreadable(f"{len(cells)} fields; the header names {len(names)}")
        stamp = _time(line, cells[time])
        start = start or stamp
        stamp_s = (stamp - start).total_seconds()  # below 0 where an earlier one comes later
        if abs(stamp_s) > bounds.SECONDS_MAX:
            right = f"is over {bounds.SECONDS_MAX / 86_400:,.0f} days from the first"
            raise line.wrong("TIMESTAMP", cells[time], right)
        tokens = _count(line, "ContextTokens", cells[context], least=1)
        answer = _count(line, "GeneratedTokens", cells[generated], least=0)
        requests.add(line, stamp_s, tokens, answer, ())
    if start is None:
        raise header.unreadable("a header, and no request behind it")
    return requests.without_reuse()


def _cells(line: Line) -> list[str]:
    return [cell.strip() for cell in line.text.split(",")]


def _time(line: Line, text: str) -> datetime:
    try:
        stamp = datetime.fromisoformat(text)
    except ValueError:
        right = "wants a time, as in 2023-11-16 18:17:03.9799600"
        raise line.wrong("TIMESTAMP", text, right) from None
    return stamp if stamp.tzinfo else stamp.replace(tzinfo=UTC)


def _count(line: Line, field: str, text: str, least: int) -> int:
    if text.isascii() and text.isdigit() and len(text) < 20:
        value = int(text)
        if least <= value <= bounds.TOKENS_MAX:
            return value
    right = f"wants a whole number from {least} to {bounds.TOKENS_MAX:,}"
    raise line.wrong(field, text, right)
