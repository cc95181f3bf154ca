"""The demo's workload once more, as callers of the gateway send it: so that its dashboard has what
to show."""

from __future__ import annotations

import http.client
import json
import sys
from collections.abc import Sequence
from contextlib import closing

from tqdm import tqdm

from kvstore.cli.demo.workload import Ask
from kvstore.errors import Broken

ANSWER_SECONDS = 120.0


def through_gateway(address: str, model: str, asks: Sequence[Ask]) -> None:
    """One after the other. Raises `Broken` where one is not answered."""
    host, _, port = address.rpartition(":")
    calling = http.client.HTTPConnection(host, int(port), timeout=ANSWER_SECONDS)
    with (
        closing(calling),
        tqdm(
            asks, unit="request", desc="gateway", file=sys.stderr, leave=False, disable=None
        ) as bar,
    ):
        for ask in bar:
            body = {"model": model, "prompt": list(ask.prompt), "max_tokens": ask.new_tokens}
            calling.request("POST", "/v1/completions", json.dumps(body), _JSON)
            reply = calling.getresponse()
            said = reply.read()
            if reply.status != 200:
                raise Broken(f"the gateway answers {reply.status}: {said[:200].decode()}")


_JSON = {"Content-Type": "application/json"}
