"""The guide says who may call what as the table has it."""

from __future__ import annotations

import re

from kvstore.rpc.access import ACCESS, ANYBODY, Role
from tests.tree import ROOT


def test_the_guide_names_every_call_that_a_conductor_may_make_and_no_other() -> None:
    page = (ROOT / "deploy" / "guide" / "security.md").read_text()
    (row,) = re.findall(r"(?m)^\| a conductor \|.*$", page)
    allowed = {
        method.removeprefix("/moonpool.v1.").replace("/", ".")
        for method, rule in ACCESS.items()
        if Role.CONDUCTOR in rule.roles and rule is not ANYBODY
    }
    assert set(re.findall(r"`(\w+\.\w+)`", row)) == allowed
