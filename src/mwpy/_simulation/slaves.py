"""Simulated slave processes and their channels.

A simulated slave follows the protocol of the real one (see `_transport/channel` and `_roles/runner.py`). Before it
starts a task, it writes down the task's position. It starts nothing between a recall and the message that names the
recalled tasks. It gathers results in its journal, at most as long as a real slave may, and then sends them. It crashes,
hangs, and writes nonsense into its stream.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from itertools import chain, repeat
from math import inf
from random import Random

from msgspec import Struct, field

from mwpy._roles.runner import GATHER_S, SHORT_S, STRETCH_S
from mwpy._simulation.checkers import LARGE_BYTES, StatesOfSlave
from mwpy._simulation.network import SimulatedAgentLink, SimulatedOutlet, SimulatedPipe
from mwpy._simulation.shares import SharesOfSlave, Workload
from mwpy._simulation.world import World
from mwpy._transport import wire
from mwpy._transport.channel import AGAIN, VALUE
from mwpy._transport.codec import Codec
from mwpy._values import groups, messages
from mwpy._values.bounds import Buffer, SlaveId
from mwpy._values.errors import ProtocolError, describe_exit
from mwpy._values.messages import LoadFailure

# The journal of a simulated slave, which its agent can read.


class SimulatedJournal(Struct, eq=False):
    """The results that a slave has finished and not sent."""

    _sent_meanwhile: Callable[[], bool]
    results: list[tuple[int, int, float, int, bytes]] = field(default_factory=list)
    """Task, attempt and seconds of each, whether it is a value, a failure, or a reason to try again, and what it
    is."""
    num_read: int = 0
    """How many of these results the agent has read, counted from the first."""

    def read(self, slave: int) -> tuple[messages.Results, Sequence[Buffer]] | None:
        """Read the journal. Sometimes the slave sends the results during the read."""
        if self._sent_meanwhile():
            return None
        self.num_read = len(self.results)
        return self.group(slave)

    def clear(self) -> None:
        """The slave has sent its results."""
        self.results, self.num_read = [], 0

    def group(self, slave: int) -> tuple[messages.Results, Sequence[Buffer]]:
        """The results as a group."""
        columns = [list(column) for column in zip(*self.results, strict=True)] or [[]] * 5
        tasks, attempts, seconds, kinds, entries = columns
        failed = [place for place, kind in enumerate(kinds) if kind != VALUE]
        again = [place for place in failed if kinds[place] == AGAIN]
        group = messages.Results(slave, *groups.spans_of(tasks, attempts), seconds, failed, again=again)
        return group, [groups.payload(len(tasks), entries)]


# The channel between an agent and a simulated slave: both ends of it, in one object.


class SimulatedChannel(Struct, eq=False):
    """The agent's end of the channel to a slave, and the actions of the slave at the other end."""

    _fd: int
    _link: SimulatedAgentLink
    _wake_slave: Callable[[], None]
    journal: SimulatedJournal
    started: int = 0
    began: float = 0.0
    recalls: int = 0
    fed_at: float = 0.0
    tasks_end_at: float = inf
    """When the tasks of the slave must have ended."""
    eof: bool = False
    wants_write: bool = False
    closed: bool = False
    """Whether the agent has collected the slave."""
    spoilt: bool = False
    """Whether some code in the slave has written into the stream."""
    to_slave: deque[Sequence[Buffer]] = field(default_factory=deque)
    _to_agent: list[list[Buffer]] = field(default_factory=list)
    _ended: bool = False
    _nonsense: bool = False

    def fileno(self) -> int:
        """The file descriptor to wait for."""
        return self._fd

    def send(self, frames: Sequence[Buffer]) -> None:
        """Send to the slave."""
        self.to_slave.append(frames)
        self._wake_slave()

    def flush(self) -> None:
        """Do nothing: everything is sent."""

    def receive(self) -> list[list[Buffer]]:
        """Return what the slave has sent."""
        self._link.readable(self._fd, False)
        if self._nonsense:
            self._nonsense = False
            raise ProtocolError("simulated nonsense")
        received, self._to_agent = self._to_agent, []
        self.eof = self._ended
        return received

    def recall(self) -> None:
        """Stop the slave from starting tasks."""
        self.recalls += 1

    def feed(self, now: float) -> None:
        """Record when an idle slave gets tasks."""
        self.fed_at = now

    def end_at(self, moment: float) -> None:
        """Record when the tasks of the slave must have ended."""
        self.tasks_end_at = moment

    def fault(self, most: int) -> bytes:
        """Nothing was written by a fault handler."""
        return b""

    def close(self) -> None:
        """The agent has collected the slave."""
        self.closed = True

    # ---- the slave's end -----------------------------------------------------------------------------------

    def reply(self, message: messages.Message, payload: Sequence[Buffer] = ()) -> None:
        """The slave sends a message, unless its end is closed."""
        if not self._ended:
            self._to_agent.append(wire.encode(message, payload))
            self._link.readable(self._fd, True)

    def end(self) -> None:
        """The slave closes its end."""
        self._ended = True
        self._link.readable(self._fd, True)

    def write_nonsense(self) -> None:
        """Some code in the slave writes into the stream, after everything that the slave has sent."""
        if not self._to_agent:
            self._nonsense = self.spoilt = True
            self._link.readable(self._fd, True)


# The results of portions that wait in a simulated slave, outside of its journal; see `_roles/runner.py`.


class SimulatedStretch(Struct, eq=False):
    """The results of one stretch.

    Args:
        number: the number of the slave.
        send: sends a message.
    """

    _world: World
    _number: int
    _send: Callable[[messages.Message, Sequence[Buffer]], None]
    positions: dict[int, None] = field(default_factory=dict)
    """The positions of the tasks of portions."""
    silent_from: float = 0.0
    """Since when the agent has heard nothing, as far as the slave knows."""
    _results: list[tuple[int, int, float, bool, bytes]] = field(default_factory=list)
    """Task, attempt and seconds of each result, whether it is a failure, and what it is."""

    def add(self, task: int, attempt: int, seconds: float, entry: bytes, *, failed: bool) -> None:
        """A task of a portion has returned a value, or has raised an exception."""
        self._results.append((task, attempt, seconds, failed, entry))

    def is_due(self) -> bool:
        """Whether the results are sent now. A failure does not wait."""
        *_, (_, _, seconds, failed, _) = self._results
        every_s = STRETCH_S if seconds <= SHORT_S else STRETCH_S / 2
        return failed or self._world.now // every_s > self.silent_from // every_s

    def waits(self, task: int, attempt: int) -> bool:
        """Whether the result of a task waits here."""
        return any(result[:2] == (task, attempt) for result in self._results)

    def send(self) -> bool:
        """Send the results. Often only the sum of their times is known. Return whether there were any."""
        if not self._results:
            return False
        tasks, attempts, times, failures, entries = zip(*self._results, strict=True)
        seconds = [*times] if self._world.random.random() < 0.5 else [sum(times)]
        failed = [place for place, is_failure in enumerate(failures) if is_failure]
        spans = groups.spans_of(tasks, attempts)
        are_plain = not failed and len(tasks) % 5 > 0  # sometimes one of the values is a pickle
        group = messages.Results(self._number, *spans, seconds, failed, plain=are_plain)
        self._send(group, [groups.payload(len(tasks), entries)])
        self._results.clear()
        self.silent_from = self._world.now
        return True


# What tasks leave behind in a simulated slave: it has run some, and each of them leaks memory.


PATIENCE_S = 0.1
"""Seconds in which an agent that is not frozen replaces a slave that has too much memory."""


class Wear(Struct, eq=False):
    """The wear of one slave. It checks from outside that the agent keeps the limits."""

    _world: World
    _number: int
    _max_tasks: int | None
    _max_memory: int | None
    busy_until: float = 0.0
    """When the slave ran a task last that was not cancelled."""
    _tasks: int = 0
    _memory: float = 0.0
    """The memory that the tasks have leaked: one unit a task on average."""
    _grown_at: float | None = None
    """When the slave reported that it has too much memory."""

    def start(self, frozen_until: float) -> None:
        """Check, when the slave starts a task, that it may. Its agent was frozen until some earlier moment."""
        self._tasks += 1
        assert self._max_tasks is None or self._tasks <= self._max_tasks, f"slave {self._number} runs too many tasks"
        if self._grown_at is not None:
            in_time = self._world.now < max(self._grown_at, frozen_until) + PATIENCE_S
            assert in_time, f"slave {self._number} runs a task although it has too much memory"

    def finish(self, *, wanted: bool) -> bool:
        """The slave has finished a task. Return whether it reports now that it has too much memory.

        Args:
            wanted: whether the task is not cancelled.
        """
        if wanted:
            self.busy_until = self._world.now
        self._memory += self._world.random.expovariate(1.0)
        if self._max_memory is None or self._memory <= self._max_memory or self._grown_at is not None:
            return False
        self._grown_at = self._world.now
        return True


LONG_S = 30.0
"""A few tasks take this many seconds longer than the others."""

STUCK_S = 1.0
"""More tasks of portions take up to this many seconds longer, so that results of others wait behind them."""

SLOW_S = 10.0
"""In a few slaves, each task takes up to this many seconds longer."""

PROMISED_S = 0.05
"""Seconds that a result may wait in its slave."""

GIVEN_BACK_S = 0.06
"""The same for a task of a portion, which its agent gives back then: timers are late by some milliseconds."""

WAKE_S = 0.0005
"""How long it may take until an idle slave reads a message, in seconds."""

GROWN_S = 2.0
"""How many seconds longer a task runs if it needs much memory."""

SMALL_BYTES = 300
"""What other tasks use."""

SIGABRT, SIGKILL, SIGSEGV = -6, -9, -11

CODEC = Codec()
FAILURE = CODEC.dumps_failure(OSError("simulated"))


class SimulatedSlave:
    """A simulated slave process: it holds tasks, runs one at a time, and gathers results.

    Args:
        number: its number in its agent.
        work: what it has to do.
        link: its agent's link.
        outlets: its agent's standard streams.
        ended: called when the process ends; the agent gets a signal.
        edits: how often the script was edited before it was loaded.
    """

    peak_bytes = 0
    out_of_memory = False
    limit_kills = 0

    def __init__(
        self,
        number: int,
        work: Workload,
        link: SimulatedAgentLink,
        outlets: dict[int, SimulatedOutlet],
        ended: Callable[[SimulatedSlave], None],
        edits: int,
    ) -> None:
        self.number = self.pid = number
        self.work = work
        self._world = work.world
        self._edits = edits
        self._ended = ended
        self.channel = SimulatedChannel(10 * number, link, self._wake, SimulatedJournal(self._sends_now))
        self.outputs = {fd: SimulatedPipe(10 * number + fd, link, outlets[fd]) for fd in (1, 2)}
        self.began_at = self._world.now
        self.ended_at = 0.0
        self.has_process = False
        """Whether it has a process of its own: a template may still have to fork it."""
        self.is_up = False
        self.code: int | None = None
        """Its exit code, or the negative number of the signal that ended it."""
        self._shares = SharesOfSlave(work.store)
        self._states = _states_of(self)
        self.wear = Wear(self._world, number, work.max_tasks, work.max_memory)
        self.printed = ""
        """What it wrote to standard error when it started."""
        self.sid: SlaveId | None = None
        self.algorithms: dict[int, tuple[LoadFailure | None, str, bytes]] = {}
        """The algorithms that it knows, by number: why it cannot run them, if so; their references and pickles."""
        self._tasks: deque[tuple[int, int, int, int]] = deque()
        """Position, task, attempt and algorithm of each task that it has not started."""
        self._stretch = SimulatedStretch(self._world, number, self.channel.reply)
        """The results of its tasks of portions."""
        self._timed: dict[int, None] = {}
        """The positions of tasks with a limit of time."""
        self._passed_on = 0
        self._recalls_heard = self._written = self.running = self._position = 0
        self._attempt = 0
        self._seconds = 0.0
        self._began = self._finishes_at = 0.0
        self._grown_at = inf
        """When the running task begins to use much memory."""
        self._send_by = 0.0
        """Results that are in the journal at this time are sent after the task that runs."""
        self._stopping = False
        self._slow_s = self._world.random.choice([0.0] * 5 + [SLOW_S])
        self._hangs = False
        self._woken = False

    # ---- the process as its agent sees it ------------------------------------------------------------------

    def poll(self) -> int | None:
        """Its exit code, if it has ended."""
        return self.code

    def describe_exit(self) -> str:
        """Its end in words."""
        assert self.code is not None, "it has not ended"
        return describe_exit(self.code)

    def kill(self) -> None:
        """Its agent ends it."""
        if self.running and self.code is None and self.work.successor is None:
            is_faulty, moments = self._hangs or self.channel.spoilt, (self._began, self._grown_at, self._world.now)
            ends_at, faults = self.channel.tasks_end_at, (is_faulty, self.work.is_short())
            self.work.checker.killed(self.running, self.work.peer, self.number, faults, moments, ends_at)
        self.end(SIGKILL)

    def abort(self) -> None:
        """Its agent ends it because it hangs in its start. Sometimes only SIGKILL can end it."""
        assert not self.is_up, f"slave {self.number} was ready, and is ended because of its start"
        if self._world.random.random() < 0.5:
            self.end(SIGABRT)

    def used_memory(self, exact_above: int) -> int:
        """How much memory it uses."""
        if not self.running:
            return 0
        return LARGE_BYTES if self._world.now >= self._grown_at else SMALL_BYTES

    def limit_memory(self, most: int | None) -> None:
        """Do nothing: there are no control groups."""

    def close(self) -> None:
        """Do nothing: there is nothing to close."""

    # ---- faults --------------------------------------------------------------------------------------------

    def end(self, code: int) -> None:
        """The process ends."""
        if self.code is None:
            self.code, self.ended_at = code, self._world.now
            self._states.stop()
            if self.channel.spoilt:
                self.work.checker.states.forget(self.work.peer, self.number)
            else:
                self.work.checker.ends.slave_ended(self.work.peer, self.number, (self.running, self._written))
            self.channel.end()
            for pipe in self.outputs.values():
                pipe.close()
            self._ended(self)

    def hang(self, *, closes: bool = True) -> None:
        """Some code never ends. Usually it closes all file descriptors: the stream ends, but the process does not."""
        self._hangs = True
        self._states.stop()
        if closes:
            self.channel.end()

    def hurry(self, until: float) -> None:
        """Finish the running task now if it would end before `until`, because the agent sleeps until then."""
        if self.running and self._finishes_at <= until:
            self._finish(self.running, self._attempt)

    # ---- what it does --------------------------------------------------------------------------------------

    def start(self) -> None:
        """The script is loaded."""
        if self.code is not None or self._hangs:
            return
        random = self._world.random
        if self._world.chance(0.1):
            fail_to_load(self, random)
            return
        if random.random() < 0.1:
            self.printed = f"slave {self.number} is slow today\n"
            self.outputs[2].write(self.printed)
        self.is_up = True
        self.channel.reply(messages.SlaveReady(self.number))
        self._step()

    def _wake(self) -> None:
        """A message has arrived: read it soon, unless a task runs."""
        if self.is_up and not (self._woken or self.running):
            self._woken = True
            self._world.after(self._world.random.random() * WAKE_S, self._step)

    def _step(self) -> None:
        """Read messages, then start the next task, or send results and end if there is none."""
        self._woken = False
        if self.code is not None or self.running or self._hangs:
            return
        while self.channel.to_slave:
            self._hear(*wire.decode(self.channel.to_slave.popleft()))
        self._send_by = max(self._send_by, self.channel.fed_at + GATHER_S)
        self._stretch.silent_from = max(self._stretch.silent_from, self.channel.fed_at)
        while self._tasks:
            position, task, attempt, algorithm = self._tasks[0]
            if not self._shares.are_here(position):
                break
            self.channel.began = self._world.now if position in self._timed else 0.0
            self.channel.started, self._written = position, task
            recalled = self.channel.recalls != self._recalls_heard
            if recalled or position not in self._stretch.positions:
                self._stretch.send()
            else:
                _send_journal(self)
            if recalled:
                return  # the message that names the recalled tasks wakes the slave
            self._tasks.popleft()
            failure = self.algorithms[algorithm][0]
            if failure is None:
                self._position = position
                self._shares.start(position, self.work.checker.shares.get(task, ()))
                self._run(task, attempt, algorithm)
                return
            self.channel.reply(
                messages.AlgorithmFailed(self.number, algorithm, "cannot", [task], [1], [attempt], failure)
            )
        self._send()
        if self._stopping:
            if not self.channel.spoilt:
                self.work.checker.blameless(self.work.peer, self.number)
            self.end(0)

    def _hear(self, message: messages.Message, payload: Sequence[Buffer]) -> None:
        match message:
            case messages.Algorithms(definitions, forgotten):
                for number in forgotten:
                    del self.algorithms[number]
                pickles = iter(payload)
                for each in definitions:
                    packed = b"" if each.reference else bytes(next(pickles))
                    self.define(each.number, (self.work.load(), each.reference, packed))
            case messages.SlaveNamed(_, sid):
                self.sid, self._states = sid, _states_of(self)
            case messages.NextGeneration():
                _begin_again(self)
            case messages.Tasks():
                self._states.hear(message, payload)
                algorithms = chain.from_iterable(map(repeat, message.algorithms, message.counts))
                limits = chain.from_iterable(map(repeat, message.limits or repeat(None), message.counts))
                portions = chain.from_iterable(map(repeat, message.portions or repeat(0), message.counts))
                columns = zip(groups.each_task(message), algorithms, limits, portions, strict=True)
                for (task, attempt), algorithm, limit, portion in columns:
                    self._passed_on += 1
                    self._shares.passed_on(self._passed_on, message)
                    if portion:
                        self._stretch.positions[self._passed_on] = None
                    self._tasks.append((self._passed_on, task, attempt, algorithm))
                    if limit is not None and limit.seconds is not None:
                        self._timed[self._passed_on] = None
            case messages.Revoked():
                self._recalls_heard += 1
                taken = set(groups.each_task(message))
                self._tasks = deque(one for one in self._tasks if one[1:3] not in taken)
            case messages.Shutdown():
                self._stopping = True
            case _:
                self._shares.hear(message)

    def define(self, number: int, algorithm: tuple[LoadFailure | None, str, bytes]) -> None:
        """Keep an algorithm."""
        self.algorithms[number] = algorithm

    def _run(self, task: int, attempt: int, algorithm: int) -> None:
        random = self._world.random
        checker = self.work.checker
        checker.code.has(task, self.sid, self._edits, self.algorithms[algorithm][1:])
        checker.started(task, self.sid, self.work.peer, self.work.running())
        self.wear.start(self.work.frozen_until())
        self.running, self._attempt = task, attempt
        in_portion = self._position in self._stretch.positions
        mean_s = self.work.durations[algorithm % 2]
        self._seconds, grown_after_s = _drawn(random, mean_s, STUCK_S if in_portion else 0.0, self._slow_s)
        self._seconds = self._world.seconds.get(task, self._seconds)
        self._grown_at = self._world.now + grown_after_s
        self._began, self._finishes_at = self._world.now, self._world.now + self._seconds
        self._world.at(self._finishes_at, lambda: self._finish(task, attempt))
        self._states.begin(task, attempt, algorithm, self._seconds)

    def _finish(self, task: int, attempt: int) -> None:
        if self.code is not None or self._hangs or (self.running, self._attempt) != (task, attempt):
            return
        self._states.stop()
        if task in self.work.checker.killers or self.work.bad == "slave":
            self.end(SIGSEGV)
            return
        if self.work.bad == "error":
            self.work.checker.retries.spoilt[task, attempt] = None
        frozen = self.work.frozen_until(), self.work.frozen_since(self._began)
        self.work.checker.runs_on(task, self.work.peer, frozen, (self._began, self._grown_at, self._world.now))
        if task in self.work.checker.agent_killers:
            self._world.note(f"task {task} kills its agent")
            self.work.kill_agent()
            return
        self.running, self.channel.began = 0, 0.0
        journal, killed_tasks = self.channel.journal, self.work.checker.killed_tasks
        kind = self.work.checker.retries.end_of(task, attempt)
        entry = CODEC.dumps_value(self.work.checker.lives.number(task))[0] if kind == VALUE else FAILURE
        result = task, attempt, self._seconds, kind, entry
        in_stretch = self._position in self._stretch.positions
        if in_stretch:
            self._stretch.add(task, attempt, self._seconds, entry, failed=kind != VALUE)
            self.work.checker.ends.waits(self.work.peer, self.number, task, attempt)
        else:
            journal.results.append(result)

        def check_promptness() -> None:
            """Check that the result does not wait long for the next task: the agent must read it in the journal."""
            if task not in killed_tasks and self.code is None and not self._hangs and self.work.attentive():
                unread = journal.results[journal.num_read :]
                assert result not in unread, f"the result of task {task} waits in slave {self.number}"

        if in_stretch:
            is_due = self._stretch.is_due()
        else:
            is_due = self._world.now + self._seconds > self._send_by or self._world.random.random() < 0.3
        if is_due:
            self._send()
        elif in_stretch:
            self._world.after(GIVEN_BACK_S, partial(_check_given_back, self, task, attempt))
        else:
            self._world.after(PROMISED_S, check_promptness)
        if self.wear.finish(wanted=task not in killed_tasks):
            self._send()
            self.channel.reply(messages.SlaveGrown(self.number, 1 << 30))
        self._step()

    def _sends_now(self) -> bool:
        """Whether it sends its results at the moment when the agent reads them."""
        if self.code is not None or not self.channel.journal.results or not self._world.chance(0.1):
            return False
        self._send()
        return True

    def _send(self) -> None:
        """Send all results."""
        if self._stretch.send():
            self._send_by = self._world.now + GATHER_S
        _send_journal(self)


def _check_given_back(slave: SimulatedSlave, task: int, attempt: int) -> None:
    """Check that a task of a portion was given back whose result still waits here, behind a long task."""
    checker, ends = slave.work.checker, slave.code is not None or slave._hangs or slave.channel.spoilt
    if ends or not slave._stretch.waits(task, attempt) or task in checker.killed_tasks:
        return
    if slave.work.successor is None and slave.work.in_contact():
        is_given_back = checker.ends.is_given_back(slave.work.peer, slave.number, task, attempt)
        assert is_given_back, f"the result of task {task} waits in slave {slave.number} behind a long task"


def _send_journal(slave: SimulatedSlave) -> None:
    """Send the results in the journal."""
    journal = slave.channel.journal
    if journal.results:
        slave.channel.reply(*journal.group(slave.number))
        journal.clear()
        slave._send_by = slave._world.now + GATHER_S


def _drawn(random: Random, mean_s: float, stuck_s: float, slow_s: float) -> tuple[float, float]:
    """How long a task takes, and after which time it uses much memory."""
    seconds, grown_after_s = random.expovariate(1.0) * mean_s, inf
    if random.random() < 0.01:
        seconds += LONG_S
    if random.random() < 0.1:
        seconds += random.random() * stuck_s
    seconds += random.random() * slow_s
    if random.random() < 0.05:
        grown_after_s = random.random() * seconds
        seconds += GROWN_S
    return seconds, grown_after_s


def _states_of(slave: SimulatedSlave) -> StatesOfSlave:
    """The states that the tasks of a slave leave."""
    work = slave.work
    checkers = work.checker.states, work.checker.references
    return StatesOfSlave(
        work.world,
        *checkers,
        work.peer,
        slave.number,
        partial(_send_journal, slave),
        slave.channel.reply,
    )


def _begin_again(slave: SimulatedSlave) -> None:
    """The next life of the master begins for a slave, which has no task. Sometimes its script was edited."""
    assert not slave._tasks, f"slave {slave.number} forgets tasks"
    slave._send()
    slave.work, slave.sid = slave.work.newest, None
    slave.algorithms.clear()
    slave._shares, slave._edits = SharesOfSlave(slave.work.store), slave.work.checker.code.edits
    edited = "app.py" if slave.work.world.chance(0.2) else ""
    slave.channel.reply(messages.NextGeneration(slave.number, edited))


def fail_to_load(slave: SimulatedSlave, random: Random) -> None:
    """The script cannot be loaded."""
    slave.printed = f"no module named m{random.randint(1, 2)}\n"
    slave.outputs[2].write(slave.printed)
    slave.end(1)
