"""torchvision, which SGLang imports for images and the cache never calls, is made up where absent.

Its wheels are built for one torch build each, and none on the package index is for the CPU's.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import importlib.util
import sys
import types
from collections.abc import Sequence
from typing import Any


class Absent(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds any module of one package, and any class in it: an empty one."""

    def __init__(self, package: str) -> None:
        self._package = package

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: Any = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name.split(".")[0] != self._package:
            return None
        return importlib.machinery.ModuleSpec(name, self, is_package=True)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        def made_up(attribute: str) -> type:
            if attribute.startswith("__"):
                raise AttributeError(attribute)
            return type(attribute, (), {})

        module = types.ModuleType(spec.name)
        module.__getattr__ = made_up  # type: ignore[method-assign]
        return module

    def exec_module(self, module: types.ModuleType) -> None:
        pass


def make_up_torchvision() -> None:
    """Once transformers has looked for the real one, so that it does not count on it."""
    import transformers.utils.import_utils  # noqa: F401

    if importlib.util.find_spec("torchvision") is None:
        sys.meta_path.append(Absent("torchvision"))
