"""Whether an index can be read from end to end and written to, asked in a process of its own.

LMDB aborts the process that meets some kinds of damage, and a page that is missing from the file is
a SIGBUS: better for a child than for a node, which would never start again.
`python -m kvstore.disk.index_check PATH` ends with 0, or says what is wrong and ends with 1; with 2
where it is the system that keeps it from the index.
"""

from __future__ import annotations

import errno
import signal
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import lmdb

# A million blocks take half a second, and a cold disk reads their pages one after the other: of
# ten million some ten minutes, at a millisecond each. That it is slow is no damage.
CHECK_SECONDS = 3_600.0
DAMAGED, HINDERED = 1, 2
# Of these the index knows nothing: it may be as it was once there is memory, or the right to read.
_HINDRANCES = {errno.ENOMEM, errno.EMFILE, errno.ENFILE, errno.EACCES, errno.EPERM, errno.ENOSPC}
_CRASHES = {-signal.SIGABRT, -signal.SIGBUS, -signal.SIGSEGV}


def damage(path: Path, map_bytes: int) -> str:
    """What is wrong with the index; empty if nothing is. Nobody else may have it open."""
    command = [sys.executable, "-m", "kvstore.disk.index_check", str(path), str(map_bytes)]
    try:
        ran = subprocess.run(command, capture_output=True, text=True, timeout=CHECK_SECONDS)
    except subprocess.TimeoutExpired:
        raise OSError(f"the check of {path} was not done within {CHECK_SECONDS:.0f} s") from None
    if ran.returncode == 0:
        return ""
    if ran.returncode in _CRASHES:
        return f"reading it ends in {signal.Signals(-ran.returncode).name}"
    if ran.returncode == DAMAGED and ran.stdout:
        return ran.stdout.strip()
    raise OSError(f"the check of {path} ended with {ran.returncode}: {ran.stderr.strip()[-500:]}")


def main(path: str, map_bytes: str) -> int:
    try:
        environment = lmdb.open(path, map_size=int(map_bytes), create=False)
        with environment.begin() as transaction:
            # Where a page is named twice the tree may go on for ever, and nothing else tells.
            keys = transaction.cursor().iternext(values=False)
            if not all(before < key for before, key in pairwise(keys)):
                print("its keys are in no order")
                return DAMAGED
        with environment.begin(write=True) as transaction:
            transaction.put(b"\0", b"")  # takes from the list of free pages
            transaction.abort()
        environment.close()
    except lmdb.Error as error:
        if error.code in _HINDRANCES:
            print(error, file=sys.stderr)
            return HINDERED
        print(error)
        return DAMAGED
    return 0


if __name__ == "__main__":
    raise SystemExit(main(*sys.argv[1:]))
