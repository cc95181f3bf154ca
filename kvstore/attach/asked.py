"""What an engine counted in a time, whatever it calls its counters. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass, fields


@dataclass(frozen=True, slots=True)
class Asked:
    """What an engine counted in a time: tokens, where nothing else is said."""

    queries: int = 0
    hits: int = 0
    pool_queries: int = 0  # asked of a connector; 0 where there is none
    pool_hits: int = 0
    generated: int = 0
    prompts: int = 0  # first tokens
    first_token_seconds: float = 0.0  # until these, of all prompts
    prefill_seconds: float = 0.0  # of all prompts that are over
    prefills: int = 0  # such prompts
    prefilled: int = 0  # tokens that these computed
    preempted: int = 0  # requests

    @property
    def missed(self) -> int:
        return self.queries - self.hits

    @staticmethod
    def of_all(every: Iterable[Asked]) -> Asked:
        rows = [asdict(one) for one in every]
        return Asked(**{one.name: sum(row[one.name] for row in rows) for one in fields(Asked)})
