"""The slave: a process that runs task algorithms, one at a time, and nothing else.

It is started by an agent with the very command line of the agent, so that its `__main__` is the script; `mwpy.main`
sees the variable `MWPY_SLAVE` and comes here. It says which task it starts, runs it, and gathers results. A gathered
result is in the journal, where the agent finds it should this process die or be busy for long.
"""

from __future__ import annotations

import ctypes
import faulthandler
import io
import json
import os
import platform
import signal
import sys
import traceback
from collections import deque
from collections.abc import Callable, Sequence
from itertools import count as counted
from typing import Any, NamedTuple, NoReturn

from msgspec import Struct
from msgspec.structs import replace

from mwpy._core.holding import count_of, take
from mwpy._system.clock import perf_counter
from mwpy._transport import wire
from mwpy._transport.channel import SlaveEnd, SlaveFds
from mwpy._transport.codec import Codec, loads_call, loads_function
from mwpy._values import messages
from mwpy._values.algorithm import find
from mwpy._values.environment import EXAMINED, FAULT_HANDLER, SLAVE_VARIABLE, SlaveSettings
from mwpy._values.errors import AlgorithmUnavailable, ExitCode
from mwpy._values.ids import Buffer, SlaveId

__all__ = ["Slave", "SlaveLoop", "exit_code", "run"]

GATHER_S = 0.01
"""Seconds for which finished results are gathered, from when the agent began to count this slave's silence. Ten
thousand groups a second from a thousand slaves would drown a master; fifty milliseconds are promised."""

FOREVER_S = 86400.0
"""Seconds after which a waiting slave looks around without having been woken."""

_PYTHON = f"{sys.version_info.major}.{sys.version_info.minor}"


class _Waiting(Struct, frozen=True, eq=False):
    """Tasks of one algorithm that were sent here and not started; see `holding`."""

    first: int
    count: int
    attempt: int
    position: int
    """Of the first of them, counted from 1 in the order in which tasks were sent here."""
    number: int
    """Of the algorithm."""
    calls: Sequence[Any]
    buffers: Sequence[Sequence[Buffer]]

    def cut(self, count: int) -> tuple[_Waiting, _Waiting]:
        """Its first `count` tasks, and the others."""
        rest = _Waiting(
            self.first + count,
            self.count - count,
            self.attempt,
            self.position + count,
            self.number,
            self.calls[count:],
            self.buffers[count:],
        )
        return replace(self, count=count, calls=self.calls[:count], buffers=self.buffers[:count]), rest


class SlaveLoop(NamedTuple):
    """What `Slave.loop` and `Slave.loop_iterate` return: CL-MW's six values."""

    master_disconnect: bool
    """It is over: the master is gone, or told this slave to end. Leave the slave algorithm."""
    explicit_shutdown: bool
    """The master told this slave to end."""
    total_results_completed: int
    """Tasks that this slave has run so far."""
    num_tasks: int
    """Tasks that are here and not yet run."""
    num_results: int
    """Results that are here and not yet sent."""
    result_grouping: int
    """How many results the master wants at a time; 0 when that is left to the slave."""


class Slave:
    """A slave process, as its slave algorithm sees it.

    Example:
        >>> @mwpy.slave_algorithm                             # doctest: +SKIP
        ... def slave(mw: mwpy.Slave, argv: list[str]) -> int:
        ...     cache.update(load(mw.sid))
        ...     return mw.loop_simple()
    """

    def __init__(self, end: SlaveEnd, number: int, result_group: int, max_result_bytes: int) -> None:
        self._end = end
        self._number = number
        self._result_group = result_group
        self._limit = max_result_bytes
        self._codec = Codec()
        self._functions: dict[int, Callable[..., Any]] = {}
        self._unavailable: dict[int, str] = {}
        """Why algorithms cannot be run here."""
        self._waiting: deque[_Waiting] = deque()
        """What was sent here and not started; some may be taken back by now."""
        self._passed_on = 0
        """How many tasks were ever sent here: the position of the last."""
        self._due = 0.0
        """When gathered results are to be sent."""
        self._completed = 0
        self._shutdown = False
        self._ready = False
        self._sid: SlaveId | None = None

    @property
    def sid(self) -> SlaveId:
        """The id that the master gave this slave. Asking makes the slave ready for tasks, and waits for it."""
        self._get_ready()
        while self._sid is None and not self._ended:
            self._receive(FOREVER_S)
        return self._sid or SlaveId("")

    def loop_simple(self) -> int:
        """Run tasks until the master says that it is over.

        Returns:
            0 if the master told this slave to shut down, 255 if the master was lost: what the slave
            algorithm should return.
        """
        while not self._ended:
            self._turn(None, sys.maxsize)
        return int(ExitCode.OK if self._shutdown else ExitCode.FAILED)

    def loop(self, timeout: float | None = None) -> SlaveLoop:
        """Wait for tasks, run those that are here, and come back. What arrives meanwhile is for the next call.

        Args:
            timeout: how long to wait for the first task, in seconds; None for as long as it takes.
        """
        self._turn(timeout, sys.maxsize)
        return self._state()

    def loop_iterate(self, timeout: float = 0.0001) -> SlaveLoop:
        """Run a single task if there is one.

        Args:
            timeout: how long to wait for it, in seconds.
        """
        self._turn(timeout, 1)
        return self._state()

    @property
    def _ended(self) -> bool:
        return self._shutdown or self._end.eof

    @property
    def _num_waiting(self) -> int:
        return sum(map(count_of, self._waiting))

    def _state(self) -> SlaveLoop:
        waiting, unsent = self._num_waiting, self._end.journal.count
        return SlaveLoop(self._ended, self._shutdown, self._completed, waiting, unsent, self._result_group)

    def _get_ready(self) -> None:
        if not self._ready:
            self._ready = True
            while self._receive():
                pass  # a module that ends the interpreter when it is imported must do so before we are ready
            self._send(messages.SlaveReady(self._number))

    # ---- running tasks -------------------------------------------------------------------------------------

    def _turn(self, timeout: float | None, most: int) -> None:
        """Wait for tasks if none is here, and run up to `most` of those that are."""
        self._get_ready()
        waiting, end = self._waiting, self._end
        if not waiting:
            self._receive()
        if not waiting:
            self._flush()
            if not self._ended and timeout != 0.0:
                self._receive(FOREVER_S if timeout is None else timeout)
        self._due = max(self._due, end.fed_at + GATHER_S)
        most = min(most, self._num_waiting)
        while waiting and most > 0 and not end.eof:
            span = waiting.popleft()
            ran = self._run(span, most)
            most -= ran
            if ran < span.count:
                waiting.appendleft(span.cut(ran)[1])
                if most > 0 and not end.eof:
                    self._receive(FOREVER_S)  # perhaps which tasks were taken back

    def _run(self, span: _Waiting, most: int) -> int:
        """Run up to `most` tasks, until some are taken back or the agent is gone; how many were run.

        This is what each task costs a slave, so it looks things up beforehand and calls little.
        """
        function = self._functions.get(span.number)
        if function is None:
            return self._refuse(span)
        end, group, limit, attempt = self._end, self._result_group, self._limit, span.attempt
        start, journal, dumps = end.start, end.journal, self._codec.dumps_value
        note = journal.add
        ran = 0
        tasks = zip(counted(span.first), counted(span.position), span.calls[:most], span.buffers, strict=False)
        for task_id, position, call, buffers in tasks:
            if end.eof or not start(position):
                break
            ran += 1
            began = ended = 0.0
            args = kwargs = value = result = large = None  # what the last task had is free before this one has its own
            failed = False
            try:
                args, kwargs = loads_call(call, buffers)
                began = perf_counter()
                value = function(*args, **kwargs)
                ended = perf_counter()
                result, large = dumps(value)
                if large or len(result) > limit:
                    self._check_size(len(result) + sum(map(len, large)))
            except BaseException as error:
                failed, large = True, ()
                result = self._codec.dumps_failure(error if not ended else _of_pickling(error, value))
                ended = ended or perf_counter()
            if end.forked:
                _end_fork(task_id)
            seconds = ended - began if began else 0.0
            if large or not note(task_id, attempt, seconds, failed, result):
                self._send_or_note(task_id, attempt, seconds, failed, result, large)
            if journal.count >= group if group else ended > self._due:
                self._flush()
        self._completed += ran
        return ran

    def _refuse(self, span: _Waiting) -> int:
        """Give tasks back of an algorithm that cannot be run here; how many."""
        if not self._end.start(span.position):
            return 0
        reason = self._unavailable.get(span.number, "it was never defined")
        spans = [span.first], [span.count], [span.attempt]
        self._send(messages.AlgorithmFailed(self._number, span.number, reason, *spans))
        return span.count

    def _send_or_note(
        self, task_id: int, attempt: int, seconds: float, failed: bool, result: bytes, large: Sequence[Buffer]
    ) -> None:
        """Send a result that is too large to be noted, behind what is noted; one that merely found no room is noted."""
        self._flush()
        if large or not self._end.journal.add(task_id, attempt, seconds, failed, result):
            position = [0] if failed else []
            group = messages.Results(self._number, [task_id], [1], [attempt], [seconds], position, [len(large)])
            self._send(group, [messages.payload(1, [result]), *large])

    def _check_size(self, size: int) -> None:
        if size > self._limit:
            raise ResultTooLarge(
                f"its result is {size} bytes, the limit is {self._limit} bytes (--mw-max-read-buffer-size): "
                f"write it to a file and return the name, or raise the limit"
            )

    def _flush(self) -> None:
        """Send the gathered results."""
        journal = self._end.journal
        if journal.count and (noted := journal.read(self._number)) is not None:
            self._send(*noted)
            journal.clear()
            self._due = perf_counter() + GATHER_S

    # ---- messages -------------------------------------------------------------------------------------------

    def _send(self, message: messages.Message, frames: Sequence[Buffer] = ()) -> None:
        self._end.send(wire.encode(message, frames))

    def _receive(self, timeout: float = 0.0) -> bool:
        """Take in what is here, waiting for the first of it for so many seconds; whether there was anything."""
        received = self._end.receive(timeout)
        for frames in received:
            self._hear(*wire.parse(frames))
        return bool(received)

    def _hear(self, message: messages.Message, payload: Sequence[Buffer]) -> None:
        match message:
            case messages.Tasks():
                self._take_in(message, payload)
            case messages.Revoked():
                self._end.recall_heard()
                for first, count, attempt in zip(message.tasks, message.counts, message.attempts, strict=True):
                    take(self._waiting, first, count, attempt)
            case messages.Algorithms():
                self._define(message, payload)
            case messages.SlaveNamed():
                self._sid = message.sid
            case messages.Shutdown():
                self._shutdown = True
            case _:
                pass

    def _take_in(self, group: messages.Tasks, frames: Sequence[Buffer]) -> None:
        calls, buffers = messages.entries(group, frames)
        start = 0
        columns = zip(group.tasks, group.counts, group.attempts, group.algorithms, strict=True)
        for first, count, attempt, number in columns:
            own = slice(start, start + count)
            span = _Waiting(first, count, attempt, self._passed_on + 1, number, calls[own], buffers[own])
            self._waiting.append(span)
            self._passed_on += count
            start += count

    def _define(self, message: messages.Algorithms, payload: Sequence[Buffer]) -> None:
        packed = iter(payload)
        for definition in message.definitions:
            by_value = None if definition.reference else next(packed)
            loaded = _load(definition, by_value)
            if callable(loaded):
                self._functions[definition.number] = loaded
            else:
                self._unavailable[definition.number] = loaded


class ResultTooLarge(Exception):
    """A result over the master's limit."""


class ResultNotPicklable(Exception):
    """A result that cannot travel; its cause tells why."""


def _of_pickling(error: BaseException, value: object) -> BaseException:
    """What to say of an error that came when a task had returned this value."""
    if isinstance(error, ResultTooLarge) or not isinstance(error, Exception):
        return error
    told = ResultNotPicklable(
        f"its result, a {type(value).__qualname__}, cannot be pickled ({error}): return what it is made from"
    )
    told.__cause__ = error
    return told


def _end_fork(task_id: int) -> NoReturn:
    """End a child that a task forked and let return: only the slave itself answers for the task."""
    told = f"mwpy: a process that task {task_id} forked came back from the task, and ends here: end it with os._exit"
    print(told, file=sys.stderr, flush=True)
    os._exit(ExitCode.FAILED)


def _load(definition: messages.AlgorithmDefinition, packed: Buffer | None) -> Callable[..., Any] | str:
    """A task algorithm, or why it cannot be run here."""
    try:
        if packed is None:
            return find(definition.reference, definition.digest)
        if definition.python != _PYTHON:
            return (
                f"{definition.name} travels by value, which Python {definition.python} (master) and {_PYTHON} "
                f"(slave) cannot do: use the same minor version, or give the slave the script"
            )
        return loads_function(packed)
    except AlgorithmUnavailable as error:
        return str(error)
    except BaseException:
        return f"{definition.name} cannot be loaded:\n{traceback.format_exc()}"


def run(described: str, slave_algorithm: Callable[[Slave, list[str]], int] | None, argv: list[str]) -> int:
    """Be a slave until its end.

    Args:
        described: the content of `MWPY_SLAVE`.
        slave_algorithm: the script's, or None for the plain loop.
        argv: what the command line has besides mwpy's own options.

    Returns:
        The exit code: what the slave algorithm returned.
    """
    for name in (SLAVE_VARIABLE, FAULT_HANDLER):  # a program that a task starts is no slave
        os.environ.pop(name, None)
    if described == EXAMINED:
        from mwpy._system import packages

        print(json.dumps(packages.imported()))
        return ExitCode.OK
    settings = SlaveSettings.from_json(described)
    end = SlaveEnd(SlaveFds(settings.stream, settings.memory))
    _prepare_process(settings.agent_pid, end.fault)
    slave = Slave(end, settings.slave, settings.result_group, settings.max_result_bytes)
    try:
        if slave_algorithm is None:
            return slave.loop_simple()
        returned: object = slave_algorithm(slave, argv)
        slave._flush()
        return exit_code(returned, "slave algorithm")
    finally:
        end.close()


def exit_code(returned: object, whose: str) -> int:
    """The exit code of a process whose algorithm returned this; says so if it is none."""
    if isinstance(returned, int) and 0 <= returned <= 255:
        return int(returned)
    told = f"{returned!r}"[:100]
    told = f"mwpy: the {whose} returned {told}, which is no exit code: it must return 0 to 255, and 0 for success"
    print(told, file=sys.stderr, flush=True)
    return int(ExitCode.FAILED)


def _prepare_process(agent_pid: int, fault: int) -> None:
    """Die with the agent, whatever a task is doing; leave Ctrl-C to the master; tell of crashes in C.

    Some batch systems send SIGTERM to all processes of a job. What it means for a slave is for the agent to say: it
    gives the running task its grace, and kills what does not end. What a task forks or starts ends by it as usual.
    """
    if platform.system() == "Linux":
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
        if os.getppid() != agent_pid:
            os._exit(ExitCode.FAILED)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda *_: None)
    os.register_at_fork(after_in_child=lambda: signal.signal(signal.SIGTERM, signal.SIG_DFL))
    faulthandler.enable(fault)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(line_buffering=True)  # what a task printed is seen at once, and survives a kill
