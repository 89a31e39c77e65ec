"""Hosts that are reached through ssh, as a batch system. It needs OpenSSH's client on this machine, and Python on the
hosts.

A hosts file lists the hosts and how many slaves each may have. It may change at any time: a host that is not named any
more gets no more jobs, and those that run there leave after their tasks. One call per host, to all hosts at once,
returns the jobs that are alive there (`_host`). So an overseer finds its running jobs again after a restart. There
is no queue: a job starts when it is submitted, or is not taken.

When a host does not answer, this is reported once. Its slots then do not count, and it is called again after growing
pauses. For a while its jobs are assumed to run, because a short break of the network ends no job. After that they count
as lost. If the host comes back with these jobs, they are in the list again.

The application is the program of the command, or the file after a Python. It is used in place if the host sees the same
file at the same path. Otherwise it is copied, once to each home directory. The resource file is copied at every start.
"""

from __future__ import annotations

import hashlib
import inspect
import json
import os
import re
import secrets
import shlex
import sys
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import accumulate
from pathlib import Path
from typing import Any

from attrs import Factory, define
from msgspec import Struct
from msgspec.structs import replace

from mwpy._batch import BatchUnavailable, Launch, NoFreePlace, _host
from mwpy._batch.local import job_of, outcome_of
from mwpy._system import clock, process
from mwpy._values.errors import UsageError
from mwpy._values.jobs import End, Job, JobState, Outcome
from mwpy._values.phrases import counted

CALL_S = 60.0
"""Seconds that a call may take. A call that sends an application may take longer."""

BYTES_A_SECOND = 100_000
"""The lowest transfer rate that is expected when an application is sent, in bytes per second."""

OPTIONS = ("BatchMode=yes", "ConnectTimeout=10", "ServerAliveInterval=5", "ServerAliveCountMax=3")
"""ssh asks for no password, and notices a host that vanished. The user's options come first and take precedence."""

AT_ONCE = 32
"""How many hosts are called at the same time."""

FIRST_PAUSE_S = 5.0
LONGEST_PAUSE_S = 300.0
"""Seconds until a host that did not answer is called again. Each pause is twice the one before."""

BELIEVED_S = 60.0
"""When a host does not answer, its jobs are assumed to run for this many seconds."""

KEPT_OUTCOMES = 10_000

SOURCE = inspect.getsource(_host).encode()


class HostLine(Struct, frozen=True):
    """A line of the hosts file."""

    name: str
    """The name that ssh knows: a name of its configuration, or `USER@HOST`."""
    slots: int | None = None
    """How many slaves the host may have; None for one per core."""
    python: str | None = None
    """The host's Python. If it is None, calls use `python3`, and the agent uses the Python of the command."""


LINE = re.compile(r"([^-=/\s][^=/\s]*)((?:\s+(?:slots=\d+|python=\S+))*)", re.ASCII)
"""A line of the hosts file."""


def read_hosts(path: str | Path) -> list[HostLine]:
    """Read a hosts file: `HOST [slots=N] [python=PATH]` per line. Text after a `#` is ignored.

    Raises:
        UsageError: the file cannot be read, or a line is wrong; the message names the line.
    """
    try:
        lines = Path(path).read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"cannot read the hosts file {path}: {error}") from error
    hosts: dict[str, HostLine] = {}
    for number, line in enumerate(lines, 1):
        text = line.partition("#")[0].strip()
        found = LINE.fullmatch(text)
        if text and found is None:
            raise UsageError(f"{path}, line {number}: {text} is not understood: write HOST [slots=N] [python=PATH]")
        if found is not None and found[1] in hosts:
            raise UsageError(f"{path}, line {number}: {found[1]} is there already: give it more slots instead")
        if found is not None:
            settings = dict(word.split("=", 1) for word in found[2].split())
            slots = int(settings["slots"]) if "slots" in settings else None
            hosts[found[1]] = HostLine(found[1], slots, settings.get("python"))
    if not hosts:
        raise UsageError(f"the hosts file {path} names no host: write a line `HOST slots=N` for each")
    return list(hosts.values())


class HostsFile:
    """A hosts file, which may change at any time. While it is wrong, its former content counts.

    Args:
        path: where it is; see `read_hosts`.
        say: is called with a line when it becomes wrong.
        needs_slots: whether each line must say how many slots the host has.

    Raises:
        UsageError: it is wrong now.
    """

    def __init__(self, path: str | Path, say: Callable[[str], None], needs_slots: bool = False) -> None:
        self.path = path
        self._needs_slots = needs_slots
        self.lines = self._read()
        self._say = say
        self._fault = ""

    def read_again(self) -> bool:
        """Read it again. Return whether it says something else now."""
        former, fault = self.lines, ""
        try:
            self.lines = self._read()
        except UsageError as error:
            fault = str(error)
            if fault != self._fault:
                self._say(f"{fault}. Until then, its former content counts")
        self._fault = fault
        return self.lines != former

    def _read(self) -> list[HostLine]:
        lines = read_hosts(self.path)
        if self._needs_slots and (without := [each.name for each in lines if each.slots is None]):
            raise UsageError(f"{self.path} says no slots for {without[0]}: write `{without[0]} slots=N`")
        return lines


@define(eq=False, repr=False)
class _Host:
    """What is known about a host."""

    line: HostLine
    placed: dict[str, Job] = Factory(dict)
    to_stop: dict[str, None] = Factory(dict)
    """Jobs that the host must stop at the next call that it answers."""
    cores: int = 0
    """How many it has; 0 until it has answered."""
    failures: int = 0
    """How many calls in a row it did not answer."""
    fault: str = ""
    """Why it did not answer."""
    retry_at: float = 0.0
    silent_since: float = 0.0

    @property
    def slots(self) -> int:
        """How many slaves it may have."""
        return self.cores if self.line.slots is None else self.line.slots

    def free(self, avoided: Sequence[str] = ()) -> int:
        """How many more slaves it may have; none while it does not answer, or if it is avoided."""
        if self.failures or self.line.name in avoided:
            return 0
        return self.slots - sum(job.slaves for job in self.placed.values())

    def shown(self) -> list[Job]:
        """Its jobs. The youngest ones are surplus if it has more slaves than slots."""
        jobs = sorted(self.placed.values(), key=lambda job: job.running_s)
        used = accumulate((job.slaves for job in jobs), initial=0)
        return [replace(job, is_surplus=before < -self.free()) for job, before in zip(jobs, used, strict=False)]


class Ssh:
    """The hosts of a hosts file.

    Args:
        hosts: the file; see `read_hosts`.
        ssh_options: options for ssh, before the host: `-F FILE`, `-o NAME=VALUE`.
        say: is called with a line for each host that stops answering or answers again.

    Raises:
        UsageError: the hosts file is wrong.
    """

    def __init__(
        self, hosts: str | Path, ssh_options: Sequence[str] = (), say: Callable[[str], None] | None = None
    ) -> None:
        self._say = say or (lambda line: print(f"mwpy: {line}", file=sys.stderr, flush=True))
        self._path = hosts
        self._file = HostsFile(hosts, self._say)
        self._hosts = [_Host(line) for line in self._file.lines]
        self._options = tuple(ssh_options)
        self._ended: dict[str, Outcome] = {}

    # ---- the Batch protocol ---------------------------------------------------------------------------------

    def submit(self, launch: Launch, count: int) -> list[str]:
        """Start jobs, each on the host with the most free slots; only as many as there are free places."""
        if not any(host.cores for host in self._hosts):
            self._look(self._hosts)
        self._require_a_host()
        if max(host.slots for host in self._hosts) < launch.slaves:
            raise BatchUnavailable(f"no host of {self._path} has {launch.slaves} slots, which one job needs")
        jobs_by_host: dict[_Host, list[str]] = {}
        for _ in range(count):
            host = max(self._hosts, key=lambda host: host.free(launch.avoided))
            if host.free(launch.avoided) < launch.slaves:
                break
            job = f"ssh-{secrets.token_hex(6)}"
            jobs_by_host.setdefault(host, []).append(job)
            host.placed[job] = Job(job, launch.mark, JobState.RUNNING, host=host.line.name, slaves=launch.slaves)
        if not jobs_by_host:
            avoided = f", apart from {', '.join(launch.avoided)}" if launch.avoided else ""
            slots = counted(launch.slaves, "free slot")
            raise NoFreePlace(f"no host of {self._path} has {slots} now{avoided}")
        self._start(launch, jobs_by_host)
        return [job for jobs in jobs_by_host.values() for job in jobs]

    def free_places(self, slaves: int) -> int:
        """How many jobs of this many slaves the hosts can start now. It is 1 if all hosts are too small for one job.

        Then `submit` is called, and says so.
        """
        if max(host.slots for host in self._hosts) < slaves:
            return 1
        return sum(max(0, host.free()) // slaves for host in self._hosts)

    def jobs(self) -> list[Job]:
        """The jobs that run on the hosts."""
        self._follow()
        self._look(self._hosts)
        self._require_a_host()
        return [job for host in self._hosts for job in host.shown()]

    def apart(self) -> dict[str, Ssh]:
        """Return each host as a batch system of its own, by name."""
        parts = {}
        for host in self._hosts:
            parts[host.line.name] = Ssh(self._path, self._options, self._say)
            parts[host.line.name]._hosts = [_Host(host.line)]
        return parts

    def remove(self, job_ids: Sequence[str]) -> None:
        """Stop jobs. If the host of a job does not answer, the job is stopped when the host answers again."""
        concerned = [host for host in self._hosts if any(job in host.placed for job in job_ids)]
        for host in concerned:
            host.to_stop.update(dict.fromkeys(job for job in job_ids if job in host.placed))
        self._look(concerned)

    def outcome(self, job_id: str) -> Outcome | None:
        """How a job ended, as its host has reported it."""
        return self._ended.get(job_id)

    # ---- looking --------------------------------------------------------------------------------------------

    def _follow(self) -> None:
        """Do as the hosts file says now."""
        if self._file.read_again():
            known = {host.line.name: host for host in self._hosts}
            for host in self._hosts:
                host.line = replace(host.line, slots=0)
            for line in self._file.lines:
                known.setdefault(line.name, _Host(line)).line = line
            self._hosts = [*known.values()]
        self._hosts = [host for host in self._hosts if host.line in self._file.lines or host.placed]

    def _look(self, hosts: Iterable[_Host]) -> None:
        """Ask all hosts at the same time for their jobs. Hosts in a pause are not asked."""
        now = clock.monotonic()
        due = [host for host in hosts if now >= host.retry_at]
        for host, answer in zip(due, self._call(due, self._question), strict=True):
            if answer is not None:
                self._take_answer(host, answer)
        for host in self._hosts:
            if host.failures and host.placed and clock.monotonic() > host.silent_since + BELIEVED_S:
                for job in host.placed:
                    self._keep(job, Outcome(End.LOST, f"its host {host.line.name} does not answer", None, 0.0))
                host.placed = {}

    def _question(self, host: _Host) -> tuple[dict[str, Any], bytes]:
        return {"do": "look", "stop": list(host.to_stop), "known": list(host.placed)}, b""

    def _take_answer(self, host: _Host, answer: dict[str, Any]) -> None:
        host.cores, host.to_stop = answer["cores"], {}
        host.placed = {job: job_of(job, report, host.line.name) for job, report in answer["living"].items()}
        for job, report in answer["ended"].items():
            self._keep(job, outcome_of(report, host.line.name))

    def _keep(self, job: str, outcome: Outcome) -> None:
        self._ended[job] = outcome
        if len(self._ended) > KEPT_OUTCOMES:
            del self._ended[next(iter(self._ended))]

    def _require_a_host(self) -> None:
        if all(host.failures for host in self._hosts):
            faults = "; ".join(f"{host.line.name}: {host.fault}" for host in self._hosts[:3])
            raise BatchUnavailable(f"no host of {self._path} can be used: {faults}")

    # ---- starting -------------------------------------------------------------------------------------------

    def _start(self, launch: Launch, jobs_by_host: dict[_Host, list[str]]) -> None:
        """Start jobs on hosts. An application that is missing is sent to one of them, then to two, and so on: those
        that share a home directory need it once."""
        words = launch.bare_command(_host.RESOURCE)
        first = 1 if os.path.basename(words[0]).startswith("python") else 0
        app = os.path.abspath(words[first]) if os.path.isfile(words[first]) else ""
        try:
            resource = Path(launch.resource_path).read_bytes()
            content = Path(app).read_bytes() if app else b""
        except OSError as error:
            raise BatchUnavailable(f"no job can be started: {error}") from error
        if app:
            words[first] = _host.APPLICATION
        digest = hashlib.sha256(content).hexdigest() if app else ""

        def question(host: _Host, send: bool) -> tuple[dict[str, Any], bytes]:
            command = list(words)
            if host.line.python is not None:
                command[: first if app else 1] = [host.line.python]
            request = {
                "do": "start",
                "jobs": jobs_by_host[host],
                "about": {"mark": launch.mark, "slaves": launch.slaves, "app": digest},
                "command": launch.after_prologue(command),
                "app": app,
                "sent": send,
                "cwd": os.getcwd(),
                "resource_size": len(resource),
            }
            return request, resource + (content if send else b"")

        def start_on(hosts: Sequence[_Host], send: bool) -> list[_Host]:
            """Return the hosts that lack the application."""
            answers = self._call(hosts, lambda host: question(host, send))
            return [host for host, answer in zip(hosts, answers, strict=True) if answer and answer["missing"]]

        lacking, at_once = start_on(list(jobs_by_host), False), 1
        while lacking:
            start_on(lacking[:at_once], True)
            lacking, at_once = start_on(lacking[at_once:], False), 2 * at_once

    # ---- calling --------------------------------------------------------------------------------------------

    def _call(
        self, hosts: Sequence[_Host], question: Callable[[_Host], tuple[dict[str, Any], bytes]]
    ) -> list[dict[str, Any] | None]:
        """Call several hosts at the same time; return None for each host that does not answer."""
        if not hosts:
            return []
        with ThreadPoolExecutor(min(AT_ONCE, len(hosts))) as pool:
            answers = list(pool.map(lambda host: self._ask(host.line, *question(host)), hosts))
        for host, answer in zip(hosts, answers, strict=True):
            if isinstance(answer, str):
                self._lose(host, answer)
            elif host.failures:
                self._say(f"host {host.line.name} answers again")
                host.failures, host.fault, host.retry_at = 0, "", 0.0
        return [None if isinstance(answer, str) else answer for answer in answers]

    def _ask(self, line: HostLine, request: dict[str, Any], payload: bytes) -> dict[str, Any] | str:
        """Return the answer of a host, or why there is none."""
        python = line.python or "python3"
        code = f"import sys;exec(sys.stdin.buffer.read({len(SOURCE)}))"
        options = [word for option in OPTIONS for word in ("-o", option)]
        standard_input = SOURCE + json.dumps({"host": line.name, **request}).encode() + b"\n" + payload
        words = ["ssh", *self._options, *options, "-T", line.name, f"{shlex.quote(python)} -c {shlex.quote(code)}"]
        timeout_s = CALL_S + len(payload) / BYTES_A_SECOND
        try:
            ran = process.run(words, timeout_s=timeout_s, standard_input=standard_input)
        except process.TimedOut as error:
            return str(error)
        except OSError as error:
            return f"ssh cannot be run: {error.strerror}"
        for text in ran.out.splitlines():
            if text.startswith(_host.ANSWER):
                answer: dict[str, Any] = json.loads(text.removeprefix(_host.ANSWER))
                return answer
        remedy = "; name its Python with python=PATH in the hosts file" if ran.returncode in (126, 127) else ""
        return f"{ran.last_complaint}{remedy}"

    def _lose(self, host: _Host, fault: str) -> None:
        pause_s = min(LONGEST_PAUSE_S, FIRST_PAUSE_S * 2**host.failures)
        now = clock.monotonic()
        if fault != host.fault:
            self._say(f"host {host.line.name} cannot be used: {fault}; it is called again in {pause_s:.0f} s")
        host.silent_since = host.silent_since if host.failures else now
        host.failures, host.fault, host.retry_at = host.failures + 1, fault, now + pause_s
