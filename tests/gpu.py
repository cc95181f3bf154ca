"""Where GPU code runs in tests: on a GPU where there is one, else in Triton's interpreter.

Imported before any kernel is: the interpreter is chosen when a kernel is read.
"""

from __future__ import annotations

import os

import torch

# With its number, as tensors that are there say it.
DEVICE = torch.device("cuda", 0) if torch.cuda.is_available() else torch.device("cpu")

if DEVICE.type == "cpu":
    os.environ["TRITON_INTERPRET"] = "1"
