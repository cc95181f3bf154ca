"""SGLang's own HTTP server on the CPU, as a process; its options are the command line's.

What SGLang lacks on a CPU is made up as `child` does it, in each of its processes.
"""

from __future__ import annotations

import sys

from tests.connectors.sglang import child  # noqa: F401  makes it up


def main(options: list[str]) -> None:
    from sglang.srt.entrypoints.http_server import launch_server
    from sglang.srt.server_args import prepare_server_args

    launch_server(prepare_server_args(options))


if __name__ == "__main__":
    main(sys.argv[1:])
