"""A child that is forked from this process, but owns nothing of it, as if it were a program that was started.

A fork of a script has all modules that the script has imported. So it can begin its own work at once, where a new
interpreter would first import them again. What it must not have, or must not do, is taken from it before its work
begins: open files, signal handlers, handlers for the exit, the session, and what traces code. What remains is memory
that nobody uses. Therefore the child never returns into the code that has forked it, and ends without the end of an
interpreter. It collects no garbage of its parent: a file in it would close a descriptor that is another file by now.

Not every process can be forked: see `is_possible`.
"""

from __future__ import annotations

import atexit
import faulthandler
import gc
import os
import signal
import sys
import traceback
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from typing import NoReturn

from mwpy._system import fork_safety, forks, memory
from mwpy._system.process import Child
from mwpy._values.errors import ExitCode

__all__ = ["is_possible", "start"]

MOST_BYTES = 1 << 29
"""A larger process is not forked: what it changes later would be in memory twice."""

IGNORED = (signal.SIGPIPE, signal.SIGXFSZ)
"""The signals that an interpreter ignores from its start."""


def is_possible() -> bool:
    """Whether this process can be forked: it has no threads and uses no GPU, is not large, and has an output and an
    error stream.

    Raises:
        OSError: it cannot be forked for a trial.
    """
    return (
        _is_open(sys.__stdout__, 1)
        and _is_open(sys.__stderr__, 2)
        and memory.resident_bytes() <= MOST_BYTES
        and not fork_safety.why_threads_or_gpu()
    )


def _is_open(stream: object, fd: int) -> bool:
    with suppress(OSError):
        return stream is not None and bool(os.fstat(fd))
    return False


def start(
    run: Callable[[], int], name: bytes, *, environment: Mapping[str, str], pass_fds: Collection[int] = ()
) -> Child:
    """Start a process in its own session, without standard input, as `process.start` does, but as a fork.

    Args:
        run: what the process does; it returns the exit code.
        name: its name for `ps` and `top`, of at most 15 bytes.
        environment: variables to set on top of this process's own.
        pass_fds: file descriptors that it inherits under the same numbers. It has no others.

    Raises:
        OSError: it cannot be forked.
    """
    forks.flush()
    # A handler of the script may raise anything, so none may run in the child.
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    try:
        pid = os.fork()
        if not pid:
            _live(run, name, environment, pass_fds, mask)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    return Child(pid, {})


def _live(
    run: Callable[[], int],
    name: bytes,
    environment: Mapping[str, str],
    pass_fds: Collection[int],
    mask: Collection[int],
) -> NoReturn:
    """Be the child until it ends."""
    code: object = ExitCode.FAILED
    try:
        os.setsid()
        _leave_to_parent({1, 2, *pass_fds})
        forks.name_process(name)
        os.environ.update(environment)
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        code = run()
        atexit._run_exitfuncs()
    except SystemExit as leaving:
        code = leaving.code or ExitCode.OK
        if not isinstance(code, int):
            print(code, file=sys.stderr)
    except BaseException:
        traceback.print_exc()
    finally:
        try:
            forks.flush()
        finally:
            os._exit(code if isinstance(code, int) else ExitCode.FAILED)


def _leave_to_parent(kept: Collection[int]) -> None:
    """Give up everything that only the parent may use."""
    gc.freeze()
    gc.enable()
    sys.settrace(None)
    sys.setprofile(None)
    atexit._clear()
    signal.set_wakeup_fd(-1)
    for number in signal.valid_signals():
        if number in IGNORED:
            signal.signal(number, signal.SIG_IGN)
        elif callable(signal.getsignal(number)):
            signal.signal(number, signal.SIG_DFL)
    for entry in os.listdir("/proc/self/fd"):
        if int(entry) not in kept:
            with suppress(OSError):  # the descriptor of the folder itself is closed by now
                os.close(int(entry))
    os.open(os.devnull, os.O_RDONLY)  # it takes the least number: standard input
    sys.stdout, sys.stderr = sys.__stdout__, sys.__stderr__
    if faulthandler.is_enabled():
        faulthandler.enable()
