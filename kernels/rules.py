"""How a fleet is run: what its owner wants, and how a choice is weighed. Plain numbers, which loops
take as they are: 1 is on, 0 is off."""

from __future__ import annotations

from typing import NamedTuple


class Rules(NamedTuple):
    """What the fleet's owner wants, and how a choice is weighed."""

    ttft: float  # seconds until the first token, at most
    tpot: float  # seconds a token after it, at most
    pace: float  # share of that which a step may take when one more sequence is let in
    gated: float  # 1: who cannot be served in time is refused; 0: everybody waits
    shortest_first: float  # 1: the shortest prefill is the first to run; 0: the first that came
    aging: float  # seconds of size that a second of waiting makes up for
    charge: float  # seconds of others' waiting that count as one of this prompt's
    margin: float  # times the wait that has to fit before the prefill: others will come
    fetch: float  # 1: from other hosts too
    foresight: float  # 1: what is being computed counts as if it were there
    crowding: float  # share of what new blocks displace that would have been wanted again
    forecast: float  # share of the target that room to decode may be waited for; 0: any time
    patience: float  # tokens of a prompt that a second of waiting for that room makes up for
    hurry: float  # 1: where many are refused, lines are kept short
    fair: float  # 1: of clients that have had more than their share first tokens are wanted sooner
    latency: float  # seconds of a transfer, however small


# What conductors decide by and what is planned with, but for targets and links. Found by
# simulation: see `bench goodput`.
OURS = Rules(
    ttft=30.0,
    tpot=0.1,
    pace=0.9,  # what is decoded grows after that
    gated=1.0,
    shortest_first=1.0,
    aging=0.03,
    charge=1.5,
    margin=2.0,
    fetch=1.0,
    foresight=1.0,
    crowding=0.4,
    forecast=0.2,
    patience=100.0,
    hurry=1.0,
    fair=1.0,
    latency=0.005,
)
