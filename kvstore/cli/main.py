"""The command line: finds the subcommand, runs it, and turns what went wrong into one line.

Exit codes: 0 done, 1 failed, 2 the command line is wrong, 3 a miss (get, match), 130 interrupted.
"""

from __future__ import annotations

import argparse
import logging
import os
import select
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import Any, TextIO

from kvstore.errors import ConfigError, Invalid, KVStoreError

# The commands of each module here, in the order of the help. Whoever wants one loads its module
# alone: to load all of them takes longer than what most of them do.
COMMANDS = {
    "demo": "demo",
    "processes": "up node conductor",
    "engine": "engine rank",
    "serve": "serve",
    "blocks": "put get match rm",
    "admin": "stat ls release",
    "copies": "replicate drain",
    "doctor": "doctor",
    "health": "health",
    "upkeep": "scrub purge",
    "share": "share",
    "tenants": "tenant token",
    "certs": "certs",
    "models": "make-model spec",
    "plan": "plan",
    "attach": "attach",
    "roles": "roles",
    "explain": "explain",
    "top": "top",
}

SERVE_EXTRA = {"starlette", "uvicorn"}
ENGINE_EXTRA = {"torch", "safetensors", "tokenizers", "transformers"}

_EPILOG = """\
a first look:
  moonpool demo                     start a pool and two engines, run a workload, report
  moonpool up                       the same stack, kept running
  moonpool stat                     what the node of this host holds and has done
  moonpool COMMAND --help           what a command takes, with an example

sizes are written with a unit: 512MiB, 8GiB, 1TiB; a number alone is bytes
exit codes: 0 done, 1 failed, 2 wrong command line, 3 a miss (get, match, explain), 130 Ctrl-C;
what serves until Ctrl-C (up, node, conductor, engine, serve, demo --keep) ends with 0 by it
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; returns its exit code."""
    try:
        return _exit_code(arguments)
    finally:
        _print_the_rest()


def _exit_code(arguments: Sequence[str] | None) -> int:
    given = sys.argv[1:] if arguments is None else arguments
    try:
        args = command_line(next((one for one in given if one[:1] != "-"), "")).parse_args(given)
        level = {0: logging.WARNING, 1: logging.INFO}.get(args.verbose, logging.DEBUG)
        logging.basicConfig(level=level, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
        logging.getLogger("numba").setLevel(logging.WARNING)
        code = int(args.run(args))
        print(end="", flush=True)
        return code
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130
    except ModuleNotFoundError as error:
        if (error.name or "").split(".")[0] == "cryptography":
            print("moonpool: no cryptography here: pip install 'moonpool[node]'", file=sys.stderr)
            return 2
        if error.name in SERVE_EXTRA:
            print(f"moonpool: no {error.name} here: pip install 'moonpool[serve]'", file=sys.stderr)
            return 2
        if error.name not in ENGINE_EXTRA:
            raise
        print(f"moonpool: no {error.name} here: pip install 'moonpool[engine]'", file=sys.stderr)
        return 2
    except (ConfigError, Invalid) as error:
        print(f"moonpool: {error}", file=sys.stderr)
        return 2
    except OSError as error:
        if isinstance(error, BrokenPipeError) and _has_no_reader(
            sys.stdout
        ):  # `moonpool ls | head`
            return 0
        if isinstance(error, BrokenPipeError) and _has_no_reader(sys.stderr):
            return 1  # of what was to be done some may not be, and nobody hears that
        said = [error.filename, error.strerror or str(error) or type(error).__name__]
        print(f"moonpool: {': '.join(str(one) for one in said if one)}", file=sys.stderr)
        return 1
    except KVStoreError as error:
        print(f"moonpool: {error}", file=sys.stderr)
        return 1


def _has_no_reader(told: TextIO | None) -> bool:
    """What is printed there goes to a pipe whose reader has left."""
    if told is None:  # it is closed
        return False
    poll = select.poll()
    poll.register(told.fileno(), 0)
    return bool(poll.poll(0))


def _print_the_rest() -> None:
    """Or have it go nowhere, where that is refused: as it ends Python would try it once more, and
    say what came of it in its own way."""
    try:
        print(end="", flush=True)
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


class _Version(argparse.Action):
    """Says which this is; what is installed is read for whoever asks."""

    def __call__(self, parser: argparse.ArgumentParser, *_: Any) -> None:
        from importlib.metadata import version

        print(f"moonpool {version('moonpool')}")
        parser.exit()


class _Command(argparse.ArgumentParser):
    """Says by itself what it does not know, and so how it is used: who is above it would say how
    all of them are."""

    def parse_known_args(self, *given: Any, **named: Any) -> Any:
        args, unknown = super().parse_known_args(*given, **named)
        if unknown:
            self.error(f"unrecognized arguments: {' '.join(unknown)}")
        return args, unknown


def command_line(wanted: str = "") -> argparse.ArgumentParser:
    """Every command and what it takes; where one of them is wanted, those beside it alone."""
    parser = argparse.ArgumentParser(
        prog="moonpool",
        description="A KV-cache-centric tiered storage service for LLM inference.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action=_Version, nargs=0, help="say which this is, and exit")
    parser.add_argument(
        "-v", "--verbose", action="count", default=0, help="log more (-v info, -vv everything)"
    )
    commands = parser.add_subparsers(
        title="commands", metavar="COMMAND", required=True, parser_class=_Command
    )
    beside = [module for module, names in COMMANDS.items() if wanted in names.split()]
    for module in beside or COMMANDS:
        import_module(f"kvstore.cli.{module}").add(commands)
    if not beside:
        del commands.choices["rank"]  # no person runs it, so none is to be told of it
    return parser
