"""The dashboard's paths: a page, its charts as JSON, and the library that draws them.

All of it is read-only and comes from this process: the page works where there is no internet.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from kvstore.dashboard.explained import Explain, Explained
from kvstore.dashboard.watch import TICK_SECONDS, Watch
from kvstore.dashboard.whatif import WhatIf
from kvstore.errors import Broken, ConfigError, KVStoreError, Overloaded

_KINDS = {".html": "text/html", ".css": "text/css", ".js": "text/javascript"}
_PAGE = Path(__file__).parent / "page"
_HEADERS = {
    # What callers asked and models said is on no page of ours; should it ever be, it runs nothing.
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; connect-src 'self'; "
    "style-src 'self' 'unsafe-inline'; img-src 'self' data: blob:; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
}
_A_DAY = {"Cache-Control": "max-age=86400"}
_ID_MAX = 256
Recent = Callable[[], list[dict[str, Any]]]


def routes(watch: Watch, recent: Recent, prefixes: Recent, explain: Explain) -> list[Route]:
    """As JSON: `recent` gives the last requests, the newest first; `prefixes` the beginnings that
    prompts share; `explain` why a request was sent where it was, None where nobody remembers; it
    may take a while, and raises where those who might remember do not answer."""

    async def charts(call: Request) -> Response:
        return JSONResponse(
            {
                "now": time.time(),
                "tick_seconds": TICK_SECONDS,
                "times": watch.history.times,
                "charts": watch.history.charts(),
                "processes": watch.processes(),
            },
            headers=_HEADERS,
        )

    async def requests(call: Request) -> Response:
        told = {"requests": recent(), "prefixes": prefixes()}
        return JSONResponse(told, headers=_HEADERS)

    what_if = WhatIf()

    async def choices(call: Request) -> Response:
        return JSONResponse(what_if.choices(), headers=_HEADERS)

    async def supposed(call: Request) -> Response:
        try:
            told = await what_if.answer(dict(call.query_params))
            return JSONResponse(told, headers=_HEADERS)
        except ConfigError as error:
            return JSONResponse({"error": str(error)}, 400, headers=_HEADERS)
        except Overloaded as error:
            return JSONResponse({"error": str(error)}, 429, headers=_HEADERS)
        except Broken as error:
            return JSONResponse({"error": str(error)}, 500, headers=_HEADERS)

    explained = Explained(explain)

    async def why(call: Request) -> Response:
        try:
            found = await explained.answer(call.path_params["id"][:_ID_MAX])
            return JSONResponse(found or {}, 200 if found else 404, headers=_HEADERS)
        except Overloaded as error:
            return JSONResponse({"error": str(error)}, 429, headers=_HEADERS)
        except KVStoreError as error:  # whoever remembers may be one that does not answer
            return JSONResponse({"error": str(error)}, 503, headers=_HEADERS)

    return [
        Route("/", _file(_PAGE / "board.html")),
        Route("/whatif", _file(_PAGE / "whatif.html")),
        Route("/board/whatif.js", _file(_PAGE / "whatif.js")),
        Route("/board/whatif/choices", choices),
        Route("/board/whatif/answer", supposed),
        Route("/board/board.css", _file(_PAGE / "board.css")),
        Route("/board/board.js", _file(_PAGE / "board.js")),
        Route("/board/plotly.js", _file(_plotly(), _A_DAY)),
        Route("/board/charts", charts),
        Route("/board/requests", requests),
        Route("/board/requests/{id}", why),
    ]


def _plotly() -> Path:
    """What draws the charts: of a package that the `serve` extra brings. Without it the page has
    figures alone."""
    if find_spec("plotly") is None:
        return _PAGE / "no_plotly.js"
    return Path(str(files("plotly") / "package_data" / "plotly.min.js"))


def _file(path: Path, headers: dict[str, str] | None = None) -> Callable[[Request], Any]:
    body, kind = path.read_bytes(), _KINDS[path.suffix]

    async def answer(call: Request) -> Response:
        return Response(body, media_type=kind, headers=_HEADERS | (headers or {}))

    return answer
