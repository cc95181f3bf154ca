"""The command line as a whole: every help teaches, and Ctrl-C is never a traceback."""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from importlib.metadata import version

import pytest

from kvstore.cli import roles
from kvstore.cli.main import COMMANDS as MODULES
from kvstore.cli.main import command_line, main
from tests.homeless import homeless

__all__ = ["homeless"]

Parser = argparse.ArgumentParser

INTERRUPTED_WHILE_IT_IS_LOADED = """
import os, runpy, signal, sys

class Interrupts:
    def find_spec(self, name, path=None, target=None):
        if name == "{}":
            os.kill(os.getpid(), signal.SIGINT)

sys.meta_path.insert(0, Interrupts())
runpy.run_module("kvstore", run_name="__main__", alter_sys=True)
"""


PRINTS = """
import sys
from kvstore.cli import roles
from kvstore.cli.main import main

roles.run_roles = lambda _: print("some of it") or 0
sys.exit(main(sys.argv[1:]))
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


def test_serve_s_help_names_engines_of_each_kind_and_how_they_are_written() -> None:
    said = " ".join(COMMANDS["moonpool serve"].format_help().split())
    for server in ("http://HOST:PORT of a vLLM server", "sglang://HOST:PORT of an SGLang server"):
        assert server in said
    whole = " ".join(command_line().format_help().split())
    assert "over HTTP through engines, vLLM and SGLang servers" in whole


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


@pytest.mark.parametrize("module", MODULES)
def test_commands_are_found_where_they_stand(module: str) -> None:
    for name in MODULES[module].split():
        [found] = command_line(name)._subparsers._group_actions
        assert list(found.choices or ()) == MODULES[module].split()


def test_no_command_loads_an_engine_or_a_compiler_and_one_loads_nothing_of_the_others() -> None:
    told = "import sys; from kvstore.cli.main import command_line as made; made(*sys.argv[1:]);"
    told += "print(*sys.modules)"
    every, one = (
        subprocess.run([sys.executable, "-c", told, *given], capture_output=True, text=True)
        for given in ([], ["stat"])
    )
    loaded = set(every.stdout.split())
    assert "kvstore.cli.plan" in loaded
    assert not {"torch", "transformers", "numba", "llvmlite"} & loaded
    assert "kvstore.cli.admin" in one.stdout.split()
    assert not {"kvstore.cli.plan", "kvstore.cli.doctor", "numpy"} & set(one.stdout.split())


def test_who_names_no_command_is_told_of_all_that_people_run(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["start"])
    told = capsys.readouterr().err
    assert ended.value.code == 2 and "'start'" in told
    names = {name for names in MODULES.values() for name in names.split()}
    assert {name for name in names if f"'{name}'" in told} == names - {"rank"}


@pytest.mark.parametrize(
    "asked",
    [
        "ls --node 127.0.0.1:1 --limit -1",
        "ls --node 127.0.0.1:1 --limit 99999999999",
        "replicate --node 127.0.0.1:1 --namespace ab --copies -1",
        "replicate --node 127.0.0.1:1 --namespace ab --copies 99999999999",
        "replicate --node 127.0.0.1:1 --namespace ab --copies 2 --group -1",
        "make-model tiny --seed -1",
        "engine --model tiny --threads -1",
    ],
)
def test_a_number_that_nothing_takes_is_refused_by_its_options_name(
    asked: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(asked.split()) == 2
    option, number = asked.split()[-2:]
    assert f"moonpool: {option} {number}: " in capsys.readouterr().err


def test_the_version_is_that_of_what_is_installed(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--version"])
    assert ended.value.code == 0
    assert capsys.readouterr().out == f"moonpool {version('moonpool')}\n"


@pytest.mark.parametrize(
    ("module", "ends"),
    [("kvstore.cli.main", (-signal.SIGINT, "")), ("kvstore.cli.admin", (130, "interrupted\n"))],
)
def test_ctrl_c_while_a_command_is_loaded_ends_it_without_a_traceback(
    module: str, ends: tuple[int, str]
) -> None:
    ran = subprocess.run(
        [sys.executable, "-c", INTERRUPTED_WHILE_IT_IS_LOADED.format(module), "stat"],
        capture_output=True,
        text=True,
        timeout=60,
        start_new_session=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    assert (ran.returncode, ran.stderr) == ends


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


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (FileNotFoundError(2, "No such file or directory", "a.bin"), "a.bin: No such file or"),
        (OSError(28, "No space left on device"), "No space left on device\n"),
        (OSError("all of 2 addresses failed"), "all of 2 addresses failed\n"),
        (TimeoutError(), "TimeoutError\n"),
        (BrokenPipeError(32, "Broken pipe"), "Broken pipe\n"),  # not that of what it prints
    ],
)
def test_what_the_system_refuses_is_told_with_what_is_known_of_it(
    error: OSError,
    said: str,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    def fails(_: object) -> int:
        raise error

    monkeypatch.setattr(roles, "run_roles", fails)
    assert main(["roles", "--conductor", "127.0.0.1:1"]) == 1
    assert capfd.readouterr().err.startswith(f"moonpool: {said}")


def test_a_command_does_not_end_well_where_only_the_reader_of_its_progress_has_left(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    reads, writes = os.pipe()
    os.close(reads)
    with monkeypatch.context() as patched:
        patched.setattr(sys, "stderr", os.fdopen(writes, "w", buffering=1))
        patched.setattr(roles, "run_roles", lambda _: print("on its way", file=sys.stderr))
        assert main(["roles", "--conductor", "127.0.0.1:1"]) == 1, "it may not be done"


def test_a_command_whose_stderr_is_closed_ends_well_where_nobody_reads_on() -> None:
    """As `moonpool --help 2>&- | true` does."""
    reads, writes = os.pipe()
    os.close(reads)
    ran = subprocess.run(
        ["sh", "-c", 'exec "$0" -m kvstore --help 2>&-', sys.executable], stdout=writes, timeout=60
    )
    os.close(writes)
    assert ran.returncode == 0


@pytest.mark.parametrize(
    ("asked", "ends"),
    [
        ("stat --help", (0, "")),
        ("stat --node 127.0.0.1:1", (1, "127.0.0.1:1")),
        ("doctor --node 127.0.0.1:1", (1, "127.0.0.1:1")),
        ("stat", (2, "give --dir PATH or set MOONPOOL_DIR")),
        ("tenant ls", (2, "give --dir PATH or set MOONPOOL_DIR")),
        ("tenant ls --metadata none", (1, "no node has kept its metadata in none")),
        ("conductor --listen 10.0.0.1:1", (2, "give --dir PATH or set MOONPOOL_DIR")),
        ("conductor --listen 10.0.0.1:1 --etcd http://127.0.0.1:1", (2, "over TLS only")),
        ("health", (2, "give --dir PATH or set MOONPOOL_DIR")),
    ],
)
def test_whose_user_has_no_home_is_asked_for_a_directory_where_one_is_needed(
    asked: str,
    ends: tuple[int, str],
    homeless: None,
    capsys: pytest.CaptureFixture[str],
) -> None:
    try:
        code = main(asked.split())
    except SystemExit as ended:  # argparse's own way
        code = int(ended.code or 0)
    said = capsys.readouterr()
    assert code == ends[0] and ends[1] in said.out + said.err


def ended_printing_to(output: int, *asked: str) -> tuple[int, str]:
    """The exit code and what is said to be wrong, where all that is printed goes there."""
    ran = subprocess.run(
        [sys.executable, "-c", PRINTS, *asked],
        stdout=output,
        stderr=subprocess.PIPE,
        text=True,
        timeout=60,
        env={name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"},
    )
    os.close(output)
    return ran.returncode, ran.stderr


def test_who_serves_metrics_though_nobody_asks_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    """The gateway reads its own for the dashboard, and prints where they are."""
    defaults = {"serve": "a free port of loopback", "node": "nowhere", "conductor": "nowhere"}
    for name, default in defaults.items():
        with pytest.raises(SystemExit):
            main([name, "--help"])
        assert f"(default: {default}" in " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize("asked", [["roles", "--conductor", "127.0.0.1:1"], ["--help"]])
def test_whose_reader_has_read_enough_ends_well(asked: list[str]) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    assert ended_printing_to(writing, *asked) == (0, "")


def test_what_cannot_be_printed_is_told_by_one_line() -> None:
    full = os.open("/dev/full", os.O_WRONLY)
    ended = ended_printing_to(full, "roles", "--conductor", "127.0.0.1:1")
    assert ended == (1, "moonpool: No space left on device\n")


@pytest.mark.parametrize("name", ["moonpool stat", "moonpool tenant ls"])
def test_what_a_command_does_not_know_is_told_with_that_commands_usage(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main([*name.split()[1:], "--dirr", "x"])
    told = capsys.readouterr().err
    assert ended.value.code == 2 and told.startswith(f"usage: {name} [-h]")
    assert told.endswith(f"\n{name}: error: unrecognized arguments: --dirr x\n")
