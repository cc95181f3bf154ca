"""Looks at a fleet of vLLM or SGLang servers without a pool, and says what one would bring it.

It reads what the servers tell anyhow: KV events, which blocks each computes and lets go of, and
counters, how much was asked for and found. Nothing is installed there, and no token leaves the
process that reads.

    asked, kinds       what is counted, and what each kind of server calls it
    scrape             the counters of one server
    blocks             what events tell: which block is where
    prompts            which are one prompt's; tree_prompts: as SGLang tells of them
    fleet              all of it together, of all servers
    reasons            why what was asked for was not there; adds up to the servers' own counters
    lengths            what a log of the requests knows better
    pool, gain         the same uses with a pool of some size, by the node's own policy
    prefill            what a prefill takes, as servers tell
    watch              the reading, for so long
    compared           what a pool that runs brought, beside what was predicted
    report             the answer
"""
