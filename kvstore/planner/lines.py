"""The lines of a trace file, one at a time, and the fields of one that is JSON.

What is wrong is an `Invalid` that names file, line and field, and says what would be right. A
number with a point is read as a decimal, so that a time is not rounded before its unit is changed.
"""

from __future__ import annotations

import gzip
import json
import reprlib
import zlib
from collections.abc import Generator
from dataclasses import dataclass
from decimal import Decimal
from io import BufferedReader
from pathlib import Path
from typing import Any

from kvstore.errors import Invalid
from kvstore.planner import bounds

_GZIP = b"\x1f\x8b"
_BOM = b"\xef\xbb\xbf"  # some spreadsheets put it before what they write


@dataclass(frozen=True, slots=True)
class Line:
    """A line that is not blank, without its end."""

    path: Path
    number: int  # from 1
    text: str

    def wrong(self, field: str, value: object, right: str) -> Invalid:
        shown = str(value) if isinstance(value, Decimal) else reprlib.repr(value)
        return Invalid(f"{self.path}:{self.number}: {field} = {shown[:60]}: {right}")

    def missing(self, field: str, right: str) -> Invalid:
        return Invalid(f"{self.path}:{self.number}: {field} is not there: {right}")

    def unreadable(self, why: str) -> Invalid:
        return Invalid(f"{self.path}:{self.number}: {why}")


def lines(path: Path) -> Generator[Line, None, None]:
    """The lines of the file that are not blank, unpacked where it is one of gzip. Raises Invalid,
    also when there are none."""
    try:
        with _opened(path) as file:
            number = 0
            some = False
            while raw := file.readline(bounds.LINE_BYTES_MAX + 1):
                number += 1
                if len(raw) > bounds.LINE_BYTES_MAX:
                    most = f"{bounds.LINE_BYTES_MAX:,}"
                    raise Invalid(f"{path}:{number}: a line of more than {most} bytes")
                try:
                    text = raw.removeprefix(_BOM if number == 1 else b"").decode().strip()
                except UnicodeDecodeError:
                    raise Invalid(f"{path}:{number}: not text in UTF-8") from None
                if text:
                    some = True
                    yield Line(path, number, text)
            if not some:
                raise Invalid(f"{path}: no request in it")
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise Invalid(f"{path}: gzip cannot unpack it to its end: {error}") from None
    except OSError as error:
        raise Invalid(f"{path}: {error.strerror or error}") from None


def _opened(path: Path) -> BufferedReader | _Unpacked:
    """Looked at once alone: what is read from a pipe is gone."""
    file = path.open("rb")
    packed = file.peek(len(_GZIP))[: len(_GZIP)] == _GZIP
    return _Unpacked(file) if packed else file


class _Unpacked(gzip.GzipFile):
    """Closes the file that it reads, too."""

    def __init__(self, file: BufferedReader) -> None:
        super().__init__(fileobj=file, mode="rb")
        self._packed = file

    def close(self) -> None:
        super().close()
        self._packed.close()


@dataclass(frozen=True, slots=True)
class Record:
    """A line that is a JSON object."""

    line: Line
    values: dict[str, Any]

    def get(self, field: str) -> Any:
        if field not in self.values:
            there = (one if one.isprintable() else ascii(one) for one in self.values)
            raise self.line.missing(field, f"has {', '.join(there) or 'no fields'}"[:200])
        return self.values[field]

    def count(self, field: str, least: int) -> int:
        """A number of tokens."""
        value = self.get(field)
        if type(value) is not int or not least <= value <= bounds.TOKENS_MAX:
            most = f"{bounds.TOKENS_MAX:,}"
            raise self.line.wrong(field, value, f"wants a whole number from {least} to {most}")
        return value

    def seconds(self, field: str, power: int) -> float:
        """A time in units of 10**-power seconds."""
        value = self.get(field)
        if type(value) in (int, Decimal):
            most = int(bounds.SECONDS_MAX) * 10**power
            if 0 <= value <= most:
                return float(Decimal(value).scaleb(-power))
        unit = {0: "seconds", 3: "milliseconds"}[power]
        days = f"{bounds.SECONDS_MAX / 86_400:,.0f} days"
        raise self.line.wrong(field, value, f"wants {unit} from 0 to {days}, as a number")

    def ids(self, field: str, count: int, tokens: int) -> list[int]:
        """Ids of as many blocks as are wanted for a prompt of so many tokens."""
        value = self.get(field)
        if not isinstance(value, list):
            raise self.line.wrong(field, value, "wants a list of whole numbers")
        for place, one in enumerate(value):
            if type(one) is not int or not 0 <= one < bounds.ID_END:
                right = "wants a whole number from 0 to 2**64 - 1"
                raise self.line.wrong(f"{field}[{place}]", one, right)
        if len(value) != count:
            right = f"has {len(value)} ids; {tokens:,} tokens are {count} blocks"
            raise self.line.wrong(field, value, right)
        return value


def record(line: Line) -> Record:
    """Raises Invalid where the line is not a JSON object."""
    try:
        values = json.loads(line.text, parse_float=Decimal)
    except (ValueError, ArithmeticError, RecursionError) as error:
        raise line.unreadable(f"not JSON: {error}"[:200]) from None
    if not isinstance(values, dict):
        raise line.unreadable('not a JSON object, as in {"timestamp": 0, ...}')
    return Record(line, values)
