"""The command line as a whole: every help teaches, and Ctrl-C is never a traceback."""

from __future__ import annotations

import argparse
import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest

from kvstore.cli.main import command_line

Parser = argparse.ArgumentParser

INTERRUPTED_WHILE_IT_IS_LOADED = """
import os, runpy, signal, sys

class Interrupts:
    def find_spec(self, name, path=None, target=None):
        if name == "kvstore.cli.main":
            os.kill(os.getpid(), signal.SIGINT)

sys.meta_path.insert(0, Interrupts())
runpy.run_module("kvstore", run_name="__main__", alter_sys=True)
"""


def commands(parser: Parser, name: str = "moonpool") -> Iterator[tuple[str, Parser]]:
    """Every command that helps name, and those under it."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for told in action._choices_actions:
                under = action.choices[told.dest]
                yield f"{name} {told.dest}", under
                yield from commands(under, f"{name} {told.dest}")


COMMANDS = dict(commands(command_line()))


@pytest.mark.parametrize("name", COMMANDS)
def test_the_help_of_every_command_has_an_example_and_says_what_each_option_is(name: str) -> None:
    parser = COMMANDS[name]
    text = parser.format_help()
    assert f"example:\n  {name}" in text
    for action in parser._actions:
        # What is one of several commands says so by their list.
        assert action.help or isinstance(action, argparse._SubParsersAction), action


def test_the_commands_are_all_there() -> None:
    assert {"moonpool node", "moonpool plan", "moonpool token new"} <= COMMANDS.keys()
    assert "moonpool rank" not in COMMANDS, "no person runs it"


def test_ctrl_c_while_the_command_is_loaded_ends_it_without_a_word() -> None:
    ran = subprocess.run(
        [sys.executable, "-c", INTERRUPTED_WHILE_IT_IS_LOADED, "stat"],
        capture_output=True,
        text=True,
        timeout=60,
        start_new_session=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    assert (ran.returncode, ran.stderr) == (-signal.SIGINT, "")


def test_ctrl_c_is_an_interrupt_again_once_it_is_loaded() -> None:
    told = "import signal, kvstore.__main__; print(signal.getsignal(signal.SIGINT).__name__)"
    ran = subprocess.run(
        [sys.executable, "-c", told],
        capture_output=True,
        text=True,
        timeout=60,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    assert ran.stdout == "default_int_handler\n", ran.stderr
