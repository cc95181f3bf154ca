"""Any sequence of calls does what it would do to a dict, and a watch replays it."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kvstore.metadata import Kind

PUT, DELETE = Kind.PUT, Kind.DELETE
examples = itertools.count()


calls = st.lists(
    st.tuples(
        st.sampled_from(["put", "put_if", "put_if_stale", "delete", "delete_if"]),
        st.sampled_from(["a", "b", "b/c"]),
        st.binary(max_size=3),
    ),
    max_size=25,
)


@settings(
    max_examples=30,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(script=calls)
def test_any_calls_do_what_a_dict_would_and_the_watch_replays_them(form: Any, script: Any) -> None:
    asyncio.run(compare_with_a_dict(form, script))


async def compare_with_a_dict(form: Any, script: list[tuple[str, str, bytes]]) -> None:
    store = form.open()
    prefix = f"example/{next(examples)}/"
    _, start = await store.list(prefix)
    model: dict[str, tuple[bytes, int]] = {}
    history: list[tuple[Kind, str, bytes]] = []
    for call, name, value in script:
        key = prefix + name
        _, known = model.get(key, (b"", 0))
        match call:
            case "put":
                model[key] = (value, await store.put(key, value))
            case "put_if":
                revision = await store.put_if(key, value, expected_revision=known)
                assert revision is not None
                model[key] = (value, revision)
            case "put_if_stale":
                assert await store.put_if(key, value, expected_revision=known + 1) is None
                continue
            case "delete" | "delete_if":
                if call == "delete":
                    done = await store.delete(key)
                else:
                    done = await store.delete_if(key, expected_revision=known)
                assert done == (key in model)
                if not done:
                    continue
                del model[key]
                value = b""
        history.append((DELETE if call.startswith("delete") else PUT, key, value))
    entries, _ = await store.list(prefix)
    assert {entry.key: (entry.value, entry.revision) for entry in entries} == model
    async with contextlib.aclosing(store.watch(prefix, start)) as watch:
        seen = [await asyncio.wait_for(anext(watch), 30) for _ in history]
    assert [(each.kind, each.entry.key, each.entry.value) for each in seen] == history
    await store.close()
