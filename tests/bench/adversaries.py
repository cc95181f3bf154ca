"""Traces made to make a policy that learns look worse than LRU. Each is a list of requests."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator

from bench.traces import Request, key_of

BLOCK_TOKENS = 16


def request(ids: list[int], short: bool = False) -> Request:
    keys: list[bytes] = []
    for one in ids:
        keys.append(key_of(keys[-1] if keys else b"", one))
    return Request(tuple(keys), BLOCK_TOKENS * len(ids) - 7 * short, short)


def prompt(name: int, blocks: int) -> Request:
    """The prompt of that name: two of different names share nothing."""
    return request([name, *range(blocks - 1)])


def all_unique(dice: random.Random) -> Iterator[Request]:
    yield from (prompt(name, 10) for name in range(600))


def recent_again(dice: random.Random) -> Iterator[Request]:
    """The sooner it was asked for, the likelier it is asked for again: made for LRU."""
    asked: list[int] = []
    for name in range(1500):
        back = int(dice.expovariate(0.05)) + 1
        new = back > len(asked) or dice.random() < 0.3
        asked.append(name if new else asked[-back])
        yield prompt(asked[-1], 8)


def loop(dice: random.Random) -> Iterator[Request]:
    """A little more than fits, around and around."""
    yield from (prompt(number % 60, 10) for number in range(1500))


def loop_that_fits(dice: random.Random) -> Iterator[Request]:
    yield from (prompt(number % 35, 10) for number in range(1500))


def popular(dice: random.Random) -> Iterator[Request]:
    """Zipf's law."""
    names, weights = range(400), [1 / (1 + name) for name in range(400)]
    yield from (prompt(name, 6) for name in dice.choices(names, weights, k=2000))


def scans(dice: random.Random) -> Iterator[Request]:
    """Few prompts that are asked for often, and now and then many that never are again."""
    once = 1_000
    for number in range(1500):
        if number % 100 < 50:
            yield prompt(dice.randrange(20), 8)
        else:
            yield prompt(once := once + 1, 8)


def phases(dice: random.Random) -> Iterator[Request]:
    """What was popular is forgotten, again and again."""
    for phase in range(10):
        for _ in range(200):
            yield prompt(1_000 * phase + int(dice.expovariate(0.05)), 8)


def habits_turned_over(dice: random.Random) -> Iterator[Request]:
    """First nothing new is asked for again, then everything is, and what was popular is not."""
    once = 1_000
    for _ in range(1500):
        once += 1
        yield prompt(dice.randrange(25), 8) if dice.random() < 0.5 else prompt(once, 8)
    for number in range(2500):
        back = number if dice.random() < 0.4 else number - dice.randrange(1, 40)
        yield prompt(100_000 + max(0, back), 8)


def twice_and_never_again(dice: random.Random) -> Iterator[Request]:
    """To be asked for often is a sign that it is over."""
    for number in range(1200):
        yield prompt(number, 8)
        yield prompt(max(0, number - 30), 8)


def conversations(dice: random.Random) -> Iterator[Request]:
    """One block that all share, and prompts that grow from turn to turn."""
    talks = [[0, talk] for talk in range(1, 80)]
    for turn in range(1500):
        talk = dice.choice(talks)
        if len(talk) > 24:
            talk[:] = [0, 1_000 + turn]
        talk.extend(100_000 + 10 * turn + place for place in range(3))
        yield request(talk, short=True)
        talk.pop()


ADVERSARIES: dict[str, Callable[[random.Random], Iterator[Request]]] = {
    make.__name__: make
    for make in (
        *(all_unique, recent_again, loop, loop_that_fits, popular, scans, phases),
        *(habits_turned_over, twice_and_never_again, conversations),
    )
}
