"""A door for clients that have only curl: they fetch runs of a sweep over HTTP, and post the results.

The protocol has the requests `/config`, `/worker`, `/task`, `/ping`, `/failed` and `/complete`;
examples/http_client/README.md describes it. A slave on this machine stands for a client while it has a run. So the run
database, attempts and statistics are those of all sweeps. What the slave runs is `at_client.py`.

A client that is silent for too long loses its run, which another client gets. The first results count.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import re
import secrets
import shlex
import time
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from hashlib import md5
from hmac import compare_digest
from pathlib import Path
from typing import Any

from attrs import Factory, define, field
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

SILENCES = 3
"""A client is gone when it is silent for this many times the time between two pings."""

LONG_S = 15.0
"""How long a client that asks for a run waits for one, in seconds. Then it is asked to come again."""

LOOK_S = 0.2
"""Seconds after which a request that waits checks whether the sweep ends."""

AGAIN_S = 2
"""After how many seconds it should ask again."""

LOSSES_ALLOWED = 3
"""A run that this many clients have lost fails."""

CLIENTS_KEPT = 1000
"""How many clients have a row of their own. All others are `OTHERS`."""

OTHERS = "(others)"

MOST_BYTES = 64 << 20
"""The largest results of a run, in bytes."""

END = "ENDOFCONTENT"
"""The line that ends a content."""

UNIX = ("linux", "unix", "bsd", "darwin")
"""What the platforms contain on which a script runs. A binary runs on the first one."""


@define(eq=False)
class Job:
    """A run that a client shall make."""

    words: list[str]
    environment: dict[str, str]
    files: dict[str, str]
    """Text files that the program needs, by name."""
    stdin: str
    outputs: list[str]
    """The files that it writes, and perhaps the standard streams."""
    losses: int = 0
    """How many clients have lost it."""
    answer: dict[str, Any] | None = None
    """How it ended; None before."""
    ended: asyncio.Event = field(factory=asyncio.Event)

    def end(self, exit_code: int, results: Mapping[str, str], errors: str = "") -> None:
        """It has ended. Later results do not count."""
        if self.answer is None:
            self.answer = {"exit_code": exit_code, "results": {**results}, "errors": errors}
            self.ended.set()


@define(eq=False)
class Ticket:
    """A run at a client."""

    job: Job
    client: Client
    began_at: float
    """When its client got it, on the monotonic clock."""
    heard_at: float
    """When its client was last heard."""
    is_void: bool = False
    """Whether it was taken from the client."""


@define(eq=False)
class Client:
    """What is known about a client. Clients of one address that give no name are one."""

    name: str
    platform: str = ""
    done: int = 0
    failed: int = 0
    lost: int = 0
    heard_at: float = 0.0
    has: dict[int, None] = Factory(dict)
    """The tickets of its runs."""


def why_not_text(name: str, content: str) -> str:
    """Why a content cannot travel; empty if it can."""
    try:
        content.encode()
    except UnicodeEncodeError:
        return f"{name} is not text, and binary content is not supported"
    if END in content.splitlines():
        return f"{name} has a line {END}, which ends a content in this protocol"
    return ""


def section(title: str, content: str) -> str:
    """A content in the form of the protocol. It ends with a line break, also if it had none."""
    ended = content if not content or content.endswith("\n") else f"{content}\n"
    return f"[{title}]\nContent=<<{END}\n{ended}{END}\n"


def task_text(job: Job, ticket: int, worker: str) -> str:
    """What a client gets. It has the worker itself."""
    changes = [f"{name}={value}" for name, value in job.environment.items()]
    words = ["env", *changes, *job.words] if changes else job.words
    inputs = [section(f"Input {name}", content) for name, content in job.files.items() if name != worker]
    inputs += [section("Input STDIN", job.stdin)] if job.stdin else []
    results = [f"[Result {name}]\nName={name}\n" for name in dict.fromkeys(("STDOUT", *job.outputs))]
    return "".join([f"[Task]\nTicket={ticket}\nCommandLine={shlex.join(words)}\n", *inputs, *results])


def results_in(text: str) -> dict[str, str]:
    """Read what a client has posted.

    Raises:
        ValueError: it has another form; the message says where.
    """
    results: dict[str, str] = {}
    lines = iter(text.splitlines(keepends=True))
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        name = re.fullmatch(r"Name=(.+)", next(lines, "").rstrip("\r\n"))
        if line.strip() != "[Result]" or name is None or next(lines, "").strip() != f"Content=<<{END}":
            raise ValueError(f"line {number}: write [Result], Name=..., Content=<<{END}, the content and {END}")
        content = [*itertools.takewhile(lambda each: each.rstrip("\r\n") != END, lines)]
        results[name[1]] = "".join(content)
    if not text.rstrip().endswith(END):
        raise ValueError(f"the last line is not {END}")
    return results


class Door:
    """Gives the runs of a sweep to HTTP clients.

    Args:
        worker: the program that clients fetch; None if they have it.
        seconds_max: how long a run may take at a client; None for no limit.
        ping_s: how many seconds are between two pings of a client.
    """

    def __init__(self, worker: Path | None = None, seconds_max: float | None = None, ping_s: int = 10) -> None:
        self.session = secrets.token_hex(16)
        """The session id, which each request of a client must have."""
        self.secret = secrets.token_hex(16)
        """What slaves of this machine must have."""
        self.worker = worker
        self.seconds_max = seconds_max
        self.ping_s = ping_s
        self.is_closing = False
        self._waiting: deque[Job] = deque()
        self._tickets: dict[int, Ticket] = {}
        self._numbers = itertools.count(1)
        self._clients: dict[str, Client] = {}
        self._news = asyncio.Condition()
        handlers = {"config": self._config, "worker": self._worker, "task": self._task}
        handlers |= {"ping": self._ping, "failed": self._failed}
        self.routes = [Route(f"/{name}", self._guarded(each)) for name, each in handlers.items()]
        self.routes.append(Route("/client.sh", _script))
        self.routes.append(Route("/complete", self._guarded(self._complete), methods=["POST"]))
        self.routes.append(Route("/job", self._job, methods=["POST"]))

    def clients(self) -> list[dict[str, Any]]:
        """What each client has done, for the page."""
        now = time.monotonic()
        return [
            {
                "name": each.name,
                "platform": each.platform,
                "done": each.done,
                "failed": each.failed,
                "lost": each.lost,
                "has": [*each.has],
                "silent_s": now - each.heard_at,
            }
            for each in self._clients.values()
        ]

    # ---- for slaves of this machine ------------------------------------------------------------------------

    async def _job(self, request: Request) -> Response:
        """A slave hands a run over, and waits for its end."""
        if not compare_digest(request.headers.get("authorization", ""), f"Bearer {self.secret}"):
            return PlainTextResponse("this is for slaves of the sweep\n", 403)
        job = Job(**json.loads(await request.body()))
        contents = {**job.files, "the standard input": job.stdin, "the command line": shlex.join(job.words)}
        reasons = [why for why in itertools.starmap(why_not_text, contents.items()) if why]
        reasons += ["the command line has a line break"] if "\n" in contents["the command line"] else []
        if reasons:
            job.end(1, {}, f"{reasons[0]}: it cannot be sent to an HTTP client\n")
        else:
            await self._offer(job)
        while job.answer is None:
            try:
                await asyncio.wait_for(job.ended.wait(), 1.0)
            except TimeoutError:
                await self._expire()
                if await request.is_disconnected():
                    job.end(1, {})
        return JSONResponse(job.answer)

    async def _offer(self, job: Job, *, first: bool = False) -> None:
        async with self._news:
            (self._waiting.appendleft if first else self._waiting.append)(job)
            self._news.notify()

    async def _expire(self) -> None:
        """Take runs from clients that are silent, or that take too long."""
        now = time.monotonic()
        for number, ticket in [*self._tickets.items()]:
            job, most = ticket.job, self.seconds_max
            if job.answer is not None:
                self._void(number, ticket)
                self._tickets.pop(number, None)
            elif not ticket.is_void and most is not None and now >= ticket.began_at + most:
                self._void(number, ticket)
                ticket.client.failed += 1
                where = f"the HTTP client {ticket.client.name}"
                job.end(1, {}, f"it ran for more than {most:g} s (seconds-max) at {where}\n")
            elif not ticket.is_void and now >= ticket.heard_at + SILENCES * self.ping_s:
                self._void(number, ticket)
                ticket.client.lost += 1
                job.losses += 1
                if job.losses < LOSSES_ALLOWED:
                    await self._offer(job, first=True)
                else:
                    job.end(1, {}, f"{LOSSES_ALLOWED} HTTP clients vanished while they had it\n")

    def _void(self, number: int, ticket: Ticket) -> None:
        ticket.is_void = True
        ticket.client.has.pop(number, None)

    # ---- for clients ---------------------------------------------------------------------------------------

    def _guarded(self, answer: Callable[[Request], Awaitable[Response]]) -> Callable[[Request], Awaitable[Response]]:
        async def guarded(request: Request) -> Response:
            if not compare_digest(request.query_params.get("sessionid", "").encode(), self.session.encode()):
                return PlainTextResponse("the session id is not that of this sweep: it may be an old one\n", 403)
            self._client(request).heard_at = time.monotonic()
            return await answer(request)

        return guarded

    def _client(self, request: Request) -> Client:
        host = "" if request.client is None else request.client.host
        name = request.query_params.get("client", "")[:100] or host
        if name not in self._clients and len(self._clients) >= CLIENTS_KEPT:
            name = OTHERS
        return self._clients.setdefault(name, Client(name))

    def _ticket(self, request: Request) -> tuple[int, Ticket | None]:
        text = request.query_params.get("ticket", "")
        number = int(text) if re.fullmatch(r"[0-9]{1,15}", text) else 0
        return number, self._tickets.get(number)

    async def _config(self, request: Request) -> Response:
        platform = request.query_params.get("platform", "")
        self._client(request).platform = platform[:100]
        content = b"" if self.worker is None else self.worker.read_bytes()
        runs_on = UNIX[:1] if content.startswith(b"\x7fELF") else UNIX
        if self.worker is not None and not any(each in platform.lower() for each in runs_on):
            return PlainTextResponse(f"{self.worker.name} does not run on {platform or 'an unknown platform'}\n", 415)
        settings = {
            "Worker": "" if self.worker is None else self.worker.name,
            "MD5": "" if self.worker is None else md5(content, usedforsecurity=False).hexdigest(),
            "DeleteWorker": "Yes",
            "DeleteClient": "No",
            "DeleteResults": "Yes",
            "Ping": self.ping_s,
        }
        return PlainTextResponse("".join(f"{name}={value}\n" for name, value in settings.items()))

    async def _worker(self, _: Request) -> Response:
        if self.worker is None:
            return PlainTextResponse("this sweep has no worker: its program must be there already\n", 403)
        return Response(self.worker.read_bytes(), media_type="application/octet-stream")

    async def _task(self, request: Request) -> Response:
        until = time.monotonic() + LONG_S
        while (job := self._next()) is None:
            left_s = until - time.monotonic()
            if self.is_closing or left_s <= 0 or await request.is_disconnected():
                again = {} if self.is_closing else {"Retry-After": str(AGAIN_S)}
                return PlainTextResponse("there is no task\n", 503, again)
            async with self._news:
                try:
                    await asyncio.wait_for(self._news.wait(), min(left_s, LOOK_S))
                except TimeoutError:
                    await asyncio.sleep(0)
        number, client = next(self._numbers), self._client(request)
        self._tickets[number] = Ticket(job, client, time.monotonic(), time.monotonic())
        client.has[number] = None
        worker = "" if self.worker is None else self.worker.name
        return PlainTextResponse(task_text(job, number, worker))

    def _next(self) -> Job | None:
        """The next run that somebody wants."""
        while self._waiting:
            job = self._waiting.popleft()
            if job.answer is None:
                return job
        return None

    async def _ping(self, request: Request) -> Response:
        await self._expire()
        _, ticket = self._ticket(request)
        if ticket is None or ticket.is_void or ticket.job.answer is not None:
            return Response(status_code=205)
        ticket.heard_at = time.monotonic()
        return Response(status_code=204)

    async def _failed(self, request: Request) -> Response:
        number, ticket = self._ticket(request)
        if ticket is not None and not ticket.is_void:
            ticket.client.failed += 1
            self._void(number, ticket)
            ticket.job.end(1, {}, f"the HTTP client {ticket.client.name} says that it failed\n")
        return PlainTextResponse("noted\n")

    async def _complete(self, request: Request) -> Response:
        number, ticket = self._ticket(request)
        if ticket is None or ticket.job.answer is not None:
            return PlainTextResponse("somebody else has done this\n")
        self._void(number, ticket)
        try:
            results = results_in((await _body(request)).decode())
            if missing := [name for name in ticket.job.outputs if name not in results and name != "STDERR"]:
                raise ValueError(f"there is no result {missing[0]}")
        except ValueError as error:
            why = "the content is not text" if isinstance(error, UnicodeError) else str(error)
            ticket.client.failed += 1
            ticket.job.end(1, {}, f"the results of the HTTP client {ticket.client.name} cannot be read: {why}\n")
            return PlainTextResponse(f"{why}\n", 415)
        ticket.client.done += 1
        known = {name: content for name, content in results.items() if name in ("STDOUT", *ticket.job.outputs)}
        ticket.job.end(0, known)
        return PlainTextResponse("thank you\n")


async def _script(_: Request) -> Response:
    """The script of a client, which anybody may have."""
    return PlainTextResponse(Path(__file__).with_name("client.sh").read_text(encoding="utf-8"))


async def _body(request: Request) -> bytes:
    """Read the body of a request.

    Raises:
        ValueError: it is too large.
    """
    parts, size = list[bytes](), 0
    async for part in request.stream():
        parts.append(part)
        size += len(part)
        if size > MOST_BYTES:
            raise ValueError(f"the results are larger than {MOST_BYTES >> 20} MB")
    return b"".join(parts)
