"""POST /v1/completions and /v1/chat/completions: reads a call, has its prompts run, and answers at
once or as a stream.

An error before the first token has a status of its own. One behind it ends the stream with an event
that says so, and no [DONE]: an answer that is cut short never looks whole.
"""

from __future__ import annotations

import asyncio
import logging
import time
import uuid
from collections.abc import AsyncIterator, Callable, Sequence
from functools import partial

from starlette.requests import ClientDisconnect
from starlette.requests import Request as Call
from starlette.types import Receive, Scope, Send

from kvstore import traces
from kvstore.errors import KVStoreError
from kvstore.gateway.caller import CallerLeft
from kvstore.gateway.http.answers import DONE, Answer, event, reason_of, usage_of
from kvstore.gateway.http.asked import Asked
from kvstore.gateway.http.growing import Growing, Piece
from kvstore.gateway.http.keys import Keys
from kvstore.gateway.http.logprobs import check_room
from kvstore.gateway.http.makers import Makers
from kvstore.gateway.http.refusal import TooLarge, TooSlow, refusal_of
from kvstore.gateway.http.served import Served
from kvstore.gateway.http.work import Job, Work
from kvstore.gateway.http.written import parts_of
from kvstore.gateway.request import Outcome, Request
from kvstore.limits import SERVE_BODY_BYTES_MAX, SERVE_BODY_SECONDS

log = logging.getLogger(__name__)


class Completions:
    """An ASGI app."""

    def __init__(
        self,
        work: Work,
        served: Served,
        keys: Keys,
        makers: Makers,
        read: Callable[[bytes, Sequence[str]], Asked],
        answer: type[Answer],
    ) -> None:
        """`read` makes a call of a body, for one of the models of these names."""
        self._work, self._served, self._keys, self._makers = work, served, keys, makers
        self._read, self._answer = read, answer

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        call = Call(scope, receive)
        whose = self._keys.whose(call.headers.get("authorization", ""))
        with self._work.place(whose):
            try:
                body = await _body(call)
            except ClientDisconnect:
                return
            wanted, prompts = await self._makers.make(whose.client, partial(self._made, body))
        answer = self._answer(
            uuid.uuid4().hex,
            wanted.model,
            int(time.time()),
            self._served.text,
            wanted.logprobs is not None,
        )
        requests = [
            Request(
                f"{answer.id}-{index}",
                prompt,
                self._served.new_tokens(prompt, wanted),
                wanted.ignore_eos,
                client=whose.client,
                salt=whose.salt,
                sampling=wanted.sampling,
                logprobs=wanted.logprobs,
                trace=call.headers.get(traces.KEY, ""),
                as_many_as_fit=wanted.max_tokens is None,
                open_ended=wanted.max_tokens is None and wanted.tokens_unsaid is None,
                adapter="" if wanted.model == self._served.name else wanted.model,
            )
            for index, prompt in enumerate(prompts)
        ]
        tokens = wanted.choices * sum(one.max_new_tokens for one in requests)
        check_room(wanted.logprobs, tokens)
        with self._work.running(whose, requests) as job:
            leaving = asyncio.create_task(_leave(receive, job))
            try:
                reply = _Reply(self._served, answer, prompts, wanted)
                if wanted.stream:
                    await _send_stream(send, reply.chunks(job))
                else:
                    await _send_whole(send, parts_of(await reply.whole(job)))
            finally:
                leaving.cancel()

    def _made(self, body: bytes) -> tuple[Asked, tuple[tuple[int, ...], ...]]:
        """What it asks for, and the tokens of its prompts: for a thread, since of a large body
        both take long. Raises `Invalid`."""
        wanted = self._read(body, self._served.names)
        return wanted, self._served.prompts(wanted)


class _Reply:
    """What one call is answered, from what becomes of its requests."""

    def __init__(
        self, served: Served, answer: Answer, prompts: Sequence[Sequence[int]], wanted: Asked
    ) -> None:
        self._served, self._answer = served, answer
        self._prompts, self._wanted = prompts, wanted
        self._outcomes: dict[int, Outcome] = {}
        self._made = 0

    async def whole(self, job: Job) -> dict[str, object]:
        answers = [self._answer.begun() for _ in self._prompts]
        async for index, piece in self._pieces(job):
            self._answer.add(answers[index], piece)
            await asyncio.sleep(0)  # what waits goes in one go else, and everybody waits for it
        each = [one for one in answers for _ in range(self._wanted.choices)]
        return self._answer.whole(each, self._usage())

    async def chunks(self, job: Job) -> AsyncIterator[bytes]:
        begun = False
        async for index, piece in self._pieces(job):
            if not begun:
                for opening in self._answer.opening(len(self._prompts) * self._wanted.choices):
                    yield event(opening)
            begun = True
            for chunk in self._answer.chunks(self._same(index), piece):
                yield event(chunk)
        if self._wanted.include_usage:
            yield event(self._answer.last_chunk(self._usage()))
        yield DONE

    def _same(self, index: int) -> range:
        """The choices that say what becomes of a prompt."""
        count = self._wanted.choices
        return range(index * count, (index + 1) * count)

    async def _pieces(self, job: Job) -> AsyncIterator[tuple[int, Piece]]:
        """Which prompt is gone on with, and by what."""
        text, stops = self._served.text, self._wanted.stops
        eos = frozenset() if self._wanted.ignore_eos else self._served.eos
        answers = [Growing(text, prompt, stops) for prompt in self._prompts]
        async for index, told in job.events(len(self._prompts)):
            answer = answers[index]
            if isinstance(told, Outcome):
                self._outcomes[index] = told
            if answer.stopped:
                continue  # it is whole, whatever else comes
            if isinstance(told, Outcome):
                yield index, answer.end(reason_of(told, eos))
                continue
            self._made += 1
            piece = answer.add(*told)
            if answer.stopped:
                job.enough(index)
            if piece.text or piece.reason:
                yield index, piece

    def _usage(self) -> dict[str, object]:
        made = self._made * self._wanted.choices
        return usage_of(self._prompts, list(self._outcomes.values()), made)


async def _send_whole(send: Send, parts: Sequence[bytes]) -> None:
    length = b"%d" % sum(map(len, parts))
    headers = [(b"content-type", b"application/json"), (b"content-length", length)]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    for part in parts[:-1]:
        await send({"type": "http.response.body", "body": part, "more_body": True})
        await asyncio.sleep(0)
    await send({"type": "http.response.body", "body": parts[-1], "more_body": False})


async def _send_stream(send: Send, chunks: AsyncIterator[bytes]) -> None:
    begun = False
    try:
        async for chunk in chunks:
            if not begun:
                headers = [(b"content-type", b"text/event-stream; charset=utf-8")]
                headers.append((b"cache-control", b"no-cache"))
                await send({"type": "http.response.start", "status": 200, "headers": headers})
                begun = True
            await send({"type": "http.response.body", "body": chunk, "more_body": True})
            await asyncio.sleep(0)  # what waits goes in one go else, also to one that has hung up
    except KVStoreError as error:
        if not begun:
            raise
        if not isinstance(error, CallerLeft):
            log.warning("a stream ended before it was whole: %s", error)
        body = event(refusal_of(error).body)
        await send({"type": "http.response.body", "body": body, "more_body": True})
    await send({"type": "http.response.body", "body": b"", "more_body": False})


async def _body(call: Call) -> bytes:
    """All of it, as far as it is short and comes in time."""
    body = bytearray()
    try:
        async with asyncio.timeout(SERVE_BODY_SECONDS):
            async for piece in call.stream():
                body += piece
                if len(body) > SERVE_BODY_BYTES_MAX:
                    raise TooLarge(f"the body: send {SERVE_BODY_BYTES_MAX} bytes at most")
    except TimeoutError:
        raise TooSlow(f"the body did not come within {SERVE_BODY_SECONDS:.0f} s") from None
    return bytes(body)


async def _leave(receive: Receive, job: Job) -> None:
    """Once its body is read, all that can come of a caller is that it hangs up."""
    while (await receive())["type"] != "http.disconnect":
        pass
    job.leave(CallerLeft("the caller left"))
