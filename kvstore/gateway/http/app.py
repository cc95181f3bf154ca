"""The paths that the gateway answers at, and every error as OpenAI's clients read it."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from kvstore.errors import Broken, Denied, Draining, KVStoreError
from kvstore.gateway.http.answers import Answer, ChatAnswer, models
from kvstore.gateway.http.asked import asked
from kvstore.gateway.http.asked_chat import asked_chat
from kvstore.gateway.http.completions import Completions
from kvstore.gateway.http.keys import BadKey, Keys
from kvstore.gateway.http.makers import Makers
from kvstore.gateway.http.ready import Readiness
from kvstore.gateway.http.refusal import Refusal, refusal_of
from kvstore.gateway.http.served import Served
from kvstore.gateway.http.work import RETRY_MS, Work

log = logging.getLogger(__name__)


def app_of(
    work: Work, served: Served, readiness: Readiness, keys: Keys, more: Sequence[Route] = ()
) -> Starlette:
    """Over work that may be drained: then it says that it is not ready, and is alive. `more` paths
    are answered whoever asks."""

    async def health(call: Request) -> Response:
        return JSONResponse({"status": "alive"})

    async def ready(call: Request) -> Response:
        if work.draining:
            raise Draining("the gateway is shutting down", RETRY_MS)
        await readiness.check()
        return JSONResponse({"status": "ready"})

    async def listed(call: Request) -> Response:
        keys.whose(call.headers.get("authorization", ""))
        return JSONResponse(models(served.names, served.created))

    makers = Makers()
    app = Starlette(
        routes=[
            Route(
                "/v1/completions",
                Completions(work, served, keys, makers, asked, Answer),
                methods=["POST"],
            ),
            Route(
                "/v1/chat/completions",
                Completions(work, served, keys, makers, asked_chat, ChatAnswer),
                methods=["POST"],
            ),
            Route("/v1/models", listed),
            Route("/health", health),
            Route("/ready", ready),
            *more,
        ],
        exception_handlers={
            KVStoreError: _failed,
            HTTPException: _not_found,
            Exception: _failed,
        },
    )
    # A path with a slash too many is none, and not another at the host that a caller names.
    app.router.redirect_slashes = False
    return app


async def _failed(call: Request, error: Exception) -> Response:
    found = error if isinstance(error, KVStoreError) else Broken(str(error))
    if isinstance(found, Denied | Broken) and not isinstance(found, BadKey):
        log.error("%s %s: %s", call.method, call.url.path, type(error).__name__, exc_info=error)
    return refusal_of(found).response


async def _not_found(call: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    what = f"{call.method} {call.url.path[:64]}"
    if error.status_code == 405:
        text = f"{what}: this path takes {(error.headers or {}).get('Allow', 'other methods')}"
    else:
        paths = "/v1/completions, /v1/chat/completions, /v1/models, /health and /ready"
        shown = any(isinstance(one, Route) and one.path == "/" for one in call.app.routes)
        people = "/ is for people" if shown else "people have what `serve --board` names"
        text = f"{what}: there are {paths}; {people}"
    refusal = Refusal(error.status_code, "invalid_request_error", text)
    return JSONResponse(refusal.body, error.status_code, error.headers)
