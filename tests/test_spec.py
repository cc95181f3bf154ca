"""A spec names every fact that decides bytes: change one, and it is another namespace."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import pytest
from blake3 import blake3

from kvstore.errors import Invalid
from kvstore.limits import (
    BLOCK_TOKENS_MAX,
    GROUPS_MAX,
    LAYERS_MAX,
    NAME_BYTES_MAX,
    ROPE_FACTS_MAX,
    STRIPS_MAX,
)
from kvstore.spec import KVGroup, KVSpec, Reuse, difference

GROUP = KVGroup(layers=(0, 1, 2), kv_heads=2, head_dim=64)
SPEC = KVSpec(
    model="qwen3-0.6b",
    revision="sha256:00",
    dtype="bfloat16",
    groups=(GROUP,),
    rope={"theta": 10000.0, "kind": "default", "positions": 4096},
)
CANONICAL = (
    '{"codec":"none","draft_model":"","dtype":"bfloat16","groups":[{"block_tokens":64,'
    '"head_dim":64,"kv_heads":2,"layers":[0,1,2],"parts":2,"reuse":"chain"}],"hash_version":1,'
    '"model":"qwen3-0.6b","revision":"sha256:00",'
    '"rope":{"kind":"default","positions":4096,"theta":10000.0}}'
)
OTHER_FACTS: dict[str, Any] = {
    "model": "qwen3-0.7b",
    "revision": "sha256:01",
    "dtype": "float16",
    "groups": (GROUP, GROUP),
    "rope": {"theta": 10000.0, "kind": "default", "positions": 4097},
    "draft_model": "eagle",
    "codec": "fp8",
}
OTHER_SHAPES: dict[str, Any] = {
    "layers": (0, 2, 1),
    "kv_heads": 3,
    "head_dim": 63,
    "block_tokens": 63,
    "parts": 1,
    "interior": "tiles of 32",
}


def changed(**facts: Any) -> KVSpec:
    return dataclasses.replace(SPEC, **facts)


def reshaped(**shape: Any) -> KVSpec:
    return changed(groups=(dataclasses.replace(GROUP, **shape),))


def raw(**facts: Any) -> dict[str, Any]:
    return {**json.loads(CANONICAL), **facts}


def raw_group(**shape: Any) -> dict[str, Any]:
    return raw(groups=[json.loads(CANONICAL)["groups"][0] | shape])


def test_the_canonical_text_and_the_digest_are_the_same_for_ever() -> None:
    assert SPEC.canonical() == CANONICAL
    assert SPEC.digest == blake3(b"moonpool namespace\0" + CANONICAL.encode()).digest()
    assert SPEC.digest.hex() == "235cae9fc192533676af9ab99b40d2503910bc75558e8fa0183e7e440524ef8f"


def test_every_field_is_in_the_tables_above_or_has_one_value_in_this_release() -> None:
    only_one_value = {"hash_version"}
    together = {"reuse", "window_tokens"}  # see the test of windows
    named = {item.name for kind in (KVSpec, KVGroup) for item in dataclasses.fields(kind)}
    assert named == OTHER_FACTS.keys() | OTHER_SHAPES.keys() | only_one_value | together


@pytest.mark.parametrize("name", OTHER_FACTS)
def test_another_fact_is_another_namespace_and_the_difference_names_it(name: str) -> None:
    other = changed(**{name: OTHER_FACTS[name]})
    assert other.digest != SPEC.digest
    assert name in (difference(SPEC, other) or "")


@pytest.mark.parametrize("name", OTHER_SHAPES)
def test_another_shape_is_another_namespace_and_the_difference_names_it(name: str) -> None:
    other = reshaped(**{name: OTHER_SHAPES[name]})
    assert other.digest != SPEC.digest
    assert f"groups[0].{name} is" in (difference(SPEC, other) or "")


def test_the_order_in_which_facts_are_given_does_not_matter() -> None:
    rope = dict(reversed(list(SPEC.rope.items())))
    turned = json.dumps(dict(reversed(raw(rope=rope).items())))
    assert KVSpec.parse(turned).digest == SPEC.digest
    assert changed(rope=rope).digest == SPEC.digest
    assert difference(SPEC, KVSpec.parse(turned)) is None


def test_specs_of_two_digests_always_differ_in_a_field() -> None:
    """1 equals 1.0 to Python but not to the digest: the caller must be told what differs."""
    whole = changed(rope={"theta": 10000})
    broken = changed(rope={"theta": 10000.0})
    assert whole.digest != broken.digest
    assert difference(whole, broken) == (
        "rope is {'theta': 10000} there and {'theta': 10000.0} here"
    )
    assert difference(SPEC, reshaped(reuse="chain")) is None


def test_a_spec_survives_its_own_text() -> None:
    for spec in (SPEC, reshaped(parts=1), changed(model="模型", draft_model='a"b\\c')):
        assert KVSpec.parse(spec.canonical()) == spec
        assert KVSpec.parse(spec.canonical()).canonical() == spec.canonical()


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("{", "not JSON"),
        ("[" * 100_000, "not JSON"),
        ("[]", "spec must be an object, not list"),
        ("null", "spec must be an object, not NoneType"),
    ],
)
def test_text_that_is_no_spec_is_refused(text: str, why: str) -> None:
    with pytest.raises(Invalid, match=why):
        KVSpec.parse(text)


@pytest.mark.parametrize("name", ["model", "revision", "dtype", "groups"])
def test_a_missing_fact_is_named(name: str) -> None:
    given = raw()
    del given[name]
    with pytest.raises(Invalid, match=rf"spec\.{name} is missing"):
        KVSpec.of_dict(given)


@pytest.mark.parametrize("name", ["layers", "kv_heads", "head_dim"])
def test_a_missing_shape_is_named(name: str) -> None:
    given = raw_group()
    del given["groups"][0][name]
    with pytest.raises(Invalid, match=rf"spec\.groups\[0\]\.{name} is missing"):
        KVSpec.of_dict(given)


def test_an_unknown_fact_is_named() -> None:
    with pytest.raises(Invalid, match=r"spec\.tp is unknown; known are model"):
        KVSpec.of_dict(raw(tp=2))
    with pytest.raises(Invalid, match=r"spec\.groups\[0\]\.window is unknown"):
        KVSpec.of_dict(raw_group(window=4096))


@pytest.mark.parametrize(
    ("given", "why"),
    [
        (raw(model=7), r"spec\.model must be str, not 7"),
        (raw(model=None), r"spec\.model must be str"),
        (raw(groups={}), r"spec\.groups must be list"),
        (raw(groups=[[]]), r"spec\.groups\[0\] must be an object, not list"),
        (raw(rope=[]), r"spec\.rope must be dict"),
        (raw(hash_version=True), r"spec\.hash_version must be int"),
        (raw(hash_version=1.0), r"spec\.hash_version must be int"),
        (raw_group(kv_heads="2"), r"spec\.groups\[0\]\.kv_heads must be int, not '2'"),
        (raw_group(kv_heads=True), r"spec\.groups\[0\]\.kv_heads must be int"),
        (raw_group(layers=3), r"spec\.groups\[0\]\.layers must be list"),
        (raw_group(layers=[0, True]), r"spec\.groups\[0\]\.layers must hold whole numbers"),
        (raw_group(layers=[0, 1.0]), r"spec\.groups\[0\]\.layers must hold whole numbers"),
        (raw(rope={"theta": None}), r"rope\.theta must be text or a finite number, not None"),
        (raw(rope={"theta": True}), r"rope\.theta must be text or a finite number"),
        (raw(rope={"long": [1.0]}), r"rope\.long must be text or a finite number"),
        (raw(rope={"theta": float("nan")}), r"rope\.theta must be text or a finite number"),
        (raw(rope={"theta": float("inf")}), r"rope\.theta must be text or a finite number"),
        (raw(rope={"theta": 10**400}), r"rope\.theta must be text or a finite number"),
    ],
)
def test_a_fact_of_the_wrong_type_is_named(given: dict[str, Any], why: str) -> None:
    with pytest.raises(Invalid, match=why):
        KVSpec.parse(json.dumps(given))


def test_a_window_is_a_fact_of_its_own_and_belongs_to_window_groups_alone() -> None:
    near = reshaped(reuse=Reuse.WINDOW, window_tokens=512)
    assert len({SPEC.digest, near.digest, reshaped(reuse="window", window_tokens=513).digest}) == 3
    assert KVSpec.parse(near.canonical()) == near
    with pytest.raises(Invalid, match="window_tokens must be 1 to"):
        reshaped(reuse=Reuse.WINDOW)
    with pytest.raises(Invalid, match="window_tokens 512 is for reuse 'window' alone"):
        reshaped(window_tokens=512)


def test_what_this_release_does_not_support_is_refused_by_name() -> None:
    for reuse in (Reuse.CHECKPOINT, "sometimes"):
        with pytest.raises(Invalid, match=rf"reuse .*{reuse}.* is not supported .* use chain, win"):
            reshaped(reuse=reuse)
    with pytest.raises(Invalid, match=r"codec 'zstd' is not supported .* use none, fp8, int8"):
        changed(codec="zstd")
    for dtype in ("float8_e4m3fn", "int8", "uint8"):
        with pytest.raises(Invalid, match=f"codec 'fp8' is for .*; {dtype} is a byte already"):
            changed(codec="fp8", dtype=dtype)
    with pytest.raises(Invalid, match="hash_version 2 is unknown"):
        changed(hash_version=2)
    with pytest.raises(Invalid, match="dtype 'auto' is not one of float32, bfloat16"):
        changed(dtype="auto")


@pytest.mark.parametrize("name", ["model", "revision"])
def test_names_are_neither_empty_nor_too_long(name: str) -> None:
    changed(**{name: "é" * (NAME_BYTES_MAX // 2)})
    for text in ("", "é" * (NAME_BYTES_MAX // 2) + "x"):
        with pytest.raises(Invalid, match=f"bytes of {name} must be 1 to {NAME_BYTES_MAX}"):
            changed(**{name: text})


def test_text_that_is_no_unicode_is_refused() -> None:
    for name in ("model", "draft_model"):
        with pytest.raises(Invalid, match=f"{name} is not Unicode text"):
            KVSpec.parse(json.dumps(raw(**{name: "\ud800"})))
    with pytest.raises(Invalid, match=r"rope\.kind is not Unicode text"):
        changed(rope={"kind": "\udfff"})


def test_nothing_in_a_spec_is_without_bound() -> None:
    with pytest.raises(Invalid, match="bytes of draft_model"):
        changed(draft_model="x" * (NAME_BYTES_MAX + 1))
    with pytest.raises(Invalid, match="facts in rope"):
        changed(rope={f"fact{i}": i for i in range(ROPE_FACTS_MAX + 1)})
    with pytest.raises(Invalid, match=r"bytes of rope\.kind"):
        changed(rope={"kind": "x" * (NAME_BYTES_MAX + 1)})
    for count in (0, GROUPS_MAX + 1):
        with pytest.raises(Invalid, match=f"groups must be 1 to {GROUPS_MAX}"):
            changed(groups=(GROUP,) * count)


@pytest.mark.parametrize(
    ("shape", "why"),
    [
        ({"layers": ()}, "layers must be 1"),
        ({"layers": range(LAYERS_MAX + 1), "kv_heads": 1}, "layers must be 1"),
        ({"layers": (0, 0)}, "must be distinct"),
        ({"layers": (-1, 0)}, "distinct numbers from 0"),
        ({"kv_heads": 0}, "kv_heads must be"),
        ({"kv_heads": STRIPS_MAX}, "layers x kv_heads must be"),
        ({"head_dim": 0}, "head_dim must be"),
        ({"block_tokens": 0}, "block_tokens must be"),
        ({"block_tokens": BLOCK_TOKENS_MAX + 1}, "block_tokens must be"),
        ({"parts": 3}, "parts must be 1 to 2"),
        ({"head_dim": 65_536, "block_tokens": 512}, r"bytes of a strip of groups\[0\]"),
        (
            {"layers": range(128), "kv_heads": 8, "head_dim": 4096, "block_tokens": 128},
            r"bytes of a block of groups\[0\]",
        ),
    ],
)
def test_a_shape_out_of_bounds_is_named(shape: dict[str, Any], why: str) -> None:
    with pytest.raises(Invalid, match=why):
        reshaped(**shape)
