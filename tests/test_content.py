"""What decides KV beside its tokens is in the hash of the block where it comes in, and of each one
after it."""

from __future__ import annotations

from kvstore.block import chain
from kvstore.content import Medium, adapted, salted, shown, together

SPACE, SIZE = bytes(range(32)), 4
TOKENS = list(range(20))
CAT, DOG = b"c" * 32, b"d" * 32


def hashes(extra: dict[int, bytes]) -> tuple[bytes, ...]:
    return chain(SPACE, 0, TOKENS, SIZE, extra).hashes


def first_of_others(one: dict[int, bytes], other: dict[int, bytes]) -> int:
    """The first block by which two prompts of the same tokens are told apart; 5: none is."""
    return next((i for i in range(5) if hashes(one)[i] != hashes(other)[i]), 5)


def test_nothing_said_leaves_the_hashes_of_the_tokens_alone() -> None:
    nothing = together(salted(""), adapted(b""), shown([], SIZE))
    assert nothing == {} and hashes(nothing) == hashes({})


def test_an_adapter_and_a_salt_part_a_prompt_from_its_first_block_on() -> None:
    plain, one, other = adapted(b""), adapted(CAT), adapted(DOG)
    assert first_of_others(plain, one) == first_of_others(one, other) == 0
    assert first_of_others(adapted(CAT), salted("c")) == 0
    both = together(salted("c"), adapted(CAT))
    assert len({hashes(each)[0] for each in (plain, one, salted("c"), both)}) == 4


def test_an_image_parts_prompts_from_the_block_where_it_begins() -> None:
    cat, dog = shown([Medium(6, 5, CAT)], SIZE), shown([Medium(6, 5, DOG)], SIZE)
    assert sorted(cat) == [1, 2]
    assert first_of_others(cat, dog) == first_of_others(cat, {}) == 1


def test_where_an_image_stands_is_named_as_well_as_which_it_is() -> None:
    """Its tokens are all alike, so they do not say it."""
    assert first_of_others(shown([Medium(5, 3, CAT)], SIZE), shown([Medium(6, 3, CAT)], SIZE)) == 1
    assert first_of_others(shown([Medium(5, 3, CAT)], SIZE), shown([Medium(5, 2, CAT)], SIZE)) == 1
    two = [Medium(0, 2, CAT), Medium(2, 2, DOG)]
    other = [Medium(0, 2, DOG), Medium(2, 2, CAT)]
    assert first_of_others(shown(two, SIZE), shown(other, SIZE)) == 0
    assert first_of_others(shown(two, SIZE), shown(two[:1], SIZE)) == 0


def test_an_image_that_fills_several_blocks_is_whole_in_the_name_of_each() -> None:
    said = shown([Medium(0, 12, CAT)], SIZE)
    assert sorted(said) == [0, 1, 2] and len(set(said.values())) == 3


def test_what_one_alone_says_of_a_block_stands_there_as_it_said_it() -> None:
    salt, image = salted("s"), shown([Medium(6, 5, CAT)], SIZE)
    assert together(salt, image) == {**salt, **image}, "as it was before there were images"
    here = shown([Medium(0, 2, CAT)], SIZE)
    assert together(salt, here)[0] not in (salt[0], here[0])
    assert together(salt, here) != together(here, salt)
