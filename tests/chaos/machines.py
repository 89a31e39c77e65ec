"""The machines of a chaos run: namespaces with a network, a host name, a clock and a disk of their own.

The first machine is the submit machine. It is the place of the run itself. Each other machine has a cable to it, which
can be cut and slowed.
"""

from __future__ import annotations

import os
import struct
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

MASTER_ADDRESS = "10.77.0.1"
"""The address of the submit machine, at each of its cables."""

HOLD = "import socket, sys, time; socket.sethostname(sys.argv[1]); print(flush=True); time.sleep(1e6)"

SLOW = "rate 2mbit burst 16kb latency 300ms"
"""What a slowed cable carries: 250 kB/s, and a queue of 0.3 s."""

SOURCE = Path(__file__).parent / "clock.c"

COMMAND_S = 30.0


def run(*words: object) -> str:
    """Run a command. Return what it says if it fails, or an empty text."""
    try:
        done = subprocess.run(
            [str(word) for word in words],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
            timeout=COMMAND_S,
        )
    except OSError as error:
        return str(error)
    return " ".join((done.stderr or f"exit code {done.returncode}").split()) if done.returncode else ""


def must(*words: object) -> None:
    """Run a command that has to succeed."""
    if failed := run(*words):
        raise RuntimeError(f"{' '.join(map(str, words))}: {failed}")


def compile_clock(folder: Path) -> tuple[Path | None, str]:
    """Compile the library that steps clocks. Return it, or None and the reason."""
    library = folder / "clock.so"
    if failed := run("cc", "-O2", "-shared", "-fPIC", "-o", library, SOURCE, "-ldl"):
        return None, f"the library that steps clocks cannot be compiled: {failed}"
    step = folder / "trial.clock"
    step.write_bytes(struct.pack("q", 10**9))
    variables = {**os.environ, "LD_PRELOAD": str(library), "CHAOS_CLOCK": str(step)}
    shown = subprocess.run(
        [sys.executable, "-c", "import time; print(time.time())"],
        env=variables,
        capture_output=True,
        text=True,
        check=False,
    ).stdout
    if not shown or float(shown) < 2.5e9:
        return None, "a Python that loads the library does not see the stepped clock"
    return library, ""


class Machine:
    """A machine of the run.

    Args:
        number: 0 for the submit machine.
        folder: where the file of its clock is.
        clock: the library that steps clocks.
        is_apart: whether it has namespaces of its own.
    """

    def __init__(self, number: int, folder: Path, clock: Path | None, *, is_apart: bool) -> None:
        self.number = number
        self.name = f"host{number}" if number else "submit"
        self._clock = clock
        self._step = folder / f"{self.name}.clock"
        self._step.write_bytes(bytes(8))
        self._holder: subprocess.Popen[bytes] | None = None
        if is_apart and number:
            self._open()

    @property
    def has_cable(self) -> bool:
        return self._holder is not None

    @property
    def variables(self) -> dict[str, str]:
        """Environment variables of its processes."""
        if self._clock is None:
            return {}
        return {"LD_PRELOAD": str(self._clock), "CHAOS_CLOCK": str(self._step)}

    def command(self, *words: object) -> list[str]:
        """Make the command line that runs a command on it. The process becomes the command itself."""
        enter = ["nsenter", f"--target={self._holder.pid}", "--net", "--uts", "--"] if self._holder else []
        return [*enter, *map(str, words)]

    def step_clock(self, seconds: int) -> None:
        """Set its clock to this many seconds after the real time."""
        with self._step.open("r+b", buffering=0) as file:
            file.write(struct.pack("q", seconds))

    def cut(self, is_cut: bool = True) -> None:
        """Cut its cable, or join it again. No process notices it at once."""
        must("ip", "link", "set", self._cable, "down" if is_cut else "up")

    def slow(self, is_slow: bool = True) -> str:
        """Slow its cable in both directions, or undo it. Return why this is not possible."""
        verb, how = ("replace", ["tbf", *SLOW.split()]) if is_slow else ("delete", [])
        there = self.command("tc", "qdisc", verb, "dev", "eth0", "root", *how)
        return run("tc", "qdisc", verb, "dev", self._cable, "root", *how) or run(*there)

    def close(self) -> None:
        if self._holder is not None:
            self._holder.kill()
            self._holder.wait()

    @property
    def _cable(self) -> str:
        return f"cable{self.number}"

    def _open(self) -> None:
        self._holder = subprocess.Popen(
            ["unshare", "--net", "--uts", sys.executable, "-c", HOLD, self.name], stdout=subprocess.PIPE
        )
        assert self._holder.stdout is not None
        self._holder.stdout.readline()
        near, far = f"10.77.{self.number}.1", f"10.77.{self.number}.2"
        must("ip", "link", "add", self._cable, "type", "veth", "peer", "name", "eth0", "netns", self._holder.pid)
        must("ip", "address", "add", f"{near}/24", "dev", self._cable)
        must("ip", "link", "set", self._cable, "up")
        for words in (
            f"ip address add {far}/24 dev eth0",
            "ip link set eth0 up",
            "ip link set lo up",
            f"ip route add default via {near}",
        ):
            must(*self.command(*words.split()))


def lay_cables(count: int, folder: Path, clock: Path | None, *, is_apart: bool) -> list[Machine]:
    """Make the submit machine and this many others."""
    if is_apart:
        must("ip", "address", "add", f"{MASTER_ADDRESS}/32", "dev", "lo")
    return [Machine(number, folder, clock, is_apart=is_apart) for number in range(count + 1)]


# The disk of the run database: a file system in memory, whose size can be changed.


ROOM = 4 << 30
"""The size of the disk while it is not full, in bytes. Only its files take memory."""


def mount(folder: Path, stack: ExitStack) -> None:
    """Mount the disk until the end of the stack."""
    must("mount", "-t", "tmpfs", "-o", f"size={ROOM}", "tmpfs", folder)
    stack.callback(run, "umount", "--lazy", folder)


def resize(folder: Path, size: int) -> str:
    """Change the size of the disk. Return why this is not possible, such as files that are larger together."""
    return run("mount", "-o", f"remount,size={size}", folder)


def shrink(folder: Path) -> None:
    """Make the disk as small as its files."""
    found = os.statvfs(folder)
    resize(folder, (found.f_blocks - found.f_bfree) * found.f_frsize)


# Namespaces in which a chaos run lives: its faults reach nothing else, and all of it ends with the run.
#
# The run starts itself again in namespaces of its own: network, mounts, processes, host name. A shell is their first
# process, because it reaps orphans. When the command that holds the namespaces ends, the kernel kills everything in
# them, and with the last process all interfaces and mounts are gone. A user who is not root gets a user namespace, too,
# if the kernel allows this.

INSIDE = "MWPY_CHAOS_INSIDE"
"""The environment variable that a run in its namespaces has."""

UNSHARE = ("unshare", "--net", "--uts", "--mount", "--propagation=private", "--pid", "--fork", "--kill-child")

FIRST_PROCESS = 'mount -t tmpfs tmpfs /dev/shm; ip link set lo up; "$@"; exit "$?"'


def unsharing() -> list[str]:
    """Make the command that makes the namespaces, and runs the words that follow in them."""
    user = [] if os.geteuid() == 0 else ["--user", "--map-root-user"]
    return [*UNSHARE, *user, "--mount-proc"]


def why_not() -> str:
    """Return why this machine gives no namespaces; empty if it does."""
    test = "ip link add left type veth peer name right && mount -t tmpfs tmpfs /dev/shm"
    try:
        done = subprocess.run([*unsharing(), "sh", "-c", test], capture_output=True, text=True, check=False, timeout=30)
    except OSError as error:
        return str(error)
    return " ".join(done.stderr.split()) if done.returncode else ""


def is_inside() -> bool:
    return INSIDE in os.environ


def enter(arguments: list[str]) -> None:
    """Run the chaos run again, in namespaces. This call does not return."""
    words = [*unsharing(), "sh", "-c", FIRST_PROCESS, "sh", sys.executable, "-m", "tests.chaos", *arguments]
    os.execvpe(words[0], words, {**os.environ, INSIDE: "1"})
