"""Compiled code is dropped when any source beside it is newer."""

from __future__ import annotations

import os
from pathlib import Path

from kvstore.kernels.stale import forget_stale


def test_code_older_than_any_source_beside_it_is_forgotten(tmp_path: Path) -> None:
    module, part, cache = tmp_path / "loops.py", tmp_path / "part.py", tmp_path / "__pycache__"
    cache.mkdir()
    code, other = cache / "loops.f-1.py311.1.nbc", cache / "else.f-1.py311.nbi"
    for path in (module, part, code, other):
        path.touch()
    for path, seconds in ((module, 10), (part, 20), (code, 30), (other, 5)):
        os.utime(path, (seconds, seconds))
    forget_stale(str(module))
    assert code.exists(), "it is newer than all sources"
    os.utime(part, (40, 40))
    forget_stale(str(module))
    assert not code.exists()
    assert other.exists(), "another module's code is its own business"
