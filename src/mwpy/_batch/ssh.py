"""Hosts that are reached by ssh, as a batch system: OpenSSH's own client, and on the host a Python and nothing else.

A hosts file says which hosts there are and how many slaves each may have. One call a host, all hosts at once, tells
which jobs live there (`_ssh_host`), so they are found again whoever started them. What has no free slot waits here, in
the memory of this process; that is a queue like any other, but one that is forgotten at a restart.

A host that does not answer is told of once, its slots are not counted, and it is tried again after growing pauses. Its
jobs are believed to run for a while, as a short break of the network ends none; then they are given up. Should the host
come back with them they are in the list again.

The application is used where it is if the host sees the same file at the same place. Else it is copied, once to
each home directory; the resource file is copied at every start.
"""

from __future__ import annotations

import hashlib
import inspect
import json
import os
import secrets
import shlex
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

from attrs import define, field, frozen

from mwpy._batch import BatchUnavailable, Job, JobState, Launch, Outcome, _ssh_host
from mwpy._batch._command import killed, run
from mwpy._values.errors import UsageError

__all__ = ["HostLine", "Ssh", "read_hosts"]

CALL_S = 60.0
"""Seconds that a call gets; what is sent with it gets more."""

BYTES_A_SECOND = 100_000
"""The slowest line over which an application is sent."""

OPTIONS = ("BatchMode=yes", "ConnectTimeout=10", "ServerAliveInterval=5", "ServerAliveCountMax=3")
"""Nobody is asked for a password, and a host that vanished is noticed. The user's options come first, and win."""

AT_ONCE = 32
"""How many hosts are called at the same time."""

FIRST_PAUSE_S = 5.0
LONGEST_PAUSE_S = 300.0
"""Seconds until a host that did not answer is called again; twice as many each time."""

BELIEVED_S = 60.0
"""Seconds for which the jobs of a host that does not answer are believed to run."""

KEPT_OUTCOMES = 10_000

SOURCE = inspect.getsource(_ssh_host).encode()


@frozen
class HostLine:
    """A line of the hosts file."""

    name: str
    """As ssh knows the host: a name of its configuration, or `USER@HOST`."""
    slots: int | None = None
    """How many slaves it may have; None for one a core."""
    python: str | None = None
    """Its Python, both for what is done there and for the agent; None for `python3` and the one of the command."""


def read_hosts(path: str | Path) -> list[HostLine]:
    """Read a hosts file: `HOST [slots=N] [python=PATH]` a line; what follows a `#` is passed over.

    Raises:
        UsageError: it cannot be read or has a fault, whose line is named.
    """
    try:
        lines = Path(path).read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"cannot read the hosts file {path}: {error}") from error
    hosts: dict[str, HostLine] = {}
    for number, line in enumerate(lines, 1):
        words = line.partition("#")[0].split()
        if words:
            try:
                host = _host(words)
                if host.name in hosts:
                    raise ValueError(f"{host.name} is there already: give it more slots instead")
            except ValueError as error:
                raise UsageError(f"{path}, line {number}: {error}") from None
            hosts[host.name] = host
    if not hosts:
        raise UsageError(f"the hosts file {path} names no host: write a line `HOST slots=N` for each")
    return list(hosts.values())


def _host(words: Sequence[str]) -> HostLine:
    name, given = words[0], {}
    if name.startswith("-") or "=" in name or "/" in name:
        raise ValueError(f"{name} is no host: write HOST [slots=N] [python=PATH]")
    for word in words[1:]:
        key, equals, value = word.partition("=")
        if key not in ("slots", "python") or not equals or not value:
            raise ValueError(f"{word} is not understood: write slots=N or python=PATH")
        given[key] = value
    slots = given.get("slots", "1")
    if not (slots.isdecimal() and int(slots) >= 1):
        raise ValueError(f"slots={slots} must be a whole number from 1")
    return HostLine(name, int(slots) if "slots" in given else None, given.get("python"))


@frozen
class _Placed:
    """A job on a host, and the slots that it takes."""

    job: Job
    slaves: int


@define(eq=False)
class _Host:
    """What is known of a host."""

    line: HostLine
    placed: dict[str, _Placed] = field(factory=dict)
    to_stop: dict[str, None] = field(factory=dict)
    """Jobs that it is to be told to stop, now or when it answers again."""
    home: str = ""
    cores: int = 0
    failures: int = 0
    words: str = ""
    """Why it did not answer."""
    try_at: float = 0.0
    lost_at: float = 0.0

    @property
    def free(self) -> int:
        """How many slaves more it may have; none while it does not answer."""
        slots = self.cores if self.line.slots is None else self.line.slots
        return 0 if self.failures else slots - sum(placed.slaves for placed in self.placed.values())


class Ssh:
    """The hosts of a hosts file.

    Args:
        hosts: the file; see `read_hosts`.
        ssh_options: for ssh, before the host: `-F FILE`, `-o NAME=VALUE`.
        say: told, in one line each, of hosts that do not answer and of those that do again.

    Raises:
        UsageError: the hosts file has a fault.
    """

    def __init__(
        self, hosts: str | Path, ssh_options: Sequence[str] = (), say: Callable[[str], None] | None = None
    ) -> None:
        self._hosts = [_Host(line) for line in read_hosts(hosts)]
        self._path = hosts
        self._options = tuple(ssh_options)
        self._say = say or (lambda line: print(f"mwpy: {line}", file=sys.stderr, flush=True))
        self._waiting: dict[str, Launch] = {}
        self._ended: dict[str, Outcome] = {}

    # ---- the contract ---------------------------------------------------------------------------------------

    def submit(self, launch: Launch, count: int) -> list[str]:
        """Start jobs where there are free slots; the others wait."""
        if not any(host.home for host in self._hosts):
            self._look(self._hosts)
        self._somebody_answers()
        jobs = [f"ssh-{secrets.token_hex(6)}" for _ in range(count)]
        self._waiting.update(dict.fromkeys(jobs, launch))
        try:
            self._fill()
        except BatchUnavailable:
            for job in jobs:
                self._waiting.pop(job, None)
            raise
        return jobs

    def jobs(self) -> list[Job]:
        """What runs on the hosts, and what waits."""
        self._look(self._hosts)
        self._somebody_answers()
        with suppress(BatchUnavailable):  # what waits goes on waiting
            self._fill()
        placed = [each.job for host in self._hosts for each in host.placed.values()]
        return [*placed, *(self._queued(job, launch) for job, launch in self._waiting.items())]

    def remove(self, job_ids: Sequence[str]) -> None:
        """Stop jobs; those of a host that does not answer are stopped when it does."""
        for job in job_ids:
            if self._waiting.pop(job, None) is not None:
                self._note(job, Outcome("removed before it started", None, 0.0, ""))
        concerned = [host for host in self._hosts if any(job in host.placed for job in job_ids)]
        for host in concerned:
            host.to_stop.update(dict.fromkeys(job for job in job_ids if job in host.placed))
        self._look(concerned)

    def outcome(self, job_id: str) -> Outcome | None:
        """What its host told of it when it was gone."""
        return self._ended.get(job_id)

    # ---- looking --------------------------------------------------------------------------------------------

    def _look(self, hosts: Iterable[_Host]) -> None:
        """Ask hosts for their jobs, all at once; those whose pause is not over are passed over."""
        now = time.monotonic()
        due = [host for host in hosts if now >= host.try_at]
        for host, answer in zip(due, self._call(due, self._question), strict=True):
            if answer is not None:
                self._hear(host, answer)
        for host in self._hosts:
            if host.failures and host.placed and time.monotonic() > host.lost_at + BELIEVED_S:
                for job in host.placed:
                    self._note(job, Outcome(f"its host {host.line.name} does not answer", None, 0.0, ""))
                host.placed = {}

    def _question(self, host: _Host) -> tuple[dict[str, Any], bytes]:
        return {"do": "look", "stop": list(host.to_stop), "known": list(host.placed)}, b""

    def _hear(self, host: _Host, answer: dict[str, Any]) -> None:
        host.home, host.cores, host.to_stop = answer["home"], answer["cores"], {}
        host.placed = {job: _placed(job, told) for job, told in answer["living"].items()}
        for job, told in answer["ended"].items():
            self._note(job, _outcome(told))

    def _note(self, job: str, outcome: Outcome) -> None:
        self._ended[job] = outcome
        if len(self._ended) > KEPT_OUTCOMES:
            del self._ended[next(iter(self._ended))]

    def _somebody_answers(self) -> None:
        if all(host.failures for host in self._hosts):
            told = "; ".join(f"{host.line.name}: {host.words}" for host in self._hosts[:3])
            raise BatchUnavailable(f"no host of {self._path} can be used: {told}")

    def _queued(self, job: str, launch: Launch) -> Job:
        slots = [host.cores if host.line.slots is None else host.line.slots for host in self._hosts]
        note = f"no host has {launch.slaves} slots" if max(slots) < launch.slaves else ""
        return Job(job, launch.mark, JobState.QUEUED, 0.0, note)

    # ---- starting -------------------------------------------------------------------------------------------

    def _fill(self) -> None:
        """Start what waits, each job where most is free."""
        for launch in dict.fromkeys(self._waiting.values()):
            if max(host.free for host in self._hosts) < launch.slaves:
                continue
            start = _Start(launch)
            there: dict[_Host, list[str]] = {}
            for job in [job for job, its in self._waiting.items() if its is launch]:
                host = max(self._hosts, key=lambda host: host.free)
                if host.free < launch.slaves:
                    break
                there.setdefault(host, []).append(job)
                host.placed[job] = _Placed(Job(job, launch.mark, JobState.RUNNING), launch.slaves)
                del self._waiting[job]
            self._start(start, there)

    def _start(self, start: _Start, there: dict[_Host, list[str]]) -> None:
        """Start jobs on hosts; where the application is missing it is sent to one host of each home directory."""
        missing = self._start_on(start, there, list(there), sent=False)
        first = {host.home: host for host in missing}
        missing = self._start_on(start, there, list(first.values()), sent=True) + [
            host for host in missing if host not in first.values()
        ]
        for host in self._start_on(start, there, missing, sent=False):
            self._lose(host, "it has lost the application that was copied to it")

    def _start_on(
        self, start: _Start, there: dict[_Host, list[str]], hosts: Sequence[_Host], *, sent: bool
    ) -> list[_Host]:
        """Returns the hosts that miss the application."""
        answers = self._call(hosts, lambda host: start.on(host.line, there[host], sent))
        return [host for host, answer in zip(hosts, answers, strict=True) if answer is not None and answer["missing"]]

    # ---- calling --------------------------------------------------------------------------------------------

    def _call(
        self, hosts: Sequence[_Host], question: Callable[[_Host], tuple[dict[str, Any], bytes]]
    ) -> list[dict[str, Any] | None]:
        """Call hosts at once; None for each that does not answer."""
        if not hosts:
            return []
        with ThreadPoolExecutor(min(AT_ONCE, len(hosts))) as pool:
            answers = list(pool.map(lambda host: self._ask(host.line, *question(host)), hosts))
        for host, answer in zip(hosts, answers, strict=True):
            if isinstance(answer, str):
                self._lose(host, answer)
            elif host.failures:
                self._say(f"host {host.line.name} answers again")
                host.failures, host.words, host.try_at = 0, "", 0.0
        return [None if isinstance(answer, str) else answer for answer in answers]

    def _ask(self, line: HostLine, asked: dict[str, Any], payload: bytes) -> dict[str, Any] | str:
        """The answer of a host, or why there is none."""
        python = line.python or "python3"
        code = f"import sys;exec(sys.stdin.buffer.read({len(SOURCE)}))"
        options = [word for option in OPTIONS for word in ("-o", option)]
        given = SOURCE + json.dumps({"host": line.name, **asked}).encode() + b"\n" + payload
        words = ["ssh", *self._options, *options, "-T", line.name, f"{shlex.quote(python)} -c {shlex.quote(code)}"]
        try:
            ran = run(words, timeout_s=CALL_S + len(payload) / BYTES_A_SECOND, given=given)
        except TimeoutError as error:
            return str(error)
        except OSError as error:
            return f"ssh cannot be run: {error.strerror}"
        for text in ran.out.splitlines():
            if text.startswith(_ssh_host.ANSWER):
                answer: dict[str, Any] = json.loads(text.removeprefix(_ssh_host.ANSWER))
                return answer
        remedy = "; name its Python with python=PATH in the hosts file" if ran.code in (126, 127) else ""
        return f"{ran.last_words}{remedy}"

    def _lose(self, host: _Host, words: str) -> None:
        pause = min(LONGEST_PAUSE_S, FIRST_PAUSE_S * 2**host.failures)
        now = time.monotonic()
        if words != host.words:
            self._say(f"host {host.line.name} cannot be used: {words}; it is tried again, first in {pause:.0f} s")
        host.lost_at = host.lost_at if host.failures else now
        host.failures, host.words, host.try_at = host.failures + 1, words, now + pause


class _Start:
    """What is sent to hosts to start jobs of a launch: files are read once."""

    def __init__(self, launch: Launch) -> None:
        self._launch = launch
        self._command = launch.agent_command(_ssh_host.RESOURCE)
        try:
            self._resource = Path(launch.resource_path).read_bytes()
            self._app = _app_of(self._command)
            self._content = Path(self._command[self._app]).read_bytes() if self._app is not None else b""
        except OSError as error:
            raise BatchUnavailable(f"no job can be started: {error}") from error

    def on(self, line: HostLine, jobs: Sequence[str], sent: bool) -> tuple[dict[str, Any], bytes]:
        """The question for one host, and what goes with it."""
        command, index = list(self._command), self._app
        if line.python is not None and index == 0:
            command, index = [line.python, *command], 1
        elif line.python is not None:
            command[0] = line.python
        app = None
        if index is not None:
            path = os.path.abspath(command[index])
            app = {"index": index, "path": path, "digest": hashlib.sha256(self._content).hexdigest(), "sent": sent}
        asked = {
            "do": "start",
            "jobs": jobs,
            "mark": self._launch.mark,
            "slaves": self._launch.slaves,
            "command": command,
            "app": app,
            "cwd": os.getcwd(),
            "resource_size": len(self._resource),
        }
        return asked, self._resource + (self._content if sent else b"")


def _app_of(command: Sequence[str]) -> int | None:
    """Where in a command the application's file stands: in front, or behind an interpreter; None if it has none."""
    first = 1 if os.path.basename(command[0]).startswith("python") else 0
    return first if os.path.isfile(command[first]) else None


def _placed(job: str, told: dict[str, Any]) -> _Placed:
    state = JobState.LEAVING if told["leaving"] else JobState.RUNNING
    return _Placed(Job(job, told["mark"], state, told["running_s"]), told["slaves"])


def _outcome(told: dict[str, Any]) -> Outcome:
    code, ran_s, stderr = told["code"], told["ran_s"], told["stderr"]
    if code is None:
        ended = "removed" if told["removed"] else "its processes are gone without an exit code"
        return Outcome(ended, None, ran_s, stderr)
    ended = killed(code - 128) if 128 < code < 160 and code != 130 else f"exit code {code}"
    return Outcome(ended, None if ended.startswith("killed") else code, ran_s, stderr)
