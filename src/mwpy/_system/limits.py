"""Limits of the system, in words: which one was reached, and what to change.

A start may fail because this process may have no more files, threads, children or memory. This is the fault neither of
mwpy nor of the process that could not be started.
"""

from __future__ import annotations

import errno
import resource
from collections.abc import Iterator
from contextlib import contextmanager

from mwpy._values.errors import CannotRun

__all__ = ["explained", "named"]


def named(error: BaseException) -> str:
    """Name the limit of the system because of which something could not be started or opened; empty if it is none."""
    number = error.errno if isinstance(error, OSError) else None
    if number == errno.EMFILE:
        most = _soft_limit(resource.RLIMIT_NOFILE)
        return f"a process may have only {most} open files here: raise this limit (ulimit -n), or start fewer slaves"
    if number == errno.ENFILE:
        return "all processes of this machine have too many files open: close some programs, or raise fs.file-max"
    if number == errno.EAGAIN or (isinstance(error, RuntimeError) and "can't start new thread" in str(error)):
        most = _soft_limit(resource.RLIMIT_NPROC)
        return (
            f"no other process or thread can be started: this user may have {most} of them (ulimit -u), and a job or "
            f"container has its own limit (pids.max): raise it, or start fewer slaves"
        )
    if number == errno.ENOMEM or isinstance(error, MemoryError):
        most = _soft_limit(resource.RLIMIT_AS)
        return (
            f"no memory is left for another process or thread (ulimit -v: {most} bytes; a job or container has its own "
            f"limit): ask for more, or start fewer slaves"
        )
    return ""


@contextmanager
def explained(what: str) -> Iterator[None]:
    """Turn an error that follows from a limit of the system into one that names the limit.

    Args:
        what: what could not be done then, as the beginning of a sentence.

    Raises:
        CannotRun: the limit was reached.
    """
    try:
        yield
    except (OSError, RuntimeError, MemoryError) as error:
        if limit := named(error):
            raise CannotRun(f"{what}: {limit}") from error
        raise


def _soft_limit(kind: int) -> str:
    soft, _ = resource.getrlimit(kind)
    return "unlimited" if soft == resource.RLIM_INFINITY else str(soft)
