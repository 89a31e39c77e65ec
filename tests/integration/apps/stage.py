"""Starts real processes for a test, finds them by a mark, and ends them with the test.

Each process has `MWPY_TEST_MARK` in its environment, and its child processes inherit it. A scan of `/proc` finds these
processes. Output goes to files, so that no process waits for a reader, and a test can read it at any time.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Self

import mwpy

APPS = Path(__file__).parent
SOURCES = APPS.parent.parent.parent / "src"

PATIENCE_S = 120.0
"""The time limit of each wait. It is long, because the machine may be slow and busy."""

ORPHAN_S = 20.0
"""How long a process may survive the process that it serves. A silent peer counts as gone only after 30 s."""

POLL_S = 0.02
"""Seconds between two checks of a condition."""


class Running:
    """A started process and its output."""

    def __init__(self, process: subprocess.Popen[bytes], out: Path, err: Path) -> None:
        self.process = process
        self.pid = process.pid
        self._out = out
        self._err = err

    @property
    def out(self) -> str:
        return self._out.read_text(errors="replace")

    @property
    def err(self) -> str:
        return self._err.read_text(errors="replace")

    @property
    def report(self) -> Any:
        """The JSON in the last line of the output of an application."""
        lines = self.out.splitlines()
        assert lines, f"it printed nothing:\n{self.err}"
        return json.loads(lines[-1])

    def end(self, patience_s: float = PATIENCE_S) -> int:
        """Wait until it ends. Return the exit code, or the negative number of a signal."""
        try:
            return self.process.wait(patience_s)
        except subprocess.TimeoutExpired:
            raise AssertionError(
                f"still running after {patience_s:.0f} s:\n{self.out[-2000:]}\n{self.err[-4000:]}"
            ) from None

    def finish(self) -> Self:
        """Wait until it ends, which must be without an error."""
        assert self.end() == 0, self.err
        return self

    def send(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def kill(self) -> None:
        """Kill it, and wait for its end."""
        self.send(signal.SIGKILL)
        self.end()


class Stage:
    """A folder and the processes that run in it. The end of the `with` block kills all of them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.resource = folder / "computation.rsc"
        self.audit = folder / "master.audit"
        self.mark = f"MWPY_TEST_MARK={uuid.uuid4().hex}"
        self._started: list[Running] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for _attempt in range(100):
            pids = self.processes()
            for pid in pids:
                kill(pid, signal.SIGCONT)
                kill(pid, signal.SIGKILL)
            if not pids:
                for running in self._started:
                    running.process.wait(PATIENCE_S)
                return
            time.sleep(POLL_S)

    def audited(self, about: str) -> list[str]:
        """Return the lines of the master's audit file that contain a text."""
        return [line for line in self.audit.read_text().splitlines() if about in line]

    def until_audited(self, about: str) -> list[str]:
        """Wait until the master's audit file contains a text, since it is written in the background."""
        until(lambda: bool(self.audited(about)), f"a line with {about!r} in the audit file")
        return self.audited(about)

    def start(
        self,
        app: str,
        *arguments: object,
        program: list[str] | None = None,
        script: str = "",
        variables: Mapping[str, str] | None = None,
    ) -> Running:
        """Start an application, or a program that reads a script. Add environment variables."""
        number = len(self._started)
        out, err = self.folder / f"{number}.out", self.folder / f"{number}.err"
        name, value = self.mark.split("=")
        environment = {**os.environ, "PYTHONPATH": str(SOURCES), name: value, **(variables or {})}
        for inherited in ("MWPY_SLAVE", "MWPY_AGENT", "MWPY_MASTER", "MWPY_KEY"):
            if inherited not in (variables or {}):
                environment.pop(inherited, None)
        with out.open("wb") as out_file, err.open("wb") as err_file:
            process = subprocess.Popen(
                [*(program or [sys.executable, str(APPS / app)]), *map(str, arguments)],
                cwd=self.folder,
                env=environment,
                stdin=subprocess.PIPE if script else subprocess.DEVNULL,
                stdout=out_file,
                stderr=err_file,
                start_new_session=True,
            )
        if process.stdin is not None:
            process.stdin.write(script.encode())
            process.stdin.close()
        self._started.append(Running(process, out, err))
        return self._started[-1]

    def run(self, app: str, *arguments: object, code: int = 0, **options: Any) -> Running:
        """Do the same, and wait for the end, which must have this exit code."""
        running = self.start(app, *arguments, **options)
        assert running.end() == code, running.err
        return running

    def script(self, *arguments: object, text: str = "", name: str = "script.py") -> Running:
        """Write a script of the test, unless it is there, and start it. It may import from the tests."""
        path = self.folder / name
        if text and not (path.exists() and path.read_text() == text):  # slaves are replaced if their script was edited
            path.write_text(text)
        variables = {"PYTHONPATH": f"{SOURCES}:{SOURCES.parent}", "PYTHONDONTWRITEBYTECODE": "1"}
        return self.start("", *arguments, program=[sys.executable, str(path)], variables=variables)

    def lines(self, name: str) -> list[str]:
        """The lines of a file in this folder; none if there is no such file."""
        path = self.folder / name
        return path.read_text().splitlines() if path.exists() else []

    def master(self, app: str, *arguments: object) -> Running:
        """Start a master on loopback, and wait for its resource file."""
        own = ("--mw-master", "--mw-resource-file", self.resource, "--mw-audit-file", self.audit)
        started = self.start(app, *own, "--mw-master-host", "127.0.0.1", *arguments)
        until(lambda: self.resource.exists() or started.process.poll() is not None, "a resource file")
        assert self.resource.exists(), started.err
        return started

    def agent(self, app: str, *arguments: object) -> Running:
        """Start an agent with the resource file of this stage."""
        return self.start(app, "--mw-slave", "--mw-resource-file", self.resource, *arguments)

    def processes(self) -> list[int]:
        """Return the processes that have the mark and are alive. A zombie is not alive."""
        mark = self.mark.encode()
        found = []
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                try:
                    variables = (entry / "environ").read_bytes().split(b"\0")
                except OSError:
                    continue
                if mark in variables:
                    found.append(int(entry.name))
        return found

    def no_process_left(self) -> None:
        """Assert that all processes end, including their child processes."""
        for running in self._started:
            running.process.poll()
        until(lambda: not self.processes(), lambda: f"no process left, but {self.commands()}", ORPHAN_S)

    def commands(self) -> list[str]:
        lines = []
        for pid in self.processes():
            try:
                line = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
            except OSError:
                continue
            lines.append(f"{pid}: {line}")
        return lines


def slaves_of(agent: int) -> list[int]:
    """Return the living child processes of an agent, without the template from which slaves are forked."""
    return [pid for pid in children_of(agent) if name_of(pid) != "mwpy-template"]


def template_of(agent: int) -> int:
    """Return the template of an agent. Wait until it can fork."""
    found: list[int] = []

    def is_found() -> bool:
        found[:] = [pid for pid in children_of(agent) if name_of(pid) == "mwpy-template"]
        return bool(found)

    until(is_found, "a template")
    return found[0]


def children_of(pid: int) -> list[int]:
    """Return the living child processes of a process, whichever of its threads has started them."""
    try:
        children = [path.read_text() for path in Path(f"/proc/{pid}/task").glob("*/children")]
    except OSError:
        return []
    return [int(child) for text in children for child in text.split()]


def name_of(pid: int) -> str:
    """Return the name of a process; empty if it has ended."""
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return ""


def kill(pid: int, number: signal.Signals) -> None:
    """Send a signal to a process that may have ended."""
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        pass


class Cable:
    """A network namespace, and the cable that leads to it."""

    master, agent = "169.254.214.1", "169.254.214.2"
    """The addresses of its ends."""

    def __init__(self) -> None:
        self._name = f"mw{os.getpid()}"

    def __enter__(self) -> Self:
        name = self._name
        self._run(f"netns add {name}")
        self._run(f"link add {name}a type veth peer name {name}b netns {name}")
        self._run(f"addr add {self.master}/30 dev {name}a")
        self._run(f"-n {name} addr add {self.agent}/30 dev {name}b")
        self._run(f"-n {name} link set {name}b up")
        self._run(f"-n {name} link set lo up")
        self.plug()
        return self

    def __exit__(self, *exception: object) -> None:
        self._run(f"netns delete {self._name}")

    def plug(self) -> None:
        self._run(f"link set {self._name}a up")

    def unplug(self) -> None:
        self._run(f"link set {self._name}a down")

    def program(self, *words: str) -> list[str]:
        """The command that starts a program at the other end."""
        return ["ip", "netns", "exec", self._name, *words]

    def _run(self, words: str) -> None:
        subprocess.run(["ip", *words.split()], check=True, timeout=60, capture_output=True)


OTHER_VERSION = """if 1:
    import importlib, sys
    from mwpy._transport import wire
    from mwpy._values import messages
    messages.PROTOCOL_VERSION = 77
    importlib.reload(wire)
    from mwpy.cli import main
    sys.exit(main(sys.argv[1:]))
"""
"""The program `mwpy`, as if it were of another version: that of its protocol is 77."""


def free_port() -> int:
    """Return a port that nobody listens at."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def until(condition: Callable[[], bool], what: str | Callable[[], str], patience_s: float = PATIENCE_S) -> None:
    """Wait until a condition is true. Fail with the description if it does not become true."""
    deadline = time.monotonic() + patience_s
    while not condition():
        assert time.monotonic() < deadline, (
            f"after {patience_s:.0f} s there should be {what() if callable(what) else what}"
        )
        time.sleep(POLL_S)


def is_gone(pid: int) -> bool:
    """Whether a process has ended, or is a zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


def fetched(mw: mwpy.Master, count: int) -> list[mwpy.Result[Any]]:
    """Wait for results until there are this many. Return them as they came."""
    results = mw.results()
    while len(results) < count:
        mw.loop(PATIENCE_S)
        results += mw.results()
    return results
