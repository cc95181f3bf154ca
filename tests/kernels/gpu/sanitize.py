"""The tests of the GPU's kernels under memcheck, of NVIDIA's compute-sanitizer: on a device it sees
each access that they make. `make sanitize` runs this.

memcheck knows of allocations. So torch is told to ask CUDA for each tensor by itself, and behind
each there is room that is nobody's: one's end is not another's start. Whether calls of CUDA succeed
is for their callers. Of its other tools racecheck looks at shared memory, where these programs keep
nothing of their own, and initcheck would name the ends of slots, which short blocks leave as they
were.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping

import torch

from tests import tree

PROGRAM = "compute-sanitizer"
ALONE = {"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}
OPTIONS = (
    *("--tool", "memcheck", "--error-exitcode", "1", "--padding", "4096"),
    *("--target-processes", "application-only", "--report-api-errors", "no"),
)
TESTS = (sys.executable, "-m", "pytest", "tests/kernels/gpu")


def program(environment: Mapping[str, str]) -> str | None:
    """Where it is: on the path, or with the CUDA toolkit."""
    home = environment.get("CUDA_HOME", "/usr/local/cuda")
    path = os.pathsep.join([environment.get("PATH", ""), f"{home}/bin"])
    return shutil.which(PROGRAM, path=path)


def main() -> int:
    """What the tests end with, or 1 where memcheck found something, or something is missing."""
    found, missing = program(os.environ), list[str]()
    if not torch.cuda.is_available():
        missing.append(f"torch {torch.__version__} finds no CUDA device here")
    if found is None:
        missing.append(f"there is no {PROGRAM} on PATH or in $CUDA_HOME/bin: CUDA's toolkit has it")
    if found is None or missing:
        print("make sanitize: " + "; and ".join(missing), file=sys.stderr)
        return 1
    ran = subprocess.run([found, *OPTIONS, *TESTS], cwd=tree.ROOT, env=os.environ | ALONE)
    return ran.returncode


if __name__ == "__main__":
    sys.exit(main())
