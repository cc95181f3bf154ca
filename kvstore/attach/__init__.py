"""Looks at a fleet of vLLM servers that has no pool, and says what one would bring it.

It reads what the servers tell anyhow: KV events, which blocks each computes and lets go of, and
counters, how much was asked for and found. Nothing is installed there, and no token leaves the
process that reads.

    scrape             the counters of one server
    blocks, prompts    what events tell: which block is where, and which are one prompt's
    fleet              all of it together, of all servers
    reasons            why what was asked for was not there; adds up to the servers' own counters
    lengths            what a log of the requests knows better
    pool, gain         the same uses with a pool of some size, by the node's own policy
    prefill            what a prefill takes, as servers tell
    watch              the reading, for so long
    report             the answer
"""
