"""The one slave of a master with `slaves=0`. It runs in the master's process, so debuggers and tracebacks show tasks.

The thread of the master algorithm does everything: it runs the loop of `MasterIo` and a `TaskRunner`, whenever the
master algorithm asks for outcomes. `OwnSlave` takes the place of the connections to agents. It is agent and slave in
one, and answers the master's messages as they do. So tasks, arguments and results are encoded as they always are, and a
task never shares an object with the master algorithm.

The master sends one task at a time. Ctrl-C interrupts only tasks and pauses; otherwise it is held back, because the
core would not survive it. An interrupted task counts as lost with its agent: the slave says goodbye, and joins again.
"""

from __future__ import annotations

import atexit
import os
import shutil
import socket
import tempfile
from bdb import BdbQuit
from collections.abc import Sequence
from itertools import chain
from queue import SimpleQueue
from typing import ClassVar

from msgspec import field
from msgspec.structs import replace

from mwpy._core.master.state import Actions
from mwpy._roles.inbox import USED_BY_A_TASK
from mwpy._roles.master_io import MasterIo
from mwpy._roles.runner import FOREVER_S, TaskRunner
from mwpy._roles.set_up import attempt
from mwpy._system import clock, offers
from mwpy._system.process import HeldSignals
from mwpy._transport import wire
from mwpy._transport.channel import SharedMemory, SlaveChannel
from mwpy._transport.codec import Codec
from mwpy._transport.error_texts import users_traceback
from mwpy._values import messages
from mwpy._values.algorithm import PYTHON, REGISTRY
from mwpy._values.bounds import Buffer
from mwpy._values.causes import Cause
from mwpy._values.connections import Frames, Happened
from mwpy._values.errors import UsageError
from mwpy._values.last_words import NO_WORDS
from mwpy._values.requires import Offers
from mwpy._values.task import Result

NUMBER = 1
"""The slave's number within its agent."""

_STATE = bytes(wire.encode(messages.Checkpoint(NUMBER, 0, 0))[0][:2])
"""How the state of a task begins as a message: version and kind."""

_REPORT = bytes(wire.encode(messages.Reported(NUMBER, 0, 0, 0.0))[0][:2])
"""The same of a report."""

ENDS_THE_CALL = (KeyboardInterrupt, BdbQuit)
"""What a user raises in a task, with Ctrl-C or in a debugger. It ends the call of the master algorithm that waits."""


class _Channel(SlaveChannel):
    """The runner's end of the channel to its agent."""

    def __init__(self) -> None:
        super().__init__(SharedMemory(-1))
        self.arrived: list[list[Buffer]] = []
        """Messages for the runner."""
        self.sent: list[list[Buffer]] = []
        """Messages of the runner."""

    def receive(self, timeout_s: float = 0.0) -> list[list[Buffer]]:  # noqa: ARG002  # nothing arrives meanwhile
        """Take the messages that have arrived."""
        found, self.arrived = self.arrived, []
        return found

    def send(self, frames: Sequence[Buffer]) -> None:
        """Send a message. A state replaces the one before, because the task may leave any number of them.

        A report is dropped: the master algorithm, which has the same thread, cannot read it while the task runs.
        """
        if bytes(frames[0][:2]) == _REPORT:
            return
        if self.sent and all(bytes(each[0][:2]) == _STATE for each in (frames, self.sent[-1])):
            self.sent.pop()
        self.sent.append(_copied(frames))


class _WatchedCodec(Codec, frozen=True):
    """Encodes failures as always, and keeps the last exception."""

    interrupts: ClassVar[tuple[type[BaseException], ...]] = ENDS_THE_CALL
    errors: list[BaseException] = field(default_factory=list)
    """The last exception, until its result arrives."""

    def dumps_failure(self, error: BaseException, remark: str = "") -> bytes:
        """Encode an exception."""
        self.errors[:] = [error]
        return Codec.dumps_failure(self, error, remark)


class OwnSlave:
    """The slave, as a master sees it: all of its connections.

    Args:
        member_id: the name of the computation.
        has: what this process offers to tasks.
    """

    def __init__(self, member_id: str, has: Offers) -> None:
        self.asleep = False
        self.signals = HeldSignals()
        hello = messages.Hello(member_id, "", socket.gethostname(), os.getpid(), PYTHON, 1)
        self._hello = replace(hello, offers=has)
        self._joined = 0
        """How often the slave joined the master."""
        self._to_master: list[Happened] = []
        self._codec = _WatchedCodec()
        self._running = 0
        """The task that runs or ran last."""
        self._was_set_up: messages.SetUp | None = None
        """The set-up that has run here last."""
        self._join()

    def _join(self) -> None:
        self._joined += 1
        self._renew = False
        """Whether the slave joins again after its tasks: modules were edited and loaded again."""
        self._channel = _Channel()
        self._runner: TaskRunner | None = None
        """None before the master has answered, and after it has ended the computation."""
        self._welcome: messages.Welcome | None = None
        """The answer of the master, until its set-up has run."""
        self._say(wire.encode(self._hello))

    def _join_again(self, reason: str) -> None:
        self._say(wire.encode(messages.Goodbye(reason, Cause.CANCELLED)))
        self._join()

    def _say(self, frames: list[Buffer]) -> None:
        self._to_master.append(Frames(self._peer, "this process", frames))

    @property
    def _peer(self) -> bytes:
        return b"%d" % self._joined

    @property
    def idle(self) -> bool:
        """Whether there is no task to run and no message to read."""
        return not (self._to_master or self._channel.arrived or self._renew or self._welcome)

    # ---- the connections of the master ---------------------------------------------------------------------

    def send(self, peer: bytes, frames: Sequence[Buffer]) -> None:
        """Receive a message of the master."""
        if peer != self._peer:
            return
        message, _ = wire.decode(frames)
        match message:
            case messages.Welcome(set_up=None):
                self._get_ready(message)
            case messages.Welcome():
                self._welcome = message
            case messages.Shutdown():
                self._runner = None
                self._channel.arrived.clear()
                self._say(wire.encode(messages.Goodbye("the computation is over", Cause.CANCELLED)))
            case messages.Algorithms() | messages.SlaveNamed() if self._runner is not None:
                # at once, because an interrupt of this would look as if the algorithm could not be loaded
                waiting, self._channel.arrived = self._channel.arrived, [_copied(frames)]
                self._runner.receive()
                self._channel.arrived = waiting
            case messages.Tasks():
                self._running = message.tasks[0]
                self._channel.arrived.append(_copied(frames))
            case messages.Cancel():
                self._cancel(message)
            case messages.OffersWanted(names):
                self._say(wire.encode(messages.Offered(offers.programs(names))))
            case messages.Renew(slave=None):
                self._renew = True
            case _:
                pass  # nothing to take back, because no task waits behind another one

    def _get_ready(self, welcome: messages.Welcome) -> None:
        limits = welcome.result_group, welcome.max_result_bytes
        self._runner = TaskRunner(self._channel, NUMBER, *limits, self._codec, is_own_process=False)
        self._runner.get_ready()
        self._pass_on()

    def _set_up(self, welcome: messages.Welcome, wanted: messages.SetUp) -> None:
        """Run the set-up in this process, unless it was the last one that has run here."""
        ended = messages.SetUpEnded(NUMBER)
        if wanted != self._was_set_up:
            folder = tempfile.mkdtemp(prefix="mwpy-")
            atexit.register(shutil.rmtree, folder, ignore_errors=True)
            self.signals.let_through()
            try:
                ended = attempt(wanted, NUMBER, os.path.join(folder, "set-up"))
            finally:
                self.signals.held = True
        self._welcome = None
        if ended.failure:
            reason = f"the set-up {wanted.definition.name} failed: {ended.failure}"
            self._say(wire.encode(messages.SlaveDied(NUMBER, 0, Cause.SET_UP, reason, NO_WORDS)))
            return
        self._was_set_up = wanted
        os.environ.update(ended.environment)
        self._say(wire.encode(replace(ended, environment={})))
        self._get_ready(welcome)

    def _cancel(self, message: messages.Cancel) -> None:
        """Drop the task that waits, if it is among the cancelled ones."""
        for frames in self._channel.arrived:
            group, _ = wire.decode(frames)
            if isinstance(group, messages.Tasks) and any(
                first <= self._running < first + count
                for first, count in zip(message.tasks, message.counts, strict=True)
            ):
                self._channel.arrived.remove(frames)
                if not message.kill:
                    named = group.tasks, group.counts, group.attempts
                    self._say(wire.encode(messages.Revoked(NUMBER, *named, cancelled=True)))
                return

    def poll(self, timeout_s: float, now: float) -> list[Happened]:  # noqa: ARG002
        """Run a task, or pause if there is none; return the messages of the slave.

        If the master has no time for that, it has commands: they may cancel the task, or end the computation.
        """
        if timeout_s <= 0:
            pass
        elif self._welcome is not None and self._welcome.set_up is not None:
            self._set_up(self._welcome, self._welcome.set_up)
        elif self._runner is not None and self._channel.arrived:
            self._run(self._runner)
        elif self._renew:
            self._join_again("modules were edited")
        elif self.idle:
            self.signals.let_through()
            try:
                clock.sleep(timeout_s)
            finally:
                self.signals.held = True
        found, self._to_master = self._to_master, []
        return found

    def _run(self, runner: TaskRunner) -> None:
        self.signals.let_through()  # first, because this may raise KeyboardInterrupt, and no task has started
        REGISTRY.is_slave = True
        try:
            runner.turn(0.0, 1)
            self.signals.held = True
        except ENDS_THE_CALL:
            self.signals.held = True
            self._pass_on()  # it may have come after the end of the task
            self._join_again("a task was interrupted")
            raise
        finally:
            REGISTRY.is_slave = False
        self._pass_on()

    def _pass_on(self) -> None:
        """Pass the messages of the runner on to the master."""
        for frames in self._channel.sent:
            message, payload = wire.decode(frames)
            if isinstance(message, messages.AlgorithmFailed):  # another attempt would be in this process, too
                message = replace(message, failure=messages.LoadFailure.SURE)
            self._say(wire.encode(message, payload))
        self._channel.sent.clear()

    def add_exception(self, result: Result[object]) -> None:
        """Give a failed result the exception that the task raised, with its traceback."""
        if self._codec.errors and result.task_id == self._running:
            error, failure = self._codec.errors.pop(), result.error
            self._codec.errors.clear()
            if failure is not None:
                failure.__cause__ = error.with_traceback(users_traceback(error))

    def forget(self, peer: bytes) -> None:
        """Do nothing: the slave knows itself that it is gone."""

    def disconnect(self, peer: bytes) -> None:
        """Do nothing: the slave says nothing more to a master that has refused it."""

    def wake(self) -> None:
        """Do nothing: nobody sleeps while another thread works."""

    def close(self, linger_s: float) -> None:
        """Do nothing."""


class LiveOutcomes(SimpleQueue["Actions | BaseException"]):
    """The outcomes of a master with its own slave.

    Args:
        slave: knows the exceptions of failed tasks.
    """

    def __init__(self, slave: OwnSlave) -> None:
        self._slave = slave

    def put(self, item: Actions | BaseException, block: bool = True, timeout: float | None = None) -> None:
        """Add an outcome, and complete its failures."""
        if isinstance(item, Actions):
            for ended in chain(item.results, *item.owned.values()):
                if isinstance(ended, Result):
                    self._slave.add_exception(ended)
        super().put(item, block, timeout)


def drive(io: MasterIo, slave: OwnSlave, timeout: float | None) -> None:
    """Run tasks until there is an outcome.

    Args:
        io: the loop of the master.
        slave: its connections.
        timeout: how long to go on, in seconds, None for as long as it takes. A task that runs at this time ends first;
            so does the first task that can run.

    Raises:
        UsageError: a task calls this, and would run other tasks within itself; the task's fault.
    """
    if REGISTRY.is_slave:
        raise UsageError(USED_BY_A_TASK)
    until = clock.monotonic() + (FOREVER_S if timeout is None else timeout)
    try:
        slave.signals.begin()
        while True:
            now = clock.monotonic()
            pause_s = io.prepare_to_wait(now)
            if not io.users.algorithm.outcomes.empty() or (slave.idle and pause_s > 0 and now >= until):
                return
            io.turn(slave.poll(min(pause_s, until - now) if slave.idle else pause_s, now))
    finally:
        slave.signals.end()


def _copied(frames: Sequence[Buffer]) -> list[Buffer]:
    """The frames of a message with memory of their own, as its receiver has them. Large buffers belong to an object."""
    return [*frames[:2], *map(bytearray, frames[2:])]
