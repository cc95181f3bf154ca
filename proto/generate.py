"""Writes the committed Python stubs from `proto/`: `python proto/generate.py`.

protoc 30 (grpcio-tools 1.72) is the oldest whose output runs under protobuf 6 and 7. It names
modules after the .proto path, so the imports are rewritten to where the stubs live.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

from grpc_tools import protoc

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = "kvstore.wire.v1"


def generate(target: Path) -> list[Path]:
    """Write stubs of every .proto into `target`; returns the files written."""
    target.mkdir(parents=True, exist_ok=True)
    source = ROOT / "proto"
    names = sorted(str(p.relative_to(source)) for p in source.rglob("*.proto"))
    # protoc wants the folders of the .proto path; the files are then lifted out of them.
    arguments = [f"--{kind}={target}" for kind in ("python_out", "pyi_out", "grpc_python_out")]
    if protoc.main(["protoc", f"-I{source}", *arguments, *names]) != 0:
        raise SystemExit("protoc failed")
    written = []
    for path in sorted((target / "moonpool" / "v1").iterdir()):
        text = re.sub(r"from moonpool\.v1 import", f"from {PACKAGE} import", path.read_text())
        lifted = target / path.name
        lifted.write_text(text)
        path.unlink()
        written.append(lifted)
    (target / "moonpool" / "v1").rmdir()
    (target / "moonpool").rmdir()
    return written


if __name__ == "__main__":
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "kvstore" / "wire" / "v1"
    for stub in generate(folder):
        print(stub)
