"""Serves the page of a master over HTTP, in threads of its own.

The page asks the master once a second while somebody looks at it, and rarely otherwise. Nothing is done for a task.

A page can be read by everybody who knows its token. The first request gives the token in the address, as with Jupyter,
and gets a cookie for the others. By default the server listens on the loopback interface only.
"""

from __future__ import annotations

import getpass
import os
import platform
import secrets
import socket
import threading
import time
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from hmac import compare_digest
from importlib import resources
from types import TracebackType
from typing import Any, Literal, Self

import uvicorn
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.gzip import GZipMiddleware
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, RedirectResponse, Response
from starlette.routing import BaseRoute, Route

import mwpy
from mwpy.page import metrics
from mwpy.resource_file import overseer_of

LOOPBACK = "127.0.0.1"

WATCHED_S = 1.0
UNWATCHED_S = 10.0
"""Seconds between two questions to the master: while somebody looks, and else."""

LOOKS_S = 15.0
"""Somebody looks who asked for figures within this time, in seconds."""

CLIENTS = 300
"""How many connections are served at a time. Others get the code 503."""

FILES = {
    "page.html": "text/html", "page.css": "text/css", "page.js": "text/javascript",
    "queue.html": "text/html", "queue.js": "text/javascript",
}  # fmt: skip

HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'self'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
}
"""With each answer: a browser loads nothing from elsewhere, and runs nothing that is in a name or a traceback."""

FORBIDDEN = "This page needs its token: open the address that the master has printed. It ends with ?token=...\n"

MISSING = "The figures for Prometheus need `pip install 'mwpy-cluster[page]'` in the environment of the master.\n"


KEPT_S = 600.0
"""How many seconds the history goes back."""

LANES = 200
"""Of how many slaves the history has what they did: those that connected first. The manual names this number."""

GONE = ("away", "shutting down", "connecting")
"""The states of slaves that neither work nor wait for tasks."""


class History:
    """What a page keeps of the last minutes: how many tasks had ended, and what each slave did."""

    def __init__(self) -> None:
        self._samples = deque[dict[str, Any]]()

    def add(self, status: Mapping[str, Any]) -> None:
        """Take a sample of a detailed status."""
        now, tasks = time.time(), status["tasks"]
        ended = tasks["succeeded"] + tasks["failed"] + tasks["cancelled"]
        lanes = {row["sid"]: _doing(row) for row in status["slaves"][:LANES]}
        self._samples.append({"at": now, "ended": ended, "lanes": lanes})
        while self._samples[0]["at"] < now - KEPT_S:
            self._samples.popleft()

    def since(self, at: float) -> list[dict[str, Any]]:
        """The samples that are newer than this time, in seconds since 1970."""
        return [each for each in self._samples.copy() if each["at"] > at]


def _doing(row: Mapping[str, Any]) -> str | None:
    """The algorithm whose task a slave runs; empty if it waits for one; None if it is away or ends."""
    return row["algorithm"] or (None if row["state"] in GONE else "")


class Page:
    """The page of a master. It ends with `close()`, with its block, or with the process.

    Args:
        ask: returns a detailed status, as `mwpy.status(file, detailed=True)`. It is called in a thread of the page.
        host: the name or address of the interface on which it listens.
        port: the port; 0 for any that is free.
        of: `queue` for the page of a queue, whose status is that of its keeper.

    Raises:
        UsageError: the port is in use, or the host has another name; the caller's fault.
    """

    def __init__(
        self,
        ask: Callable[[], Mapping[str, Any]],
        *,
        host: str = LOOPBACK,
        port: int = 0,
        of: Literal["computation", "queue"] = "computation",
    ) -> None:
        self._ask = ask
        self._of = of
        self._name = "page" if of == "computation" else of
        self._socket = _listen(host, port)
        self.host, self.port = host, int(self._socket.getsockname()[1])
        self.token = secrets.token_urlsafe(24)
        """What the first request must have."""
        self._cookie = f"mwpy-{self.port}"
        self._history = History()
        self._more: dict[str, Callable[[], object]] = {}
        """Figures beside those of the status, by name."""
        self._overseen: str | os.PathLike[str] | None = None
        """The resource file beside which an overseer may write. That is read with the status, because its file system
        may hang."""
        self._status: dict[str, Any] = {"state": "starting"}
        self._asked_at = 0.0
        """When the status was asked for, on the monotonic clock."""
        self._looked_at = time.monotonic()
        """When somebody has looked."""
        self._is_closed = threading.Event()
        self._lock = threading.Lock()
        routes = [
            Route("/", self._guarded(self._page)),
            Route("/page.css", self._file),
            Route(f"/{self._name}.js", self._file),
            Route("/status.json", self._guarded(self._figures)),
        ]
        if of == "computation":
            routes.append(Route("/metrics", self._guarded(self._metrics)))
        self._app = Starlette(routes=routes, middleware=[Middleware(GZipMiddleware, minimum_size=2000)])
        config = uvicorn.Config(
            self._app, log_level="critical", access_log=False, lifespan="off", ws="none", http="h11", loop="asyncio",
            limit_concurrency=CLIENTS, timeout_keep_alive=5, server_header=False,
        )  # fmt: skip
        self._server = uvicorn.Server(config)
        self._threads = [
            threading.Thread(target=self._server.run, args=([self._socket],), name="mwpy-page", daemon=True),
            threading.Thread(target=self._sample, name="mwpy-page-asks", daemon=True),
        ]
        for thread in self._threads:
            thread.start()

    @property
    def url(self) -> str:
        """The address of the page, with its token."""
        host = platform.node() if self.host in ("", "0.0.0.0", "::") else self.host
        return f"http://{host}:{self.port}/?token={self.token}"

    def __str__(self) -> str:
        if self.host not in (LOOPBACK, "localhost", "::1"):
            return f"the page of this {self._of}: {self.url}"
        there = f"ssh -L {self.port}:{self.host}:{self.port} {getpass.getuser()}@{platform.node()}"
        return f"the page of this {self._of}: {self.url} (from another machine, run `{there}` there first)"

    def __repr__(self) -> str:
        return f"<mwpy page {self.url}>"

    def _repr_html_(self) -> str:
        return f'<a href="{self.url}" target="_blank">{self.url}</a>'

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """End the page. Calling this again does nothing."""
        self._is_closed.set()
        self._server.should_exit = self._server.force_exit = True
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join(5.0)
        self._socket.close()

    def add(self, routes: Sequence[BaseRoute], **figures: Callable[[], object]) -> None:
        """Serve more addresses, which guard themselves, and show more figures by these names."""
        self._app.router.routes.extend(routes)
        self._more |= figures

    def show_jobs(self, resource_file: str | os.PathLike[str]) -> None:
        """Show what an overseer of a computation says about its jobs in a batch system, if there is one."""
        self._overseen = resource_file

    def wait(self) -> None:
        """Wait until the computation has ended, or the page is closed."""
        while not self._is_closed.wait(0.2) and self._status["state"] != "finished":
            pass

    # ---- the figures ---------------------------------------------------------------------------------------

    def _sample(self) -> None:
        """Ask the master again and again."""
        while not self._is_closed.is_set():
            self.refresh()
            while not self._is_closed.wait(WATCHED_S / 4):
                is_watched = time.monotonic() < self._looked_at + LOOKS_S
                if time.monotonic() >= self._asked_at + (WATCHED_S if is_watched else UNWATCHED_S):
                    break

    def refresh(self) -> None:
        """Ask the master now."""
        with self._lock:
            problem = ""
            try:
                status = dict(self._ask())
            except mwpy.MwpyError as error:
                status, problem = self._status, str(error)
            if status["state"] == "running" and not problem:
                self._history.add(status)
            if status["state"] == "finished":  # the last figures stay
                status = {**self._status, "state": "finished"}
            if self._overseen is not None:
                status = {**status, "jobs": overseer_of(self._overseen)}  # the former one may be sent just now
            self._status = {**status, "problem": problem, "at": time.time() if not problem else self._status.get("at")}
            self._asked_at = time.monotonic()

    # ---- the answers ---------------------------------------------------------------------------------------

    def _is_known(self, request: Request) -> bool:
        bearer = request.headers.get("authorization", "").removeprefix("Bearer ")
        given = request.query_params.get("token") or request.cookies.get(self._cookie) or bearer
        return compare_digest(given.encode(), self.token.encode())

    def _guarded(self, answer: Callable[[Request], Awaitable[Response]]) -> Callable[[Request], Awaitable[Response]]:
        async def guarded(request: Request) -> Response:
            if not self._is_known(request):
                return PlainTextResponse(FORBIDDEN, 403, HEADERS)
            self._looked_at = time.monotonic()
            return await answer(request)

        return guarded

    async def _page(self, request: Request) -> Response:
        if "token" in request.query_params:  # it should not stay in the history of the browser
            moved = RedirectResponse("/", 303, HEADERS)
            moved.set_cookie(self._cookie, self.token, httponly=True, samesite="strict")
            return moved
        return _static(f"{self._name}.html")

    async def _file(self, request: Request) -> Response:
        return _static(request.url.path.removeprefix("/"))

    async def _figures(self, request: Request) -> Response:
        try:
            since = float(request.query_params.get("since", "inf"))
        except ValueError:
            return PlainTextResponse("since=: give a time in seconds since 1970\n", 400, HEADERS)
        more = {name: figure() for name, figure in self._more.items()}
        return JSONResponse({**self._status, **more, "history": self._history.since(since)}, headers=HEADERS)

    async def _metrics(self, _: Request) -> Response:
        try:
            text, kind = metrics.text_of(self._status)
        except ImportError:
            return PlainTextResponse(MISSING, 501, HEADERS)
        return Response(text, media_type=kind, headers=HEADERS)


def _static(name: str) -> Response:
    content = resources.files("mwpy.page").joinpath(name).read_bytes()
    return Response(content, media_type=FILES[name], headers=HEADERS)


def _listen(host: str, port: int) -> socket.socket:
    try:
        return socket.create_server((host, port))
    except OSError as error:
        remedy = "give another port, or 0 for any" if port else "give another host"
        raise mwpy.UsageError(f"the page cannot listen at {host}:{port} ({error}): {remedy}") from None


def serve(resource_file: str | os.PathLike[str], *, host: str = LOOPBACK, port: int = 0) -> Page:
    """Start the page of a master that runs elsewhere.

    Args:
        resource_file: the file that the master writes (`--mw-resource-file`).
        host: the name or address of the interface on which it listens.
        port: the port; 0 for any that is free.

    Raises:
        ResourceFileError: the file is missing or damaged; start the master, or copy the file again.
        UsageError: the port is in use, the host has another name, or the computation is finished; the caller's fault.
    """
    if mwpy.status(resource_file)["state"] == "finished":
        raise mwpy.UsageError(f"the computation of {resource_file} is finished: `mwpy runs` shows a run database")
    page = Page(lambda: mwpy.status(resource_file, detailed=True), host=host, port=port)
    page.show_jobs(resource_file)
    return page
