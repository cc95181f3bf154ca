"""The file that says how a path of the SSD tier was laid out: no restart reads it otherwise.

It is written last, when all that it tells of is there, and replaced whole: a start that was cut off
leaves the layout before it, or none, and can be repeated with any size.
"""

from __future__ import annotations

import json
import secrets
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Self

from kvstore.disk.files import replace_file
from kvstore.errors import ConfigError

FORMAT = 2  # 1 had no id
_ID_BYTES = 32
_NAME = "layout.json"


@dataclass(frozen=True, slots=True)
class Header:
    """`files` data files of `file_bytes` each, and what tells this path from any other."""

    files: int
    file_bytes: int
    id: str = field(default_factory=lambda: secrets.token_hex(_ID_BYTES))
    format: int = FORMAT

    @classmethod
    def read(cls, path: Path) -> Self | None:
        """The header of the directory; None where there is none yet."""
        try:
            text = (path / _NAME).read_bytes()
        except FileNotFoundError:
            return None
        try:
            fields = json.loads(text)
            if isinstance(fields, dict) and fields.get("format", FORMAT) != FORMAT:
                raise ConfigError(
                    f"node.ssd {str(path)!r} has format {fields['format']}, this Moonpool reads "
                    f"{FORMAT}: start the version that wrote it, or empty the directory"
                )
            header = cls(**fields)
            if not all(type(one) is int and one > 0 for one in (header.files, header.file_bytes)):
                raise ValueError("it is to name whole numbers")
            if "id" not in fields or len(bytes.fromhex(header.id)) != _ID_BYTES:
                raise ValueError(f"its id is to be {2 * _ID_BYTES} hex digits")
        except (ValueError, TypeError) as error:
            raise ConfigError(
                f"node.ssd {str(path)!r}: {_NAME} there cannot be read ({error}): give another "
                "directory, or empty this one"
            ) from error
        return header

    def write(self, path: Path) -> None:
        replace_file(path / _NAME, json.dumps(asdict(self)).encode() + b"\n")

    def check_follows(self, before: Header, path: Path) -> None:
        """Refuse a layout that would lose what one before it holds. More files are welcome."""
        at = f"node.ssd {str(path)!r}"
        if before.file_bytes != self.file_bytes:
            raise ConfigError(
                f"{at} was made with files of {before.file_bytes} bytes, not {self.file_bytes}: "
                "start with the --slab and the size it was made with, or empty the directory"
            )
        if before.files > self.files:
            raise ConfigError(
                f"{at} holds {before.files} files of {self.file_bytes} bytes, and its size would "
                f"allow {self.files}: give at least {before.files * self.file_bytes} bytes, or "
                "empty the directory"
            )
