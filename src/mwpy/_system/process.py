"""What a process asks of the system: child processes, signals, threads, limits, open files, log levels.

Only this module starts child processes.

Each child leads its own session and process group. So a terminal's Ctrl-C does not reach it, and one signal ends it
together with everything that it forked. When a child is found dead, the rest of its group is killed *before* the child
is reaped, because until then the kernel gives its number to no other process.

- `start` starts a child that is watched: a slave, a local agent, a local job.
- `run` runs a short command to its end.
- `count_cores` says how many children can compute at the same time.
"""

from __future__ import annotations

import errno
import os
import resource
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from itertools import islice
from queue import Empty, SimpleQueue
from types import FrameType
from typing import IO, Any, Generic, TypeVar

from attrs import Factory, define
from msgspec import Struct

from mwpy._system import memory
from mwpy._values.errors import CannotRun, UsageError, describe_exit, is_from_outside
from mwpy._values.options import AGENT

UNKNOWN = 255
"""The exit code of a child whose end is not known, as in asyncio."""


class Child:
    """One started process; made by `start`, or by a child (see `forks.py`).

    Args:
        pid: its process id.
        outputs: the files from which this process reads its standard output (1) and standard error (2), if it does.
        process: the object with which it was started here, if it was.
        detached: do not kill the rest of its group when it has ended.
    """

    def __init__(
        self,
        pid: int,
        outputs: Mapping[int, IO[bytes] | None],
        process: subprocess.Popen[bytes] | None = None,
        *,
        detached: bool = False,
    ) -> None:
        self._process = process
        self._returncode: int | None = None
        self._detached = detached
        self._group: memory.MemoryGroup | None = None
        """The control group that limits its memory."""
        self._may_make_group = True
        self._limit_kills = 0
        self._kills_before = _count_kills()
        self.pid: int = pid
        self.peak_bytes = 0
        """Peak memory of the child, or of a program that it waited for. It is known after `poll` has returned the end.
        It is at least the peak of this process when it started the child, which Linux counts for the child, too."""
        self._files: dict[int, IO[bytes]] = {}
        self.outputs: dict[int, int] = {}
        """With `keep_output`: non-blocking file descriptors of its standard output (1) and standard error (2)."""
        self._have_outputs({number: file for number, file in outputs.items() if file is not None})

    def _have_outputs(self, files: dict[int, IO[bytes]]) -> None:
        self._files, self.outputs = files, {number: file.fileno() for number, file in files.items()}
        for fd in self.outputs.values():
            os.set_blocking(fd, False)

    def open_outputs(self) -> list[int]:
        """Make new pipes for its standard output and error. Return the ends into which it writes.

        Raises:
            OSError: out of file descriptors.
        """
        files, written = dict[int, IO[bytes]](), list[int]()
        for number in (1, 2):
            fd, end = os.pipe()
            files[number] = open(fd, "rb", buffering=0)  # noqa: SIM115
            written.append(end)
        self._have_outputs(files)
        return written

    def pass_outputs_to(self, pid: int) -> Child:
        """Return another child of this process, which has the standard output and error of this one from now on."""
        child = Child(pid, self._files)
        self._have_outputs({})
        return child

    def poll(self) -> int | None:
        """Check whether it has ended, and if so kill the rest of its group. Never waits.

        Returns:
            None while it runs. Later its exit code, or the negative number of the signal that killed it; `UNKNOWN` if
            other code of this process has waited for it. Then its number may be that of another process, so its group
            is left alone.
        """
        if self._returncode is None:
            try:
                if os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
                    return None
            except ChildProcessError:  # the user's code called os.wait(), or ignores SIGCHLD
                self._returncode = UNKNOWN
                self.leave()
                return UNKNOWN
            if not self._detached:
                self._kill_group()
            _, status, usage = os.wait4(self.pid, 0)
            self._returncode = os.waitstatus_to_exitcode(status)
            if self._process is not None:
                self._process.returncode = self._returncode
            self.peak_bytes = usage.ru_maxrss * memory.RUSAGE_UNIT
        return self._returncode

    def leave(self) -> None:
        """Wait no more for the end of a child that is detached, or that other code has waited for."""
        if self._process is not None and self._process.returncode is None:
            self._process.returncode = 0  # else Python warns that it still runs

    def abort(self) -> None:
        """End it with SIGABRT: a Python process with a fault handler first writes where each of its threads is."""
        if self.poll() is None:
            with suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGABRT)

    def kill(self) -> None:
        """Kill it and everything that it started. `poll` reports its end. No error if it has ended already."""
        if self.poll() is None:
            family = memory.family(self.pid)  # some may have left its group, and a fork makes its group a moment later
            self._kill_group()
            for pid in family:
                with suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, signal.SIGKILL)

    def terminate(self) -> None:
        """Ask it to end (SIGTERM), but not the processes that it forked. No error if it has ended already."""
        if self.poll() is None:
            with suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGTERM)

    def used_memory(self, exact_above: int) -> int:
        """How many bytes of memory it and its descendants use; up to `exact_above`, this may be too many."""
        return memory.used_by(self.pid, exact_above)

    def limit_memory(self, most: int | None) -> None:
        """Let the kernel limit the memory of it and its descendants to so many bytes; None for no limit.

        This does nothing if this process cannot make a control group. Memory that is in use when the first limit is set
        does not count.
        """
        if self._group is None and self._may_make_group:
            try:
                self._group = memory.MemoryGroup(f"mwpy-{os.getpid()}-{self.pid}")
            except OSError:
                self._may_make_group = False
            else:
                self._group.add(memory.family(self.pid))
        if self._group is not None:
            self._group.limit(most)

    @property
    def limit_kills(self) -> int:
        """How many of its descendants, and itself, the kernel has killed because of that limit."""
        return self._limit_kills if self._group is None else self._group.kills

    def describe_exit(self) -> str:
        """Describe its end in words. Call this after `poll` has returned its end."""
        assert self._returncode is not None, "poll has not returned its end"
        here, anywhere = self._kills_meanwhile()
        kind = 0 if self.limit_kills else 1 if here else 2 if anywhere else 3
        return describe_exit(self._returncode, cause=OUT_OF_MEMORY[kind])

    @property
    def out_of_memory(self) -> bool:
        """Whether the kernel killed it for lack of memory, as far as can be known. It has ended."""
        return self._returncode == -signal.SIGKILL and any((self.limit_kills, *self._kills_meanwhile()))

    def _kills_meanwhile(self) -> list[int]:
        """How many processes the kernel has killed for lack of memory since it started: see `_count_kills`."""
        return [after - before for after, before in zip(_count_kills(), self._kills_before, strict=True)]

    def close(self) -> None:
        """Close the pipes of its standard output and error. Remove its control group."""
        if self._group is not None:
            self._limit_kills = self._group.kills
            self._group.remove()
            self._group = None
        for file in self._files.values():
            file.close()

    def _kill_group(self) -> None:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)


def start(
    command: Sequence[str],
    *,
    environment: Mapping[str, str | None] | None = None,
    pass_fds: Sequence[int] = (),
    keep_output: bool = False,
    output: tuple[IO[bytes], IO[bytes]] | None = None,
    detached: bool = False,
) -> Child:
    """Start a process in its own session, without standard input.

    Args:
        command: program and arguments.
        environment: variables to set on top of this process's own; None as a value removes a variable.
        pass_fds: file descriptors that it inherits under the same numbers. It inherits no others.
        keep_output: make pipes for its standard output and error, see `Child.outputs`. The caller must read them.
        output: files for its standard output and error. Without `keep_output` and `output`, the child writes to the
            streams of this process.
        detached: the child outlives this process, and the processes that the child started outlive the child.

    Raises:
        OSError: it cannot be started.
    """
    stdout, stderr = output or ((subprocess.PIPE, subprocess.PIPE) if keep_output else (None, None))
    process = subprocess.Popen(
        command,
        env=_environment(environment),
        pass_fds=pass_fds,
        stdin=subprocess.DEVNULL,
        stdout=stdout,
        stderr=stderr,
        start_new_session=True,
        bufsize=0,
    )
    return Child(process.pid, {1: process.stdout, 2: process.stderr}, process, detached=detached)


def count_cores() -> int:
    """Return how many cores this process and its children may use."""
    return len(os.sched_getaffinity(0))


def agent_command(script_arguments: Sequence[str] = ()) -> list[str]:
    """Return the command of an agent that does not load a script itself. Its slaves have the same command.

    It has the options of this interpreter.

    Args:
        script_arguments: what `sys.argv` is in the script that its slaves load.
    """
    options = [f"-X{name}" if value is True else f"-X{name}={value}" for name, value in sys._xoptions.items()]
    given = subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined]  # `multiprocessing` uses it, too
    return [sys.executable, *given, *options, *AGENT, *script_arguments]


def _environment(changes: Mapping[str, str | None] | None) -> dict[str, str]:
    changed = {**os.environ, **(changes or {})}
    return {name: value for name, value in changed.items() if value is not None}


class Finished(Struct, frozen=True):
    """A command that has ended, and what it wrote."""

    returncode: int
    """Its exit code, or the negative number of the signal that killed it."""
    out: str
    err: str

    @property
    def end(self) -> str:
        """Its end in words."""
        return describe_exit(self.returncode)

    @property
    def complaint(self) -> str:
        """What it wrote about its failure, in one line."""
        lines = [line.strip() for line in (self.err or self.out).splitlines() if line.strip()]
        return "; ".join(dict.fromkeys(lines)) or f"nothing ({self.end})"

    @property
    def last_complaint(self) -> str:
        """The last line that it wrote about its failure."""
        return self.complaint.rpartition("; ")[2]


class TimedOut(TimeoutError):
    """A command took too long and was killed. It is not known whether it had finished its work.

    Args:
        timeout_s: how long it was given.
        err: what it wrote to standard error.
    """

    def __init__(self, timeout_s: float, err: str = "") -> None:
        super().__init__(f"no answer within {timeout_s:.0f} s")
        self.err = err


def run(
    command: Sequence[str],
    *,
    timeout_s: float,
    standard_input: bytes = b"",
    environment: Mapping[str, str | None] | None = None,
    folder: str | os.PathLike[str] | None = None,
) -> Finished:
    """Run a short command to its end. If it takes too long, kill it and everything that it forked.

    Args:
        command: program and arguments.
        timeout_s: how long it may take.
        standard_input: what it reads.
        environment: variables to set on top of this process's own; None as a value removes a variable.
        folder: where it runs; None for the folder of this process.

    Raises:
        TimedOut: it took too long and was killed.
        OSError: it cannot be started.
    """
    with subprocess.Popen(
        command,
        cwd=folder,
        env=_environment(environment),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    ) as process:
        try:
            out, err = process.communicate(standard_input, timeout_s)
        except BaseException as error:
            if process.returncode is None:  # `communicate` may have reaped it; then another process may have its number
                os.killpg(process.pid, signal.SIGKILL)
            _, err = process.communicate()
            if isinstance(error, subprocess.TimeoutExpired):
                raise TimedOut(timeout_s, err.decode(errors="replace")) from None
            raise
    return Finished(process.returncode, out.decode(errors="replace"), err.decode(errors="replace"))


def answer_of(command: Sequence[str], timeout_s: float, standard_input: str = "") -> str:
    """Run a short command that must succeed, and return what it says.

    Raises:
        UsageError: it failed, or cannot be started, or took too long.
    """
    try:
        ran = run(command, timeout_s=timeout_s, standard_input=standard_input.encode())
    except OSError as error:
        raise UsageError(f"{command[0]} cannot be run: {error}") from error
    if ran.returncode:
        raise UsageError(f"`{' '.join(command)}` failed: {ran.complaint}")
    return ran.out.strip()


def shell(command: str) -> None:
    """Run a command of a shell in this process's folder and with its streams.

    Raises:
        subprocess.CalledProcessError: it failed.
    """
    subprocess.run(command, shell=True, check=True)


def may_pass(error: BaseException) -> bool:
    """Whether the network or the machine may be why code has failed, so that another attempt may succeed."""
    if isinstance(error, subprocess.CalledProcessError):
        return is_from_outside(error.returncode)
    if isinstance(error, (FileNotFoundError, PermissionError)):  # something is missing on this machine
        return False
    return isinstance(error, (OSError, MemoryError, subprocess.TimeoutExpired))


OUT_OF_MEMORY = (
    "out of memory: the kernel's out-of-memory killer killed it, or a process that it started, at its own limit",
    "out of memory: the kernel's out-of-memory killer killed a process of this job's control group meanwhile",
    "out of memory, most likely: the kernel's out-of-memory killer killed a process on this machine meanwhile",
    "",
)
"""Why a child was killed: the out-of-memory killer killed in the child's own control group, in that of this process, or
on this machine, or nowhere."""


def _count_kills() -> tuple[int, int]:
    """Return how many processes the kernel has killed for lack of memory, in this control group and on this machine."""
    return memory.count_job_kills(), memory.count_machine_kills()


# Limits of the system, in words: which one was reached, and what to change.
#
# A start may fail because this process may have no more files, threads, children or memory. This is the fault neither
# of mwpy nor of the process that could not be started.


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


# How many files this process may have open: each connection and each pipe is one.
#
# The usual soft limit is 1024, although the hard limit is much larger. A master has a connection to each agent, and an
# agent has four files for each slave. The limit is not raised further than `ENOUGH`, because some programs that a
# process starts try to close every file that they may have.


ENOUGH = 1 << 16


def raise_limit() -> int:
    """Raise the soft limit towards the hard limit, and return the new limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = ENOUGH if hard == resource.RLIM_INFINITY else min(hard, ENOUGH)
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return ENOUGH if soft == resource.RLIM_INFINITY else soft
    with suppress(OSError, ValueError):  # the kernel allows less
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
        return wanted
    return soft


def count_open() -> int:
    """Return how many files this process has open."""
    return len(os.listdir("/proc/self/fd"))


# Work in the background: a slow disk, a hanging file system or an unread pipe never delays the caller.
#
# `Background` calls a function in a thread of its own. `Question` uses it to get a result without waiting for long, and
# `TextWriter` to write lines. Everything that waits has a bound. When the bound is reached, further lines are left out,
# and the next line that has room says how many.


MOST_CHARACTERS = 4 << 20
"""When this many characters wait to be written, further lines are left out."""

T = TypeVar("T")


class Background(Generic[T]):
    """Calls a function with each item that it is given, in order, in a thread of its own. One thread gives the items.

    The thread starts with the first item. If the system refuses it, `give` calls the function itself. The thread does
    not keep the process alive: what hangs in it is abandoned at the end.

    Args:
        do: the function. It may take long. An exception ends the thread.
        name: the name of the thread.
    """

    def __init__(self, do: Callable[[T], None], name: str) -> None:
        self._do = do
        self._items: SimpleQueue[tuple[T] | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._given = 0
        self._done = 0

    @property
    def waiting(self) -> int:
        """How many items were given and are not done."""
        return self._given - self._done

    def give(self, item: T) -> None:
        """Let the thread work on an item; do not wait for it."""
        if not self._given:
            try:
                self._thread.start()
            except RuntimeError:  # the system allows no other thread
                self._do(item)
                return
        self._given += 1
        self._items.put((item,))

    def close(self, patience_s: float) -> bool:
        """Let the thread end, and wait for it at most `patience_s` seconds. Return whether everything was done."""
        self._items.put(None)
        if self._given:
            self._thread.join(patience_s)
        return not self.waiting

    def _run(self) -> None:
        while (item := self._items.get()) is not None:
            self._do(item[0])
            self._done += 1


class Question(Generic[T]):
    """A function that may hang, for example because a file system does. It is called in the background.

    Args:
        do: the function.
        name: the name of the thread.
    """

    def __init__(self, do: Callable[[], T], name: str) -> None:
        self._do = do
        self._answers: SimpleQueue[tuple[T, None] | tuple[None, Exception]] = SimpleQueue()
        self._background = Background(self._answer, name)
        self._asked = False

    def ask(self, patience_s: float) -> T:
        """Call the function and wait for its result. If an earlier call still hangs, only look for its result.

        Raises:
            TimeoutError: it hangs.
            Exception: the exception of the function.
        """
        if not self._asked:
            self._asked = True
            self._background.give(None)
        else:
            patience_s = 0.0
        try:
            value, error = self._answers.get(timeout=patience_s)
        except Empty:
            raise TimeoutError from None
        self._asked = False
        if error is not None:
            raise error
        return value  # type: ignore[return-value]  # one of the two is None

    def close(self) -> None:
        """Let the thread end as soon as the function has returned."""
        self._background.close(0.0)

    def _answer(self, _: None) -> None:
        try:
            value = self._do()
        except Exception as error:
            self._answers.put((None, error))
        else:
            self._answers.put((value, None))


class TextWriter:
    """Writes lines in the background. Any thread may give lines.

    Args:
        put: the function that writes a text of whole lines. It may block.
        gap: the line that says that this many lines are missing before it, with its line feed.
        name: the name of the thread.
    """

    def __init__(self, put: Callable[[str], None], gap: Callable[[int], str], name: str) -> None:
        self._put = put
        self._gap = gap
        self._background = Background(self._write, name)
        self._lock = threading.Lock()
        self._given = 0
        self._written = 0
        self._left_out = 0

    def write(self, text: str) -> None:
        """Give the thread a text of whole lines. If too much waits, the text is left out."""
        with self._lock:
            if self._background.waiting and self._given - self._written + len(text) > MOST_CHARACTERS:
                self._left_out += text.count("\n")
                return
            if self._left_out:
                text = self._gap(self._left_out) + text
                self._left_out = 0
            self._given += len(text)
            self._background.give(text)

    def close(self, patience_s: float) -> bool:
        """Wait at most `patience_s` seconds until everything is written. Return whether it is."""
        return self._background.close(patience_s)

    def _write(self, text: str) -> None:
        self._put(text)
        self._written += len(text)


class Bell:
    """Ends the wait of a thread that waits for file descriptors, also for this one.

    These are sockets, because a thread may ring when they are closed: the number of a pipe could be another file then.
    """

    def __init__(self) -> None:
        self._out, self.inside = socket.socketpair()
        self._out.setblocking(False)
        self.inside.setblocking(False)
        self.fd: int = self._out.fileno()
        """What to wait for; call `clear` when it can be read."""

    def ring(self) -> None:
        """End the wait. Any thread may call this."""
        try:
            self.inside.send(b"!")
        except OSError:
            pass  # it is full, so nothing will wait; or this is closed, and nothing waits

    def clear(self) -> None:
        """Wait for the next ring from now on."""
        self._out.recv(4096)

    def close(self) -> None:
        """Close the sockets."""
        self.inside.close()
        self._out.close()


# Signals of this process: handled in it alone, as something to wait for, and held back while they would do damage.


Handler = Callable[[int, Any], object]

_HANDLERS: dict[int, Handler] = {}
"""What `handle_here` has set."""

_MASKS = threading.local()
"""The blocked signals of a thread that forks, as they were before."""


def handle_here(number: signal.Signals, handler: Handler) -> None:
    """Handle a signal in this process. Processes that it forks have the handler of a fresh Python process instead.

    Programs that it starts have the default handler, too. To ignore a signal, give a function that does nothing: they
    would inherit that a signal is ignored. During a fork the signal is blocked, because Python forgets one that arrives
    in the new process before that has its own handler. Then `Process.terminate` right after `start` has no effect.

    Raises:
        ValueError: this is not the main thread.
    """
    signal.signal(number, handler)
    if not _HANDLERS:
        os.register_at_fork(before=_block, after_in_parent=_unblock, after_in_child=_be_fresh)
    _HANDLERS[number] = handler


def _block() -> None:
    _MASKS.before = signal.pthread_sigmask(signal.SIG_BLOCK, _HANDLERS)


def _unblock() -> None:
    signal.pthread_sigmask(signal.SIG_SETMASK, _MASKS.before)


def _be_fresh() -> None:
    for number, handler in _HANDLERS.items():
        if signal.getsignal(number) == handler:  # the user has set no other one
            signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
    _unblock()


@define(eq=False, repr=False)
class HeldSignals:
    """Ctrl-C and SIGTERM, while they must not interrupt this thread. Only the main thread handles signals."""

    held: bool = False
    """Whether signals wait between `begin` and `end`. To set this is a single step, which no signal can divide."""
    _handlers: dict[signal.Signals, Handler] = Factory(dict)
    """The handlers that handle the signals otherwise."""
    _caught: list[int] = Factory(list)

    def begin(self) -> None:
        """Hold the signals back. Call `end` in any case, also if this raises an exception."""
        self.held = True
        if threading.current_thread() is not threading.main_thread():
            return
        for number in (signal.SIGINT, signal.SIGTERM):
            handler = signal.getsignal(number)
            if callable(handler) and handler != self._handle:
                self._handlers[number] = handler
                handle_here(number, self._handle)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self.held:
            self._caught.append(number)
        else:
            self._handlers.get(signal.Signals(number), signal.default_int_handler)(number, frame)

    def let_through(self) -> None:
        """Handle the signals that wait, and those that come. A handler may raise an exception."""
        self.held = False
        caught, self._caught = self._caught, []
        for number in caught:
            signal.raise_signal(number)

    def end(self) -> None:
        """Let the signals through, and give them their handlers back, unless they have others by now."""
        for number, handler in reversed(self._handlers.items()):
            if signal.getsignal(number) == self._handle:
                signal.signal(number, handler)
        self.let_through()


class Signals:
    """Catches signals of this process. Make it in the main thread.

    Args:
        numbers: the signals to catch.
    """

    def __init__(self, numbers: Sequence[signal.Signals]) -> None:
        self._caught: list[signal.Signals] = []
        self._bell = Bell()
        self.clear = self._bell.clear
        signal.set_wakeup_fd(self._bell.inside.fileno(), warn_on_full_buffer=False)
        for number in numbers:
            signal.signal(number, lambda caught, _: self._caught.append(signal.Signals(caught)))

    def fileno(self) -> int:
        """What to wait for; call `clear` when it can be read."""
        return self._bell.fd

    def take(self) -> Sequence[signal.Signals]:
        """The signals that were caught since the last call, in order."""
        if not self._caught:
            return ()
        return [self._caught.pop(0) for _ in range(len(self._caught))]  # one by one: another may arrive now

    def close(self) -> None:
        """Stop waiting for signals."""
        signal.set_wakeup_fd(-1)
        self._bell.close()


# The levels of the loggers of this process.


LEVELS_SENT = 1000
"""How many levels are sent to each slave. Loggers beyond that have the levels of the loggers above them."""

LONGEST_NAME = 255

WARNING = 30
"""The level of the root logger in a process that has not imported `logging`."""


def log_levels() -> dict[str, int]:
    """Return the levels that were set, by the names of the loggers. The name of the root logger is empty."""
    logging = sys.modules.get("logging")
    if logging is None:
        return {"": WARNING}
    known = logging.root.manager.loggerDict.copy().items()
    named = ((name, each.level) for name, each in known if isinstance(each, logging.Logger) and each.level)
    short = ((name, level) for name, level in named if len(name) <= LONGEST_NAME)
    return {"": logging.root.level} | dict(islice(short, LEVELS_SENT))
