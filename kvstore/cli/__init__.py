"""The `moonpool` command: one module a group of subcommands, each with `add` and its runners."""

import os

# Before gRPC is loaded: it would log a line for each handshake that fails, as many as callers like.
os.environ.setdefault("GRPC_VERBOSITY", "ERROR")
