"""Forks that become children of another process, and the process that adopts them.

An agent is the parent of all its slaves: only a parent learns how a process ended. The template that forks slaves is a
child of the agent, too. So it forks twice. The process in the middle ends at once, and the kernel gives its child to
the nearest ancestor that has asked for orphans: the agent.
"""

from __future__ import annotations

import ctypes
import errno
import gc
import os
import platform
import signal
import sys
from collections.abc import Container
from contextlib import suppress

from mwpy._system import clock
from mwpy._system.memory import read

__all__ = [
    "adopt_orphans",
    "count_children",
    "die_with_parent",
    "flush",
    "fork_orphan",
    "keep_children",
    "name_process",
    "prepare_forks",
    "reap_orphans",
]

SET_PDEATHSIG, SET_NAME, GET_NAME, SET_CHILD_SUBREAPER = 1, 15, 16, 36
"""Numbers of `prctl`."""

NAME_BYTES = 16
"""The size of the name of a process, with a zero at its end."""

ADOPTED_S = 0.0002
"""How long an orphan waits before it looks again whether it has been adopted, in seconds."""


def die_with_parent(parent: int) -> bool:
    """Let the kernel kill this process when its parent ends. Return False if the parent has ended already."""
    if platform.system() != "Linux":  # pragma: no cover (macOS)
        return True
    ctypes.CDLL(None).prctl(SET_PDEATHSIG, signal.SIGKILL)
    return os.getppid() == parent


def adopt_orphans() -> bool:
    """Become the parent of each descendant whose own parent ends. Return whether this is possible here."""
    return os.path.isdir("/proc/self/task") and not ctypes.CDLL(None).prctl(SET_CHILD_SUBREAPER, 1)


def name_process(name: bytes) -> bytes:
    """Give this process a name for `ps` and `top`, of at most 15 bytes. Return its name until now."""
    before = ctypes.create_string_buffer(NAME_BYTES)
    ctypes.CDLL(None).prctl(GET_NAME, before)
    ctypes.CDLL(None).prctl(SET_NAME, ctypes.create_string_buffer(name))
    return before.value


def reap_orphans(known: Container[int]) -> None:
    """Let the kernel forget children that have ended, except for some that this process watches.

    Args:
        known: the process ids of those.
    """
    with suppress(ChildProcessError):
        while (ended := os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)) is not None:
            if ended.si_pid in known:
                return
            os.waitpid(ended.si_pid, 0)


def keep_children() -> None:
    """Let the kernel keep the ends of child processes for this process. Some parents ignore SIGCHLD, a process that is
    started inherits this, and then nobody learns how a child has ended. Only the main thread can do this."""
    with suppress(ValueError):
        if signal.getsignal(signal.SIGCHLD) is signal.SIG_IGN:
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)


def prepare_forks() -> None:
    """Let forks share as many pages as possible: no garbage collection will write into the objects that exist now."""
    gc.freeze()


def flush() -> None:
    """Write what waits in the buffers of the standard streams, of Python and of C: a fork would write it again."""
    for stream in (sys.stdout, sys.stderr):
        with suppress(AttributeError, ValueError, OSError):  # there is none, or the script has replaced or closed it
            stream.flush()
    ctypes.CDLL(None).fflush(None)


def fork_orphan() -> int:
    """Fork a process that leads its own session, and whose parent is the process that adopts orphans.

    Returns:
        Its process id; 0 in the new process.

    Raises:
        OSError: there is no memory for it, or there are too many processes.
    """
    answer, answering = os.pipe()
    middle = os.fork()
    if not middle:
        _fork_and_end(answering)
        os.close(answer)
        os.close(answering)
        return 0
    os.close(answering)
    os.waitpid(middle, 0)
    with open(answer, "rb") as pipe:
        number = int(pipe.read() or 0)
    if number <= 0:
        raise OSError(-number, os.strerror(-number) if number else "the process between the two forks was killed")
    return number


def _fork_and_end(answering: int) -> None:
    """Fork, write the process id of the child, and end. Return in the child, when it has been adopted."""
    own = os.getpid()
    try:
        child = os.fork()
    except BaseException as error:
        os.write(answering, f"-{getattr(error, 'errno', errno.ENOMEM)}".encode())
        os._exit(1)
    if child:
        os.write(answering, str(child).encode())
        os._exit(0)
    os.setsid()
    while os.getppid() == own:
        clock.sleep(ADOPTED_S)


def count_children() -> int:
    """Return how many children this process has."""
    return sum(len(read(f"/proc/self/task/{thread}/children").split()) for thread in os.listdir("/proc/self/task"))
