"""A process of its own with a disk: `python -m tests.disk.child HOW PATH`; says how it went.

hold      opens the disk, says "ready" and keeps it until its input ends
sync      writes and syncs twice, and says of each sync whether it passed
commit    commits twice, says of each whether it passed, and how many keys there are then
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

from kvstore.disk.local import LocalDisk
from kvstore.disk.protocol import DiskError
from kvstore.limits import KiB
from tests.disk.memory import page

SIZE = FILE_BYTES = 256 * KiB


def outcome(call: Callable[[], None]) -> str:
    try:
        call()
    except DiskError as error:
        return f"{type(error).__name__}: {error}"
    return "passed"


def main(how: str, path: str) -> None:
    disk = LocalDisk.open(Path(path), SIZE, FILE_BYTES, FILE_BYTES, buffered=True)
    if how == "hold":
        print("ready", flush=True)
        sys.stdin.read()
    for number in range(2):
        if how == "sync":
            disk.write(0, 0, [page(number)])
            print(outcome(lambda: disk.sync(0)))
        if how == "commit":
            print(outcome(lambda key=b"%d" % number: disk.commit({key: b"value"}, ())))
    print(len(list(disk.scan())))
    disk.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
