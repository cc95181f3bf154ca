"""How seldom a process of ours looks for garbage, and among what: what is there to stay is not
looked through time and again.

Modules are, a million objects in an engine: to look through those as they come was an eighth of
what its imports take. And what a server stands on: to look through all of it would hold up
everybody who is served, for some 70 ms in a conductor.
"""

from __future__ import annotations

import gc

from kvstore.limits import GARBAGE_MIDDLE, GARBAGE_OLD, GARBAGE_YOUNG


def look_seldom() -> None:
    """Call it first of all, before what takes long to import."""
    gc.set_threshold(GARBAGE_YOUNG, GARBAGE_MIDDLE, GARBAGE_OLD)


def keep_what_stands() -> None:
    """Call it once all stands that the process keeps for as long as it runs."""
    gc.freeze()
