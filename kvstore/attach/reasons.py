"""Why tokens that were asked for were not there, so that the reasons add up to what engines count.

vLLM asks its cache once for each prompt, when the prompt is first scheduled: all its tokens are
queries, those in leading blocks that it has are hits. It never takes the last token for a hit, so a
prompt that it has whole costs its last block. What is neither is computed: in whole blocks, each of
which it tells of, and in less than a block at the prompt's end, of which it tells nothing. So of
queries less hits that part is left which whole blocks do not explain; it is less than a block a
prompt, and what is more than that was not told.

It tells of blocks of answers in the same way as of a prompt's. Which is which is a guess for single
blocks (`kvstore.attach.prompts`), and is put right where it contradicts the counters: with the
prompts' lengths it is known how many whole blocks they were, without them within a block a prompt.

SGLang counts in the same way, and differs in what it tells: nothing of a block that it computes and
has already. So where all that it told was heard, what is left beyond the prompts' ends was there.
Pure.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, fields

from kvstore.attach.asked import Asked
from kvstore.attach.blocks import Reason
from kvstore.attach.fleet import Seen

# What is given up first where more blocks were computed than were asked for.
_LEAST_SURE = (Reason.HERE, Reason.EVICTED, Reason.GONE, Reason.ELSEWHERE, Reason.NEVER)


@dataclass(frozen=True, slots=True)
class Reasons:
    """Tokens that were asked for and not there. They add up to `Asked.missed`."""

    never: int = 0  # in blocks that nobody had computed
    evicted: int = 0  # the same engine had had them
    elsewhere: int = 0  # another engine has them
    gone: int = 0  # another engine had had them
    here: int = 0  # the end of a prompt that is there whole, or prompts side by side
    short: int = 0  # less than a block, at a prompt's end
    untold: int = 0  # no event told of them

    @property
    def all(self) -> int:
        return sum(asdict(self).values())

    @property
    def most(self) -> list[tuple[str, int]]:
        """The three that are most, by name."""
        said: dict[str, int] = asdict(self)
        return sorted(said.items(), key=lambda one: -one[1])[:3]

    @staticmethod
    def of_all(every: Iterable[Reasons]) -> Reasons:
        rows = [asdict(one) for one in every]
        return Reasons(**{one.name: sum(row[one.name] for row in rows) for one in fields(Reasons)})


def explain(
    asked: Asked, seen: Seen, block_tokens: int, lengths: Sequence[int] | None = None
) -> Reasons:
    """`lengths`: tokens of each prompt, where they are known."""
    missed, size = max(0, asked.missed), max(1, block_tokens)
    blocks = Counter(seen.prompts)
    answers = seen.answers.total()
    if lengths is None:
        most = missed // size
        least = min(most, -(-max(0, missed - asked.prompts * (size - 1)) // size))
    else:
        least = most = max(0, missed - sum(one % size for one in lengths)) // size
    # An answer's block is there for a token of its that was computed: the last one is not.
    made = max(0, asked.generated - asked.prompts)
    more = min(max(0, least - blocks.total(), answers - made), answers)
    blocks += _of(seen.answers, more)
    answers -= more
    # Single blocks that were an answer's after all: there is at most one for each token made, and
    # nobody had computed them.
    fewer = min(
        max(0, blocks.total() - most),
        blocks[Reason.NEVER],
        max(0, made - answers),
    )
    blocks[Reason.NEVER] -= fewer
    # Computed again after a preemption: no query counts it.
    over = blocks.total() - most
    for reason in _LEAST_SURE:
        less = min(max(0, over), blocks[reason])
        blocks[reason] -= less
        over -= less
    rest = missed - size * blocks.total()
    short = min(rest, asked.prompts * (size - 1))
    if lengths is not None:
        short = min(rest, sum(one % size for one in lengths))
    left = rest - short
    there = left if seen.heard_all and not seen.tells_twice else 0
    return Reasons(
        never=size * blocks[Reason.NEVER],
        evicted=size * blocks[Reason.EVICTED],
        elsewhere=size * blocks[Reason.ELSEWHERE],
        gone=size * blocks[Reason.GONE],
        here=size * blocks[Reason.HERE] + there,
        short=short,
        untold=left - there,
    )


def _of(blocks: Counter[Reason], count: int) -> Counter[Reason]:
    """So many of them: those of which least is known first."""
    found: Counter[Reason] = Counter()
    for reason in reversed(_LEAST_SURE):
        found[reason] = min(count, blocks[reason])
        count -= found[reason]
    return found
