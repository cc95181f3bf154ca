"""First words of keyed BLAKE3 hashes, of many short messages at once: what blocks are stored under.

A message is two parts: 36 bytes that all of them begin with, and 32 of its own. So each takes two
compressions (BLAKE3 paper, section 2.2), of 64 bytes and of 4, and message word 0 of the second is
the only one that is not zero. Lanes of a state lie side by side, as the compiler's vectors want
them; they are the caller's.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit, uint32

from .inner import BORROWED, KEPT, inner

LANES = 128  # messages at once: their state and words stay in the nearest cache
WORDS = 16  # of a state, and of a block of message
BEGIN_WORDS, OWN_WORDS = 9, 8  # of a message
_IV = (0x6A09E667, 0xBB67AE85, 0x3C6EF372, 0xA54FF53A)
_CHUNK_START, _CHUNK_END, _ROOT, _KEYED = 1, 2, 8, 16
_PERMUTATION = (2, 6, 3, 10, 7, 0, 4, 13, 1, 11, 12, 5, 9, 14, 15, 8)
_ROUNDS = 7


def _schedule() -> Any:
    """Which word of the message comes when, by round."""
    rounds = [list(range(WORDS))]
    while len(rounds) < _ROUNDS:
        rounds.append([rounds[-1][at] for at in _PERMUTATION])
    return np.array(rounds, np.int64)


_SCHEDULE = _schedule()


@inner
def _turned(word: Any, bits: Any) -> Any:
    """To the right."""
    return uint32(uint32(word >> uint32(bits)) | uint32(word << uint32(32 - bits)))


@inner
def _mixed(
    state: Any, words: Any, lanes: Any, a: Any, b: Any, c: Any, d: Any, x: Any, y: Any
) -> None:
    """The quarter round of all lanes, with words `x` and `y`."""
    for lane in range(lanes):
        one, two, three, four = state[a, lane], state[b, lane], state[c, lane], state[d, lane]
        one = uint32(uint32(one + two) + words[x, lane])
        four = _turned(uint32(four ^ one), 16)
        three = uint32(three + four)
        two = _turned(uint32(two ^ three), 12)
        one = uint32(uint32(one + two) + words[y, lane])
        four = _turned(uint32(four ^ one), 8)
        three = uint32(three + four)
        two = _turned(uint32(two ^ three), 7)
        state[a, lane], state[b, lane], state[c, lane], state[d, lane] = one, two, three, four


@inner
def _compressed(state: Any, words: Any, lanes: Any, size: Any, flags: Any) -> None:
    """Compress a block of `size` bytes into the chaining values, which are the state's first half,
    but for its last step."""
    for lane in range(lanes):
        for at in range(4):
            state[8 + at, lane] = uint32(_IV[at])
        state[12, lane], state[13, lane] = uint32(0), uint32(0)  # the number of the chunk
        state[14, lane], state[15, lane] = uint32(size), uint32(flags)
    for number in range(_ROUNDS):
        of = _SCHEDULE[number]
        _mixed(state, words, lanes, 0, 4, 8, 12, of[0], of[1])
        _mixed(state, words, lanes, 1, 5, 9, 13, of[2], of[3])
        _mixed(state, words, lanes, 2, 6, 10, 14, of[4], of[5])
        _mixed(state, words, lanes, 3, 7, 11, 15, of[6], of[7])
        _mixed(state, words, lanes, 0, 5, 10, 15, of[8], of[9])
        _mixed(state, words, lanes, 1, 6, 11, 12, of[10], of[11])
        _mixed(state, words, lanes, 2, 7, 8, 13, of[12], of[13])
        _mixed(state, words, lanes, 3, 4, 9, 14, of[14], of[15])


@njit(nogil=True, cache=KEPT, **BORROWED)
def stored_prints(key: Any, begin: Any, own: Any, state: Any, words: Any, prints: Any) -> None:
    """The first 8 bytes of each message's hash, little endian, into `prints`.

    `key`: 8 words, `begin`: 9, `own`: [messages, 8]: all uint32, as they came. `state`
    and `words`: [16, LANES] of uint32, whatever is in them.
    """
    for first in range(0, len(own), LANES):
        lanes = min(LANES, len(own) - first)
        for lane in range(lanes):
            for at in range(8):
                state[at, lane] = key[at]
            for at in range(BEGIN_WORDS):
                words[at, lane] = begin[at]
            for at in range(BEGIN_WORDS, WORDS):
                words[at, lane] = own[first + lane, at - BEGIN_WORDS]
        _compressed(state, words, lanes, 64, _KEYED | _CHUNK_START)
        for lane in range(lanes):
            for at in range(8):
                state[at, lane] ^= state[8 + at, lane]
            for at in range(1, WORDS):
                words[at, lane] = uint32(0)
            words[0, lane] = own[first + lane, OWN_WORDS - 1]
        _compressed(state, words, lanes, 4, _KEYED | _CHUNK_END | _ROOT)
        for lane in range(lanes):
            low, high = state[0, lane] ^ state[8, lane], state[1, lane] ^ state[9, lane]
            prints[first + lane] = np.uint64(low) | np.uint64(high) << np.uint64(32)
