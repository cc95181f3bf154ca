"""What both forms of the disk promise, as the tier above sees them."""

from __future__ import annotations

import random
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kvstore.disk.protocol import DISK_ALIGN
from tests.disk.conftest import FILE_BYTES, FILES
from tests.disk.memory import aligned, page

PAGES = FILE_BYTES // DISK_ALIGN


def read(disk: Any, file: int, offset: int, size: int = DISK_ALIGN) -> bytes:
    into = aligned(size)
    disk.read(file, offset, into)
    return bytes(into)


def test_a_disk_says_how_many_files_of_which_size_it_has(form: Any) -> None:
    assert (form.disk.files, form.disk.file_bytes) == (FILES, FILE_BYTES)


def test_every_place_of_a_file_can_be_read_before_anything_was_written(form: Any) -> None:
    for file in range(FILES):
        assert len(read(form.disk, file, 0, FILE_BYTES)) == FILE_BYTES


def test_a_read_gives_what_was_last_written(form: Any) -> None:
    form.disk.write(1, DISK_ALIGN, [page(1)])
    form.disk.write(1, DISK_ALIGN, [page(2)])
    assert read(form.disk, 1, DISK_ALIGN) == bytes(page(2))


def test_parts_lie_one_behind_the_other(form: Any) -> None:
    data = random.Random(1).randbytes(7 * DISK_ALIGN)
    whole = aligned(data)
    parts = [whole[: 3 * DISK_ALIGN], whole[3 * DISK_ALIGN : 4 * DISK_ALIGN]]
    form.disk.write(0, 2 * DISK_ALIGN, [*parts, whole[4 * DISK_ALIGN :]])
    assert read(form.disk, 0, 2 * DISK_ALIGN, len(data)) == data


def test_a_write_may_have_no_parts_or_as_many_as_the_file_has_pages(form: Any) -> None:
    form.disk.write(0, 0, [])
    form.disk.write(0, 0, [page(7)] * PAGES)
    assert read(form.disk, 0, 0, FILE_BYTES) == bytes([7]) * FILE_BYTES


def test_memory_that_cannot_be_written_can_be_written_from(form: Any) -> None:
    form.disk.write(0, 0, [page(3).toreadonly()])
    assert read(form.disk, 0, 0) == bytes(page(3))


def test_a_write_changes_only_its_own_place(form: Any) -> None:
    for file in range(FILES):
        form.disk.write(file, 0, [aligned(bytes([file + 1]) * FILE_BYTES)])
    form.disk.write(1, 4 * DISK_ALIGN, [page(9)])
    assert read(form.disk, 0, 0, FILE_BYTES) == bytes([1]) * FILE_BYTES
    assert read(form.disk, 2, 0, FILE_BYTES) == bytes([3]) * FILE_BYTES
    beside = bytes([2]) * DISK_ALIGN
    assert read(form.disk, 1, 3 * DISK_ALIGN, 3 * DISK_ALIGN) == beside + bytes(page(9)) + beside


def test_the_last_page_of_a_file_is_as_good_as_the_first(form: Any) -> None:
    form.disk.write(2, FILE_BYTES - DISK_ALIGN, [page(5)])
    assert read(form.disk, 2, FILE_BYTES - DISK_ALIGN) == bytes(page(5))


writes = st.tuples(
    st.integers(0, FILES - 1), st.integers(0, PAGES - 1), st.integers(1, 5), st.integers(0, 255)
)


@settings(
    max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(st.lists(writes, max_size=20), st.integers(0, FILES - 1))
def test_any_writes_leave_what_they_would_leave_in_memory(
    form: Any, writes: list[tuple[int, int, int, int]], synced: int
) -> None:
    expected = [bytearray(read(form.disk, file, 0, FILE_BYTES)) for file in range(FILES)]
    for file, first, pages, value in writes:
        parts = [page(value + number & 0xFF) for number in range(min(pages, PAGES - first))]
        form.disk.write(file, first * DISK_ALIGN, parts)
        end = (first + len(parts)) * DISK_ALIGN
        expected[file][first * DISK_ALIGN : end] = b"".join(parts)
    form.disk.sync(synced)
    for file in range(FILES):
        assert read(form.disk, file, 0, FILE_BYTES) == expected[file]
    assert read(form.restart(), synced, 0, FILE_BYTES) == expected[synced]


def test_what_was_synced_and_committed_is_there_after_a_restart(form: Any) -> None:
    form.disk.write(0, 0, [page(1), page(2)])
    form.disk.sync(0)
    form.disk.commit({b"key": b"value"}, ())
    after = form.restart()
    assert read(after, 0, 0, 2 * DISK_ALIGN) == bytes(page(1)) + bytes(page(2))
    assert list(after.scan()) == [(b"key", b"value")]


def test_the_index_is_durable_without_any_sync(form: Any) -> None:
    form.disk.commit({b"a": b"1", b"b": b"2"}, ())
    form.disk.commit({b"c": b"3"}, [b"a"])
    assert list(form.restart().scan()) == [(b"b", b"2"), (b"c", b"3")]


def test_a_sync_with_nothing_written_is_fine(form: Any) -> None:
    for _ in range(2):
        form.disk.sync(0)


def test_a_commit_replaces_adds_and_deletes_at_once(form: Any) -> None:
    form.disk.commit({b"old": b"1", b"gone": b"2"}, ())
    form.disk.commit({b"old": b"3", b"new": b"4"}, [b"gone", b"never there"])
    assert dict(form.disk.scan()) == {b"old": b"3", b"new": b"4"}


def test_a_commit_of_nothing_is_fine(form: Any) -> None:
    form.disk.commit({}, ())
    assert list(form.disk.scan()) == []


def test_a_scan_is_in_the_order_of_keys(form: Any) -> None:
    dice = random.Random(3)
    entries = {dice.randbytes(32): dice.randbytes(160) for _ in range(500)}
    form.disk.commit(entries, ())
    assert list(form.disk.scan()) == sorted(entries.items())


def test_a_scan_shows_the_index_as_of_its_call(form: Any) -> None:
    form.disk.commit({b"a": b"1", b"b": b"1"}, ())
    unread, begun = form.disk.scan(), form.disk.scan()
    next(begun)
    form.disk.commit({b"b": b"2", b"c": b"2"}, [b"a"])
    assert list(unread) == [(b"a", b"1"), (b"b", b"1")]
    assert list(begun) == [(b"b", b"1")]
    assert list(form.disk.scan()) == [(b"b", b"2"), (b"c", b"2")]


def test_a_scan_may_be_left_early_or_never_begun(form: Any) -> None:
    form.disk.commit({bytes([number]): b"" for number in range(100)}, ())
    for _ in range(200):
        form.disk.scan()
        next(form.disk.scan())
    form.disk.commit({b"after": b""}, ())
    assert len(list(form.disk.scan())) == 101


def test_a_scan_may_be_read_by_another_thread_than_called_it(form: Any) -> None:
    form.disk.commit({b"a": b"1"}, ())
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(list, form.disk.scan()).result() == [(b"a", b"1")]


def test_threads_read_and_write_different_places_side_by_side(form: Any) -> None:
    def work(number: int) -> None:
        for turn in range(20):
            mine = page(16 * number + turn % 16)
            file, offset = number % FILES, number // FILES * DISK_ALIGN
            form.disk.write(file, offset, [mine])
            form.disk.sync(file)
            form.disk.commit({b"%d" % number: b"%d" % turn}, ())
            assert read(form.disk, file, offset) == bytes(mine)
            assert dict(form.disk.scan())[b"%d" % number] == b"%d" % turn

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(work, range(8)))
    assert dict(form.disk.scan()) == {b"%d" % number: b"19" for number in range(8)}
