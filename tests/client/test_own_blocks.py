from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from kvstore.client.outbox import Outbox
from kvstore.conductor.reports import _check as check
from kvstore.limits import REPORT_BLOCKS_MAX
from kvstore.wire.v1 import conductor_pb2 as pb
from tests.conductor.reporting import engine


def names(count: int) -> list[bytes]:
    return [number.to_bytes(32, "little") for number in range(count)]


class Conductor:
    """What one knows of an engine's own blocks, by what it was told."""

    def __init__(self, box: Outbox) -> None:
        self._box = box
        self.begin()

    def begin(self) -> None:
        self._stream, self.known = self._box.begin(), set[bytes]()

    def hear(self) -> list[pb.ReportRequest]:
        """All that waits to be told."""
        heard = []
        while (message := self._box.next(self._stream, 0.0)) is not None and message.ByteSize():
            check(message, 4)
            if message.cleared:
                self.known.clear()
            self.known -= set(message.dropped)
            self.known |= set(message.held)
            heard.append(message)
        return heard


def test_a_conductor_that_begins_anew_is_told_all_in_pieces() -> None:
    box, blocks = Outbox(engine("one")), names(3 * REPORT_BLOCKS_MAX + 1)
    conductor = Conductor(box)
    box.own((), blocks)
    for again in range(2):
        messages = conductor.hear()
        assert conductor.known == set(blocks)
        assert [len(one.held) for one in messages][-4:] == [REPORT_BLOCKS_MAX] * 3 + [1]
        assert not again or messages[0].engine.engine_id == "one"
        box.end()
        conductor.begin()


def test_what_comes_and_goes_before_it_is_told_is_never_told() -> None:
    box, blocks = Outbox(engine("one")), names(10)
    conductor = Conductor(box)
    box.own((), blocks)
    box.own(blocks, ())
    assert not any(one.held or one.dropped for one in conductor.hear())
    box.own((), blocks)
    conductor.hear()
    box.own(blocks, ())
    box.own((), blocks)
    assert not conductor.hear() and conductor.known == set(blocks)


def test_prefixes_are_told_before_what_follows_them() -> None:
    box, blocks = Outbox(engine("one")), names(2 * REPORT_BLOCKS_MAX)
    conductor = Conductor(box)
    box.own((), blocks)
    assert [one for message in conductor.hear() for one in message.held] == blocks


STEPS = st.lists(
    st.tuples(
        st.sampled_from(("hold", "drop", "clear", "hear", "break", "begin")),
        st.lists(st.integers(0, 9), max_size=5),
    ),
    max_size=60,
)


@given(STEPS)
def test_a_conductor_comes_to_know_what_the_engine_holds(
    steps: list[tuple[str, list[int]]],
) -> None:
    """However often it is told in between, and however often its stream breaks."""
    box, blocks, held = Outbox(engine("one")), names(10), set[bytes]()
    conductor, stands = Conductor(box), True
    for what, numbers in steps:
        some = [blocks[number] for number in numbers]
        if what == "hold":
            box.own((), some)
            held |= set(some)
        elif what == "drop":
            box.own(some, ())
            held -= set(some)
        elif what == "clear":
            box.forget_own()
            held.clear()
        elif what == "hear":
            conductor.hear()
        elif what == "break":
            box.end()
            stands = False
        else:
            conductor.begin()
            stands = True
    if not stands:
        conductor.begin()
    conductor.hear()
    assert conductor.known == held
