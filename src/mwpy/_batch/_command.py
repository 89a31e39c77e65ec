"""A command of a batch system, run to its end or to its time limit; and what is left of a process that ended."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Mapping, Sequence

from attrs import frozen

__all__ = ["Ran", "end_of", "killed", "run"]

END_BYTES = 8192
"""So much of the end of a file is enough to see why a process died."""


@frozen
class Ran:
    """How a command ended."""

    code: int
    """Its exit code, or minus the number of the signal that killed it."""
    out: str
    err: str

    @property
    def words(self) -> str:
        """What it said of its failure, in one line."""
        lines = [line.strip() for line in (self.err or self.out).splitlines() if line.strip()]
        return "; ".join(dict.fromkeys(lines)) or f"nothing (exit code {self.code})"

    @property
    def last_words(self) -> str:
        """The last line that it said of its failure."""
        return self.words.rpartition("; ")[2]


def run(
    words: Sequence[str],
    *,
    timeout_s: float,
    given: bytes = b"",
    environment: Mapping[str, str] | None = None,
) -> Ran:
    """Run a command with this standard input; kill it, and what it started, when it takes too long.

    Raises:
        OSError: it cannot be started.
        TimeoutError: it was killed. Whether it had done its work is not known.
    """
    with subprocess.Popen(
        words,
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    ) as process:
        try:
            out, err = process.communicate(given, timeout_s)
        except BaseException as error:
            os.killpg(process.pid, signal.SIGKILL)  # not reaped yet, so the number is still its own
            process.communicate()
            if isinstance(error, subprocess.TimeoutExpired):
                raise TimeoutError(f"no answer within {timeout_s:.0f} s") from None
            raise
    return Ran(process.returncode, out.decode(errors="replace"), err.decode(errors="replace"))


def killed(number: int) -> str:
    """An end by a signal in words."""
    try:
        return f"killed by {signal.Signals(number).name} ({number})"
    except ValueError:
        return f"killed by signal {number}"


def end_of(path: str) -> str:
    """The end of what a process wrote into a file; empty if that cannot be read."""
    try:
        with open(path, "rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - END_BYTES))
            return file.read().decode(errors="replace")
    except OSError:
        return ""
