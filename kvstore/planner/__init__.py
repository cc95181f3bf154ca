"""The planner: replays a load in virtual time through the conductor's own policy and answers
questions of capacity: what a pool of this size saves, and how large one must be.

    load, trace, kinds          what is asked of a cluster: read from a file, or made up by name
    cluster, cluster_file       what it has
    policies                    who decides: ours, and nine rivals
    truth, world, replay        what engines really take, a run of it, and what became of the load
    outcome, search, answers    figures of one run; the highest rate; all that a planner is asked
    reasons, page               the same in words, and on a page

What simulates imports a compiler, which nodes and commands that do not simulate go without: import
`replay`, `search` and what stands on them late.
"""
