"""Forks that become children of another process, and what a process must not have to be forked.

Forks that become children of another process, and the process that adopts them.

An agent is the parent of all its slaves: only a parent learns how a process ended. The template that forks slaves is a
child of the agent, too. So it forks twice. The process in the middle ends at once, and the kernel gives its child to
the nearest ancestor that has asked for orphans: the agent.
"""

from __future__ import annotations

import contextvars
import ctypes
import errno
import fcntl
import gc
import os
import signal
import stat
import sys
import threading
import types
from collections.abc import Container, Iterable, Iterator
from contextlib import suppress
from itertools import islice
from typing import Any

from mwpy._system import clock
from mwpy._system.memory import read
from mwpy._system.packages import generator_kinds, is_of_user, is_without_state, shared_generators
from mwpy._values.functions import cells_of

SET_PDEATHSIG, SET_NAME, GET_NAME, SET_CHILD_SUBREAPER = 1, 15, 16, 36
"""Numbers of `prctl`."""

NAME_BYTES = 16
"""The size of the name of a process, with a zero at its end."""

ADOPTED_S = 0.0002
"""How long an orphan waits before it looks again whether it has been adopted, in seconds."""


def die_with_parent(parent: int) -> bool:
    """Let the kernel kill this process when its parent ends. Return False if the parent has ended already."""
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


# What a script leaves in its process that must not be copied by a fork.
#
# A slave that is forked from a template has everything that the script has made while it was loaded. Most of it may be
# copied or shared. These things may not:
#
# - Threads do not exist in the fork, but the locks that they hold do. The threads of OpenBLAS do not count: OpenBLAS
#   ends
#   them before each fork and starts them again when it needs them. So a trial fork shows which threads remain.
# - A GPU context cannot be used in a fork.
# - The position in an open file is shared by all forks, and so is each connection. Files that can only be appended to,
#   and files that are mapped into memory, can be shared.
# - A process belongs to its parent, and the parent of a fork is another one.
# - A random number generator gives the same numbers in all forks. Those that Python, NumPy and PyTorch share are seeded
#   again (see `packages.py`), but not those in variables of the script. A temporary directory in a variable is
#   deleted
#   at the end of the first fork. A lock of multiprocessing in a variable becomes one lock for all forks.
#
# Variables are those of the user's modules. What they contain is found as the garbage collector finds it, which runs no
# code of the objects: elements, attributes, slots, closures and defaults of the user's functions, what a generator or
# `functools.cache` holds, and the values of context variables and `threading.local`. Modules, and functions and classes
# of libraries, are not looked into: the generators of the libraries themselves would be found there. So these are not
# seen: what the script has put into a module or a class of a library, such as `scipy.stats.norm.random_state`; objects
# that native code holds, such as the elements of a NumPy array; and what exceeds `LEVELS`, `LARGE` or `PARTS`.
#
# Other sources of random numbers and names need no treatment: `secrets`, `uuid.uuid4` and `random.SystemRandom` ask the
# operating system each time, and `tempfile` and OpenSSL notice a fork.


SPAWN = "or give --mw-slave-start spawn"

ENDED_S = 0.1
"""The kernel lists a thread that has ended for a moment longer: at most this many seconds."""

LEVELS = 6
"""So deep are the variables looked at: a variable is the first level, its elements and attributes are the second."""

LARGE = 1_000
"""This many elements of a container are looked at."""

PARTS = 10_000
"""This many parts of variables are looked at, besides numbers and texts: those of the first levels first. So the search
takes some hundredths of a second at most."""

PLAIN = frozenset((int, float, complex, bool, str, bytes, types.NoneType))

IGNORED = (types.ModuleType, types.CodeType, types.FrameType)
"""What these contain is no part of a variable."""

GPU_DEVICES = ("/dev/nvidia", "/dev/kfd", "/dev/dri/")

GENERATOR = (
    "a random number generator: all forks would draw the same numbers. Make it in the task, for example from "
    f"mwpy.task_seed(), {SPAWN}"
)
DIRECTORY = f"a temporary directory: the first slave that ends would delete it for all. Make it in the task, {SPAWN}"
LOCK = f"a lock of multiprocessing: all slaves would share it. Make it in the task, {SPAWN}"

OTHERS = (
    ("tempfile", "TemporaryDirectory", DIRECTORY),
    ("multiprocessing.synchronize", "SemLock", LOCK),
)
"""Module, name and reason of each type, besides generators, whose objects must not be copied."""


def why_unsafe(own_fds: Iterable[int]) -> str:
    """Return why this process must not fork, and what to do, as the rest of a sentence; empty if it may.

    Args:
        own_fds: file descriptors that do not count, because a fork closes them.
    """
    return _gpu() or _threads() or _processes() or _files({0, 1, 2, *own_fds}) or _in_variables()


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


def _in_variables() -> str:
    """The reason if a variable of the user's modules has, or contains, something that must not be copied."""
    modules = list(_modules())
    names = {module.__name__ for module in modules}
    globals_of_modules = {id(vars(module)) for module in list(sys.modules.values()) if type(module) is types.ModuleType}
    seen: dict[int, object] = {id(each): each for each in shared_generators()}
    kinds = _kinds()
    level = [(value, f"{name} in {each.__name__}") for each in modules for name, value in list(vars(each).items())]
    for _ in range(LEVELS):
        found: list[tuple[object, str]] = []
        for value, variable in level:
            if id(value) in seen:
                continue
            if reason := _reason_of(type(value), kinds):
                return f"{variable} is or contains {reason}"
            seen[id(value)] = value
            if len(seen) + len(found) < PARTS:
                parts = _parts(value, names, globals_of_modules)
                found += [(part, variable) for part in parts if type(part) not in PLAIN]
        level = found
    return ""


def _reason_of(kind: type, kinds: list[tuple[type, str]]) -> str:
    """Return why objects of a type must not be copied; empty if they may be."""
    reason = next((why for forbidden, why in kinds if issubclass(kind, forbidden)), "")
    return "" if reason and is_without_state(kind) else reason


def _kinds() -> list[tuple[type, str]]:
    loaded = [(getattr(sys.modules.get(module), name, None), reason) for module, name, reason in OTHERS]
    others = [(kind, reason) for kind, reason in loaded if isinstance(kind, type)]
    return [*((kind, GENERATOR) for kind in generator_kinds()), *others]


def _parts(value: Any, names: set[str], globals_of_modules: set[int]) -> list[object]:
    """Return what an object contains. This runs no code of the object, which may be a proxy.

    Args:
        names: the user's modules: only their functions and classes count.
        globals_of_modules: the ids of the dicts of all modules, which do not count.
    """
    kind = type(value)
    if kind is dict:
        return [] if id(value) in globals_of_modules else list(islice(value.values(), LARGE))
    if kind in (list, tuple, set, frozenset):
        return list(islice(value, LARGE))
    if issubclass(kind, IGNORED):
        return []
    if issubclass(kind, types.FunctionType):
        return _parts_of_function(value) if value.__module__ in names else []
    if issubclass(kind, type):
        attributes = type.__getattribute__(value, "__dict__")
        return list(attributes.values()) if attributes.get("__module__") in names else []
    if issubclass(kind, contextvars.ContextVar):
        return [value.get(None)]
    parts = list(islice(gc.get_referents(value), LARGE))
    if issubclass(kind, threading.local):
        parts.append(threading.local.__getattribute__(value, "__dict__"))
    for part in [part for part in parts if type(part) is dict and id(part) not in globals_of_modules]:
        parts += islice(part.values(), LARGE)  # often the attributes of an object: they are no level of their own
    return parts


def _parts_of_function(function: types.FunctionType) -> list[object]:
    parts = [*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values(), *vars(function).values()]
    return [*parts, *(cell.cell_contents for _, cell in cells_of(function))]
