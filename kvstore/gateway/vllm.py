"""A vLLM server as the gateway asks it: a prompt of token ids, gone on with by the server's own."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from typing import Any

from kvstore.gateway import streamed
from kvstore.gateway.events import Refused
from kvstore.gateway.logprobs import of_choice
from kvstore.gateway.needs import Lacks
from kvstore.gateway.run import Place, Run
from kvstore.gateway.sampling import Sampling
from kvstore.wire.v1 import engine_pb2 as pb

PATH = "/v1/completions"
RANK = "X-data-parallel-rank"  # of the engines behind one server, which one is meant
# What a server else takes from its model's generation_config.json, where a call does not say it:
# engines of ours know none of it, and an answer is not to depend on who gives it.
PLAIN = {"repetition_penalty": 1.0, "top_k": -1, "min_p": 0.0}  # -1: all tokens


def generate(place: Place, wanted: pb.GenerateRequest, run: Run, seconds: float) -> None:
    """The run is told of each token. Raises whatever goes wrong by its type."""
    with lacks(run.request.adapter):
        streamed.generate(_Answer, place.address, wanted, run, seconds, headers_of(place))


@contextmanager
def lacks(adapter: str) -> Iterator[None]:
    """A server that knows no such model has not this adapter, and raises `Lacks`."""
    try:
        yield
    except Refused as error:
        if adapter and error.status == 404:
            raise Lacks(str(error)) from error
        raise


def headers_of(place: Place) -> dict[str, str]:
    return {RANK: str(place.data_parallel_rank)} if place.HasField("data_parallel_rank") else {}


def body_of(
    wanted: pb.GenerateRequest, sampling: Sampling | None, adapter: str = ""
) -> dict[str, Any]:
    body = _body(wanted, wanted.max_new_tokens, adapter)
    body |= {"ignore_eos": wanted.ignore_eos, "return_token_ids": True}
    if wanted.hand_off.name:
        said = body["kv_transfer_params"]["moonpool"]
        said |= {"follow": wanted.hand_off.name, "follow_at": wanted.hand_off.node_id}
    if wanted.HasField("logprobs"):
        # By their ids, for two tokens may have one text.
        body |= {"logprobs": wanted.logprobs, "return_tokens_as_token_ids": True}
    drawn = {"temperature": 0} if sampling is None else asdict(sampling)
    body |= PLAIN | {name: value for name, value in drawn.items() if value is not None}
    return body


def prefill_body(wanted: pb.PrefillRequest, name: str, adapter: str = "") -> dict[str, Any]:
    """`name` is what whoever follows it is told too."""
    body = _body(wanted, 1, adapter)
    body["kv_transfer_params"]["moonpool"] |= {"hand_off": name}
    return body


def cached_of(event: dict[str, Any]) -> int | None:
    """Tokens of the prompt that the server did not compute, where an event says so."""
    usage = event.get("usage")
    details = usage.get("prompt_tokens_details") if isinstance(usage, dict) else None
    cached = details.get("cached_tokens") if isinstance(details, dict) else None
    return cached if type(cached) is int and cached >= 0 else None


def _body(
    wanted: pb.GenerateRequest | pb.PrefillRequest, most: int, adapter: str
) -> dict[str, Any]:
    """No model is named but an adapter: a server takes what it serves."""
    body: dict[str, Any] = {
        "prompt": list(wanted.prompt),
        "max_tokens": most,
        "stream": True,
        "stream_options": {"include_usage": True},
        # By which the connector tells conductors of it: so it counts once.
        "kv_transfer_params": {"moonpool": {"request": wanted.request_id}},
    }
    if adapter:
        body["model"] = adapter
    if wanted.cache_salt:
        body["cache_salt"] = wanted.cache_salt
    return body


class _Answer(streamed.Streamed):
    def asked(self) -> tuple[str, dict[str, Any]]:
        request = self.run.request
        return PATH, body_of(self.wanted, request.sampling, request.adapter)

    def take(self, event: dict[str, Any]) -> None:
        adapter, named = self.run.request.adapter, event.get("model")
        if adapter and isinstance(named, str) and named != adapter:
            raise Lacks(f"{self.address}: asked for {adapter!r} it answers by {named[:64]!r}")
        self.had(cached_of(event))
        choices = event.get("choices")
        if not isinstance(choices, list) or len(choices) > 1:
            raise self.bad("an event has not one choice")
        for choice in choices:
            ids = self.tokens(choice.get("token_ids") if isinstance(choice, dict) else None)
            said = of_choice(self.address, choice, ids, self.run.request.logprobs)
            self.tell(ids, said, choice.get("finish_reason"))
