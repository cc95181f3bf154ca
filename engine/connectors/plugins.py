"""Plug-ins of the engine that a connector is in: what is installed beside it, and run in it.

A plug-in may patch a model, or bring one, so what it computes is named with it. An engine loads
each that is installed unless it is told which, and so the setting that tells it names nothing by
itself: what is named is what that leaves. A version stands for its code.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from importlib.metadata import EntryPoint, entry_points


def loaded(groups: Iterable[str], own: str, only: Collection[str] | None = None) -> list[str]:
    """Each that an engine loads from these groups of entry points, but those of its `own` package,
    which are of its version. `only` has the names that it was told; None: it was told none."""
    return sorted(
        f"{group} {one.name} = {one.value} of {_distribution(one)}"
        for group in groups
        for one in entry_points(group=group)
        if not one.value.startswith((f"{own}.", f"{own}:")) and (only is None or one.name in only)
    )


def _distribution(one: EntryPoint) -> str:
    return f"{one.dist.name} {one.dist.version}" if one.dist else "nothing that is installed"
