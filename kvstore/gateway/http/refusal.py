"""What a caller over HTTP is told of an error: a status, and OpenAI's words for it."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from typing import Any

from starlette.responses import Response

from kvstore.errors import Invalid, KVStoreError, Overloaded, Rejected
from kvstore.gateway.http.keys import BadKey
from kvstore.gateway.needs import Lacks, Unable


class BadField(Invalid):
    """A field of the body is wrong or not supported; the message says what would be right."""

    code = ""

    def __init__(self, param: str, message: str) -> None:
        super().__init__(message)
        self.param = param


class UnknownModel(BadField):
    """Another model is asked for than is served."""

    code = "model_not_found"


class TooLong(BadField):
    """Prompt and answer are more tokens than the model has positions for."""

    code = "context_length_exceeded"


class TooLarge(Invalid):
    """The body has more bytes than are read."""


class TooSlow(Invalid):
    """The body did not come in time."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """One answer that is no completion."""

    status: int
    kind: str  # OpenAI's `type`
    message: str
    code: str = ""
    param: str = ""
    retry_ms: int = 0  # 0: it is not worth another try

    @property
    def body(self) -> dict[str, Any]:
        return {
            "error": {
                "message": self.message,
                "type": self.kind,
                "param": self.param or None,
                "code": self.code or None,
            }
        }

    @property
    def headers(self) -> dict[str, str]:
        """The first is of HTTP, in whole seconds; OpenAI's clients look at the second before."""
        if not self.retry_ms:
            return {}
        seconds = math.ceil(1e-3 * self.retry_ms)
        return {"retry-after": f"{seconds}", "retry-after-ms": f"{self.retry_ms}"}

    @property
    def response(self) -> Response:
        # In ASCII: half of a surrogate pair, which a field's name can have, is nothing in UTF-8.
        text = json.dumps(self.body)
        return Response(text, self.status, self.headers, "application/json")


RETRY_MS = 1_000  # where an error does not say when
_WRONG, _OURS = "invalid_request_error", "server_error"


def refusal_of(error: KVStoreError) -> Refusal:
    """What is wrong with the call is told in full; of what is wrong with us, that it is."""
    text = str(error)
    match error:
        case BadKey():
            return Refusal(401, _WRONG, text, "invalid_api_key")
        case BadField(param=param, code=code):
            status = 404 if isinstance(error, UnknownModel) else 400
            return Refusal(status, _WRONG, text, code, param)
        case Unable(field=field):
            return Refusal(400, _WRONG, text, param=field)
        case Lacks():
            return Refusal(404, _WRONG, text, "model_not_found", "model")
        case TooLarge():
            return Refusal(413, _WRONG, text)
        case TooSlow():
            return Refusal(408, _WRONG, text)
        case Invalid():
            return Refusal(400, _WRONG, text)
        case Overloaded(retry_after_ms=ms):
            return Refusal(429, "rate_limit_error", text, "overloaded", retry_ms=ms or RETRY_MS)
        case Rejected(retry_after_ms=ms):
            return Refusal(503, _OURS, text, "unavailable", retry_ms=ms or RETRY_MS)
    return Refusal(500, _OURS, "the gateway failed this request: its log says more")
