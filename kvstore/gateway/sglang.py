"""An SGLang server as the gateway asks it, by SGLang's own API: its form of OpenAI's streams no ids
of tokens. A prompt of token ids is gone on with by the server's own.

Unless it runs with `--incremental-streaming-output`, each event says all tokens so far once more,
and what is said of them.
"""

from __future__ import annotations

from http import HTTPStatus
from typing import Any

from kvstore.gateway import streamed
from kvstore.gateway.events import refusal_of
from kvstore.gateway.logprobs import of_rows
from kvstore.gateway.run import Place, Run
from kvstore.gateway.sampling import Sampling
from kvstore.naming import rid_of
from kvstore.wire.v1 import engine_pb2 as pb

PATH = "/generate"
# What a server else takes from its settings, where a call does not say it.
PLAIN = {"repetition_penalty": 1.0, "top_k": -1, "min_p": 0.0, "top_p": 1.0}  # -1: all tokens


def generate(place: Place, wanted: pb.GenerateRequest, run: Run, seconds: float) -> None:
    """The run is told of each token. Raises whatever goes wrong by its type. No conductor names
    one of several engines behind a server: such do not report."""
    streamed.generate(_Answer, place.address, wanted, run, seconds)


def body_of(
    wanted: pb.GenerateRequest, sampling: Sampling | None, attempt: int = 1
) -> dict[str, Any]:
    drawn: dict[str, Any] = {"temperature": 0.0}
    if sampling is not None:
        drawn = {
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            "presence_penalty": sampling.presence_penalty,
            "frequency_penalty": sampling.frequency_penalty,
        }
        if sampling.seed is not None:
            drawn["sampling_seed"] = sampling.seed
    drawn["max_new_tokens"] = wanted.max_new_tokens
    drawn["ignore_eos"] = wanted.ignore_eos
    body: dict[str, Any] = {
        "rid": rid_of(wanted.request_id, attempt),
        "input_ids": list(wanted.prompt),
        "sampling_params": PLAIN | drawn,
        "stream": True,
    }
    if wanted.cache_salt:
        body["cache_salt"] = wanted.cache_salt
    if wanted.HasField("logprobs"):
        body |= {"return_logprob": True, "top_logprobs_num": wanted.logprobs}
    return body


class _Answer(streamed.Streamed):
    def asked(self) -> tuple[str, dict[str, Any]]:
        return PATH, body_of(self.wanted, self.run.request.sampling, self.attempt)

    def take(self, event: dict[str, Any]) -> None:
        meta, ids = event.get("meta_info"), event.get("output_ids")
        if not isinstance(meta, dict) or not isinstance(ids, list):
            raise self.bad("an event has no output_ids, or no meta_info")
        reason = meta.get("finish_reason")
        kind = reason.get("type") if isinstance(reason, dict) else reason
        if isinstance(reason, dict) and kind == "abort":
            # Its tokens are none of the answer's: the last one once more, or one that stands for a
            # prompt that was not run.
            status, words = reason.get("status_code"), reason.get("message")
            raise refusal_of(
                self.address,
                status if type(status) is int else HTTPStatus.SERVICE_UNAVAILABLE,
                words if isinstance(words, str) else "it ended by 'abort'",
            )
        self.had(meta.get("cached_tokens"))
        told = self.wanted.max_new_tokens - self.left
        # By how many there are in all it is plain whether these are all of them.
        before = told if len(ids) == meta.get("completion_tokens") else 0
        new = self.tokens(ids[before:])
        said = of_rows(self.address, meta, len(ids), before, new, self.run.request.logprobs)
        self.tell(new, said, kind)
