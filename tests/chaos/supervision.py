"""Processes that are started again when they end, as a batch system or a person does it."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from attrs import frozen
from tests.integration.apps.stage import children_of, kill

SHOWN = 600
"""How many characters at the end of the standard error of a process are kept."""


@frozen
class End:
    """An end of a process."""

    moment: float
    code: int
    asked: str
    """The kind of fault that ended it; empty if it ended for another reason."""

    words: str
    """The end of its standard error."""


class Watched:
    """A command that is started again when it ends.

    Args:
        name: of the process; its output is in files with this name.
        command: the command line.
        variables: environment variables that it gets in addition to those of this process.
        folder: where it runs.
        output: the folder of its output.
        pause_s: after its end, it is started again this much later.
    """

    def __init__(
        self, name: str, command: list[str], variables: dict[str, str], folder: Path, output: Path, pause_s: float
    ) -> None:
        self.name = name
        self.ends: list[End] = []
        self.starts = 0
        self.began = 0.0
        """When it was started last."""
        self._command = command
        self._variables = variables
        self._folder = folder
        self._output = output
        self._pause_s = pause_s
        self._asked = ""
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        """The process id; 0 if it does not run."""
        return self._process.pid if self._process is not None else 0

    @property
    def err(self) -> str:
        """What its last process wrote to standard error."""
        path = self._output / f"{self.name}.{len(self.ends) - (self._process is None)}.err"
        return path.read_text(errors="replace") if path.exists() else ""

    @property
    def out(self) -> str:
        path = self._output / f"{self.name}.{len(self.ends) - (self._process is None)}.out"
        return path.read_text(errors="replace") if path.exists() else ""

    @property
    def unasked(self) -> list[End]:
        """The ends that no fault was aimed at."""
        return [end for end in self.ends if not end.asked]

    def start(self) -> None:
        base = self._output / f"{self.name}.{len(self.ends)}"
        self.starts += 1
        self.began = time.monotonic()
        with Path(f"{base}.out").open("wb") as out, Path(f"{base}.err").open("wb") as err:
            self._process = subprocess.Popen(
                self._command,
                cwd=self._folder,
                env={**os.environ, **self._variables},
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                start_new_session=True,
            )

    def ask(self, fault: str) -> None:
        """Record that a fault is about to end the process that runs now."""
        self._asked = fault

    def send(self, number: signal.Signals) -> None:
        if pid := self.pid:
            kill(pid, number)

    def watch(self) -> None:
        """Record an end, and start the process again after the pause."""
        now = time.monotonic()
        if self._process is not None and (code := self._process.poll()) is not None:
            self._process = None
            self.ends.append(End(now, code, self._asked, ""))
            self.ends[-1] = End(now, code, self._asked, self.err[-SHOWN:])
            self._asked = ""
        if self._process is None and now >= self.ends[-1].moment + self._pause_s:
            self.start()

    def wait(self, patience_s: float) -> int | None:
        """Wait for its end without a new start. Return the exit code, or None if it still runs."""
        if self._process is None:
            return self.ends[-1].code if self.ends else None
        try:
            return self._process.wait(patience_s)
        except subprocess.TimeoutExpired:
            return None

    def destroy(self) -> None:
        """Kill it with all its descendants."""
        for pid in (*family_of(self.pid), self.pid):
            if pid:
                kill(pid, signal.SIGKILL)
        if self._process is not None:
            self._process.wait()


def family_of(pid: int) -> Iterator[int]:
    """Yield all living descendants of a process."""
    for child in children_of(pid) if pid else []:
        yield child
        yield from family_of(child)


def wait_for(condition: Callable[[], bool], patience_s: float, step: Callable[[], None]) -> bool:
    """Call `step` until a condition is true. Return whether it became true in time."""
    deadline = time.monotonic() + patience_s
    while not condition():
        if time.monotonic() > deadline:
            return False
        step()
    return True
