"""Where GPU code runs in tests: on a GPU where there is one, else in Triton's interpreter.

Imported before any kernel is: the interpreter is chosen when a kernel is read.
"""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import replace
from typing import Any

import torch

# With its number, as tensors that are there say it.
DEVICE = torch.device("cuda", 0) if torch.cuda.is_available() else torch.device("cpu")

if DEVICE.type == "cpu":
    os.environ["TRITON_INTERPRET"] = "1"


def _call(function: Any, *arguments: Any, **named: Any) -> Any:
    return function.rewrite()(*arguments, **named)


def _hasten() -> None:
    """Leave out what takes three quarters of the interpreter's time and tells nothing.

    At each call of a function by a kernel it makes Triton's language its own once more. A launch
    does so for what our kernels see of it; what Triton's own functions see is done here, for good,
    as the first of their calls would leave it. And it works out what overflows, which is then not
    looked at: nobody set `debug`.
    """
    from triton.language import standard
    from triton.runtime import interpreter

    interpreter._patch_lang(standard.cdiv.fn)
    interpreter.InterpretedFunction.__call__ = _call
    builder = interpreter.interpreter_builder
    assert not builder.options.debug
    builder.options = replace(builder.options, sanitize_overflow=False)


if DEVICE.type == "cpu":
    with suppress(ImportError):  # without Triton there are no kernels
        _hasten()
