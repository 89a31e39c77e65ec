"""Runs tasks in a slave process, one at a time, and sends their results to the agent.

The agent sends groups of tasks. Before the runner starts a task, it writes the task's position into shared memory, so
that the agent knows which task runs. Small results are gathered for up to `GATHER_S` in the journal. The agent reads
the journal if this process dies, or if it is busy with one task for long. A result with large buffers is sent at once.
"""

from __future__ import annotations

import os
import sys
from collections import deque
from collections.abc import Sequence
from functools import partial
from itertools import count as counted
from itertools import repeat
from math import inf
from typing import TYPE_CHECKING, Any, NoReturn

from mwpy._core.holding import count_of, take_named
from mwpy._roles.checkpoints import RunningTasks
from mwpy._roles.given_shares import GivenShares
from mwpy._roles.loaded import NEVER_DEFINED, LoadedAlgorithms
from mwpy._roles.peak_memory import PeakMemory
from mwpy._roles.stretches import Stretches
from mwpy._roles.task_logs import TaskLogs
from mwpy._roles.unsendable import check_size, not_sendable
from mwpy._roles.waiting_tasks import WaitingTasks
from mwpy._system import memory, time_left
from mwpy._system.clock import monotonic
from mwpy._system.randomness import undisturbed
from mwpy._system.surroundings import Surroundings
from mwpy._transport import wire
from mwpy._transport.call_parts import condition_of, seed_of, split_resumed
from mwpy._transport.channel.journal import AGAIN, FAILED, VALUE
from mwpy._transport.codec import Codec, loads_call, loads_condition
from mwpy._transport.error_texts import describe_error
from mwpy._values import checkpoints, groups, messages
from mwpy._values.bounds import shortened
from mwpy._values.errors import EndIsNear, ExitCode
from mwpy._values.ids import Buffer, SlaveId
from mwpy._values.seeds import RUNNING

if TYPE_CHECKING:
    from mwpy._roles.edges import SlaveChannel

__all__ = ["FOREVER_S", "GATHER_S", "TaskRunner"]

GATHER_S = 0.02
"""How long finished results are gathered at most, in seconds; not until then if another task like the last one would
take longer. This time and the silence that the agent measures begin at the same moment. Shorter times mean more
messages: with 10 ms, a short task takes 14 % more processor time. Longer times break the promise that a finished result
leaves its slave within 50 ms."""

FOREVER_S = 86400.0
"""How long a slave without tasks waits at most before it looks again, in seconds."""

MEASURE_S = 0.02
"""Seconds between two measurements of this process's memory. One takes about 10 µs."""

CODEC = Codec()

_NO_STATE: Sequence[Buffer] = ()
_NO_KEYWORDS: dict[str, Any] = {}


class TaskRunner:
    """The part of a slave that talks to the agent and runs tasks.

    Args:
        end: the channel to the agent.
        number: the slave's number within its agent.
        result_group: how many results to send at a time; 0 to gather results for `GATHER_S`.
        max_result_bytes: the largest result that the master accepts.
        codec: encodes results.
        ends_the_turn: exceptions of a task that are no failure of the task. They end the turn instead.
        max_memory_bytes: how much memory this process may have between two tasks; 0 if there is no limit.
        is_own_process: whether this process only runs tasks, so that its memory is theirs.
        surroundings: what is put back after each task; None if nothing is.
    """

    def __init__(
        self,
        end: SlaveChannel,
        number: int,
        result_group: int,
        max_result_bytes: int,
        codec: Codec = CODEC,
        ends_the_turn: tuple[type[BaseException], ...] = (),
        max_memory_bytes: int = 0,
        is_own_process: bool = True,
        surroundings: Surroundings | None = None,
    ) -> None:
        self._end = end
        self._number = number
        self.result_group = result_group
        self._limit = max_result_bytes
        self._max_memory_bytes = max_memory_bytes
        self._measure_at = 0.0 if max_memory_bytes else inf
        """When to measure the memory of this process again."""
        self._codec = codec
        self._ends_the_turn = ends_the_turn
        self._algorithms = LoadedAlgorithms()
        self._shares = GivenShares()
        self._waiting: deque[WaitingTasks] = deque()
        """Tasks that arrived and were not started. The agent may have taken some of them back."""
        self._arrived = 0
        """How many tasks ever arrived; also the position of the last one."""
        self._due = 0.0
        """When the gathered results must be sent."""
        self.stretches = Stretches(number, max_result_bytes, codec, self._send, self._look)
        self._tasks = RunningTasks(end, number, max_result_bytes, codec, self.flush)
        self._logs = TaskLogs(end, number, self._tasks, self._send)
        self._peaks = PeakMemory(self._send_peak) if is_own_process else None
        self._surroundings = surroundings
        self._ready = False
        self.completed = 0
        """How many tasks were run."""
        self.shut_down = False
        """Whether the master shut this slave down."""
        self.sid: SlaveId | None = None
        """The id that the master gave this slave; None until it arrives."""

    @property
    def ended(self) -> bool:
        """Whether no task will come any more: the master ended this slave, or the agent is gone."""
        return self.shut_down or self._end.eof

    @property
    def num_waiting(self) -> int:
        """How many tasks arrived and were not started."""
        return sum(map(count_of, self._waiting))

    @property
    def num_unsent(self) -> int:
        """How many results are finished and not sent."""
        return self._end.journal.count

    def get_ready(self) -> None:
        """Read the definitions that have arrived, then report that this slave is ready for tasks. Only the first call
        does it.

        Definitions come first: if the import of a module ends the interpreter, this must happen before the agent counts
        this slave as started.
        """
        if not self._ready:
            self._ready = True
            while self.receive():
                pass
            self._send(messages.SlaveReady(self._number))

    def turn(self, timeout: float | None, most: int, *, again: bool = False) -> None:
        """Wait for tasks if there are none, then run up to `most` of the tasks that have arrived.

        Args:
            timeout: how long to wait, in seconds; None for as long as it takes.
            again: whether the next turn follows at once. Then the results of portions may wait for it.
        """
        self.get_ready()
        waiting, end, can_start = self._waiting, self._end, self._shares.can_start
        if not can_start(waiting):
            self.receive()
        if not can_start(waiting):
            self.stretches.flush()
            self.flush()
            if self._logs.waiting:
                self._logs.send(everything=True)
            if not self.ended and timeout != 0.0:
                self.receive(FOREVER_S if timeout is None else timeout)
        self._due = max(self._due, end.fed_at + GATHER_S)
        most = min(most, self.num_waiting)
        if self._surroundings is not None:
            self._surroundings.remember()
        while can_start(waiting) and most > 0 and not end.eof:
            span = waiting.popleft()
            checkpoints.RUNNING.task = self._tasks.begin(span.first, span.attempt, span.position, span.left)
            self._logs.algorithm = self._algorithms.names.get(span.number, "")
            time_left.RUNNING.end_at = end.task_ends_at and partial(end.task_ends_at, span.seconds_max)
            try:
                ran = self._run(span, most)
            finally:
                checkpoints.RUNNING.task = time_left.RUNNING.end_at = None
                self._logs.algorithm = ""
            most -= ran
            if span.seconds_max is not None:
                end.rest()
            if ran < span.count:
                waiting.appendleft(span.cut(ran)[1])
                if most > 0 and not end.eof:
                    self.receive(FOREVER_S)  # the agent has recalled tasks, and now sends a message that names them
        if not (again and end.has_message) or self.ended:
            self.stretches.flush()

    def _run(self, span: WaitingTasks, most: int) -> int:
        """Run up to `most` tasks, and return how many were run; stop when tasks are recalled or the agent is gone.

        This loop determines what a task costs in a slave. Therefore all names are looked up before the loop, and the
        loop makes few calls.
        """
        if self._peaks is not None:
            self._peaks.switch(span.number)
        end = self._end
        start = end.start if span.seconds_max is None else end.start_timed
        function = self._algorithms.functions.get(span.number)
        if function is None:
            if not start(span.position):  # if unpickling ends this process, the first task is charged
                return 0
            function = self._algorithms.unpack(span.number)
            if function is None:
                return self._refuse(span)
        if span.portion and end.run_each is not None:
            self.flush()
            self.stretches.silent_from = max(self.stretches.silent_from, self._due - GATHER_S)
            self.completed += (ran := self.stretches.run(end.run_each, function, span, most))
            self._measure()
            return ran
        self.stretches.flush()
        group, limit, attempt, logs, running = self.result_group, self._limit, span.attempt, self._logs, self._tasks
        dumps = self._codec.dumps_value
        journal, note = end.journal, end.journal.add
        load = loads_call if seed_of(span.calls[0]) is None else _loads_seeded  # a span has one policy
        surroundings, ran = self._surroundings, 0
        tasks = zip(counted(span.first), counted(span.position), span.calls[:most], span.buffers, strict=False)
        for task_id, position, call, buffers in tasks:
            if end.eof or not start(position):
                break
            ran += 1
            began, ended, kind = 0.0, 0.0, VALUE
            # free the objects of the last task before this task creates its own
            args = kwargs = value = result = large = None
            try:
                args, kwargs = (call, _NO_KEYWORDS) if type(call) is list else load(call, buffers)
                running.began = began = monotonic()
                value = function(*args, **kwargs) if kwargs else function(*args)
                ended = monotonic()
                result, large = dumps(value)
                if large or len(result) > limit:
                    check_size(len(result) + sum(map(len, large)), limit)
            except self._ends_the_turn:
                RUNNING.seed = None
                raise
            except BaseException as error:
                if isinstance(error, EndIsNear):
                    _give_up(self, end, task_id, error)
                kind, result = _failure(
                    self._codec, self._ends_the_turn, call, error if not ended else not_sendable(error, value)
                )  # without a name, which would keep the objects of the task alive
                large, ended = (), ended or monotonic()
            if end.forked:
                _end_fork(task_id)
            if surroundings is not None:
                surroundings.restore()
            if logs.waiting:
                logs.send()
            seconds = ended - began if began else 0.0
            if large or kind or not note(task_id, attempt, seconds, result):
                self._send_or_note(task_id, attempt, seconds, result, kind, large)
            if journal.count >= group if group else ended + seconds > self._due:
                self.flush()
        RUNNING.seed = None
        self.completed += ran
        return ran

    def _look(self, task_id: int, error: BaseException | None) -> bool:
        """Look at a task of a stretch that has ended. Return whether the next one may start."""
        if self._end.forked:
            _end_fork(task_id)
        if self._surroundings is not None:
            self._surroundings.restore()
        if isinstance(error, EndIsNear):
            _give_up(self, self._end, task_id, error)
        self._tasks.began = monotonic()  # of the next task
        return self._end.is_open()

    def _refuse(self, span: WaitingTasks) -> int:
        """Give back the tasks of an algorithm that cannot run here, and return how many they are."""
        why = self._algorithms.unavailable.get(span.number, NEVER_DEFINED)
        spans = [span.first], [span.count], [span.attempt]
        reason = shortened(why.explained(self._algorithms.names.get(span.number, "")))
        self._send(messages.AlgorithmFailed(self._number, span.number, reason, *spans, why.failure))
        return span.count

    def _send_or_note(
        self, task_id: int, attempt: int, seconds: float, result: bytes, kind: int, large: Sequence[Buffer]
    ) -> None:
        """Note a result. If there is no room, send the journal's results, then note this result in the empty journal,
        or send it if it is too large. A result with large buffers is always sent."""
        note = self._end.journal.add_any
        if large or not note(task_id, attempt, seconds, result, kind):
            self.flush()
            if not large and note(task_id, attempt, seconds, result, kind):
                return
            if self._peaks is not None:
                self._peaks.look()
            failed, again = [0] if kind else [], [0] if kind == AGAIN else []
            group = messages.Results(self._number, [task_id], [1], [attempt], [seconds], failed, [len(large)], again)
            self._send(group, [groups.payload(1, [result]), *large])

    def flush(self, *, in_task: bool = False) -> None:
        """Send the gathered results. If they cannot be sent, they stay in the journal, where the agent finds them.

        If it is time and no task runs, also measure the memory of this process.
        """
        journal = self._end.journal
        if journal.count and not in_task:
            self._measure()
        if journal.count and (noted := journal.read(self._number)) is not None:
            self._send(*noted)
            if not self._end.eof:
                journal.clear()
            self._due = monotonic() + GATHER_S

    def _measure(self) -> None:
        """Report how much memory this process used at most. If it has too much after a task, report this once."""
        if self._peaks is not None:
            self._peaks.look()
        if self._measure_at == inf:
            return
        now = monotonic()
        if now >= self._measure_at:
            self._measure_at = now + MEASURE_S
            resident_bytes = memory.resident_bytes()
            if resident_bytes > self._max_memory_bytes:
                self._measure_at = inf
                self.stretches.flush()  # a message ends the silence after which the agent searches for late results
                self._send(messages.SlaveGrown(self._number, resident_bytes))

    def _send_peak(self, algorithm: int, peak_bytes: int) -> None:
        self._send(messages.PeakMemory(self._number, algorithm, peak_bytes))

    # ---- messages -------------------------------------------------------------------------------------------

    def _send(self, message: messages.Message, frames: Sequence[Buffer] = ()) -> None:
        if self._logs.waiting:
            self._logs.send()
        self._end.send(wire.encode(message, frames))

    def receive(self, timeout: float = 0.0) -> bool:
        """Handle the messages that have arrived, and return whether there were any.

        Args:
            timeout: how long to wait for the first message, in seconds.
        """
        received = self._end.receive(timeout)
        for frames in received:
            self._handle(*wire.parse(frames))
        return bool(received)

    def _handle(self, message: messages.Message, payload: Sequence[Buffer]) -> None:
        match message:
            case messages.Tasks():
                self._take_in(message, payload)
            case messages.Revoked():
                self._end.recall_heard()
                take_named(self._waiting, message)
            case messages.Algorithms():
                self._algorithms.define(message, payload)
            case messages.ShareGiven() | messages.ShareForgotten():
                self._shares.hear(message)
            case messages.SlaveNamed():
                self.sid = message.sid
                self._logs.begin(message.levels)
            case messages.NextGeneration():
                self._begin_again()
            case messages.Shutdown():
                self.shut_down = True
            case _:
                pass

    def _begin_again(self) -> None:
        """Another generation of the master begins. All tasks of the former one have ended."""
        self.flush()
        self._logs.send(everything=True)
        edited = self._algorithms.forget_all()
        self._shares.forget_all()
        if self._peaks is not None:
            self._peaks.forget_all()
        self.sid = None
        self._send(messages.NextGeneration(self._number, shortened(edited)))

    def _take_in(self, group: messages.Tasks, frames: Sequence[Buffer]) -> None:
        calls, buffers = groups.entries(group, frames)
        start = 0
        limits = group.limits or repeat(None, len(group.tasks))
        needed = [share.digest for share in group.shares]
        portions = group.portions or repeat(0, len(group.tasks))
        columns = zip(group.tasks, group.counts, group.attempts, group.algorithms, limits, portions, strict=True)
        for first, count, attempt, number, own_limits, portion in columns:
            own, left = slice(start, start + count), _NO_STATE
            seconds_max = None if own_limits is None else own_limits.seconds
            if not portion:
                calls[start], buffers[start], left = split_resumed(calls[start], buffers[start])
            position, columns_of = self._arrived + 1, (calls[own], buffers[own], left, needed, portion)
            self._waiting.append(WaitingTasks(first, count, attempt, position, number, seconds_max, *columns_of))
            self._arrived += count
            start += count


def _give_up(runner: TaskRunner, end: SlaveChannel, task_id: int, error: EndIsNear) -> None:
    """If the end of a task is known, wait for it: the agent kills this process, or lets it end because it leaves.

    So the cause of the loss is the right one, and the task is not sent to the same agent again.
    """
    if time_left.RUNNING.end_at is None or end.forked or time_left.seconds_left() == inf:
        return
    print(f"mwpy: task {task_id} gives up: {error}", file=sys.stderr, flush=True)
    runner.stretches.flush()
    runner.flush(in_task=True)
    while not runner.ended:
        runner.receive(FOREVER_S)
    raise SystemExit(0)


def _failure(
    codec: Codec, ends_the_turn: tuple[type[BaseException], ...], call: object, error: BaseException
) -> tuple[int, bytes]:
    """Encode the failure of a task, and find out whether it is one after which the task is tried again.

    Args:
        codec: encodes it.
        ends_the_turn: as for `TaskRunner`.
        call: the task's arguments, which may have a condition.
        error: what the task raised.
    """
    again, remark = False, ""
    try:
        pickled = condition_of(call)
        again = bool(pickled) and isinstance(error, Exception) and _is_met(pickled, error)
    except ends_the_turn:
        RUNNING.seed = None
        raise
    except BaseException as second:
        type_name, text, _ = describe_error(second)
        remark = f"the task is not tried again, because retry_errors failed: {shortened(f'{type_name}: {text}')}"
    return AGAIN if again else FAILED, codec.dumps_failure(error, remark)


def _loads_seeded(call: Any, buffers: Sequence[Buffer]) -> tuple[Sequence[Any], dict[str, Any]]:
    """Load a call with a seed, and make `task_seed` return this seed."""
    RUNNING.seed = seed_of(call)
    return loads_call(call, buffers)


def _is_met(pickled: bytes, error: Exception) -> bool:
    """Whether a pickled condition says that a task is tried again after an exception."""
    with undisturbed():
        condition = loads_condition(pickled)
    return isinstance(error, condition) if isinstance(condition, tuple) else bool(condition(error))


def _end_fork(task_id: int) -> NoReturn:
    """End a child process that a task forked, if it returns from the task: only the slave itself sends results."""
    text = f"mwpy: a process that task {task_id} forked came back from the task, and ends here: end it with os._exit"
    print(text, file=sys.stderr, flush=True)
    os._exit(ExitCode.FAILED)
