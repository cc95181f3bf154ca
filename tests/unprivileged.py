"""Processes of ours without what root alone may: to pass over the modes of files and folders.

A test suite that root runs would otherwise miss what fails for everybody else. The user stays the
same, so that the interpreter and the sources can be read wherever they are.
"""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

_RIGHTS = ",".join(f"-{one}" for one in ("dac_override", "dac_read_search", "fowner"))
_WITHOUT = ["setpriv", f"--bounding-set={_RIGHTS}", f"--inh-caps={_RIGHTS}"]  # of util-linux


@pytest.fixture
def unprivileged(tmp_path: Path) -> Iterator[None]:
    """Whatever `Child` starts meanwhile, and whatever those start. Who is not root has no more."""
    if os.geteuid() != 0:
        yield
        return
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nexec {shlex.join([*_WITHOUT, sys.executable])} "$@"\n')
    python.chmod(0o700)
    with pytest.MonkeyPatch.context() as started:
        started.setattr(sys, "executable", os.fspath(python))
        yield
