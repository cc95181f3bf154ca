"""Where GPU code runs in tests: on a GPU where there is one, else in Triton's interpreter.

Imported before any kernel is: the interpreter is chosen when a kernel is read.
"""

from __future__ import annotations

import os

import torch

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")

if DEVICE.type == "cpu":
    os.environ["TRITON_INTERPRET"] = "1"
