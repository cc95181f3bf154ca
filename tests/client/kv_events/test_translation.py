"""Blocks of an engine's, of any size and in any order, against a model that keeps no state."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from kvstore.block import chain
from kvstore.client.kv_events.messages import Cleared, Event, Hash, Removed, Stored
from kvstore.client.kv_events.translation import Translation
from kvstore.naming import names_of
from tests.nodes import SPEC

NAMESPACE = SPEC.digest
Path = tuple[int, ...]  # the engine's blocks of a chain, each by which of its siblings it is


def name_of(path: Path) -> Hash:
    """As engines name them: some by numbers, some by bytes."""
    return hash(path) if len(path) % 2 else repr(path).encode()


def tokens_of(path: Path, size: int) -> list[int]:
    """Siblings have all tokens but the last in common, as where prompts part within a block."""
    return [token for which in path for token in [7] * (size - 1) + [which]]


def stored(path: Path, first: int, size: int) -> Stored:
    """Blocks `first` to the last of a path, in one event."""
    names = tuple(name_of(path[: at + 1]) for at in range(first, len(path)))
    tokens = np.array(tokens_of(path, size)[first * size :], np.uint32)
    return Stored(names, name_of(path[:first]) if first else None, tokens, size)


def ours(tokens: Iterable[int], size: int) -> tuple[bytes, ...]:
    return chain(NAMESPACE, 0, list(tokens), size).full().hashes


class Told:
    """What is there by what is told."""

    def __init__(self, size: int, blocks_max: int = 1_000) -> None:
        self.translation = Translation(names_of(NAMESPACE, 0, size), size, blocks_max)
        self.there = set[bytes]()

    def take(self, *events: Event) -> None:
        change = self.translation.take(events)
        self.translation.check()
        assert not set(change.held) & set(change.dropped)
        if change.cleared:
            self.there.clear()
        assert self.there >= set(change.dropped), "what was not there is dropped"
        self.there -= set(change.dropped)
        assert not self.there & set(change.held), "what is there comes again"
        self.there |= set(change.held)


def test_four_of_an_engine_s_blocks_are_one_of_ours() -> None:
    told, path = Told(64), (1, 2, 3, 4, 5, 6, 7, 8)
    told.take(stored(path[:3], 0, 16))
    assert not told.there
    told.take(stored(path, 3, 16))
    first, second = ours(tokens_of(path, 16), 64)
    assert told.there == {first, second}
    told.take(Removed((name_of(path),)))
    assert told.there == {first}


def test_one_of_an_engine_s_blocks_is_several_of_ours() -> None:
    told, path = Told(16), (1, 2)
    told.take(stored(path, 0, 64))
    assert told.there == set(ours(tokens_of(path, 64), 16)) and len(told.there) == 8
    told.take(Removed((name_of(path),)))
    assert told.there == set(ours(tokens_of(path[:1], 64), 16))


def test_what_two_prompts_share_of_a_block_is_there_until_both_are_gone() -> None:
    told = Told(16)
    told.take(stored((1,), 0, 64), stored((2,), 0, 64))
    assert len(told.there) == 3 + 2
    told.take(Removed((name_of((1,)),)))
    assert told.there == set(ours(tokens_of((2,), 64), 16))


def test_what_lost_its_beginning_is_not_there_until_that_is_back() -> None:
    told, path = Told(16), (1, 2, 3)
    told.take(stored(path, 0, 16))
    whole = set(told.there)
    told.take(Removed((name_of(path[:1]),)))
    assert not told.there
    told.take(stored(path[:1], 0, 16))
    assert told.there == whole


def test_what_is_gone_and_back_within_a_batch_is_no_change() -> None:
    translation, path = Translation(names_of(NAMESPACE, 0, 16), 16), (1, 2)
    translation.take([stored(path, 0, 16)])
    change = translation.take([Removed((name_of(path),)), stored(path, 1, 16)])
    assert not (change.cleared or change.dropped or change.held)


def test_a_page_whose_name_is_of_more_than_its_tokens_is_left_out_and_so_is_what_follows() -> None:
    """SGLang tells of prompts under a key of their own by their tokens, and not of the key."""
    names, tokens = names_of(NAMESPACE, 0, 16, "sglang 0/1"), np.arange(64, dtype=np.uint32)
    links = names.links(b"", tokens)
    told = [int.from_bytes(one[:8], "big", signed=True) for one in links]
    translation = Translation(names, 16)
    change = translation.take([Stored((told[0], told[1]), None, tokens[:32], 16)])
    assert tuple(change.held) == names.of(tokens[:32].tolist())
    others = (told[2] ^ 1, told[3])
    change = translation.take([Stored(others, told[1], tokens[32:], 16)])
    assert not change.held and translation.left_out == {"key unknown": 2}
    translation.check()


def test_what_is_told_begins_with_the_beginning() -> None:
    translation, path = Translation(names_of(NAMESPACE, 0, 16), 16), (1, 2, 3, 4)
    translation.take([stored(path, 0, 16)])
    translation.take([Removed((name_of(path[:1]),))])
    back = translation.take([stored(path[:1], 0, 16)])
    assert tuple(back.held) == ours(tokens_of(path, 16), 16)


def test_a_block_behind_an_unknown_one_is_left_out_and_counted() -> None:
    told = Told(16)
    told.take(stored((1, 2, 3), 1, 16))
    assert not told.there and told.translation.left_out == {"behind an unknown one": 2}


def test_one_name_for_two_blocks_is_believed_once() -> None:
    told = Told(16)
    told.take(stored((1, 2), 0, 16))
    told.take(Stored((name_of((1, 2)),), None, np.zeros(16, np.uint32), 16))
    assert len(told.there) == 2 and told.translation.left_out == {"two of one name": 1}


def test_more_than_are_remembered_are_left_out() -> None:
    told = Told(16, blocks_max=5)
    told.take(*(stored((1, which), 0, 16) for which in range(50)))
    assert len(told.translation) == 5 and told.translation.left_out["too many"] == 46
    told.take(Cleared())
    assert not told.there and not len(told.translation)


ACTIONS = ("store", "remove", "clear", "store behind", "again")
PATHS = st.lists(st.integers(0, 1), min_size=1, max_size=5).map(tuple)
STEPS = st.lists(
    st.tuples(st.sampled_from(ACTIONS), PATHS, st.integers(0, 4), st.booleans()), max_size=30
)
SIZES = st.sampled_from((1, 2, 3, 4, 6))


@settings(deadline=None)
@given(steps=STEPS, engine_size=SIZES, our_size=SIZES)
def test_what_is_there_is_what_all_blocks_that_cover_it_make(
    steps: list[tuple[str, Path, int, bool]], engine_size: int, our_size: int
) -> None:
    told, held, batch = Told(our_size), dict[Path, None](), list[Event]()
    for what, path, first, ends in steps:
        if what == "remove":
            batch.append(Removed((name_of(path),)))
            held.pop(path, None)
        elif what == "clear":
            batch.append(Cleared())
            held.clear()
        else:
            first = min(first, len(path) - 1) if what == "store behind" else 0
            event = stored(path, first, engine_size)
            batch += [event] * (2 if what == "again" else 1)
            # Known is what is held, and what something that is held follows.
            known = {one[:end] for one in held for end in range(len(one) + 1)}
            if not first or path[:first] in known:
                held.update(dict.fromkeys(path[: end + 1] for end in range(first, len(path))))
        if ends:
            told.take(*batch)
            batch.clear()
    told.take(*batch)
    there = {one for one in held if all(one[:end] in held for end in range(1, len(one)))}
    wanted = {each for one in there for each in ours(tokens_of(one, engine_size), our_size)}
    assert told.there == wanted
    assert len(told.translation) == len(
        {one[:end] for one in held for end in range(1, len(one) + 1)}
    )
