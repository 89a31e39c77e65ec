"""What the processes of a queue share: a lock, and one look at the folder after the other until they are stopped."""

from __future__ import annotations

import platform
import signal
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from mwpy._queue.folder import LIVES_S
from mwpy._system import clock, process
from mwpy._system.locks import FileLock, LockHeld, LocksUnsupported
from mwpy._values.errors import ExitCode, UsageError

PATIENCE_S = 30.0
"""How long one look at the folder may take until this is said, in seconds."""

PAUSE_S = 1.0
"""The time between two attempts to use the folder while its file system fails, in seconds."""


def locked(path: Path, what: str) -> FileLock:
    """Lock a queue for one keeper, or for one worker of a user.

    Some network file systems lock only within a host. So a holder on another host must not have touched the file for
    a while.

    Raises:
        UsageError: another one has it, or the file system has no locks.
    """
    try:
        holder = path.read_text(errors="replace").strip() if path.exists() else ""
        if holder and f" on {platform.node()}," not in f"{holder},":
            touched, until = path.stat().st_mtime_ns, clock.monotonic() + LIVES_S
            say(f"waits for {LIVES_S:.0f} s, because {holder} has not ended, or was killed")
            while path.exists() and clock.monotonic() < until:
                clock.sleep(PAUSE_S)
                if path.exists() and path.stat().st_mtime_ns != touched:
                    raise LockHeld(holder)
        return FileLock(path, clock.date(clock.wall()))
    except LockHeld as held:
        raise UsageError(f"{what} runs already: {held}. Stop it first") from None
    except LocksUnsupported:
        raise UsageError(f"the file system of {path.parent} has no locks: put the queue on another one") from None
    except OSError as error:
        raise UsageError(f"{what} cannot lock {path} ({error.strerror}): remove it, or free some space") from error


def loop(
    lock: FileLock, look: Callable[[], float], leave: Callable[[], object], left: str = "what runs goes on"
) -> int:
    """Look again and again, until this process is stopped. Return the exit code.

    An error of the file system passes: nothing is decided meanwhile.

    Args:
        look: returns after how many seconds it must be called again.
        leave: is called at the end, and `left` is said.
    """

    def attempt() -> float | None:
        if not lock.is_exclusive():
            return None
        lock.touch()
        return look()

    signal.signal(signal.SIGTERM, signal.default_int_handler)
    attempts, said, pause_s = process.Question(attempt, "mwpy-queue"), "", PAUSE_S
    try:
        while True:
            try:
                found = attempts.ask(PATIENCE_S)
                if found is None:
                    say("ends, because another process has taken its lock: does the file system have locks?")
                    return ExitCode.REFUSED
                pause_s, fault = found, ""
            except TimeoutError:
                fault = f"the folder does not answer for {PATIENCE_S:.0f} s: does its file system hang?"
            except OSError as error:
                fault = f"the folder cannot be used now: {error}"
            if fault != said:
                say(f"waits, because {fault}" if fault else "goes on")
            said = fault
            clock.sleep(pause_s)
    except KeyboardInterrupt:
        say(f"stops; {left}. Start it again to continue")
        return ExitCode.INTERRUPTED
    finally:
        leave()
        lock.release()


def say(text: str) -> None:
    """Print a line with the time. It is left out if the terminal is gone."""
    with suppress(OSError):
        print(f"{clock.date(clock.wall())} {text}", flush=True)
