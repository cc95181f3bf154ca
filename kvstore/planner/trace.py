"""A trace file of any format the planner reads, told apart by its first line."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Protocol

from kvstore.errors import ConfigError
from kvstore.planner import arrivals, trace_azure, trace_mooncake, trace_qwen
from kvstore.planner.lines import Line, lines
from kvstore.planner.load import Load


class Format(Protocol):
    """What a module that reads a format has."""

    FIELDS: tuple[str, ...]

    def recognises(self, line: Line) -> bool: ...

    def read(self, path: Path) -> Load: ...


FORMATS: dict[str, Format] = {
    "azure": trace_azure,
    "qwen": trace_qwen,  # before Mooncake's, whose fields it has too
    "mooncake": trace_mooncake,
}
AUTO = "auto"


def read(path: Path, format: str = AUTO, spread_seed: int | None = None) -> Load:
    """The load in a file. With a seed, requests of one time are spread over the time to the next.

    Raises Invalid for a file that is not as it should be, ConfigError for a format there is not,
    and for a pipe whose format is to be told: what is read of one is gone.
    """
    if format != AUTO and format not in FORMATS:
        raise ConfigError(f"format = {format!r}: is one of {', '.join((AUTO, *FORMATS))}")
    if format == AUTO and path.is_fifo():
        raise ConfigError(
            f"{path}: is a pipe: say what it has, with --format {' or '.join(FORMATS)}"
        )
    load = (_format_of(path) if format == AUTO else FORMATS[format]).read(path)
    return load if spread_seed is None else arrivals.spread(load, spread_seed)


def _format_of(path: Path) -> Format:
    with closing(lines(path)) as every:
        line = next(every)
    for form in FORMATS.values():
        if form.recognises(line):
            return form
    known = "; ".join(f"{name} ({', '.join(form.FIELDS)})" for name, form in FORMATS.items())
    raise line.unreadable(f"of no format known here, which are {known}")
