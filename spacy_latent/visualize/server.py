"""ASGI application of ``spacy latent serve``: one page and its requests.

All files of the page are in this package. The server applies three rules against other web pages:

- It answers only to host names that it was started with. No other page can then reach it under its
  own name (DNS rebinding).
- Posted requests must be JSON from this page, so that no other page can make a browser post to it.
- Responses may neither run scripts nor load anything except for this server's own files.
"""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from spacy_latent.errors import LatentError, NothingLeft
from spacy_latent.interventions import Intervention
from spacy_latent.visualize.explorer import Busy, Explorer, TooMuch
from spacy_latent.visualize.page import packaged, rules

LOCAL = ("127.0.0.1", "localhost", "[::1]")
# Greatest size of a request in bytes, enough for interventions and the longest text with all
# characters escaped.
LARGEST = 1 << 17
# Seconds until a whole request must have arrived.
ARRIVAL = 10.0
# Number of requests that may wait at the same time.
WAITING = 16
MOST_PLACES = 8
POLICY = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cache-Control": "no-store",
}


class _Refused(Exception):
    """Error with an HTTP status, a title and advice for the user."""

    def __init__(self, status: int, title: str, advice: str) -> None:
        super().__init__(title)
        self.status, self.title, self.advice = status, title, advice


def make_application(
    steps: Sequence[Explorer],
    beside: Explorer | None = None,
    *,
    hosts: Iterable[str] = LOCAL,
    example: Sequence[str] = (),
) -> ASGIApp:
    """Return the ASGI application.

    Args:
        steps: Pipelines in the order of training. The page begins with the last one.
        hosts: Host names, without a port, that the server answers to.
        example: Text, or pair of texts, that the page begins with.
    """
    endpoints = _Endpoints(steps, beside, example)
    contents = {
        "/": (packaged("serve.html"), "text/html"),
        "/page.js": (packaged("serve.js"), "text/javascript"),
        "/isolate.js": (packaged("isolate.js"), "text/javascript"),
        "/page.css": (rules() + packaged("isolate.css") + packaged("serve.css"), "text/css"),
    }

    async def content(request: Request) -> Response:
        text, kind = contents[request.url.path]
        return Response(text, media_type=kind)

    async def nothing(request: Request) -> Response:
        return Response(status_code=204)

    routes = [Route(path, content) for path in contents]
    routes += [
        Route("/models", endpoints.models),
        Route("/read", endpoints.read, methods=["POST"]),
        # Browsers request the icon whether or not the page has one.
        Route("/favicon.ico", nothing),
    ]
    application = Starlette(routes=routes, exception_handlers=_HANDLERS)
    return _Guard(application, frozenset(name.lower() for name in hosts))


class _Endpoints:
    """Answers of the pipelines.

    Attributes:
        waiting: Number of texts that are being processed or are waiting.
    """

    def __init__(
        self, steps: Sequence[Explorer], beside: Explorer | None, example: Sequence[str]
    ) -> None:
        self.steps, self.beside, self.example = steps, beside, example
        self.explorers = [*steps, *([beside] if beside else [])]
        self.waiting = 0

    async def models(self, request: Request) -> Response:
        return JSONResponse(
            {
                "steps": [one.name for one in self.steps],
                "beside": self.beside.name if self.beside else None,
                "pairs": [one.pairs for one in self.explorers],
                "example": list(self.example),
                "characters": self.explorers[0].limits.characters,
            }
        )

    async def read(self, request: Request) -> Response:
        asked = await _body(request)
        explorer, texts, interventions = _understood(asked, self.explorers)
        if self.waiting >= WAITING:
            raise _Refused(503, "Too many requests", "Wait until earlier requests are answered.")
        self.waiting += 1

        def work() -> dict[str, object]:
            return explorer.predict(texts, interventions).to_json()

        # A thread cannot be stopped. It continues, keeps the lock and counts as waiting.
        found = asyncio.ensure_future(run_in_threadpool(work))
        found.add_done_callback(self._ended)
        try:
            made = await asyncio.wait_for(asyncio.shield(found), explorer.limits.seconds)
        except asyncio.TimeoutError:
            raise _Refused(
                503, "The request took too long", "Give a shorter text, or fewer edits."
            ) from None
        return JSONResponse({**made, "model": explorer.name})

    def _ended(self, done: asyncio.Future[Any]) -> None:
        self.waiting -= 1
        if not done.cancelled():
            # Read the exception, so that asyncio does not report it as never retrieved if the
            # request was abandoned.
            done.exception()


class _Guard:
    """ASGI middleware that checks the origin of requests and adds the security policy."""

    def __init__(self, application: ASGIApp, hosts: frozenset[str]) -> None:
        self.application = application
        self.hosts = hosts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self.application(scope, receive, send)
            return
        if scope["type"] != "http":
            # A websocket is closed without an answer.
            await send({"type": "websocket.close", "code": 1008})
            return

        async def guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                own = [(k.lower().encode(), v.encode()) for k, v in POLICY.items()]
                message = {**message, "headers": [*message.get("headers", []), *own]}
            await send(message)

        refused = self._refusal(scope["headers"])
        if refused is not None:
            await refused(scope, receive, guarded)
        else:
            await self.application(scope, receive, guarded)

    def _refusal(self, headers: Sequence[tuple[bytes, bytes]]) -> Response | None:
        given = [value.decode("latin-1") for key, value in headers if key == b"host"]
        if len(given) != 1 or _without_port(given[0]) not in self.hosts:
            return _said(
                421,
                "This name is not answered to",
                f"Open the page under one of {', '.join(sorted(self.hosts))}.",
            )
        for origin in (v.decode("latin-1") for key, v in headers if key == b"origin"):
            if origin.lower() != f"http://{given[0].lower()}":
                return _said(403, "Another page asks", "Open the page itself.")
        return None


def _without_port(host: str) -> str:
    name, colon, port = host.lower().rpartition(":")
    if colon and port.isdecimal() and (":" not in name or name.endswith("]")):
        return name
    return host.lower()


# ---------------------------------------------------------------- requests


async def _body(request: Request) -> Any:
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":
        # Pages of other sites may post other content types without a preflight request.
        raise _Refused(415, f"The content type is {kind[:60]!r}", "Post application/json.")
    length = request.headers.get("content-length", "0")
    if not length.isdecimal() or int(length) > LARGEST:
        raise _too_large()
    body = bytearray()

    async def arrive() -> None:
        async for chunk in request.stream():
            body.extend(chunk)
            if len(body) > LARGEST:
                raise _too_large()

    try:
        await asyncio.wait_for(arrive(), ARRIVAL)
    except asyncio.TimeoutError:
        raise _Refused(408, "The request did not arrive in time", "Send it at once.") from None
    try:
        return json.loads(body)
    except (ValueError, RecursionError):
        raise _Refused(400, "The request is no JSON", "Send one JSON object.") from None


def _too_large() -> _Refused:
    return _Refused(413, "The request is too large", f"Send at most {LARGEST} bytes.")


def _understood(
    asked: Any, explorers: Sequence[Explorer]
) -> tuple[Explorer, list[str], dict[str, Intervention]]:
    def check(right: bool, name: str, expected: str) -> None:
        if not right:
            raise _Refused(400, f"{name!r} is invalid", f"Expected {expected}.")

    check(isinstance(asked, dict), "The request", "a JSON object")
    unknown = sorted(set(asked) - {"model", "texts", "edits", "temperature"})
    check(not unknown, unknown[0] if unknown else "", "model, texts, edits and temperature")
    model, texts = asked.get("model", 0), asked.get("texts")
    check(_is_number(model, int) and 0 <= model < len(explorers), "model", "the number of a model")
    check(
        isinstance(texts, list) and all(isinstance(one, str) for one in texts),
        "texts",
        "a list of one text, or of two for a pair",
    )
    assert isinstance(texts, list)
    for one in texts:
        # A lone surrogate, which is invalid in a text.
        check(not any("\ud800" <= c <= "\udfff" for c in one), "texts", "text in Unicode")
    temperature = asked.get("temperature", 1.0)
    check(
        _is_number(temperature, (int, float)) and 0.01 <= temperature <= 100,
        "temperature",
        "a number from 0.01 to 100",
    )
    edits = asked.get("edits", [])
    check(isinstance(edits, list), "edits", "a list")
    explorer = explorers[model]
    found: dict[str, dict[bool, list[Any]]] = {}
    for edit in edits:
        check(
            isinstance(edit, dict)
            and isinstance(edit.get("key"), str)
            and _is_number(edit.get("start"), int)
            and isinstance(edit.get("part"), list)
            and len(edit["part"]) <= MOST_PLACES
            and all(_is_number(number, int) for number in edit["part"])
            and isinstance(edit.get("force"), bool)
            and len(edit) == 4,
            "edits",
            "objects of key (text), start (number), part (numbers) and force (true or false)",
        )
        own = found.setdefault(edit["key"], {False: [], True: []})
        own[edit["force"]].append((edit["start"], tuple(edit["part"])))
    keys = [*found, *(key for key in explorer.editable if key not in found)]
    nothing: dict[bool, list[Any]] = {False: [], True: []}
    asked_of = {
        key: Intervention(
            tuple(found.get(key, nothing)[False]),
            tuple(found.get(key, nothing)[True]),
            float(temperature),
        )
        for key in keys
    }
    return explorer, texts, asked_of


def _is_number(value: Any, kind: Any) -> bool:
    if isinstance(value, bool) or not isinstance(value, kind):
        return False
    return abs(value) < 1 << 31 if isinstance(value, int) else math.isfinite(value)


# ---------------------------------------------------------------- errors


def _said(status: int, title: str, advice: str) -> Response:
    return JSONResponse({"error": {"title": title, "text": advice}}, status_code=status)


async def _refuse(request: Request, error: Any) -> Response:
    return _said(error.status, error.title, error.advice)


async def _explain(request: Request, error: Exception) -> Response:
    for kind, status, title in _TITLES:
        if isinstance(error, kind):
            return _said(status, title, str(error))
    raise error


async def _not_here(request: Request, error: Any) -> Response:
    return _said(error.status_code, "There is nothing here", "Open the page at /.")


async def _gone(request: Request, error: Exception) -> Response:
    return Response(status_code=400)


async def _fail(request: Request, error: Exception) -> Response:
    # The reason is printed on the terminal for the person who runs the server.
    return _said(500, "The pipeline failed", f"{type(error).__name__}: see the terminal for more.")


_TITLES: tuple[tuple[type[Exception], int, str], ...] = (
    (NothingLeft, 422, "These edits leave no structure"),
    (TooMuch, 413, "This is too much"),
    (Busy, 503, "The pipeline is busy"),
    (LatentError, 422, "This cannot be done"),
)
_HANDLERS: Mapping[Any, Any] = {
    _Refused: _refuse,
    LatentError: _explain,
    ClientDisconnect: _gone,
    404: _not_here,
    405: _not_here,
    500: _fail,
}
