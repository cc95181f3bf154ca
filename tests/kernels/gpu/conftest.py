"""Kernels of a GPU run on one where there is one, and elsewhere in Triton's interpreter."""

from __future__ import annotations

import os

import torch

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"  # before anything here imports a kernel
