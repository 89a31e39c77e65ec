"""The door of a sweep while it runs: where it is, and which programs can go through."""

from __future__ import annotations

import json
import os
import sys
import time
from glob import has_magic
from pathlib import Path
from types import TracebackType
from typing import Self

import mwpy
from mwpy import UsageError
from mwpy.sweep.command import DOOR
from mwpy.sweep.door import Door
from mwpy.sweep.settings import Sweep
from mwpy.sweep.ssh_clients import SshClients
from mwpy.sweep.stages import Stage

FAREWELL_S = 0.5
"""How long waiting clients have at the end to hear that there are no more runs, in seconds."""

ADDRESS = "door.json"
"""A file in the folder of the sweep: where slaves find the door."""


class OpenDoor:
    """Opens the door of a sweep, before its slaves start.

    Args:
        sweep: the sweep, whose runs all go through the door.
        where: where it listens: `PORT` or `HOST:PORT`.

    Raises:
        UsageError: a program has a setting that cannot hold at HTTP clients; the user's fault.
    """

    def __init__(self, sweep: Sweep, where: str | int) -> None:
        self._where = where
        self._settings = sweep.settings
        self._clients: SshClients | None = None
        if sweep.settings.system is not None:
            raise UsageError(f"--http and --with {sweep.settings.system} cannot be used together: make two sweeps")
        for stage in sweep.stages:
            if why := _why_not(stage):
                raise UsageError(f"{stage.name}: {why} cannot be used with --http")
        limits = [stage.policy.pop("seconds_max", None) for stage in sweep.stages]
        known = [limit for limit in limits if limit is not None]
        worker = _worker_of(sweep.stages[0], sweep.base)
        most = max(known) if len(known) == len(limits) else None
        self._door = Door(worker, most, sweep.settings.ping)
        self._path = (sweep.folder / ADDRESS).absolute()  # slaves find it from the folders of their runs

    def __enter__(self) -> Self:
        os.environ[DOOR] = str(self._path)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        os.environ.pop(DOOR, None)
        self._path.unlink(missing_ok=True)

    def close(self) -> None:
        """Answer that there are no more runs to clients that wait for one, before the server ends."""
        self._door.is_closing = True
        if self._clients is not None:
            self._clients.close()
        if self._door.clients():
            time.sleep(FAREWELL_S)

    def serve(self, mw: mwpy.Master) -> None:
        """Serve clients, beside the page, and print what they need.

        Raises:
            UsageError: the port is in use, or is no number; the user's fault.
        """
        page = mw.page(self._where)
        page.add(self._door.routes, clients=self._door.clients)
        temporary = self._path.with_suffix(".new")
        with open(temporary, "w", encoding="utf-8", opener=lambda path, flags: os.open(path, flags, 0o600)) as file:
            json.dump([page.host, page.port, self._door.secret], file)
        temporary.replace(self._path)
        address = page.url.partition("/?")[0]
        print(
            f"mwpy sweep: clients need the address {address} and the session id {self._door.session}. On each machine: "
            f"curl -s {address}/client.sh | sh -s {address} {self._door.session}",
            flush=True,
        )
        if self._settings.client:
            self._clients = SshClients(
                self._settings.client, self._settings.ssh, page.port, self._door.session, say=_say
            )
            self._clients.start()


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
