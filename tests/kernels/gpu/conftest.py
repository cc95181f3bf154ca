"""Kernels of a GPU run on one where there is one, and elsewhere in Triton's interpreter, fenced."""

from __future__ import annotations

import pytest

import tests.gpu  # noqa: F401  (before anything here imports a kernel)


@pytest.fixture(autouse=True)
def _all_are_fenced(fenced: None) -> None:
    """What a test here launches stays within what it is told of."""
