"""Kernels of a GPU run on one where there is one, and elsewhere in Triton's interpreter."""

from __future__ import annotations

import tests.gpu  # noqa: F401  (before anything here imports a kernel)
