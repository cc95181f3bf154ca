"""What a node and its mover say to each other: one packet a request, one an answer, in any order.

    LOAD     an agent's name and blob           DROP    its name
    WRITE    its name and `RUN`s: arena -> it   READ    the same, it -> arena

All numbers are little endian, as this host's; both ends are ours.
"""

from __future__ import annotations

import enum
import struct

import numpy as np

from kvstore.limits import UCX_BLOB_BYTES_MAX, UCX_RUNS_MAX
from kvstore.transfer.ucx_agent import NAME_BYTES

# number, what, seconds it may take, agent, the `Registration` of its memory
REQUEST = struct.Struct(f"<IBxxxd{NAME_BYTES}sIBxxx")
ANSWER = struct.Struct("<II")  # number, 0 or 1 where it failed; then in words why
RUN = np.dtype("<u8")  # three to a run: where it begins in the arena, at the agent, bytes
STARTED = 0  # the number of the first answer, which nobody asked for

_RUN_BYTES = 3 * RUN.itemsize
PACKET_BYTES_MAX = REQUEST.size + max(UCX_BLOB_BYTES_MAX, UCX_RUNS_MAX * _RUN_BYTES)
WORDS_BYTES_MAX = 500  # of an answer


class What(enum.IntEnum):
    LOAD = 1
    DROP = 2
    WRITE = 3
    READ = 4
