"""Which launches were measured to be better than the defaults, on which device: a file's text.

`python -m bench tune --write` writes it; no person does. What is read is believed only if each
launch is a candidate of its program, and for the compiler that it was measured with: another may
want more shared memory than the device has. Formatted twice it is the same text, so that what
changed is all that a diff shows.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from .launch import CANDIDATES, Launch

PATH = Path(__file__).with_name("launches.json")
ABOUT = "Written by `python -m bench tune --write` on a GPU; a device not named has the defaults."
Launches = Mapping[tuple[str, str], Launch]  # by program and shape


class BadTable(ValueError):
    """A table, or a device's part of it, is not as `formatted` makes it. Says what is wrong."""


@dataclass(frozen=True, slots=True)
class Tuned:
    """What one run found on a device: the launches that won, by program and shape. What is not
    named was not better than the default, or not measured."""

    torch: str  # versions
    triton: str
    command: str
    date: str
    launches: Launches


def formatted(devices: Mapping[str, Tuned]) -> str:
    """The file's text."""
    told = {name: _told(one) for name, one in sorted(devices.items())}
    about = ABOUT if told else f"{ABOUT} None has been measured yet."
    return json.dumps({"about": about, "devices": told}, indent=2) + "\n"


def parsed(text: str) -> dict[str, Tuned]:
    """All devices of a file. Raises `BadTable`."""
    return {name: _tuned(name, one) for name, one in _devices(text).items()}


def launches_of(text: str, device: str, triton: str) -> Launches:
    """Those of one device, none where the table does not name it. Raises `BadTable` where its part
    is damaged, or was measured with another minor version than `triton`; what other devices' parts
    are is not looked at."""
    found = _devices(text).get(device)
    if found is None:
        return {}
    tuned = _tuned(device, found)
    if _minor(tuned.triton) != _minor(triton):
        raise BadTable(f"they were measured with Triton {tuned.triton}, and this is {triton}")
    return tuned.launches


def _devices(text: str) -> dict[str, Any]:
    try:
        whole = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise BadTable(f"the table is no JSON: {error}") from error
    devices = whole.get("devices") if isinstance(whole, dict) else None
    if not isinstance(devices, dict):
        raise BadTable("the table has no devices")
    return devices


def _told(tuned: Tuned) -> dict[str, Any]:
    told: dict[str, Any] = {one.name: getattr(tuned, one.name) for one in fields(tuned)}
    launches: dict[str, dict[str, Any]] = {}
    for (program, shape), launch in sorted(tuned.launches.items()):
        launches.setdefault(program, {})[shape] = asdict(launch)
    return {**told, "launches": launches}


def _tuned(name: str, told: Any) -> Tuned:
    try:
        words = {one.name: told[one.name] for one in fields(Tuned) if one.name != "launches"}
        launches = {
            (program, shape): Launch(**launch)
            for program, shapes in told["launches"].items()
            for shape, launch in shapes.items()
        }
    except (AttributeError, KeyError, TypeError) as error:
        raise BadTable(f"what the table has of {name!r} is no such part: {error!r}") from error
    if not all(isinstance(word, str) for word in words.values()):
        raise BadTable(f"what the table has of {name!r} does not say how it was measured")
    known = {where: _candidate(name, *where, launch) for where, launch in launches.items()}
    return Tuned(**words, launches=known)


def _candidate(name: str, program: str, shape: str, launch: Launch) -> Launch:
    """The candidate that is meant: 4.0 is equal to 4, and Triton takes only one of them."""
    for one in CANDIDATES.get(program, ()):
        if one == launch:
            return one
    raise BadTable(f"{launch} is no candidate of {program!r} ({shape}, {name!r})")


def _minor(version: str) -> list[str]:
    return version.split(".")[:2]
