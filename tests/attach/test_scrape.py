"""A server's counters are read, added up over its ranks, and trusted for nothing."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from kvstore.attach import scrape
from kvstore.attach.kinds import KINDS, SGLANG, VLLM, Kind
from kvstore.attach.scrape import Counted, Page
from kvstore.errors import ConfigError, Unavailable
from tests.attach.pages import Pages, page


@pytest.fixture
def pages() -> Iterator[Pages]:
    with Pages() as made:
        yield made


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_counters_are_read_and_summed_over_ranks(pages: Pages, kind: Kind) -> None:
    said = {name: 2.0 * number for number, name in enumerate(kind.counters)}
    said["pool_queries"] = 0.0  # to SGLang the same as what it found there
    pages.body = page(kind, **said)
    said["pool_queries"] = said["pool_hits"] if kind is SGLANG else 0.0
    assert scrape.read(pages.url) == Page(kind, said, 2)
    assert scrape.read(f"{pages.url}/".rstrip("/")).running == 2


def test_a_server_that_was_asked_for_nothing_yet_is_known_by_its_name() -> None:
    said = scrape.parsed("# TYPE sglang:page_size gauge\nsglang:page_size 32.0\n", "http://host")
    assert said.kind is SGLANG and not any(said.counters.values())


def test_an_sglang_that_does_not_say_where_tokens_were_cached_is_believed_that_they_were() -> None:
    lines = ('prompt_tokens_total{model_name="m"} 9', 'cached_tokens_total{model_name="m"} 7')
    said = scrape.parsed("\n".join(f"sglang:{line}.0" for line in lines), "http://host").counters
    assert (said["queries"], said["hits"], said["pool_hits"]) == (9.0, 7.0, 0.0)


def test_what_counts_is_what_came_since_the_beginning() -> None:
    counted = Counted()
    counted.begin(Page(VLLM, {"queries": 100.0, "hits": 50.0}, 0))
    counted.take(Page(VLLM, {"queries": 160.0, "hits": 80.0}, 0))
    assert (counted.asked.queries, counted.asked.hits, counted.asked.missed) == (60, 30, 30)


def test_a_server_that_starts_anew_goes_on_counting() -> None:
    counted = Counted()
    counted.begin(Page(VLLM, {"queries": 100.0, "hits": 50.0}, 0))
    for queries, hits in ((160.0, 80.0), (10.0, 4.0), (20.0, 4.0)):
        counted.take(Page(VLLM, {"queries": queries, "hits": hits}, 0))
    assert (counted.asked.queries, counted.asked.hits, counted.restarts) == (80, 34, 1)


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("", "has no counters of vLLM nor of SGLang; SGLang has them with --enable-metrics"),
        ("# TYPE a counter\na_total 1\n", "has no counters of vLLM nor of SGLang"),
        ("vllm:num_requests_running 1\n", "has no vllm:prefix_cache_queries_total"),
        ('vllm:x{a="b 1\n', "not in Prometheus' text format"),
        ("vllm:prefix_cache_queries_total many\n", "not in Prometheus' text format"),
        (page(queries=1.0), "has no vllm:prefix_cache_hits_total"),
        (page(queries=1.0, hits=float("nan")), "has no vllm:prefix_cache_hits_total"),
        (page(queries=1.0, hits=-1.0), "has no vllm:prefix_cache_hits_total"),
    ],
)
def test_a_page_that_is_of_no_such_server_is_refused(body: str, said: str) -> None:
    with pytest.raises(Unavailable, match=said):
        scrape.parsed(body, "http://host")


def test_a_server_that_refuses_is_unavailable(pages: Pages) -> None:
    pages.status = 503
    with pytest.raises(Unavailable, match="answers 503"):
        scrape.read(pages.url)


def test_one_that_says_too_much_is_hung_up_on(
    pages: Pages, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scrape, "ATTACH_BODY_BYTES_MAX", 1_000)
    pages.body = "#" * 2_000
    with pytest.raises(Unavailable, match="more than 1,000 bytes"):
        scrape.read(pages.url)


def test_one_that_never_ends_is_given_up(pages: Pages, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scrape, "ATTACH_CALL_SECONDS", 0.3)
    pages.body = page(queries=1.0, hits=1.0)
    pages.hold.clear()
    with pytest.raises(Unavailable, match="cannot be read: timed out"):
        scrape.read(pages.url)


def test_where_nobody_listens_is_unavailable(pages: Pages) -> None:
    with Pages() as gone:
        url = gone.url
    with pytest.raises(Unavailable, match="cannot be read"):
        scrape.read(url)


@pytest.mark.parametrize("url", ["http://10.0.0..1:9401", "https://10.0.0..1:9401"])
def test_where_no_host_can_have_such_a_name_is_unavailable(url: str) -> None:
    with pytest.raises(Unavailable, match=rf"{url}/metrics cannot be read: .*such a name"):
        scrape.read(url)


@pytest.mark.parametrize(
    "url", ["", "host:8000", "ftp://host", "http://", "http://h:x", "http://["]
)
def test_what_is_no_address_is_refused(url: str) -> None:
    with pytest.raises(ConfigError, match="wants an address like"):
        scrape.check_url(url)
