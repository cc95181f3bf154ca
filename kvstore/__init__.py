"""Moonpool: a KV-cache-centric tiered storage service for LLM inference. The house on one screen.

A prefill engine computes a prompt's KV; this stores it under hashes of the prompt's prefix, so that
the next request with that prefix, on any engine of the pool, loads it instead. An engine asks the
node of its own host; what that lacks it fetches from the others' (node/pool.py).

    block.py spec.py layout.py      the words: what a block is called, what its bytes mean, where
    codec.py address.py             they lie, and how they are written where not as computed; how
                                    an engine is reached
    content.py                      what decides a prompt's KV beside its tokens
    errors.py limits.py config.py   every error, every limit, every setting
    clock.py cadence.py percent.py  time; when to look again for what comes layer by layer; shares
    home.py                         the process that made a client; a fork of it has none
    logprobs.py end_tokens.py       what a model says of tokens; which of them end an answer
    failpoint.py                    where a test makes a node die
    telemetry.py traces.py          all that is counted and timed; a request's way as one trace
    core/                           decisions, pure: lifecycle, index and eviction, pins, windows
    memory/  disk/                  the arena (one shared mapping, over the host's NUMA nodes),
                                    slot heads, strips; the SSD
    kernels/   (top-level folder)   outside the GIL: copy, permute and hash in one pass; the pool's
                                    index; who is to prefill and decode; the simulator; in gpu/
                                    the moves again, in Triton
    wire/ rpc/ metadata/ transfer/  stubs of proto/, manners of calls (gRPC, and sockets for those
                                    of each prompt), who serves, how bytes move
    node/                           the storage daemon: carries decisions out, holds the blocks
    conductor/                      follows every node's directory and every engine's reports:
                                    who holds what, and where a request is to run
    planner/                        the same decisions in virtual time: loads, clusters, answers
    client/                         what engines call: match, reader, writer, pin, put, get; and
                                    reporter.py, by which they tell conductors of themselves,
                                    and switching.py, by which they take the role that is wanted;
                                    conductors.py, by which callers ask them
    engine/connectors/              the client inside vLLM, SGLang and LMCache
    engine/    (top-level folder)   a small real inference engine on the client, its service
    dashboard/                      reads every process's metrics, and charts them
    gateway/                        sends requests through engines, ours and vLLM's and SGLang's
                                    servers, as a conductor says; http/ takes them as OpenAI's
                                    clients send them
    attach/                         what a pool would bring a fleet that has none, by reading alone
    cli/                            the moonpool command: up, demo, put, get, match, stat, ls, ...

Imports point down this list, never up. Three facts carry the rest:

1.  Bytes are verified by whoever uses them. A writer hashes each strip (one layer, one KV head) as
    it copies it in; the root over key and strip hashes travels by gRPC; a reader checks the root,
    hashes strips as it copies them out, and then, of what it maps and of what has no root yet,
    asks whether the slot still holds that block.
2.  A slot changes hands only when nobody can write to it. A window on mapped memory ends by its own
    writer or with the last process that holds the mapping, never by a clock.
3.  A miss is a value. Whatever fails, the engine computes what it could not load.

Start reading at block.py, then core/lifecycle.py, then node/store.py; for the SSD, node/tiers.py;
for HBM, node/hbm.py and transfer/lent.py; for other hosts, node/fetch.py and transfer/frames.py;
between those and a GPU, transfer/gpu_direct.py.
"""
