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
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from glob import has_magic
from hashlib import md5
from hmac import compare_digest
from pathlib import Path
from typing import Any

from attrs import Factory, asdict, define, evolve
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

import mwpy
from mwpy import UsageError
from mwpy.sweep.command import at_clients
from mwpy.sweep.settings import Sweep
from mwpy.sweep.stages import Stage

SILENCES = 3
"""A client is gone when it is silent for this many times the time between two pings."""

LONG_S = 15.0
"""How long a client that asks for a run waits for one, in seconds. Then it is asked to come again."""

LOOK_S = 0.1
"""Seconds between two looks of a request that waits, whether there is a run, or its end."""

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

FAREWELL_S = 0.5
"""How long waiting clients have at the end to hear that there are no more runs, in seconds."""


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

    def end(self, exit_code: int, results: Mapping[str, str], errors: str = "") -> None:
        """It has ended. Later results do not count."""
        if self.answer is None:
            self.answer = {"exit_code": exit_code, "results": {**results}, "errors": errors}


@define(eq=False)
class Client:
    """What is known about a client. Clients of one address that give no name are one."""

    name: str
    platform: str = ""
    done: int = 0
    failed: int = 0
    lost: int = 0
    heard_at: float = 0.0
    has: list[int] = Factory(list)
    """The tickets of its runs."""


@define(eq=False)
class Ticket:
    """A run at a client."""

    number: int
    job: Job
    client: Client
    began_at: float
    """When its client got it, on the monotonic clock."""
    heard_at: float
    """When its client was last heard."""
    is_void: bool = False
    """Whether it was taken from the client."""

    def void(self) -> None:
        """Take it from its client."""
        if not self.is_void:
            self.is_void = True
            self.client.has.remove(self.number)

    def fail(self, why: str) -> None:
        """The run has failed at its client."""
        self.void()
        self.client.failed += 1
        self.job.end(1, {}, f"{why}\n")


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

    def __init__(self, worker: Path | None, seconds_max: float | None, ping_s: int) -> None:
        self.session = secrets.token_hex(16)
        """The session id, which each request of a client must have."""
        self.secret = secrets.token_hex(16)
        """What slaves of this machine must have."""
        self.is_closing = False
        self._worker_path = worker
        self._seconds_max = seconds_max
        self._ping_s = ping_s
        self._waiting: deque[Job] = deque()
        self._tickets: dict[int, Ticket] = {}
        self._numbers = itertools.count(1)
        self._clients: dict[str, Client] = {}
        handlers = {"config": self._config, "worker": self._worker, "task": self._task}
        handlers |= {"ping": self._ping, "failed": self._failed}
        self.routes = [Route(f"/{name}", self._guarded(each)) for name, each in handlers.items()]
        self.routes.append(Route("/client.sh", _script))
        self.routes.append(Route("/complete", self._guarded(self._complete), methods=["POST"]))
        self.routes.append(Route("/job", self._job, methods=["POST"]))

    def clients(self) -> list[dict[str, Any]]:
        """What each client has done, for the page."""
        now = time.monotonic()
        return [{**asdict(each), "silent_s": now - each.heard_at} for each in self._clients.values()]

    async def _job(self, request: Request) -> Response:
        """A slave of this machine hands a run over, and waits for its end."""
        if not compare_digest(request.headers.get("authorization", ""), f"Bearer {self.secret}"):
            return PlainTextResponse("this is for slaves of the sweep\n", 403)
        job = Job(**json.loads(await request.body()))
        contents = {**job.files, "the standard input": job.stdin, "the command line": shlex.join(job.words)}
        reasons = [why for why in itertools.starmap(why_not_text, contents.items()) if why]
        reasons += ["the command line has a line break"] if "\n" in contents["the command line"] else []
        if reasons:
            job.end(1, {}, f"{reasons[0]}: it cannot be sent to an HTTP client\n")
        else:
            self._waiting.append(job)
        while job.answer is None:
            await asyncio.sleep(LOOK_S)
            self._expire()
            if await request.is_disconnected():
                job.end(1, {})
        return JSONResponse(job.answer)

    def _expire(self) -> None:
        """Take runs from clients that are silent, or that take too long."""
        now, most = time.monotonic(), self._seconds_max
        for ticket in [*self._tickets.values()]:
            job = ticket.job
            if job.answer is not None:
                ticket.void()
                del self._tickets[ticket.number]
            elif not ticket.is_void and most is not None and now >= ticket.began_at + most:
                where = f"the HTTP client {ticket.client.name}"
                ticket.fail(f"it ran for more than {most:g} s (seconds-max) at {where}")
            elif not ticket.is_void and now >= ticket.heard_at + SILENCES * self._ping_s:
                ticket.void()
                ticket.client.lost += 1
                job.losses += 1
                if job.losses < LOSSES_ALLOWED:
                    self._waiting.appendleft(job)
                else:
                    job.end(1, {}, f"{LOSSES_ALLOWED} HTTP clients vanished while they had it\n")

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

    def _ticket(self, request: Request) -> Ticket | None:
        text = request.query_params.get("ticket", "")
        return self._tickets.get(int(text)) if re.fullmatch(r"[0-9]{1,15}", text) else None

    async def _config(self, request: Request) -> Response:
        platform, path = request.query_params.get("platform", ""), self._worker_path
        self._client(request).platform = platform[:100]
        content = b"" if path is None else path.read_bytes()
        runs_on = UNIX[:1] if content.startswith(b"\x7fELF") else UNIX
        if path is not None and not any(each in platform.lower() for each in runs_on):
            return PlainTextResponse(f"{path.name} does not run on {platform or 'an unknown platform'}\n", 415)
        settings = {
            "Worker": "" if path is None else path.name,
            "MD5": "" if path is None else md5(content, usedforsecurity=False).hexdigest(),
            "DeleteWorker": "Yes",
            "DeleteClient": "No",
            "DeleteResults": "Yes",
            "Ping": self._ping_s,
        }
        return PlainTextResponse("".join(f"{name}={value}\n" for name, value in settings.items()))

    async def _worker(self, _: Request) -> Response:
        if self._worker_path is None:
            return PlainTextResponse("this sweep has no worker: its program must be there already\n", 403)
        return Response(self._worker_path.read_bytes(), media_type="application/octet-stream")

    async def _task(self, request: Request) -> Response:
        until = time.monotonic() + LONG_S
        while (job := self._next()) is None:
            if self.is_closing or time.monotonic() >= until or await request.is_disconnected():
                again = {} if self.is_closing else {"Retry-After": str(AGAIN_S)}
                return PlainTextResponse("there is no task\n", 503, again)
            await asyncio.sleep(LOOK_S)
        now = time.monotonic()
        ticket = Ticket(next(self._numbers), job, self._client(request), now, now)
        self._tickets[ticket.number] = ticket
        ticket.client.has.append(ticket.number)
        worker = "" if self._worker_path is None else self._worker_path.name
        return PlainTextResponse(task_text(job, ticket.number, worker))

    def _next(self) -> Job | None:
        """The next run that somebody wants."""
        while self._waiting:
            job = self._waiting.popleft()
            if job.answer is None:
                return job
        return None

    async def _ping(self, request: Request) -> Response:
        self._expire()
        ticket = self._ticket(request)
        if ticket is None or ticket.is_void or ticket.job.answer is not None:
            return Response(status_code=205)
        ticket.heard_at = time.monotonic()
        return Response(status_code=204)

    async def _failed(self, request: Request) -> Response:
        ticket = self._ticket(request)
        if ticket is not None and not ticket.is_void:
            ticket.fail(f"the HTTP client {ticket.client.name} says that it failed")
        return PlainTextResponse("noted\n")

    async def _complete(self, request: Request) -> Response:
        ticket = self._ticket(request)
        if ticket is None or ticket.job.answer is not None:
            return PlainTextResponse("somebody else has done this\n")
        try:
            results = results_in((await _body(request)).decode())
            if missing := [name for name in ticket.job.outputs if name not in results and name != "STDERR"]:
                raise ValueError(f"there is no result {missing[0]}")
        except ValueError as error:
            why = "the content is not text" if isinstance(error, UnicodeError) else str(error)
            ticket.fail(f"the results of the HTTP client {ticket.client.name} cannot be read: {why}")
            return PlainTextResponse(f"{why}\n", 415)
        ticket.void()
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


# Clients on hosts that have no Python: one call of ssh for each host, for as long as the sweep runs. The door is
# forwarded through the same connection, so nothing of the sweep travels openly.


OPTIONS = ("-o", "BatchMode=yes", "-o", "ServerAliveInterval=5", "-o", "ServerAliveCountMax=3", "-o", "LogLevel=ERROR")
"""ssh asks for no password, and notices a host that vanished."""

REMOTE = """\
folder=$(mktemp -d) && cd "$folder" || exit 1
number={count}
while [ "$number" -gt 0 ]; do (curl -s {address}/client.sh | sh -s {address} {session}) & number=$((number - 1)); done
wait; rm -rf "$folder"
"""
"""What a host does: it makes runs in a folder of its own until the sweep has ended."""

CALL_LOOK_S = 0.5
"""Seconds between two looks at a call."""

FIRST_PAUSE_S, LONGEST_PAUSE_S = 5.0, 300.0
"""After how many seconds a host is called again. Each pause is twice as long as the one before."""


class SshClients:
    """Starts clients on some hosts, and starts them again when their connections end.

    Args:
        hosts: their names, as ssh knows them. After a space, how many clients a host has; one per processor without.
        ssh: how ssh is called.
        port: that of the door, on this machine and through ssh on the hosts.
        session: the session id.
    """

    def __init__(self, hosts: Sequence[str], ssh: str, port: int, session: str) -> None:
        self._ssh = [*shlex.split(ssh), *OPTIONS, "-R", f"127.0.0.1:{port}:127.0.0.1:{port}"]
        self._address, self._session = f"http://127.0.0.1:{port}", session
        self._is_over = threading.Event()
        self._threads = [threading.Thread(target=self._keep, args=(host,), daemon=True) for host in hosts]
        for thread in self._threads:
            thread.start()

    def close(self) -> None:
        """End the clients."""
        self._is_over.set()
        for thread in self._threads:
            thread.join()

    def _keep(self, host: str) -> None:
        """Let the clients of a host run until the sweep is over."""
        name, count = [*host.split(), ""][:2]
        remote = REMOTE.format(count=count or '"$(nproc)"', address=self._address, session=self._session)
        words = [*self._ssh, name, f"exec sh -c {shlex.quote(remote)}"]
        pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE}
        pause_s = FIRST_PAUSE_S
        while not self._is_over.is_set():
            call = subprocess.Popen(words, text=True, start_new_session=True, **pipes)  # type: ignore[call-overload]
            while call.poll() is None and not self._is_over.wait(CALL_LOOK_S):
                pass
            if self._is_over.is_set():
                call.terminate()
                call.wait()
                return
            wrote = call.stderr.read().strip()
            why = wrote.splitlines()[-1] if wrote else f"exit code {call.returncode}"
            _say(f"the clients on {name} have ended ({why}); it is called again in {pause_s:.0f} s")
            self._is_over.wait(pause_s)
            pause_s = min(LONGEST_PAUSE_S, 2 * pause_s)


class OpenDoor:
    """Opens the door of a sweep beside the page of its master, for its programs, and prints what clients need.

    Args:
        sweep: the sweep, whose runs all go through the door.
        mw: its master.
        where: where it listens: `PORT` or `HOST:PORT`.

    Raises:
        UsageError: a program has a setting that cannot hold at HTTP clients, or the port is in use, or is no number.
    """

    def __init__(self, sweep: Sweep, mw: mwpy.Master, where: str | int) -> None:
        settings = sweep.settings
        if settings.system is not None:
            raise UsageError(f"--http and --with {settings.system} cannot be used together: make two sweeps")
        for stage in sweep.stages:
            if why := _why_not(stage):
                raise UsageError(f"{stage.name}: {why} cannot be used with --http")
        limits = [stage.policy.pop("seconds_max", None) for stage in sweep.stages]
        known = [limit for limit in limits if limit is not None]
        most = max(known) if len(known) == len(limits) else None
        self._door = Door(_worker_of(sweep.stages[0], sweep.base), most, settings.ping)
        page = mw.page(where)
        page.add(self._door.routes, clients=self._door.clients)
        door = json.dumps([page.host, page.port, self._door.secret])
        sweep.stages = [evolve(stage, command=at_clients(stage.command, door)) for stage in sweep.stages]
        address, session = page.url.partition("/?")[0], self._door.session
        print(
            f"mwpy sweep: clients need the address {address} and the session id {session}. On each machine: "
            f"curl -s {address}/client.sh | sh -s {address} {session}",
            flush=True,
        )
        self._clients = SshClients(settings.client, settings.ssh, page.port, session)

    def close(self) -> None:
        """Answer that there are no more runs to clients that wait for one, before the server ends."""
        self._door.is_closing = True
        self._clients.close()
        if self._door.clients():
            time.sleep(FAREWELL_S)


def _say(text: str) -> None:
    print(f"mwpy sweep: {text}", file=sys.stderr, flush=True)


def _why_not(stage: Stage) -> str:
    """Which setting of a program cannot hold at HTTP clients; empty if all can."""
    options = stage.command.options
    settings = {
        "before": options.before,
        "clean-up": options.clean_up,
        "follow": options.follow,
        "memory-max": stage.policy.get("memory_max") or stage.policy.get("memory"),
        "an output that is a pattern": any(has_magic(str(each)) for each in options.outputs.values()),
    }
    return next((name for name, value in settings.items() if value), "")


def _worker_of(stage: Stage, base: Path) -> Path | None:
    """The program that clients fetch: that of the first stage, if it is a file beside the study."""
    first = stage.command.line.words[0]
    if stage.command.line.shell or first.names:
        return None
    path = base / first.filled({})
    return path if path.is_file() else None
