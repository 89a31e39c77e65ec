"""What a script leaves in its process that must not be copied by a fork.

A slave that is forked from a template has everything that the script has made while it was loaded. Most of it may be
copied or shared. These things may not:

- Threads do not exist in the fork, but the locks that they hold do. The threads of OpenBLAS do not count: OpenBLAS ends
  them before each fork and starts them again when it needs them. So a trial fork shows which threads remain.
- A GPU context cannot be used in a fork.
- The position in an open file is shared by all forks, and so is each connection. Files that can only be appended to,
  and files that are mapped into memory, can be shared.
- A process belongs to its parent, and the parent of a fork is another one.
- A random number generator gives the same numbers in all forks. Those that Python, NumPy and PyTorch share are seeded
  again (see `randomness.py`), but not those in variables of the script. A temporary directory in a variable is deleted
  at the end of the first fork. A lock of multiprocessing in a variable becomes one lock for all forks.

Other sources of random numbers and names need no treatment: `secrets`, `uuid.uuid4` and `random.SystemRandom` ask the
operating system each time, and `tempfile` and OpenSSL notice a fork.
"""

from __future__ import annotations

import fcntl
import functools
import os
import signal
import stat
import sys
import threading
import types
from collections.abc import Iterable, Iterator
from contextlib import suppress
from itertools import islice
from typing import Any

from mwpy._system import clock
from mwpy._system.forks import count_children
from mwpy._system.memory import read
from mwpy._system.modules import is_of_user

__all__ = ["why_threads_or_gpu", "why_unsafe"]

SPAWN = "or give --mw-slave-start spawn"

ENDED_S = 0.1
"""The kernel lists a thread that has ended for a moment longer: at most this many seconds."""

LARGE = 10_000
"""This many elements of a container are looked at."""

GPU_DEVICES = ("/dev/nvidia", "/dev/kfd", "/dev/dri/")

GENERATOR = (
    "a random number generator: all forks would draw the same numbers. Make it in the task, for example from "
    f"mwpy.task_seed(), {SPAWN}"
)
DIRECTORY = f"a temporary directory: the first slave that ends would delete it for all. Make it in the task, {SPAWN}"
LOCK = f"a lock of multiprocessing: all slaves would share it. Make it in the task, {SPAWN}"

NOT_COPIED = (
    ("random", "Random", GENERATOR),
    ("numpy.random", "Generator", GENERATOR),
    ("numpy.random", "RandomState", GENERATOR),
    ("numpy.random", "BitGenerator", GENERATOR),
    ("numpy.random", "SeedSequence", GENERATOR),
    ("torch", "Generator", GENERATOR),
    ("tempfile", "TemporaryDirectory", DIRECTORY),
    ("multiprocessing.synchronize", "SemLock", LOCK),
)
"""Module, name and reason of each type whose objects must not be copied."""

HARMLESS = (
    ("random", "_inst"),
    ("numpy.random.mtrand", "_rand"),
    ("torch", "default_generator"),
    ("random", "SystemRandom"),
)
"""The shared generators, which are seeded again in each fork, and a type of generators without a state."""


def why_unsafe(own_fds: Iterable[int]) -> str:
    """Return why this process must not fork, and what to do, as the rest of a sentence; empty if it may.

    Args:
        own_fds: file descriptors that do not count, because a fork closes them.
    """
    return (
        why_threads_or_gpu()
        or _processes()
        or _files({0, 1, 2, *own_fds})
        or next(filter(None, (_in_module(module) for module in _modules())), "")
    )


def why_threads_or_gpu() -> str:
    """Return why even a fork that uses nothing of the script could hang or fail, as `why_unsafe` does."""
    return _gpu() or _threads()


def _gpu() -> str:
    used = next((path for path in map(_target, _descriptors()) if path.startswith(GPU_DEVICES)), "")
    return used and f"the script uses a GPU ({used}) while it is loaded: use it first in a task, {SPAWN}"


def _threads() -> str:
    names = [thread.name for thread in threading.enumerate() if thread is not threading.main_thread()]
    if names:
        return f"the script starts a thread ({names[0]}) while it is loaded: start it in a task, {SPAWN}"
    if _num_threads() > 1 and _num_threads_after_fork() > 1:
        return f"native code that the script loads has started a thread: load it in a task, {SPAWN}"
    return ""


def _num_threads() -> int:
    return len(os.listdir("/proc/self/task"))


def _num_threads_after_fork() -> int:
    """Fork once, and count the threads of this process that are left."""
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())  # a handler must not raise in the child
    try:
        child = os.fork()
        if not child:
            os._exit(0)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    os.waitpid(child, 0)
    until = clock.monotonic() + ENDED_S
    while (number := _num_threads()) > 1 and clock.monotonic() < until:
        clock.sleep(ENDED_S / 100)
    return number


def _processes() -> str:
    if not count_children():
        return ""
    return f"the script starts a process while it is loaded: start it in a task, {SPAWN}"


def _descriptors() -> list[int]:
    return [int(name) for name in os.listdir("/proc/self/fd")]


def _target(fd: int) -> str:
    with suppress(OSError):  # the descriptor of the folder itself is closed by now
        return os.readlink(f"/proc/self/fd/{fd}")
    return ""


def _files(harmless: set[int]) -> str:
    """The reason if a file or a connection is open whose state all forks would share."""
    for fd in _descriptors():
        if fd not in harmless and (target := _target(fd)) and not _is_shareable(fd, target):
            return f"the script leaves {target} open while it is loaded: open it in the task, {SPAWN}"
    return ""


def _is_shareable(fd: int, target: str) -> bool:
    mode = os.fstat(fd).st_mode
    if stat.S_ISREG(mode):
        return bool(fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_APPEND) or target in read("/proc/self/maps")
    return stat.S_ISCHR(mode) or stat.S_ISDIR(mode)


def _modules() -> Iterator[types.ModuleType]:
    for name, module in list(sys.modules.items()):
        if issubclass(type(module), types.ModuleType) and (name == "__main__" or is_of_user(name, module)):
            yield module


def _in_module(module: types.ModuleType) -> str:
    """The reason if a variable of a module has, or contains, something that must not be copied."""
    kinds, exceptions = _kinds(), _exceptions()
    for name, value in list(vars(module).items()):
        for part in _parts(value, module.__name__):
            for kind, reason in kinds:
                if issubclass(type(part), kind) and not any(each is part or each is type(part) for each in exceptions):
                    return f"{name} in {module.__name__} is or contains {reason}"
    return ""


def _kinds() -> list[tuple[type, str]]:
    found = [(_loaded(module, name), reason) for module, name, reason in NOT_COPIED]
    return [(kind, reason) for kind, reason in found if isinstance(kind, type)]


def _exceptions() -> list[object]:
    return [found for module, name in HARMLESS if (found := _loaded(module, name)) is not None]


def _loaded(module: str, name: str) -> object:
    return getattr(sys.modules.get(module), name, None)


def _parts(value: Any, module: str) -> Iterator[object]:
    """The value of a variable, and what it contains. This runs no code of the value, which may be a proxy."""
    yield value
    kind = type(value)
    if issubclass(kind, (types.MethodType, types.BuiltinMethodType)):
        yield value.__self__
    elif issubclass(kind, dict):
        yield from islice(list(dict.values(value)), LARGE)
    elif issubclass(kind, (list, tuple, set, frozenset)):
        yield from islice(value, LARGE)
    elif issubclass(kind, functools.partial):
        yield from (getattr(value.func, "__self__", None), *value.args, *value.keywords.values())
    elif issubclass(kind, types.FunctionType):
        yield from (*(value.__defaults__ or ()), *(value.__kwdefaults__ or {}).values())
    elif issubclass(kind, type) and value.__module__ == module:
        yield from list(vars(value).values())
    elif kind.__module__ == module:
        with suppress(AttributeError):  # it has no dict
            yield from list(object.__getattribute__(value, "__dict__").values())
