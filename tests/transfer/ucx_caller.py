"""A caller of a node over UCX in a process of its own: `ucx_caller.py ADDRESS WHAT`.

trip    puts a chain of 24 blocks and gets it again: 0 if it came back the same
loop    gets such a chain for ever, after saying on a line of stdout that it is there
"""

from __future__ import annotations

import sys

import numpy as np

from kvstore.client import Client
from tests.client.kv import Cache, spec_of, truth_of

BLOCKS, BLOCK_TOKENS = 24, 32
SPEC = spec_of("ucx-caller", block_tokens=BLOCK_TOKENS, head_dim=64)


def main(address: str, what: str) -> int:
    tokens = BLOCKS * BLOCK_TOKENS
    truth = truth_of(SPEC, tokens, 1)
    with Client.at(address, SPEC, transport="ucx", deadline_seconds=20.0) as client:
        chain = client.chain(np.arange(tokens))
        source, target = Cache(SPEC, tokens), Cache(SPEC, tokens, seed=2)
        source.fill(truth)
        client.put(chain, source.memory(client))
        print("stored", flush=True)
        while True:
            found = client.get(chain, target.memory(client))
            if found.blocks != BLOCKS or not target.holds(truth):
                return 1
            if what == "trip":
                return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
