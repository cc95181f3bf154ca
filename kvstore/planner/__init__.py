"""The planner: replays a load in virtual time through the conductor's own policy and answers
questions of capacity: what a pool of this size saves, and how large one must be.

Inputs only so far: loads read from published traces, and loads made up from a seed.
"""
