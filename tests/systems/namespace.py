"""A private mount namespace, and the daemons that run in it.

Mounts that are made in the namespace are visible only to its own processes, and they end with the last of these
processes. So no mount remains on the machine, and the removal of a folder cannot reach /dev through a forgotten mount.

A process that only sleeps, the holder, keeps the namespace open while daemons are restarted. A file contains its
process id and its start time, so that a later run finds it: another process with the same id has another start time.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import time
from collections.abc import Callable, Iterable
from pathlib import Path

START_S = 60.0
"""How long a daemon may take to start or to stop on a busy machine."""

POLL_S = 0.1

HOLD = 'echo "$$" >"$0"; exec sleep infinity'


class SystemFailed(Exception):
    """A batch system of the tests failed; the text says what failed."""


def run(
    words: Iterable[object], *, check: bool = True, timeout_s: float = START_S, cwd: Path | None = None
) -> subprocess.CompletedProcess[str]:
    """Run a command to its end, without standard input.

    Raises:
        SystemFailed: it failed, and `check` is set.
    """
    command = [str(word) for word in words]
    done = subprocess.run(
        command,
        cwd=cwd,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        errors="replace",
        timeout=timeout_s,
        check=False,
    )
    if check and done.returncode:
        raise SystemFailed(f"exit code {done.returncode} of {' '.join(command)}\n{done.stdout}{done.stderr}".rstrip())
    return done


def start_daemon(words: Iterable[object], output: Path) -> None:
    """Start a process that outlives this one, in a session of its own, with default handling of signals.

    A shell's background job ignores SIGINT and SIGQUIT, and its child processes would inherit that.
    """
    command = ["setsid", "--fork", "env", "--default-signal=INT,QUIT,HUP", *map(str, words)]
    with output.open("ab") as file:
        subprocess.run(command, stdin=subprocess.DEVNULL, stdout=file, stderr=subprocess.STDOUT, check=True)


def wait_until(condition: Callable[[], object], what: str) -> None:
    """Poll until a condition is true.

    Raises:
        SystemFailed: it did not become true in time.
    """
    deadline = time.monotonic() + START_S
    while not condition():
        if time.monotonic() > deadline:
            raise SystemFailed(f"{what} did not happen within {START_S:.0f} s")
        time.sleep(POLL_S)


def start_time(pid: int) -> str:
    """When a process started, in the kernel's clock ticks; empty if there is no such process, or only a zombie."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return ""
    return "" if fields[0] == "Z" else fields[19]


class Namespace:
    """A mount namespace in which processes see either this machine's files or a tree of their own.

    Args:
        note: file in which the holder's process id is noted.
        root: what the processes see as `/`: the machine's own root, or the tree of another Debian.
    """

    def __init__(self, note: Path, root: Path) -> None:
        self._note = note
        self.root = root

    @property
    def pid(self) -> int:
        """Process id of the holder; 0 if the namespace is not open."""
        try:
            pid, started = self._note.read_text().split()
        except (OSError, ValueError):
            return 0
        return int(pid) if start_time(int(pid)) == started else 0

    def open(self) -> None:
        """Start the holder."""
        self._note.unlink(missing_ok=True)
        words = ("unshare", "--mount", "--propagation=private", "sh", "-c", HOLD, self._note)
        start_daemon(words, self._note.with_suffix(".out"))
        wait_until(lambda: self._note.exists() and self._note.read_text().endswith("\n"), "the start of the namespace")
        pid = int(self._note.read_text())
        self._note.write_text(f"{pid} {start_time(pid)}\n")

    def mount(self, *words: object) -> None:
        run(["nsenter", f"--target={self.pid}", "--mount", "mount", *words])

    def path(self, inside: Path) -> Path:
        """The path, outside the namespace, of a file that the holder sees at `path`."""
        return Path(f"/proc/{self.pid}/root{inside}")

    def is_mounted(self, place: Path) -> bool:
        """Return whether something is mounted at a path, as the holder sees it."""
        lines = Path(f"/proc/{self.pid}/mountinfo").read_text().splitlines()
        unescaped = (re.sub(r"\\(\d{3})", lambda found: chr(int(found[1], 8)), line.split()[4]) for line in lines)
        return str(place) in unescaped

    def bind(self, source: Path, target: Path, *, read_only: bool = False) -> None:
        """Mount a file or folder at another path, which is made if it is missing. The holder sees both paths.

        An older mount of a folder that was removed and made again in the meantime is replaced.
        """
        if self.is_mounted(target):
            if self.path(target).samefile(self.path(source)):
                return
            run(["nsenter", f"--target={self.pid}", "--mount", "umount", "--lazy", target])
        if self.path(source).is_dir():
            self.path(target).mkdir(parents=True, exist_ok=True)
        else:
            self.path(target).parent.mkdir(parents=True, exist_ok=True)
            self.path(target).touch()
        self.mount("--bind", source, target)
        if read_only:
            self.mount("-o", "remount,ro,bind", target)

    def command(self, words: Iterable[object], uid: int, variables: dict[str, str], folder: Path | str) -> list[str]:
        """Make the command line that runs a command inside, as a user, with just these environment variables.

        The process that the line starts becomes the command itself, so it can receive signals.
        """
        return [
            *("nsenter", f"--target={self.pid}", "--mount"),
            *("chroot", f"--userspec={uid}:{uid}", "--groups=", str(self.root)),
            *("env", "--ignore-environment", f"--chdir={folder}"),
            *(f"{name}={value}" for name, value in variables.items()),
            *map(str, words),
        ]

    def members(self, *names: str) -> list[int]:
        """List the processes inside: all except the holder, or only the processes with these names.

        HTCondor gives jobs mount namespaces of their own; these processes are found by their root folder.
        """
        holder = self.pid
        own = identity_of(holder)
        assert own != identity_of(os.getpid()), "the namespace of the batch system is this process's own"
        found = []
        for entry in Path("/proc").iterdir():
            if not entry.name.isdigit() or int(entry.name) == holder:
                continue
            try:
                inside = own and identity_of(int(entry.name)) == own
                in_tree = self.root != Path("/") and (entry / "root").samefile(self.root)
                if (inside or in_tree) and (not names or (entry / "comm").read_text().strip() in names):
                    found.append(int(entry.name))
            except OSError:
                continue  # it has already ended
        return found

    def signal(self, number: signal.Signals, *names: str) -> None:
        """Send a signal to all processes inside, or only to the processes with these names."""
        for pid in self.members(*names):
            try:
                os.kill(pid, number)
            except ProcessLookupError:
                pass

    def kill(self) -> None:
        """Kill all processes inside, except the holder."""

        def empty() -> bool:
            self.signal(signal.SIGKILL)
            return not self.members()

        wait_until(empty, "the end of all processes of the batch system")

    def close(self) -> None:
        """Kill all processes inside, and the holder; the mounts end with it."""
        self.kill()
        if pid := self.pid:
            os.kill(pid, signal.SIGKILL)
            wait_until(lambda: not start_time(pid), "the end of the namespace")
        self._note.unlink(missing_ok=True)


def identity_of(pid: int) -> str:
    """Name of the mount namespace that a process is in; empty for process 0."""
    return str(Path(f"/proc/{pid}/ns/mnt").readlink()) if pid else ""
