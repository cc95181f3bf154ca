"""What beside its tokens decides a request's KV is named by what it is, or has no name."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from vllm.lora.worker_manager import WorkerLoRAManager

from kvstore.client import Medium
from kvstore.engine.connectors.vllm.adapters import CHANGED, Adapters
from kvstore.engine.connectors.vllm.contents import Contents
from kvstore.engine.connectors.vllm.keys import Nameless
from kvstore.engine.connectors.vllm.loaded_adapters import LoadedAdapters
from kvstore.engine.connectors.vllm.media import ABSENT, KNOWN_MAX, TWO, Media
from kvstore.engine.connectors.vllm.messages import ADAPTERS_MAX, Adapter, Report
from kvstore.engine.connectors.vllm.without_adapter import MIXED, why_not

PIXELS = torch.arange(64.0)


def asked(name: str = "a", path: str = "/a", number: int = 0, in_place: bool = False) -> Any:
    number = number or ord(name[0])
    told = {"lora_name": name, "lora_path": path, "lora_int_id": number}
    return SimpleNamespace(**told, load_inplace=in_place)


class Loader:
    """As vLLM's `WorkerLoRAManager`: what an adapter has lies under its path."""

    lora_config: Any = SimpleNamespace(target_modules=None)
    lies: ClassVar[dict[str, Any]]

    def _load_adapter(self, request: Any) -> Any:
        layer = SimpleNamespace(
            module_name="q", rank=4, scaling=2.0, lora_a=self.lies[request.lora_path]
        )
        return SimpleNamespace(id=1, rank=4, loras={"q": layer}, modules_to_save={})


@pytest.fixture
def loader(monkeypatch: pytest.MonkeyPatch) -> tuple[LoadedAdapters, Loader]:
    class Mine(Loader):
        lies: ClassVar = {"/a": PIXELS, "/copy": PIXELS.clone(), "/b": PIXELS + 1}

    loaded = LoadedAdapters()
    loaded.watch(Mine)
    loaded.watch(Mine)
    return loaded, Mine()


def test_an_adapter_is_named_by_its_weights_each_time_it_is_loaded(
    loader: tuple[LoadedAdapters, Loader],
) -> None:
    loaded, manager = loader
    for one in (asked(), asked("c", "/copy"), asked("b", "/b")):
        manager._load_adapter(one)
    b, c, a = loaded.since(0)
    assert loaded.loads == 3, "watched twice, each is seen once"
    assert a.weights == c.weights != b.weights and len(a.weights) == 64
    assert loaded.since(2) == (b,) and loaded.since(3) == ()
    manager.lies["/a"] = manager.lies["/b"]
    assert loaded.has(a) and loaded.has(None)
    manager._load_adapter(asked())
    assert not loaded.has(a) and loaded.since(3) == (replace(a, weights=b.weights),)


def test_a_number_that_is_another_adapters_now_is_not_the_one_s_that_had_it(
    loader: tuple[LoadedAdapters, Loader],
) -> None:
    """vLLM computes by it, also for requests that came under the other."""
    loaded, manager = loader
    manager._load_adapter(asked())
    (before,) = loaded.since(0)
    manager._load_adapter(asked(path="/b", in_place=True))
    assert not loaded.has(before)
    adapters = Adapters()
    adapters.heard([before])
    assert adapters.of(under(asked())) == before
    assert adapters.heard(loaded.since(1))
    assert adapters.of(under(asked())) is None
    adapters.heard([before])
    assert adapters.of(under(asked())) is None, "vLLM may have KV of the other under its name"


def test_who_comes_under_anothers_number_is_computed_by_that_one() -> None:
    adapters, one = Adapters(), Adapter(1, "a", "/a", "1")
    adapters.heard([one])
    assert adapters.of(under(asked("b", "/b", number=1))) is None
    adapters.heard([replace(one, number=2, name="b", path="/b", weights="2")])
    assert adapters.of(under(asked("b", "/b", number=2))) is None
    assert adapters.of(under(asked("a", "/a", number=1))) == one


def test_who_asked_for_what_a_number_stands_for_is_remembered_though_it_is_over() -> None:
    """vLLM tells what it loaded by a number after those are over whom it computed by that."""
    adapters, a, b = Adapters(), asked("a", "/a", number=1), asked("b", "/b", number=1)
    assert [adapters.asked(under(one)) for one in (a, a, b)] == [False, False, True]
    adapters.heard([Adapter(1, "a", "/a", "1"), Adapter(2, "b", "/b", "2")])
    assert adapters.of(under(a)) is None and adapters.of(under(asked("b", "/b", number=2))) is None
    other = Adapters()
    other.asked(under(b))
    other.heard([Adapter(1, "a", "/a", "1"), Adapter(2, "b", "/b", "2")])
    assert other.of(under(a)), "it was not asked for by this number"
    assert other.of(under(asked("b", "/b", number=2))) is None
    third = Adapters()
    third.heard([Adapter(1, "a", "/a", "1"), Adapter(2, "b", "/b", "2")])
    assert not third.asked(under(a)) and third.asked(under(b))
    assert third.of(under(a)) and third.of(under(asked("b", "/b", number=2))) is None
    for number in range(ADAPTERS_MAX + 2):
        third.asked(under(asked(number=number + 3)))
    assert len(third._asked) == ADAPTERS_MAX


def test_files_that_were_replaced_are_seen_before_they_are_loaded(
    loader: tuple[LoadedAdapters, Loader], tmp_path: Path
) -> None:
    loaded, manager = loader
    folder = tmp_path / "adapter"
    folder.mkdir()
    (folder / "adapter_model.safetensors").write_text("one")
    manager.lies[str(folder)] = PIXELS
    manager._load_adapter(asked(path=str(folder)))
    (one,) = loaded.since(0)
    assert loaded.stands(one) and loaded.stands(None)
    (folder / "new").write_text("other")
    (folder / "new").replace(folder / "adapter_model.safetensors")
    assert loaded.has(one) and not loaded.stands(one)
    manager._load_adapter(asked("of the hub", path="/b"))
    assert loaded.stands(loaded.since(1)[0])


def test_what_an_engine_applies_of_an_adapter_is_in_its_name(
    loader: tuple[LoadedAdapters, Loader],
) -> None:
    loaded, manager = loader
    manager._load_adapter(asked())
    manager.lora_config = SimpleNamespace(target_modules=["q_proj"])
    manager._load_adapter(asked("anew", number=7))
    again, first = loaded.since(0)
    assert again.weights != first.weights


def test_an_adapter_that_is_odd_or_loaded_in_place_has_no_name_and_is_loaded(
    loader: tuple[LoadedAdapters, Loader], caplog: pytest.LogCaptureFixture
) -> None:
    loaded, manager = loader
    manager.lies["/odd"] = object()
    assert manager._load_adapter(asked("odd", "/odd")).rank == 4
    assert manager._load_adapter(asked("b", "/b", in_place=True)).rank == 4
    assert [one.weights for one in loaded.since(0)] == ["", ""]
    assert "LoRA adapter odd has no name" in caplog.text


def test_no_more_adapters_are_named_than_there_is_room_for() -> None:
    loaded, adapters = LoadedAdapters(), Adapters()
    model: Any = SimpleNamespace(id=1, rank=1, loras={})
    for number in range(1, ADAPTERS_MAX + 2):
        loaded.note(asked(str(number), number=number), model, Loader, ())
        adapters.heard([Adapter(number, str(number), "/a", "w")])
    assert len(loaded.since(0)) == ADAPTERS_MAX
    ends = [under(asked(str(one), number=one)) for one in (1, ADAPTERS_MAX + 1)]
    assert [bool(adapters.of(one)) for one in ends] == [True, False]
    adapters.heard([Adapter(1, "another", "/a", "w")])
    assert adapters.of(ends[0]) is None, "that number is of one whose changes nobody would see"
    known = under(asked("7", number=7))
    for number in range(ADAPTERS_MAX + 9):
        assert adapters.of(known)
        assert adapters.of(under(asked(f"of 5, {number}", number=5))) is None
        if len(adapters._mixed) == ADAPTERS_MAX:
            break
    assert adapters.of(known) is None, "who is mixed can be remembered no more"


def under(adapter: Any) -> Any:
    return SimpleNamespace(lora_request=adapter)


def test_an_adapter_is_known_once_the_workers_say_so_and_not_after_it_changed() -> None:
    adapters, one = Adapters(), Adapter(ord("a"), "a", "/a", "1")
    assert adapters.of(under(asked())) is None and not adapters.why_not(under(asked()))
    assert adapters.heard([one]) and not adapters.heard([one])
    assert adapters.of(under(asked())) == one
    assert adapters.of(under(asked(number=7))) is None, "it is loaded by this number too, and soon"
    assert adapters.of(under(asked(path="/other"))) is None
    assert adapters.of(under(asked(in_place=True))) is None
    adapters.heard([one, replace(one, weights="2")])  # the last is said first
    assert adapters.of(under(asked())) is None, "vLLM may have KV of either"
    assert adapters.why_not(under(asked())) == CHANGED
    adapters.forgotten()
    assert adapters.of(under(asked())) == one


def test_what_ranks_do_not_have_alike_has_no_name() -> None:
    one, other = Adapter(ord("a"), "a", "/a", "1"), Adapter(ord("b"), "b", "/b", "1")
    alike = Report(adapters=(one, other)).aggregate(Report(adapters=(other, one)))
    assert set(alike.adapters) == {one, other}
    for rank in ((), (replace(one, weights="2"),)):
        both = Report(adapters=(one, other)).aggregate(Report(adapters=(*rank, other)))
        assert set(both.adapters) == {replace(one, weights=""), other}


class Item(dict[str, Any]):
    """As vLLM's `MultiModalKwargsItem`."""


def image(name: str = "cat", data: Any = PIXELS, mask: Any = None, **beside: Any) -> Any:
    told = {"pixel_values": data, "image_grid_thw": torch.tensor([1, 2, 4]), **beside}
    return SimpleNamespace(
        identifier=name,
        modality="image",
        data=Item({key: SimpleNamespace(data=one) for key, one in told.items()}),
        mm_position=SimpleNamespace(offset=3, length=8, is_embed=mask),
    )


def named(media: Media, *images: Any) -> list[Medium]:
    media.seen(images)
    return media.of(images)


def test_an_image_is_named_by_what_the_encoder_is_given_and_by_what_that_makes_of_it() -> None:
    def digest_of(one: Any, encoder: str = "") -> bytes:
        (medium,) = named(Media(encoder), one)
        assert (medium.first, medium.tokens) == (3, 8)
        return medium.digest

    cat = digest_of(image())
    assert cat == digest_of(image("by another name"))
    others = [
        digest_of(image(data=PIXELS + 1)),
        digest_of(image(image_grid_thw=torch.tensor([1, 4, 2]))),
        digest_of(image(mask=torch.ones(8, dtype=torch.bool))),
        digest_of(image(), encoder="of another kind"),
    ]
    assert len({cat, *others}) == 5


def test_one_name_for_two_images_is_nobodys_from_then_on() -> None:
    media, cat = Media(""), image()
    first = named(media, cat, cat, image("dog", PIXELS + 1))
    assert first[0].digest == first[1].digest == named(media, image())[0].digest
    assert media.seen([image("dog", PIXELS + 1), image(data=PIXELS + 1)]) == {"cat"}
    for one in (image(data=PIXELS + 1), image(), cat):
        assert media.seen([one]) == set(), "as it was"
        with pytest.raises(Nameless, match=TWO):
            media.of([one])
    assert named(media, image("dog", PIXELS + 1)) == first[2:]


@pytest.mark.parametrize("data", [torch.arange(64), torch.zeros(7), [torch.zeros(3)] * 2, 7])
def test_an_image_whose_pixels_are_elsewhere_has_no_name(data: Any) -> None:
    """As where its embeddings are another engine's, or its bytes in shared memory."""
    media, here = Media(""), image()
    named(media, here)
    with pytest.raises(Nameless, match=ABSENT):
        named(media, image("elsewhere", data))
    with pytest.raises(Nameless, match=ABSENT):
        named(media, image("elsewhere"))
    with pytest.raises(Nameless, match="images that have no digest"):
        named(media, SimpleNamespace(**{**vars(image("nothing")), "data": None}))
    cat, copy = image(), image(data=PIXELS.clone())
    assert named(media, cat) == named(media, copy)
    assert media.seen([image(data=data)]) == {"cat"}, "vLLM may make something else of it"
    with pytest.raises(Nameless, match=TWO):
        media.of([here])


def test_an_image_is_seen_under_its_name_though_another_before_it_has_none() -> None:
    media = Media("")
    media.seen([image("nobody's", torch.zeros(3)), image()])
    assert media.seen([image(data=PIXELS + 1)]) == {"cat"}


@pytest.mark.parametrize(
    "data", [torch.zeros(9, dtype=torch.uint8), np.zeros(9, np.float32), [torch.zeros(5)] * 2]
)
def test_pixels_may_come_in_several_kinds_and_pieces(data: Any) -> None:
    assert len(named(Media(""), image(data=data))) == 1


def test_what_an_image_was_called_is_forgotten_after_many_others() -> None:
    media = Media("")
    for number in range(KNOWN_MAX + 5):
        media.seen([image(str(number), torch.zeros(8))])
    assert len(media._known) == KNOWN_MAX


def engine(**told: Any) -> Any:
    """A vLLM's configuration, of a model that sees images."""
    from tests.connectors import untold

    pruned = told.pop("pruned", False)
    model = SimpleNamespace(
        model="hub/model",
        is_mm_prefix_lm=told.pop("both_ways", False),
        uses_mrope=told.pop("turns", False),
        multimodal_config=SimpleNamespace(
            **untold.IMAGES | told.pop("images", {}),
            is_multimodal_pruning_enabled=lambda: pruned,
        ),
    )
    lora = SimpleNamespace(enable_tower_connector_lora=told.pop("adapted", False))
    return SimpleNamespace(
        model_config=model, ec_transfer_config=told.pop("elsewhere", None), lora_config=lora
    )


@pytest.mark.parametrize(
    ("told", "why"),
    [
        ({"both_ways": True}, "attend to those behind them"),
        ({"turns": True, "pruned": True}, "--video-pruning-rate"),
        ({"elsewhere": object()}, "--ec-transfer-config"),
        ({"images": {"mm_encoder_attn_dtype": "fp8"}}, "scales depend on what came before"),
    ],
)
def test_images_of_which_more_decides_than_they_show_are_left_out(told: Any, why: str) -> None:
    for plain in (engine(), engine(turns=True), engine(pruned=True)):
        assert len(named(Media.of_engine(plain), image())) == 1
    with pytest.raises(Nameless, match=why):
        named(Media.of_engine(engine(**told)), image())


def test_a_later_vllm_that_says_something_otherwise_has_text_kept_and_no_images() -> None:
    later = engine()
    del later.model_config.multimodal_config.video_pruning_rate
    media = Media.of_engine(later)
    assert media.of([]) == []
    with pytest.raises(Nameless, match="no video_pruning_rate"):
        named(media, image())


def test_a_later_vllm_that_loads_adapters_otherwise_has_them_left_out(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.delattr(WorkerLoRAManager, "_load_adapter")
    LoadedAdapters().watch_vllm()
    assert "LoRA adapters are not kept" in caplog.text and "_load_adapter" in caplog.text


def test_a_later_vllm_may_load_adapters_by_more_and_say_less_of_them(
    caplog: pytest.LogCaptureFixture,
) -> None:
    class Later(Loader):
        lies: ClassVar = {"/a": PIXELS}

        def _load_adapter(self, request: Any, rank: int = 4, *, more: bool = False) -> Any:
            return super()._load_adapter(request) if more and rank == 8 else None

    loaded, one, adapters = LoadedAdapters(), asked(), Adapters()
    del one.load_inplace
    loaded.watch(Later)
    assert Later()._load_adapter(one, 8, more=True).rank == 4
    assert adapters.heard(loaded.since(0)) and adapters.of(under(one)), caplog.text


@pytest.mark.parametrize("adapted", [False, True])
def test_an_image_under_an_adapter_that_may_change_its_encoder_is_left_out(adapted: bool) -> None:
    contents = Contents(Media.of_engine(engine(adapted=adapted)))
    contents.adapters.heard([Adapter(ord("a"), "a", "/a", "00")])
    plain: Any = {"prompt_embeds": None, "prompt_token_ids": [1], "resumable": False}
    shows = SimpleNamespace(**plain, mm_features=[image()], lora_request=asked(), cache_salt=None)
    contents.media.seen(shows.mm_features)
    if adapted:
        with pytest.raises(Nameless, match="enable_tower_connector_lora"):
            contents.of(shows, 16)
    else:
        assert contents.of(shows, 16).extra
    shows.lora_request = None
    assert contents.of(shows, 16).extra


def test_prompts_without_an_adapter_are_kept_where_they_are_computed_without_one() -> None:
    plain: Any = {"prompt_embeds": None, "prompt_token_ids": [1], "resumable": False}
    one = SimpleNamespace(**plain, mm_features=[], lora_request=None, cache_salt=None)
    assert Contents(Media("")).of(one, 16).adapter is None
    with pytest.raises(Nameless, match=MIXED):
        Contents(Media(""), MIXED).of(one, 16)
    assert why_not(SimpleNamespace(lora_config=None)) == ""


def test_a_model_of_text_alone_has_none() -> None:
    model = SimpleNamespace(multimodal_config=None)
    text: Any = SimpleNamespace(model_config=model, lora_config=None)
    assert Media.of_engine(text).of([]) == []
