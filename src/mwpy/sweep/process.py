"""Runs one program to its end: its process group, its limits, and the folder in which it runs.

A program writes its standard output and error into files without names, not into pipes. So a child that it leaves
behind cannot keep anybody waiting, and its output can be as long as the disk allows. When the program has ended, all
processes of its group are killed.
"""

from __future__ import annotations

import io
import json
import os
import shutil
import signal
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

from msgspec import Struct

import mwpy
from mwpy import EndIsNear
from mwpy.sweep.files import File

SCRATCH = ("_CONDOR_SCRATCH_DIR", "TMPDIR")
"""The variables with the folder that a batch system gives to a job for its files."""

MAX_ARCHIVE_BYTES = 10_000_000
"""The most bytes of files in the archive of a run, before they are compressed."""

LOOK_S = 1.0
"""How often the limits of a running program are looked at, in seconds."""

SHORTEST_PAUSE_S, LONGEST_PAUSE_S = 0.0003, 0.05
"""The pauses between two checks whether a program has ended, in seconds."""

NEAR_S = 1.0
"""How long before the end of its task a program is ended, in seconds. So its last lines can still be reported."""

NEAR_SHARE = 0.1
"""The same as a part of the time that the task has, if that is shorter."""

TERMINATION_S = 2.0
"""How long a program may take to end after SIGTERM, in seconds, before it is killed."""

LAST_BYTES = 2000
"""How much of the end of its output the message about a failed program shows."""


class Ended(Struct, frozen=True):
    """How a program ended."""

    exit_code: int
    """Negative if a signal ended it: the number of the signal."""
    seconds: float
    peak_memory: int
    """The most memory that one of its processes used, in bytes."""
    stopped: str = ""
    """Why it was ended; empty if it ended by itself."""


@contextmanager
def own_folder(name: str, parameters: Mapping[str, Any]) -> Iterator[Path]:
    """Make a folder for one attempt of a run, and remove it at the end.

    Args:
        name: what names the attempt.
        parameters: they are written into it as `parameters.json`.

    Raises:
        OSError: it cannot be made, as on a full disk.
    """
    base = next((os.environ[variable] for variable in SCRATCH if os.environ.get(variable)), tempfile.gettempdir())
    folder = tempfile.mkdtemp(prefix=f"{name}-", dir=base)
    listed = f"{folder}/parameters.json"
    try:
        with open(listed, "w", encoding="utf-8", errors="surrogateescape") as file:
            file.write(json.dumps(parameters, default=str, ensure_ascii=False))
        yield Path(folder)
    finally:
        try:
            os.unlink(listed)
            os.rmdir(folder)  # most programs write nothing else, and `rmtree` takes longer than they do
        except OSError:
            shutil.rmtree(folder, onerror=_make_removable)


def _make_removable(function: Any, path: str, _: Any) -> None:
    """Remove something in a folder that the program has made read-only. What cannot be removed stays."""
    with suppress(OSError):
        os.chmod(os.path.dirname(path), 0o700)
        function(path)


def packed(folder: Path, streams: Mapping[str, File], line: str) -> bytes:
    """Pack the folder of a run and its outputs as a `.tar.gz`: the small files first, as long as there is room.

    Args:
        streams: outputs that are not in the folder, by name.
        line: the command line of the run.
    """
    sources: list[tuple[int, str, Path | File]] = [(len(each.content), name, each) for name, each in streams.items()]
    for path in folder.rglob("*"):
        if path.is_file() and not path.is_symlink():
            sources.append((path.stat().st_size, str(path.relative_to(folder)), path))
    written, left_out, room = io.BytesIO(), "", MAX_ARCHIVE_BYTES
    with tarfile.open(fileobj=written, mode="w:gz") as archive:

        def add(name: str, content: bytes, mode: int = 0o644) -> None:
            entry = tarfile.TarInfo(name)
            entry.size, entry.mode = len(content), mode
            archive.addfile(entry, io.BytesIO(content))

        add("COMMAND", f"{line}\n".encode(errors="surrogateescape"))
        for size, name, source in sorted(sources, key=lambda entry: entry[:2]):
            if size > room:
                left_out += f"{name} ({size} bytes)\n"
                continue
            room -= size
            add(name, source.read_bytes(), source.stat().st_mode if isinstance(source, Path) else 0o644)
        if left_out:
            add("LEFT_OUT", left_out.encode(errors="surrogateescape"))
    return written.getvalue()


def run(
    words: Sequence[str],
    *,
    folder: str | Path,
    environment: Mapping[str, str] | None,
    stdin: bytes | None,
    output: IO[bytes],
    errors: IO[bytes],
    max_output: int,
    look: Callable[[], None],
) -> Ended:
    """Run a program, and wait until it has ended.

    Args:
        words: the program and its arguments.
        folder: its working folder.
        environment: all of its variables; None for those of this process.
        stdin: what it can read from its standard input.
        output, errors: the files for its standard output and error.
        max_output: the program is ended when these files have more bytes.
        look: called once a second while the program runs.

    Raises:
        OSError: it cannot be started.
        EndIsNear: the time of the task is over.
    """
    with tempfile.TemporaryFile() if stdin else open(os.devnull, "rb") as given:
        if stdin:
            given.write(stdin)
            given.seek(0)
        started = time.monotonic()
        process = subprocess.Popen(
            words, cwd=folder, env=environment, stdin=given, stdout=output, stderr=errors, process_group=0
        )
    why, near_s = "", min(NEAR_S, NEAR_SHARE * mwpy.seconds_left())
    try:
        while not _has_ended(process.pid, min(LOOK_S, max(0.0, mwpy.seconds_left() - near_s))):
            look()
            if why := _why_to_stop(near_s, output, errors, max_output):
                _terminate(process.pid)
                break
    finally:
        with suppress(PermissionError):  # another user runs it
            os.killpg(process.pid, signal.SIGKILL)  # nobody else can have this group before `wait4`
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    if why == OUT_OF_TIME:
        last = last_lines(errors) or last_lines(output)
        text = f"mwpy: the time of the task is over, so {words[0]} was ended; its last lines:\n{last}"
        print(text, file=sys.stderr, flush=True)
        raise EndIsNear(f"the time of the task is over, and {words[0]} had not ended")
    return Ended(process.returncode, time.monotonic() - started, usage.ru_maxrss * 1024, why)


OUT_OF_TIME = "its time was over"


def _why_to_stop(near_s: float, output: IO[bytes], errors: IO[bytes], max_output: int) -> str:
    if mwpy.seconds_left() <= near_s:
        return OUT_OF_TIME
    size = sum(os.fstat(file.fileno()).st_size for file in (output, errors))
    return f"it wrote {size} bytes, more than max_output={max_output}" if size > max_output else ""


def _has_ended(pid: int, seconds: float) -> bool:
    """Wait for the end of a child for some seconds at most, and return whether it has ended. It stays a zombie.

    The pauses grow with the time that has passed. `pidfd_open` would need no pauses, and Linux 5.3.
    """
    began = time.monotonic()
    while os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
        passed = time.monotonic() - began
        if passed >= seconds:
            return False
        time.sleep(min(LONGEST_PAUSE_S, max(SHORTEST_PAUSE_S, passed / 10)))
    return True


def _terminate(pid: int) -> None:
    """End the group of a program: with SIGTERM, and with SIGKILL if it ignores this."""
    os.killpg(pid, signal.SIGTERM)
    if not _has_ended(pid, TERMINATION_S):
        os.killpg(pid, signal.SIGKILL)


def last_lines(file: IO[bytes]) -> str:
    """Return the last lines of an output, as text."""
    size = os.fstat(file.fileno()).st_size
    start = max(0, size - LAST_BYTES)
    text = os.pread(file.fileno(), LAST_BYTES, start).decode(errors="backslashreplace")
    return text.partition("\n")[2].strip("\n") if start and "\n" in text.strip("\n") else text.strip("\n")
