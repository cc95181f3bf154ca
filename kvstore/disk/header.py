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

from kvstore.config import in_units
from kvstore.disk.files import replace_file
from kvstore.disk.protocol import DISK_ALIGN
from kvstore.errors import ConfigError

FORMAT = 3  # 2 had no slab_bytes, 1 had no id
_READ = (2, FORMAT)
_ID_BYTES = 32
LAYOUT = "layout.json"


@dataclass(frozen=True, slots=True)
class Header:
    """`files` data files of `file_bytes` each, in slabs of `slab_bytes`, and what tells this path
    from any other."""

    files: int
    file_bytes: int
    slab_bytes: int = 0  # 0: it was written before this was, and nobody knows
    id: str = field(default_factory=lambda: secrets.token_hex(_ID_BYTES))
    format: int = FORMAT

    @classmethod
    def of(cls, path: Path, size_bytes: int, file_bytes: int, slab_bytes: int) -> Self:
        """What a path is to be laid out as. Raises `ConfigError` where none can be."""
        at = f"node.ssd {str(path)!r}"
        if file_bytes < DISK_ALIGN or file_bytes % DISK_ALIGN:
            raise ConfigError(f"{at}: files of {file_bytes} bytes: give a multiple of {DISK_ALIGN}")
        if size_bytes < file_bytes:
            raise ConfigError(
                f"{at}: a size of {in_units(size_bytes)} holds no file of {in_units(file_bytes)}: "
                "give at least as much, or leave node.ssd away"
            )
        if path.exists() and not path.is_dir():
            raise ConfigError(
                f"{at} is not a directory: give a directory, or a path to make one at"
            )
        return cls(size_bytes // file_bytes, file_bytes, slab_bytes)

    @classmethod
    def read(cls, path: Path) -> Self | None:
        """The header of the directory; None where there is none yet."""
        try:
            text = (path / LAYOUT).read_bytes()
        except FileNotFoundError:
            return None
        try:
            fields = json.loads(text)
            if isinstance(fields, dict) and fields.get("format", FORMAT) not in _READ:
                raise ConfigError(
                    f"node.ssd {str(path)!r} has format {fields['format']}, this Moonpool reads "
                    f"{FORMAT}: start the version that wrote it, or empty the directory"
                )
            header = cls(**fields)
            numbers = (header.files, header.file_bytes, header.slab_bytes)
            if (
                not all(type(one) is int for one in numbers)
                or not min(numbers[:2]) > 0 <= numbers[2]
            ):
                raise ValueError("it is to name whole numbers")
            if "id" not in fields or len(bytes.fromhex(header.id)) != _ID_BYTES:
                raise ValueError(f"its id is to be {2 * _ID_BYTES} hex digits")
        except (ValueError, TypeError) as error:
            raise ConfigError(
                f"node.ssd {str(path)!r}: {LAYOUT} there cannot be read ({error}): give another "
                "directory, or empty this one"
            ) from error
        return header

    def write(self, path: Path) -> None:
        replace_file(path / LAYOUT, json.dumps(asdict(self)).encode() + b"\n")

    def before(self, path: Path) -> Self | None:
        """The header that the directory has; None where there is none yet. Raises `ConfigError` of
        one that this may not follow."""
        found = self.read(path)
        if found is not None:
            self.check_follows(found, path)
        return found

    def check_follows(self, before: Header, path: Path) -> None:
        """Refuse a layout that would lose what one before it holds. More files are welcome."""
        at = f"node.ssd {str(path)!r}"
        if before.slab_bytes not in (0, self.slab_bytes):
            raise ConfigError(
                f"{at} was made with slabs of {in_units(before.slab_bytes)}, not "
                f"{in_units(self.slab_bytes)}: start with --slab {in_units(before.slab_bytes)}, or "
                "empty the directory"
            )
        if before.file_bytes % self.slab_bytes:
            raise ConfigError(
                f"{at} was made with files of {in_units(before.file_bytes)}, which are no whole "
                f"slabs of {in_units(self.slab_bytes)}: start with the --slab it was made with, or "
                "empty the directory"
            )
        if before.file_bytes != self.file_bytes:
            raise ConfigError(
                f"{at} was made with files of {in_units(before.file_bytes)}, not "
                f"{in_units(self.file_bytes)}: start with the --slab and the size it was made "
                "with, or empty the directory"
            )
        if before.files > self.files:
            raise ConfigError(
                f"{at} holds {before.files} files of {in_units(self.file_bytes)}, and its size "
                f"would allow {self.files}: give at least "
                f"{in_units(before.files * self.file_bytes)}, or empty the directory"
            )
