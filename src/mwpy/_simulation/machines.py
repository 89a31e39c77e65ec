"""Simulated machines: the real loop of an agent over simulated processes, templates, signals and links.

A simulated slave follows the protocol of the real one (see `_transport/channel` and `_roles/runner.py`). Before it
starts a task, it writes down the task's position. It starts nothing between a recall and the message that names the
recalled tasks. It gathers results in its journal, at most as long as a real slave may, and then sends them. It crashes,
hangs, and writes nonsense into its stream.
"""

from __future__ import annotations

import math
import signal
from collections import deque
from collections.abc import Callable, Container, Mapping, Sequence
from functools import partial
from math import inf
from random import Random
from typing import Any

from attrs import Factory, define, evolve
from msgspec import Struct
from msgspec.structs import replace

from mwpy._core.agent.child import AddressesFound, AgentSettings, ComputationOver
from mwpy._core.agent.core import AgentCore
from mwpy._core.agent.limits import EXIT_S, KILLED_TOO_S, NEARLY
from mwpy._core.agent.starts import ABORT_S
from mwpy._core.holding import take_named
from mwpy._roles.agent import Agent
from mwpy._roles.edges import AgentEdges, SlaveHandle
from mwpy._roles.runner import BLOCK_S, GATHER_S, SHORT_S, STRETCH_S, Unsent, WaitingTasks, arrived
from mwpy._simulation.checkers import LARGE_BYTES, HistoryChecker, Run, read_state
from mwpy._simulation.network import (
    ADDRESS,
    Connection,
    Network,
    SimulatedOutlet,
    SimulatedPipe,
)
from mwpy._simulation.slaves import (
    SharesOfSlave,
    SimulatedChannel,
    SimulatedJournal,
    SimulatedStore,
    group_of_file,
)
from mwpy._simulation.world import Alarm, World
from mwpy._transport import wire
from mwpy._transport.channel import VALUE, Answer
from mwpy._transport.codec import Codec, loads_call
from mwpy._values import groups, messages, records
from mwpy._values.bounds import Buffer, SlaveId
from mwpy._values.errors import REPLACED, ExitCode, describe_exit
from mwpy._values.messagepack import REFERRING, Pickled
from mwpy._values.messages import PART_BYTES, LoadFailure
from mwpy._values.requires import Given, Offers, Requires, lacking

LONG_S = 30.0
"""A few tasks take this many seconds longer than the others."""

STUCK_S = 1.0
"""More tasks of portions take up to this many seconds longer, so that results of others wait behind them."""

SLOW_S = 10.0
"""In a few slaves, each task takes up to this many seconds longer."""

SET_UP_S = 5.0
"""How long a set-up takes at most, in seconds."""

SET_UP = "SET_UP"
"""The environment variable that a set-up returns."""

PROMISED_S = 0.06
"""Seconds that a result may wait in its slave, until its agent reads it or gives its task back."""

LIMIT = 1 << 20
"""The largest result, in bytes."""

WAKE_S = 0.0005
"""How long it may take until an idle slave reads a message, in seconds."""

GROWN_S = 2.0
"""How many seconds longer a task runs if it needs much memory."""

SMALL_BYTES = 300
"""What other tasks use."""

SIGABRT, SIGKILL, SIGSEGV = -6, -9, -11

CODEC = Codec()
FAILURE = CODEC.dumps_failure(OSError("simulated"))


RUN_OFFERS = {"licence": 2}
"""What the whole run has."""


class SimulatedProcess:
    """A simulated process, as the process that has started it sees it."""

    pid = 1
    peak_bytes = 0
    out_of_memory = False
    limit_kills = 0
    code: int | None = None
    """Its exit code, or the negative number of the signal that ended it."""

    def poll(self) -> int | None:
        """Its exit code, if it has ended."""
        return self.code

    def describe_exit(self) -> str:
        """Its end in words."""
        assert self.code is not None, "it has not ended"
        return describe_exit(self.code)

    def kill(self) -> None:
        """End it."""
        self.end(SIGKILL)

    def end(self, code: int) -> None:
        """It ends."""
        raise NotImplementedError

    def used_memory(self, exact_above: int) -> int:
        """How much memory it uses."""
        raise AssertionError("it runs no tasks")

    def limit_memory(self, most: int | None) -> None:
        """Do nothing: there are no control groups."""

    def close(self) -> None:
        """Do nothing: there is nothing to close."""


class SimulatedSlave(SimulatedProcess):
    """A simulated slave process: it holds tasks, runs one at a time, and gathers results as the real runner does.

    Args:
        number: its number in its agent.
        agent: the process of its agent.
        edits: how often the script was edited before it was loaded.
    """

    def __init__(self, number: int, agent: AgentProcess, edits: int) -> None:
        self.number = self.pid = number
        self._agent = agent
        self.life = agent.life
        """The life of the master that it serves. Its agent may serve the next one already."""
        self._world = agent.world
        self._edits = edits
        self._journal = SimulatedJournal(self._send_meanwhile)
        self.channel = SimulatedChannel(10 * number, agent.readable, self._wake, self._journal)
        self.outputs = {fd: SimulatedPipe(10 * number + fd, agent.readable, agent.outlets[fd]) for fd in (1, 2)}
        self.began_at = self._world.now
        self.ended_at = 0.0
        self.has_process = False
        """Whether it has a process of its own: a template may still have to fork it."""
        self.is_up = False
        self._shares = SharesOfSlave(agent.store)
        self._reported = 0
        """How many reports its tasks have made."""
        self._tasks_run = 0
        self.busy_until = 0.0
        """When it ran a task last that was not cancelled."""
        self._leaked = 0.0
        """The memory that its tasks have leaked: one unit a task on average."""
        self.printed = ""
        """What it wrote to standard error when it started."""
        self.sets_up: messages.SetUp | None = None
        """The set-up that it runs instead of tasks."""
        self._after = agent.was_set_up
        """The name of the last set-up that has run before it."""
        self.sid: SlaveId | None = None
        self.algorithms: dict[int, tuple[LoadFailure | None, str, bytes]] = {}
        """The algorithms that it knows, by number: why it cannot run them, if so; their references and pickles."""
        self._tasks: deque[WaitingTasks] = deque()
        """The tasks that it has not started."""
        self.given: Given | None = None
        """What the running task is given."""
        self._gpus: list[int] = []
        """The GPUs that it has used."""
        end: Any = self.channel
        self._unsent = Unsent(number, LIMIT, 0, CODEC, end, self._journal.written, self._send_results)
        self._block: list[Run] = []
        """Tasks of a portion that have ended, and whose results wait for those of the next tasks of their block."""
        self._next = self._ran_last = 0, 0
        """The task and attempt that could continue the block; the algorithm and the kind of the last task."""
        self._arrived = self._recalls_heard = self._written = 0
        self.run: Run | None = None
        """The task that runs."""
        self._stopping = False
        self._slow_s = self._world.random.choice([0.0] * 5 + [SLOW_S])
        self._hangs = False
        self._woken = False

    @property
    def running(self) -> int:
        """The id of the task that runs; 0 if none does."""
        return 0 if self.run is None else self.run.task

    # ---- the process as its agent sees it ------------------------------------------------------------------

    def parts(self, process: Any) -> SlaveHandle:
        """What its agent has of it, if this process is it or starts it."""
        edges: Any = (self.number, process, self.channel, self.outputs)
        return SlaveHandle(*edges)

    def kill(self) -> None:
        """Its agent ends it."""
        if self.run is not None and self.code is None and self.life is self._agent.life:
            faults = self._hangs or self.channel.spoilt, self._agent.is_short()
            self.life.checker.killed(self.run, *faults, self._world.now, self.channel.tasks_end_at)
        self.end(SIGKILL)

    def abort(self) -> None:
        """Its agent ends it because it hangs in its start. Sometimes only SIGKILL can end it."""
        assert not self.is_up, f"slave {self.number} was ready, and is ended because of its start"
        if self._world.random.random() < 0.5:
            self.end(SIGABRT)

    def used_memory(self, exact_above: int) -> int:
        """How much memory it uses."""
        if self.run is None:
            return 0
        return LARGE_BYTES if self._world.now >= self.run.grown_at else SMALL_BYTES

    # ---- faults --------------------------------------------------------------------------------------------

    def end(self, code: int) -> None:
        """The process ends."""
        if self.code is None:
            self.code, self.ended_at = code, self._world.now
            if self.channel.spoilt:
                self.life.checker.states.left.pop((self.life.peer, self.number), None)
            else:
                self.life.checker.ends.ran[self.life.peer, self.number] = self.running, self._written
            self.channel.end()
            for pipe in self.outputs.values():
                pipe.close()
            self._agent.slave_ended(self)

    def hang(self, *, closes: bool = True) -> None:
        """Some code never ends. Usually it closes all file descriptors: the stream ends, but the process does not."""
        self._hangs = True
        if closes:
            self.channel.end()

    def hurry(self, until: float) -> None:
        """Finish the running task now if it would end before `until`, because the agent sleeps until then."""
        if self.run is not None and self.run.ends_at <= until:
            self._finish(self.run)

    # ---- what it does --------------------------------------------------------------------------------------

    def load(self) -> None:
        """The script is loaded."""
        if self.code is not None or self._hangs:
            return
        random = self._world.random
        if self._world.chance(0.1):
            self.fail_to_load()
            return
        if random.random() < 0.1:
            self.printed = f"slave {self.number} is slow today\n"
            self.outputs[2].write(self.printed)
        if self.sets_up is not None:
            self._world.after(random.random() * SET_UP_S, self._end_set_up)
            return
        self.is_up = True
        self.channel.reply(messages.SlaveReady(self.number))
        self._step()

    def fail_to_load(self) -> None:
        """The script cannot be loaded."""
        self.printed = f"no module named m{self._world.random.randint(1, 2)}\n"
        self.outputs[2].write(self.printed)
        self.end(1)

    def _end_set_up(self) -> None:
        """Its set-up ends. Sometimes the network fails."""
        if self.code is None and not self._hangs and self.sets_up is not None:
            failure = "no network" if self._world.chance(0.2) else ""
            environment = {} if failure else {SET_UP: self.sets_up.definition.name}
            self.channel.reply(messages.SetUpEnded(self.number, 1.0, failure, bool(failure), environment))
            self.end(0)

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
        self._unsent.silent_from = max(self._unsent.silent_from, self.channel.fed_at)
        while self._tasks and self._shares.are_here(self._tasks[0].shares):
            span = self._tasks[0]
            self.channel.began = 0.0 if span.seconds_max is None else self._world.now
            self.channel.started, self._written = span.position, span.first
            if self.channel.recalls != self._recalls_heard:
                self._send()
                return  # the message that names the recalled tasks wakes the slave
            if not span.kind or (span.first, span.attempt) != self._next:
                self._end_block()
            if (span.number, span.kind) != self._ran_last and not self._unsent.are_timed:
                self._send()
            self._tasks.popleft()
            failure = self.algorithms[span.number][0]
            if failure is None:
                if span.count > 1:
                    span, rest = span.cut(1)
                    self._tasks.appendleft(rest)
                self._run(span)
                return
            spans = [span.first], [span.count], [span.attempt]
            self.channel.reply(messages.AlgorithmFailed(self.number, span.number, "cannot", *spans, failure))
        self._send()
        if self._stopping:
            if not self.channel.spoilt:
                self.life.checker.blameless(self.life.peer, self.number)
            self.end(0)

    def _hear(self, message: messages.Message, payload: Sequence[Buffer]) -> None:
        match message:
            case messages.Algorithms(definitions, forgotten):
                for number in forgotten:
                    del self.algorithms[number]
                pickles = iter(payload)
                for each in definitions:
                    packed = b"" if each.reference else bytes(next(pickles))
                    self.define(each.number, (self._agent.cannot_load(), each.reference, packed))
            case messages.SlaveNamed(_, sid):
                self.sid = sid
            case messages.NextGeneration():
                self._begin_again()
            case messages.Tasks():
                for span in arrived(message, payload, self._arrived):
                    self._tasks.append(span)
                    self._arrived += span.count
            case messages.Revoked():
                self._recalls_heard += 1
                take_named(self._tasks, message)
            case messages.Shutdown():
                self._stopping = True
            case _:
                self._shares.hear(message)

    def _begin_again(self) -> None:
        """The next life of the master begins. The slave has no task. Sometimes its script was edited."""
        assert not self._tasks, f"slave {self.number} forgets tasks"
        self._send()
        self.life, self.sid = self._agent.life, None
        self.algorithms.clear()
        self._shares, self._edits = SharesOfSlave(self._agent.store), self.life.checker.edits
        edited = "app.py" if self._world.chance(0.2) else ""
        self.channel.reply(messages.NextGeneration(self.number, edited))

    def define(self, number: int, algorithm: tuple[LoadFailure | None, str, bytes]) -> None:
        """Keep an algorithm."""
        self.algorithms[number] = algorithm

    def _run(self, span: WaitingTasks) -> None:
        """Run the only task of a span."""
        checker, task, now = self.life.checker, span.first, self._world.now
        contents = self._shares.start(span.shares, checker.tasks[task].shares)
        checker.has(task, self.sid, self._edits, self.algorithms[span.number][1:])
        checker.started(task, self.sid, self.life.peer, self._agent.running())
        assert checker.set_up in ("", self._after), f"{self.sid} runs after the set-up {self._after}"
        self._check_given(checker.tasks[task].policy.requires, span.given)
        self._next, self._ran_last = (task + 1, span.attempt), (span.number, span.kind)
        mean_s = self.life.durations[span.number % 2]
        seconds, grown_after_s = _drawn(self._world.random, mean_s, STUCK_S if span.kind else 0.0, self._slow_s)
        seconds = self._world.seconds.get(task, seconds)
        times = now, seconds, now + grown_after_s
        self.run = run = Run(task, span.attempt, self.life.peer, self.number, bool(span.kind), *times)
        self._world.at(run.ends_at, partial(self._finish, run))
        self._use_values(run, span)
        contents.clear()

    def _check_given(self, requires: Requires | None, is_given: Given | None) -> None:
        """Check that a task may start here: its agent offers what it requires, and no other task has it."""
        own, self.given = self._agent.host.offers, is_given
        tool = "tool" if self._agent.host.has_tool else ""
        offers = replace(own, amounts=own.amounts | RUN_OFFERS, texts=own.texts | {"tool": tool})
        assert (is_given is None) == (requires is None), f"slave {self.number} is given {is_given} for {requires}"
        if is_given is None or requires is None:
            return
        assert not lacking(requires, offers), f"{requires} does not fit: {lacking(requires, offers)}"
        assert is_given.amounts == dict(requires.amounts), f"{is_given} is given, and {requires} required"
        running = [slave.given for slave in self._agent.running_slaves() if slave is not self]
        others = [given for given in running if given is not None]
        for name, number in is_given.amounts.items():
            taken = sum(given.amounts.get(name, 0) for given in others)
            assert number + taken <= offers.amounts[name], f"{name} {number} is given, and {taken} are taken"
        for given in others:
            shared = {*is_given.gpus} & {*given.gpus} | {*is_given.cpus} & {*given.cpus}
            assert not shared, f"slave {self.number} is given what another one has: {shared}"
        assert self._gpus in ([], is_given.gpus) or not is_given.gpus, f"slave {self.number} changes its GPU"
        self._gpus = is_given.gpus or self._gpus

    def _use_values(self, run: Run, span: WaitingTasks) -> None:
        """Begin with what came with the task, and report. Tasks of some algorithms leave states."""
        checker, random = self.life.checker, self._world.random
        call, buffers = span.calls[0], span.buffers[0] if span.buffers else ()
        if type(call) is Pickled and call.kind == REFERRING:
            (numbers, *values), _ = loads_call(call, buffers)
            checker.references.saw(run.task, dict(zip(numbers, values, strict=True)))
        else:
            assert not buffers, f"task {run.task} got buffers of another task"
        state = read_state(span.left) if span.left else None
        checker.states.left.pop((self.life.peer, self.number), None)
        checker.states.began(run.task, run.attempt, state)
        for _ in range(random.choice((0, 0, 1, 3))):
            self._world.after(random.random() * run.seconds, partial(self._report, run))
        if span.number % 3 or random.random() < 0.3:
            return
        number = 0 if state is None else state[2]
        moments = sorted(random.choice((0.5, random.random())) * run.seconds for _ in range(random.randint(1, 4)))
        for moment in moments:
            number += random.randint(1, 3)
            self._world.after(moment, partial(self._leave, run, number))

    def _runs(self, run: Run) -> bool:
        return self.code is None and not self._hangs and self.run is run

    def _report(self, run: Run) -> None:
        if self._runs(run):
            self._reported += 1
            values: dict[str, object] = {"task": run.task, "attempt": run.attempt, "number": self._reported}
            message = messages.Reported(self.number, run.task, run.attempt, 0.5)
            self.channel.reply(message, [CODEC.dumps_report(values)])

    def _leave(self, run: Run, number: int) -> None:
        if self._runs(run):
            state = self.life.checker.states.left[run.peer, self.number] = run.task, run.attempt, number
            entry, buffers = CODEC.dumps_state(state)
            self.channel.reply(messages.Checkpoint(self.number, run.task, run.attempt), [entry, *buffers])

    def _finish(self, run: Run) -> None:
        if not self._runs(run):
            return
        agent, checker, task = self._agent, self.life.checker, run.task
        kills = checker.tasks[task].kills
        if kills == "slave" or agent.host.bad == "slave":
            self.end(SIGSEGV)
            return
        if agent.host.bad == "error":
            checker.retries.spoilt[task, run.attempt] = None
        checker.runs_on(run, agent.deaf_until, agent.frozen_since(run.began), self._world.now)
        if kills == "agent":
            self._world.note(f"task {task} kills its agent")
            agent.host.end(agent, None)
            return
        self.run, self.channel.began = None, 0.0
        self._keep(run, checker.retries.end_of(task, run.attempt))
        if task not in checker.killed_tasks:
            self.busy_until = self._world.now
        self._leaked += self._world.random.expovariate(1.0)
        self._tasks_run += 1
        if self._tasks_run >= agent.host.max_tasks or self._leaked > agent.host.max_memory:
            self._send()
            self.channel.reply(messages.SlaveWorn(self.number, f"{REPLACED} {self._tasks_run} tasks"))
            self.end(0)
            return
        self._step()

    # ---- its results ---------------------------------------------------------------------------------------

    def _keep(self, run: Run, kind: int) -> None:
        """Keep the result of a task, or send it. Some values are files."""
        number, unsent = self.life.checker.lives.number(run.task), self._unsent
        if kind == VALUE and run.in_portion:
            self._block.append(run)
            if self._world.now < self._block[0].began + BLOCK_S:
                self._check_soon(run)
            else:
                self._end_block()
            return
        self._end_block()
        unsent.begin(run.task, run.attempt)
        if kind != VALUE:
            unsent.fail(FAILURE, run.seconds, kind)
        elif self._world.random.random() < 0.3:
            self._send_kept()
            size = self._world.random.choice((PART_BYTES + 1, *[100] * 9))
            self._send_results(*group_of_file(run, number, size))
        else:
            unsent.keep(number, run.seconds)
        self._send_if_due(run)

    def _end_block(self) -> None:
        """Keep the results of the tasks of a block together."""
        block, self._block = self._block, []
        if block:
            self._unsent.begin(block[0].task, block[0].attempt)
            self._unsent.values.extend(self.life.checker.lives.number(run.task) for run in block)
            self._unsent.keep_block(sum(run.seconds for run in block))
            self._send_if_due(block[0])

    def _send_if_due(self, run: Run) -> None:
        """Send the results if it is time, after that of a task was kept."""
        gather_s = STRETCH_S if run.in_portion else GATHER_S
        if self._unsent.is_due(self._world.now, gather_s if run.seconds <= SHORT_S else gather_s / 2):
            self._send_kept()
        else:
            self._check_soon(run)

    def _send(self) -> None:
        """Send all results."""
        self._end_block()
        self._send_kept()

    def _send_kept(self) -> None:
        if self._unsent.count:
            self._unsent.send()
            self._unsent.silent_from = self._world.now  # not the real time

    def _send_results(self, group: messages.Message, frames: Sequence[Buffer]) -> None:
        assert isinstance(group, messages.Results)
        self.channel.reply(group, frames)
        self._journal.heard.update(dict.fromkeys(groups.each_task(group)))

    def _send_meanwhile(self) -> None:
        """Its agent begins to read its journal. Sometimes it sends the results at this moment."""
        if self.code is None and not (self._hangs or self._block) and self._world.chance(0.1):
            self._send_kept()

    def _check_soon(self, run: Run) -> None:
        """Check that a result does not wait long for the next task: its agent must read it in the journal. If it is in
        a block that goes on, its task must be given back."""
        agent, life, block = self._agent, self.life, self._block

        def check() -> None:
            has_ended = self.code is not None or self._hangs or self.channel.spoilt
            named, waits = (run.task, run.attempt), f"the result of task {run.task} waits in slave {self.number}"
            if has_ended or run.task in life.checker.killed_tasks or named in self._journal.heard:
                return
            if run not in block:
                assert not agent.is_attentive(), waits
            elif block is self._block and life is agent.life and agent.is_in_contact():
                is_given_back = (run.peer, self.number, *named) in life.checker.ends.late
                assert is_given_back, f"{waits} behind a long task"

        self._world.after(PROMISED_S, check)


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


# Simulated templates: they load the script, fork slaves, and have all the troubles of processes.


ORDERS_FD = 4

TEMPLATE_PID = 1_000_000

FORK_S = 0.02
"""The longest fork, and the longest start of a slave after it, in seconds."""


class SimulatedTemplate(SimulatedProcess):
    """A simulated template. While it starts a slave, it is also the process of this slave.

    Args:
        agent: the process of its agent.
        edits: how often the script was edited before it is loaded.
    """

    pid = TEMPLATE_PID

    def __init__(self, agent: AgentProcess, edits: int) -> None:
        self._world = agent.world
        self._agent = agent
        self._edits = edits
        self._after = agent.was_set_up
        self._left = False
        """Whether it gets no orders any more."""
        self.has_orders = False
        """Whether it was ever ordered to start a slave."""
        self._is_loaded = False
        self._starts: SimulatedSlave | None = None
        """The slave that it starts."""
        self._answers: list[tuple[Answer, SimulatedSlave | None]] = []

    @property
    def is_over(self) -> bool:
        """Whether it has ended, is a slave now, or gets no orders any more."""
        return self._left or self.code is not None

    @property
    def is_starting(self) -> bool:
        """Whether it starts a slave, or hangs at it."""
        return self._starts is not None and not self.is_over

    # ---- as its agent sees it ------------------------------------------------------------------------------

    def fileno(self) -> int:
        """The file descriptor to wait for."""
        return ORDERS_FD

    def fork(self, number: int) -> SlaveHandle:
        """Start a slave."""
        self.has_orders = True
        assert self._starts is None, "it starts another slave"
        assert not self.is_over, "it takes no orders"
        slave = self._starts = self._agent.make_slave(number, self._edits)
        assert self._agent.was_set_up == self._after, "the template was started before the set-up"
        if self._is_loaded:
            self._world.after(self._world.random.random() * FORK_S, self._fork)
        return slave.parts(self)

    def answers(self) -> Sequence[tuple[Answer, SimulatedSlave | None]]:
        """The answers that have arrived."""
        self._agent.readable(ORDERS_FD, False)
        answers, self._answers = self._answers, []
        return answers

    def abort(self) -> None:
        """Its agent ends it because it hangs. Sometimes only SIGKILL can end it."""
        if self._world.random.random() < 0.5:
            self.end(SIGABRT)

    def close(self) -> None:
        """Its agent gives no orders any more."""
        self._left = True
        self._agent.readable(ORDERS_FD, False)

    # ---- what it does --------------------------------------------------------------------------------------

    def end(self, code: int) -> None:
        """The process ends, and with it the slave that it starts."""
        if self.code is None and not self._left:
            self._world.note(f"the template ends: {describe_exit(code)}")
            self.code = code
            if self._starts is not None:
                self._starts.end(code)
            self._agent.catch(signal.SIGCHLD)

    def load(self, longest_s: float) -> None:
        """Begin to load the script. Sometimes this never ends."""
        if self._world.chance(0.05):
            self._hang()
        else:
            self._world.after(self._world.random.random() * longest_s, self._loaded)

    def _hang(self) -> None:
        if self._starts is not None:
            self._agent.check_start(self._starts)

    def _loaded(self) -> None:
        self._is_loaded = True
        if self.code is None and self._starts is not None and self._world.chance(0.1):
            self._starts.fail_to_load()
            self.end(1)
        else:
            self._fork()

    def _fork(self) -> None:
        slave = self._starts
        if self.code is not None or slave is None:
            return
        if self._world.chance(0.03):
            self._hang()
            return
        self._starts = None
        if self._agent.host.unsafe:
            answer = Answer(slave.number, self.pid, "the script has a random generator")
        elif self._world.chance(0.05):
            answer = Answer(slave.number, failure="no memory")
            slave.end(SIGKILL)
        else:
            answer = Answer(slave.number, slave.number)
        if slave.code is None:
            self._agent.begin(slave, FORK_S)
        self._answers.append((answer, None if answer.failure else slave))
        self._agent.readable(ORDERS_FD, True)
        if not self._agent.host.unsafe and self._world.chance(0.03):  # before its agent reads the answer
            self.end(SIGKILL)


class Life(Struct, eq=False):
    """One life of the master, as the slaves of an agent see it."""

    network: Network
    checker: HistoryChecker
    durations: Sequence[float]
    """How long the tasks of each algorithm take on average, in seconds."""
    peer: bytes = b""
    """The first connection of the agent to this life."""


SIGNALS_FD = 3

EXITS_S = 0.05
"""Seconds between an agent's decision to exit and its end. In this time its last messages are sent."""

LONGEST_FREEZE_S = 5.0

MOMENT_S = 1.0
"""Seconds in which an agent kills a slave after its job was short of memory."""

REPLACED_S = 20.0
"""Seconds after the end of its last slave in which an agent has as many slaves as it should have, or has ended."""

SOON = 1000
"""If an agent iterates this often in a row without a pause, it is in an endless loop."""


class Pace(Struct, frozen=True):
    """How fast things happen, in simulated seconds."""

    durations: tuple[float, ...] = (1e-5, 1e-3, 0.05, 1.0)
    """How long tasks take. Each algorithm has one of these averages."""
    submit_s: float = 1.0
    """The longest pause between two submissions."""
    start_s: float = 0.2
    """The longest start of a slave."""
    fault_s: float = 1.5
    """The longest pause between two faults."""
    faulty_s: float = 20.0
    """When faults end."""
    requires: bool = True
    """Whether tasks may require something."""


def due(now: float, timeout_s: float) -> float:
    """When a poller returns. It counts whole milliseconds, and rounds up."""
    return now + max(0.001, math.ceil(timeout_s * 1000) / 1000)


class AgentProcess:
    """An agent from its start to its end, and its operating system: the edges of the agent that concern its process.

    Args:
        host: the machine.
        newest: returns the newest life of the master. It may be over.
        start_s: how long the start of a slave may take.
    """

    def __init__(self, host: AgentHost, world: World, newest: Callable[[], Life], start_s: float) -> None:
        self.host = host
        self.world = world
        self._newest = newest
        self._start_s = start_s
        self.life = newest()
        """The life of the master that it serves."""
        generation = self.life.network.generation
        self._alarm = Alarm(world, self._iterate)
        self._ready: dict[int, None] = {}
        """The file descriptors that can be read, without the connection."""
        self.connection: Connection = self.life.network.connect(self.wake, self._ready)
        self.life.peer = peer = self.connection.peer
        if not host.able:
            self.life.checker.members.unable[host.name] = None
        self.store = SimulatedStore(world)
        self.slaves: dict[int, SimulatedSlave] = {}
        self.was_set_up = ""
        """The name of its last set-up."""
        self._template: SimulatedTemplate | None = None
        self.outlets = {fd: SimulatedOutlet(world) for fd in (1, 2)}
        self._signals: list[signal.Signals] = []
        """The signals that were caught and not taken."""
        hello = messages.Hello("simulated", generation, host.name, 1, "3.11", host.num_slaves, host.job)
        hello = replace(hello, offers=host.offers)
        if host.returns_s:
            hello = replace(hello, session=f"{generation} {peer.decode()}", returns_s=host.returns_s)
        lifetime_s = host.lifetime_s if world.faulty else None
        ends_at = None if lifetime_s is None else world.now + lifetime_s
        self.core = AgentCore(evolve(host.settings, hello=hello, ends_at=ends_at))
        edges: Any = (self.connection, self, self.outlets, self, self, self, self.store, self)
        self._agent = Agent(self.core, AgentEdges(*edges))
        self._why = ""
        """Why the agent ended."""
        self._over = False
        self._freezes: list[tuple[float, float]] = []
        """From when and until when it was frozen, each time."""
        self._short_at = -inf
        self._agent.begin()

    # ---- slaves --------------------------------------------------------------------------------------------

    def start(self, number: int, welcome: messages.Welcome, *, sets_up: bool = False) -> SlaveHandle:
        """Start a slave as a fresh interpreter; sometimes fail because memory is missing."""
        slave = self.make_slave(number, self.life.checker.edits)
        slave.sets_up = welcome.set_up if sets_up else None
        if not sets_up and self.world.chance(0.05):
            slave.hang(closes=False)
            self.check_start(slave)
        self.begin(slave, self._start_s)
        return slave.parts(slave)

    def start_template(self) -> SimulatedTemplate:
        """Start a template."""
        assert self._template is None or self._template.is_over, "there are two templates"
        self._template = SimulatedTemplate(self, self.life.checker.edits)
        return self._template

    def fork(self, template: SimulatedTemplate, number: int, welcome: messages.Welcome) -> SlaveHandle:
        """Let the template start a slave. It loads the script during the start of the first one."""
        is_new = not template.has_orders
        parts = template.fork(number)
        if is_new:
            template.load(self._start_s)
        return parts

    def programs(self, names: Sequence[str]) -> dict[str, str]:
        """Return where programs are."""
        return {name: name if self.host.has_tool else "" for name in names}

    def renew(self, environment: Mapping[str, str]) -> None:
        """A set-up has ended well."""
        assert environment[SET_UP] != self.was_set_up, "a set-up runs again"
        self.was_set_up = environment[SET_UP]

    def reap(self, known: Container[int]) -> None:
        """Do nothing: simulated processes leave nothing behind."""

    def make_slave(self, number: int, edits: int) -> SimulatedSlave:
        """Make a slave that has no process yet; sometimes fail because memory is missing."""
        if self.world.chance(0.02):
            raise OSError("no memory")
        slave = self.slaves[number] = SimulatedSlave(number, self, edits)
        return slave

    def begin(self, slave: SimulatedSlave, longest_s: float) -> None:
        """The process of a slave begins. Its script is loaded after at most this many seconds."""
        slave.has_process = True
        self.world.after(self.world.random.random() * longest_s, slave.load)

    def check_start(self, slave: SimulatedSlave) -> None:
        """Check that a slave is killed whose start hangs."""
        limit = self.host.settings.start_timeout_s + ABORT_S + LONGEST_FREEZE_S + 1.0
        self.world.after(limit, lambda: self._check_killed(slave))

    def slave_ended(self, slave: SimulatedSlave) -> None:
        """The agent gets a signal."""
        if not self._over:
            name, running = f"slave {slave.number} on {self.host.name}", slave.running
            self.world.note(f"{name} ends: {slave.describe_exit()}, running {running}")
            self.catch(signal.SIGCHLD)
            self.world.after(REPLACED_S, lambda: self._check_replaced(slave))

    def cannot_load(self) -> LoadFailure | None:
        """Why a slave cannot load an algorithm, if it cannot. Only a machine that is not able fails for sure."""
        if not self.host.able and self.world.chance(0.05):
            return LoadFailure.OTHER_CODE if self.world.chance(0.3) else LoadFailure.SURE
        return LoadFailure.PASSING if self.world.chance(0.1) else None

    # ---- what checkers of slaves need to know --------------------------------------------------------------

    def is_attentive(self) -> bool:
        """Whether it runs, and was not frozen a moment ago."""
        return not self._over and self.world.now > self._frozen_until + PROMISED_S

    def is_in_contact(self) -> bool:
        """Whether it runs and is connected to its master, and was so for a while."""
        if self._over or self.connection.broken or not self.connection.back_at:
            return False
        return self.world.now > self.deaf_until + PROMISED_S

    @property
    def deaf_until(self) -> float:
        """Until when it was frozen the last time, still is, or had no master."""
        return max(self._frozen_until, self.connection.back_at)

    def frozen_since(self, moment: float) -> float:
        """For how many seconds it was frozen since some moment."""
        return sum(max(0.0, end - max(begin, moment)) for begin, end in self._freezes)

    def is_short(self) -> bool:
        """Whether the slaves used nearly all memory of their job a moment ago."""
        used = {slave: slave.used_memory(0) for slave in self.slaves.values()}
        has = self.host.settings.memory_bytes
        if has is not None and sum(used.values()) > NEARLY * has:
            self._short_at = self.world.now
            for slave, used_now in used.items():
                if used_now > has:
                    slave.life.checker.ends.too_large[slave.life.peer, slave.number, slave.running] = None
        return self.world.now <= self._short_at + MOMENT_S

    def running_slaves(self) -> list[SimulatedSlave]:
        """The slaves that run tasks."""
        return [slave for slave in self.slaves.values() if slave.running and slave.code is None]

    def running(self) -> list[int]:
        """The tasks that its slaves run."""
        return [slave.running for slave in self.running_slaves() if slave.life is self.life]

    # ---- signals and records -------------------------------------------------------------------------------

    def catch(self, number: signal.Signals) -> None:
        """A signal arrives."""
        if not self._over:
            self._signals.append(number)
            self.readable(SIGNALS_FD, True)

    def fileno(self) -> int:
        """The file descriptor that can be read when a signal has arrived."""
        return SIGNALS_FD

    def clear(self) -> None:
        """Wait for the next signal."""
        self.readable(SIGNALS_FD, False)

    def take(self) -> Sequence[signal.Signals]:
        """The signals that were caught since the last call."""
        caught, self._signals = self._signals, []
        return caught

    def write(self, happened: Sequence[records.Record], now: float) -> None:
        """Keep only the reason of the end."""
        for record in happened:
            if isinstance(record, records.Ended):
                self._why = record.why

    def close(self) -> None:
        """Do nothing: there are neither handlers of signals nor a file of records."""

    # ---- the clock -----------------------------------------------------------------------------------------

    def monotonic(self) -> float:
        """The simulated time."""
        return self.world.now

    wall = monotonic

    def sleep(self, seconds: float, /) -> None:
        """The agent waits for its slaves to write which task they started. Some finish their task in this time."""
        for slave in list(self.slaves.values()):
            if self.world.random.random() < 0.5:
                slave.hurry(self.world.now + seconds)

    # ---- the search for the master after its connection broke ----------------------------------------------

    def answer(self) -> AddressesFound | ComputationOver:
        """Return what the resource file says."""
        if self._newest().network.is_finished:
            return ComputationOver("the master has ended", finished=True)
        return AddressesFound([ADDRESS])

    def connect(self, address: str) -> Connection:
        """Connect to the master."""
        assert address == ADDRESS, "there is one address"
        self.world.note(f"the agent on {self.host.name} looks for its master")
        life, welcome = self._newest(), self.core.welcome
        generation = life.network.generation
        is_new = welcome is not None and welcome.generation != generation
        self.connection = life.network.connect(self.wake, self._ready, self.connection, is_new)
        if is_new and self.core.settings.hello.generation == generation:
            if self.life.checker is not life.checker:  # it has learned which generation this is
                self.world.note(f"the agent on {self.host.name} knows {generation}")
                self.life = life
                if not self.host.able:
                    life.checker.members.unable[self.host.name] = None
            self.life.peer = self.connection.peer
        return self.connection

    # ---- the loop ------------------------------------------------------------------------------------------

    def readable(self, fd: int, is_ready: bool) -> None:
        """Record whether a file descriptor can be read from now on."""
        if is_ready:
            self._ready[fd] = None
            self.wake()
        else:
            self._ready.pop(fd, None)

    def wake(self) -> None:
        """Make the agent iterate as soon as it can."""
        self._alarm.set(self.world.now)

    def _iterate(self) -> None:
        if self._over:
            return
        if self.world.now < self._frozen_until:
            self._alarm.set(self._frozen_until)
            return
        self._agent.looked_at = self.world.now - self.frozen_since(self._agent.looked_at)  # else it has waited
        self.is_short()
        for _ in range(SOON):
            code = self._agent.iterate()
            if code is not None:
                self._exit(code)
                return
            files = self._agent.files(self.world.now)
            if not (self.connection.pending or files.keys() & self._ready.keys()):
                break
        else:
            raise AssertionError("an agent iterates without an end")
        timeout_s = self._agent.timeout(self.world.now)
        if timeout_s is not None:
            self._alarm.set(due(self.world.now, timeout_s))

    def _exit(self, code: ExitCode) -> None:
        self.world.note(f"the agent on {self.host.name} exits with {code.name}")
        self._check_output()
        forgotten = [slave.number for slave in self.slaves.values() if slave.channel.closed and slave.code is None]
        assert not forgotten, f"slaves {forgotten} live on, and their agent has forgotten them"
        if "no task for" in self._why:
            self._check_idle()
        self._agent.close()
        self._over = True
        self.world.after(EXITS_S, lambda: self.host.end(self, code))

    def stop(self) -> None:
        """End the process, its slaves and its connection."""
        self._over = True
        self.kill_template()
        for slave in self.slaves.values():
            slave.end(SIGKILL)
        self.disconnect()

    # ---- faults --------------------------------------------------------------------------------------------

    def disconnect(self, silent_s: float = 0.0) -> None:
        """Its connection breaks, as `Network.cut` says."""
        self.connection.network.cut(self.connection, silent_s)

    def terminate(self) -> None:
        """The batch system sends SIGTERM."""
        self.catch(signal.SIGTERM)

    def kill_template(self) -> None:
        """Something kills the template."""
        if self._template is not None:
            self._template.end(SIGKILL)

    @property
    def _frozen_until(self) -> float:
        """Until when it was frozen the last time, or still is; 0 if it never was."""
        return self._freezes[-1][1] if self._freezes else 0.0

    def freeze(self) -> None:
        """Freeze the agent for a while. Messages that arrive in this time are read afterwards, in their order."""
        if self.world.now >= self._frozen_until:
            now = self._agent.looked_at = self.world.now
            self._freezes.append((now, now + self.world.random.random() * LONGEST_FREEZE_S))

    def fill_outlets(self) -> None:
        """For a while, the agent's own standard streams accept nothing."""
        for outlet in self.outlets.values():
            outlet.full_until = self.world.now + self.world.random.random() * 20

    def hang(self, slave: SimulatedSlave) -> None:
        """A slave closes its stream and does not exit: the agent must kill it."""
        slave.hang()
        limit = EXIT_S + LONGEST_FREEZE_S + 1.0
        self.world.after(limit, lambda: self._check_killed(slave))

    def _check_killed(self, slave: SimulatedSlave) -> None:
        frozen = self.world.now < self._frozen_until + EXIT_S
        assert self._over or frozen or slave.code is not None, f"slave {slave.number} hangs and was not killed"

    def _check_replaced(self, last: SimulatedSlave) -> None:
        """Check that another slave has started, unless more slaves have ended since, one just starts, or all leave."""
        slaves = self.slaves.values()
        if self._over or self.core.leaving or self._freezes or any(slave.ended_at > last.ended_at for slave in slaves):
            return
        living = [slave for slave in slaves if slave.code is None]
        template_starts = self._template is not None and self._template.is_starting
        starts = template_starts or not all(slave.is_up for slave in living)
        assert starts or len(living) == self.host.num_slaves, f"slave {last.number} was not replaced"

    def kill_with(self, slave: SimulatedSlave) -> None:
        """The batch system kills a slave and then the agent: this death must not be charged."""
        self.life.checker.blameless(self.connection.agent, slave.number)
        slave.end(SIGKILL)
        delay = self.world.random.random() * 0.9 * KILLED_TOO_S
        self.world.after(delay, lambda: self.host.end(self, None))

    def _check_idle(self) -> None:
        """Check an agent that has left because its slaves had no task."""
        limit_s = self.host.settings.idle_exit_s
        assert limit_s is not None, "it has no idle exit"
        busy = [slave.number for slave in self.slaves.values() if self.world.now < slave.busy_until + limit_s]
        assert not busy, f"it left, but slaves {busy} had tasks"

    # ---- what the user sees --------------------------------------------------------------------------------

    def _check_output(self) -> None:
        """Check that each slave's standard error was printed, and identical failures of starting slaves only once."""
        shown = self.outlets[2].data.decode()
        collected = [slave for slave in self.slaves.values() if slave.channel.closed and slave.printed]
        at_once = [slave.printed for slave in collected if slave.number == 1 or slave.sets_up is not None]
        for slave in collected:
            times = shown.count(slave.printed)
            assert times, f"the output of slave {slave.number} was not printed"
            most = 1 + at_once.count(slave.printed)
            assert times <= most or self._freezes, f"{slave.printed!r} was printed {times} times"


NO_HELLO = messages.Hello("", "", "", 0, "", 0)
"""Stands for the first message of an agent that has not started."""


SETTINGS = AgentSettings(NO_HELLO, forks=True)
"""Those of most simulated agents."""


@define(eq=False, repr=False)
class AgentHost:
    """A machine on which agents run, one after the other."""

    name: str
    ended: Callable[[ExitCode | None], None]
    """Called when the agent is gone, with its exit code; None if it was killed."""
    num_slaves: int = 2
    job: str = ""
    settings: AgentSettings = SETTINGS
    max_tasks: float = inf
    """How many tasks a slave may run."""
    max_memory: float = inf
    """How much memory a slave may have between two tasks, in units of which a task leaks one on average."""
    lifetime_s: float | None = None
    """After this time a batch system would end the agent. Agents that start when faults are over have no such limit."""
    unsafe: bool = False
    """Whether the script leaves something that must not be copied by a fork."""
    returns_s: float = 0.0
    """For how long the agent looks for its master when its connection has broken."""
    able: bool = True
    """Whether it can run every algorithm. If no host can, it is correct that tasks wait forever."""
    offers: Offers = Factory(Offers)
    """What it offers."""
    has_tool: bool = True
    """Whether it has the program that tasks require."""
    bad: str = ""
    """What each task does here: it kills its slave ("slave"), raises an exception ("error") or works well ("")."""
    process: AgentProcess | None = None
    """The agent that runs now."""

    @property
    def core(self) -> AgentCore | None:
        """The core of the agent that runs now."""
        return None if self.process is None else self.process.core

    def kill(self) -> None:
        """Kill the agent that runs, and its slaves."""
        if self.process is not None:
            self.end(self.process, None)

    def terminate(self, reason: str) -> None:
        """Send SIGTERM to the agent that runs."""
        if self.process is not None:
            self.process.world.note(f"{self.name}: {reason}")
            self.process.terminate()

    def cut_off(self) -> None:
        """Break the connection of the agent. Both ends notice this at their own times; messages in flight are lost."""
        if self.process is not None and not self.process.connection.broken:
            self.process.world.note(f"the connection of {self.name} breaks")
            self.process.disconnect()

    def end(self, process: AgentProcess, code: ExitCode | None) -> None:
        """End the process of an agent, unless it has already ended. Without an exit code, it was killed."""
        if self.process is process:
            process.stop()
            self.process = None
            self.ended(code)
