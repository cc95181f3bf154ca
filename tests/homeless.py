"""A user whose home nobody knows, as that of a container often is: no HOME, and in no passwd."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture
def homeless(monkeypatch: pytest.MonkeyPatch) -> None:
    def nobody() -> Path:
        raise RuntimeError("Could not determine home directory.")  # as pathlib says it

    monkeypatch.setattr(Path, "home", nobody)
    for name in ("MOONPOOL_DIR", "XDG_STATE_HOME"):
        monkeypatch.delenv(name, raising=False)
