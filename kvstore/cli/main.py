"""The command line: finds the subcommand, runs it, and turns what went wrong into one line.

Exit codes: 0 done, 1 failed, 2 the command line is wrong, 3 a miss (get, match), 130 interrupted.
"""

from __future__ import annotations

import argparse
import logging
import os
import sys
from collections.abc import Sequence
from importlib.metadata import version

from kvstore.cli import (
    admin,
    attach,
    blocks,
    certs,
    copies,
    demo,
    doctor,
    engine,
    explain,
    health,
    models,
    plan,
    processes,
    roles,
    serve,
    share,
    tenants,
    top,
    upkeep,
)
from kvstore.errors import ConfigError, Invalid, KVStoreError

SERVE_EXTRA = {"starlette", "uvicorn"}
ENGINE_EXTRA = {"torch", "safetensors", "tokenizers", "transformers"}

_EPILOG = """\
a first look:
  moonpool demo                     start a pool and two engines, run a workload, report
  moonpool up                       the same stack, kept running
  moonpool stat                     what the node of this host holds and has done
  moonpool COMMAND --help           what a command takes, with an example

sizes are written with a unit: 512MiB, 8GiB, 1TiB; a number alone is bytes
exit codes: 0 done, 1 failed, 2 wrong command line, 3 a miss (get, match, explain), 130 Ctrl-C
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; returns its exit code."""
    parser = command_line()
    args = parser.parse_args(arguments)
    level = {0: logging.WARNING, 1: logging.INFO}.get(args.verbose, logging.DEBUG)
    logging.basicConfig(level=level, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    logging.getLogger("numba").setLevel(logging.WARNING)
    try:
        return int(args.run(args))
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:  # `moonpool ls | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
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
        print(f"moonpool: {error.filename}: {error.strerror or error}", file=sys.stderr)
        return 1
    except KVStoreError as error:
        print(f"moonpool: {error}", file=sys.stderr)
        return 1


def command_line() -> argparse.ArgumentParser:
    """Every command and what it takes."""
    parser = argparse.ArgumentParser(
        prog="moonpool",
        description="A KV-cache-centric tiered storage service for LLM inference.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"moonpool {version('moonpool')}")
    parser.add_argument(
        "-v", "--verbose", action="count", default=0, help="log more (-v info, -vv everything)"
    )
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for module in (
        *(demo, processes, engine, serve, blocks, admin, copies, doctor, health, upkeep),
        *(share, tenants, certs, models, plan, attach, roles, explain, top),
    ):
        module.add(commands)
    return parser
