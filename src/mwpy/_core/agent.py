"""What an agent decides: which slave process is started, fed, stripped of tasks, killed, and when to go.

Theory of operation. The agent passes groups of tasks on to its slaves at once, untouched. A slave notes which task it
starts where its agent can see it, and can be stopped from starting more (see `_pipe`); so a task can be taken back from
a slave that is deep in C code: the core asks for a recall (`AgentActions.recall`), is told how far the slave got
(`Recalled`), and tells slave and master what it took.

What the agent knows of a slave is which tasks it holds, in order. Results cross them off; whatever arrives for
a task that is not held (a result rescued from a dead slave's journal and sent by it too) is dropped.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from attrs import define, field, frozen
from msgspec import Struct
from msgspec.structs import replace

from mwpy._core.holding import count_of, take
from mwpy._values import messages, records
from mwpy._values.errors import ExitCode, InternalError
from mwpy._values.ids import Buffer, SlaveId
from mwpy._values.last_words import LastWords
from mwpy._values.task import PlainEnum

__all__ = [
    "TRANSITIONS",
    "AgentActions",
    "AgentCore",
    "AgentSettings",
    "Child",
    "ChildEvent",
    "ChildState",
    "Disconnected",
    "Heard",
    "Recalled",
    "SlaveExited",
    "SlaveHeard",
    "Terminated",
]

STARTS_ALLOWED = 3
"""So many slaves in a row that end before they are ready, and the agent gives up."""

UNBOUNDED = 1 << 30
"""Take back whatever is there."""

FAREWELL_S = 2.0
"""Seconds for the tear-down of slaves when the master is gone, and for killed ones to be reaped."""


@frozen
class AgentSettings:
    """What the core must know of the options; their sentences are in `options.py`."""

    member_id: str
    generation: str
    host: str
    pid: int
    python: str
    slaves: int = 1
    grace_s: float = 5.0
    job: str = ""
    ends_at: float | None = None
    """When whatever runs this agent will end it, if that is known; it goes as much earlier as it takes to go well."""


class Heard(Struct, frozen=True):
    """A message of the master arrived."""

    message: messages.Message
    frames: Sequence[Buffer] = ()


class SlaveHeard(Struct, frozen=True):
    """A message of a slave arrived, or was rescued from its journal."""

    slave: int
    message: messages.Message
    frames: Sequence[Buffer] = ()


class SlaveExited(Struct, frozen=True):
    """A slave process is gone, and everything that it had sent or left in its journal was heard before."""

    slave: int
    cause: str
    words: LastWords
    started: int
    """Position of the last task that it started; 0 if it started none."""


class Recalled(Struct, frozen=True):
    """A slave starts no other task before it reads which ones were taken back: up to `count` are to be."""

    slave: int
    started: int
    """Position of the last task that it started, and perhaps finished; 0 if it started none."""
    count: int


class LookedUp(Struct, frozen=True):
    """The packages that were to be looked up, and their versions; empty for one that is not installed."""

    packages: dict[str, str]


class Terminated(Struct, frozen=True):
    """The batch system (SIGTERM) wants the machine back."""

    reason: str


class Disconnected(Struct, frozen=True):
    """The connection to the master broke."""

    reason: str


AgentEvent = Heard | SlaveHeard | SlaveExited | Recalled | LookedUp | Terminated | Disconnected


class ChildState(PlainEnum):
    """Where a slave process stands in its agent."""

    STARTING = "starting"
    READY = "ready"
    STOPPING = "stopping"
    KILLED = "killed"
    GONE = "gone"


class ChildEvent(PlainEnum):
    """What can happen to a slave process."""

    GET_READY = "get ready"
    STOP = "stop"
    KILL = "kill"
    EXIT = "exit"


_S = ChildState
TRANSITIONS: dict[ChildEvent, dict[ChildState, ChildState]] = {
    ChildEvent.GET_READY: {_S.STARTING: _S.READY, _S.STOPPING: _S.STOPPING, _S.KILLED: _S.KILLED},
    ChildEvent.STOP: {_S.STARTING: _S.STOPPING, _S.READY: _S.STOPPING, _S.STOPPING: _S.STOPPING},
    ChildEvent.KILL: {
        _S.STARTING: _S.KILLED,
        _S.READY: _S.KILLED,
        _S.STOPPING: _S.KILLED,
        _S.KILLED: _S.KILLED,
    },
    ChildEvent.EXIT: {_S.STARTING: _S.GONE, _S.READY: _S.GONE, _S.STOPPING: _S.GONE, _S.KILLED: _S.GONE},
}


class _Held(Struct, frozen=True, eq=False):
    """Tasks passed on to a slave and not yet finished; see `holding`."""

    first: int
    count: int
    attempt: int
    position: int
    """Of the first of them, counted from 1 in the order in which tasks were passed on."""

    def cut(self, count: int) -> tuple[_Held, _Held]:
        """Its first `count` tasks, and the others."""
        rest = _Held(self.first + count, self.count - count, self.attempt, self.position + count)
        return replace(self, count=count), rest


@define(eq=False)
class Child:
    """A slave process, as its agent sees it."""

    number: int
    name: SlaveId
    """Its id once the master gave it one."""
    state: ChildState = ChildState.STARTING
    held: deque[_Held] = field(factory=deque)
    """The tasks passed on to it and not yet finished, in order."""
    passed_on: int = 0
    """How many tasks were ever passed on to it: the position of the last."""

    def change(self, event: ChildEvent) -> None:
        """Move along its way; a way that the table does not have is mwpy's own fault."""
        target = TRANSITIONS[event].get(self.state)
        if target is None:
            raise InternalError(f"slave {self.number} is {self.state.value}, which cannot {event.value}")
        self.state = target

    @property
    def num_held(self) -> int:
        """How many tasks it holds."""
        return sum(map(count_of, self.held))


class AgentActions(Struct):
    """All that must be done now; the fields are in the order of doing."""

    records: list[records.Record] = []
    start: list[int] = []
    to_slaves: list[tuple[int, messages.Message, Sequence[Buffer]]] = []
    recall: list[tuple[int, int]] = []
    """(slave, at most how many): to be answered with `Recalled`, if the slave is there."""
    kill: list[int] = []
    look_up: list[str] = []
    """Packages: to be answered with `LookedUp`."""
    to_master: list[tuple[messages.Message, Sequence[Buffer]]] = []
    exit: ExitCode | None = None


@define(eq=False)
class AgentCore:
    """The agent without its shell."""

    settings: AgentSettings
    children: dict[int, Child] = field(factory=dict)
    agent: str = ""
    """The name that the master gave; empty until it let us in."""
    _started: int = 0
    _failed_starts: int = 0
    _algorithms: list[tuple[messages.Algorithms, Sequence[Buffer]]] = field(factory=list)
    _looked_up: dict[str, None] = field(factory=dict)
    _leaving: ExitCode | None = None
    _why: str = ""
    _deadline: float | None = None
    _leave_at: float | None = field(init=False)
    """When to begin to go, if it is known when it will be ended."""
    _actions: AgentActions = field(factory=AgentActions)

    @_leave_at.default
    def _know_when_to_leave(self) -> float | None:
        mine = self.settings
        return None if mine.ends_at is None else mine.ends_at - mine.grace_s - FAREWELL_S

    def hello(self) -> messages.Hello:
        """The first message on a connection."""
        mine = self.settings
        return messages.Hello(mine.member_id, mine.generation, mine.host, mine.pid, mine.python, mine.slaves, mine.job)

    @property
    def leaving(self) -> bool:
        """Whether it is on its way out, for whatever reason."""
        return self._leaving is not None

    # ---- what happened outside -----------------------------------------------------------------------

    def handle(self, event: AgentEvent, now: float) -> None:
        """Note what happened and what follows from it."""
        match event:
            case Heard(message, frames):
                self._hear_master(message, frames, now)
            case SlaveHeard(number, message, frames):
                self._hear_slave(self.children[number], message, frames)
            case SlaveExited():
                self._child_exited(self.children[event.slave], event, now)
            case Recalled(number, started, amount):
                self._recalled(self.children[number], started, amount)
            case LookedUp(packages):
                self._send(messages.Installed(packages))
            case Terminated(reason):
                self._leave(ExitCode.EVICTED, reason, self.settings.grace_s, now)
            case Disconnected(reason):
                self._actions.records.append(records.Notice(f"the master is lost: {reason}"))
                self._leave(ExitCode.FAILED, "the master is lost", FAREWELL_S, now)

    def _hear_master(self, message: messages.Message, frames: Sequence[Buffer], now: float) -> None:
        match message:
            case messages.Welcome():
                self._welcome(message)
            case messages.Algorithms():
                self._algorithms.append((message, frames))
                for child in self._living():
                    self._tell(child, message, frames)
                self._look_up(message)
            case messages.Tasks():
                self._pass_on(message, frames)
            case messages.Revoke(number, count):
                self._revoke(number, count)
            case messages.SlaveNamed(number):
                self._name(number, message)
            case messages.Shutdown(finished, grace_s):
                code = ExitCode.OK if finished else ExitCode.FAILED
                self._leave(code, "told to shut down", grace_s, now)
            case messages.Refused(reason):
                self._actions.records.append(records.Notice(f"the master refused this agent: {reason}"))
                self._leave(ExitCode.REFUSED, reason, FAREWELL_S, now)
            case _:
                pass

    def _look_up(self, message: messages.Algorithms) -> None:
        """Have looked up what definitions name, once each package."""
        wanted = {name: None for definition in message.definitions for name in definition.packages}
        unknown = {name: None for name in wanted if name not in self._looked_up}
        self._looked_up |= unknown
        self._actions.look_up.extend(unknown)

    def _name(self, number: int, message: messages.SlaveNamed) -> None:
        child = self.children.get(number)
        if child is not None:
            child.name = message.sid
            self._actions.records.append(records.SlaveNamed(number, message.sid))
            self._tell(child, message)

    def _welcome(self, welcome: messages.Welcome) -> None:
        self.agent = welcome.agent
        while len(self.children) < self.settings.slaves and self._leaving is None:
            self._start()

    def _pass_on(self, group: messages.Tasks, frames: Sequence[Buffer]) -> None:
        child = self.children.get(group.slave)
        if child is None or child.state is not ChildState.READY:
            return  # it died or is stopping; the master hears of that, and takes the tasks as returned
        for first, count, attempt in zip(group.tasks, group.counts, group.attempts, strict=True):
            child.held.append(_Held(first, count, attempt, child.passed_on + 1))
            child.passed_on += count
        self._actions.records.append(records.TasksReceived(child.name, sum(group.counts)))
        self._tell(child, group, frames)

    def _revoke(self, number: int, count: int) -> None:
        child = self.children.get(number)
        if child is not None and child.held:
            self._actions.recall.append((number, count))
        elif child is not None:
            self._send(messages.Revoked(number, [], [], []))

    def _recalled(self, child: Child, started: int, count: int) -> None:
        unstarted = deque[_Held]()
        while child.held and child.held[-1].position + child.held[-1].count - 1 > started and count > 0:
            span = child.held.pop()
            keep = max(0, started + 1 - span.position, span.count - count)
            if keep:
                kept, span = span.cut(keep)
                child.held.append(kept)
            unstarted.appendleft(span)
            count -= span.count
        columns = (
            [span.first for span in unstarted],
            [span.count for span in unstarted],
            [span.attempt for span in unstarted],
        )
        revoked = messages.Revoked(child.number, *columns)
        self._tell(child, revoked)
        self._send(revoked)

    def _hear_slave(self, child: Child, message: messages.Message, frames: Sequence[Buffer]) -> None:
        match message:
            case messages.SlaveReady():
                child.change(ChildEvent.GET_READY)
                if child.state is ChildState.READY:
                    self._failed_starts = 0
                    self._send(message)
            case messages.Results():
                self._results(child, message, frames)
            case messages.AlgorithmFailed(_, _, _, tasks, counts, attempts):
                for first, count, attempt in zip(tasks, counts, attempts, strict=True):
                    take(child.held, first, count, attempt)
                self._send(message)
            case _:
                raise InternalError(f"slave {child.number} sent a {type(message).__name__}")

    def _results(self, child: Child, group: messages.Results, frames: Sequence[Buffer]) -> None:
        kept: list[int] = []
        start = 0
        for first, count, attempt in zip(group.tasks, group.counts, group.attempts, strict=True):
            for span in take(child.held, first, count, attempt):
                begin = start + span.first - first
                kept.extend(range(begin, begin + span.count))
            start += count
        if not kept:
            return
        if len(kept) < start:  # some were rescued from its journal before
            group, frames = messages.select(group, frames, kept)
        self._actions.records.append(records.ResultsSent(child.name, len(kept)))
        self._send(group, frames)

    def _child_exited(self, child: Child, event: SlaveExited, now: float) -> None:
        was = child.state
        child.change(ChildEvent.EXIT)
        del self.children[child.number]
        last = event.started
        begun = [span for span in child.held if span.position <= last < span.position + span.count]
        running, attempt = (begun[0].first + last - begun[0].position, begun[0].attempt) if begun else (0, 0)
        told = f"task {running}, attempt {attempt}" if running else ""
        cause = f"killed by its agent after its grace: {self._why}" if was is ChildState.KILLED else event.cause
        unwritten = LastWords(peak_bytes=event.words.peak_bytes)  # the rest was passed on to this process's own streams
        self._actions.records.append(records.SlaveEnded(child.name, cause, told, unwritten))
        self._send(messages.SlaveDied(child.number, running, cause, event.words))
        if self._leaving is None:
            self._replace(was, event.cause, now)
        self._finish_if_alone()

    def _replace(self, was: ChildState, cause: str, now: float) -> None:
        if was is ChildState.STARTING:
            self._failed_starts += 1
        if self._failed_starts >= STARTS_ALLOWED:
            why = f"{self._failed_starts} slaves in a row ended before they could take a task: {cause}"
            self._actions.records.append(records.Notice(f"this agent gives up: {why}"))
            self._leave(ExitCode.CANNOT_START, why, self.settings.grace_s, now)
        else:
            self._start()

    # ---- leaving -----------------------------------------------------------------------------------------

    def _leave(self, code: ExitCode, why: str, grace_s: float, now: float) -> None:
        """Stop feeding, give unstarted tasks back, let running ones end within the grace, then go."""
        if self._leaving is None:
            self._leaving, self._why = code, why
            self._send(messages.Leaving(why))
        self._deadline = min(self._deadline or now + grace_s, now + grace_s)
        self._stop_children()
        self._finish_if_alone()

    def _stop_children(self) -> None:
        for child in self._living():
            if child.held:
                self._actions.recall.append((child.number, UNBOUNDED))
            child.change(ChildEvent.STOP)
            self._tell(child, messages.Shutdown(self._leaving is ExitCode.OK, 0.0))

    def _living(self) -> list[Child]:
        return [child for child in self.children.values() if child.state in (_S.STARTING, _S.READY, _S.STOPPING)]

    def decide(self, now: float) -> None:
        """Decide what is due: leave before the end comes, kill slaves whose grace is over, and go when none is left."""
        if self._leave_at is not None and self._leaving is None and now >= self._leave_at:
            self._leave(ExitCode.EVICTED, "the time that it was given is over", self.settings.grace_s, now)
        if self._deadline is None or now < self._deadline:
            return
        living = self._living()
        for child in living:
            child.change(ChildEvent.KILL)
            self._actions.kill.append(child.number)
        if living:
            self._deadline = now + FAREWELL_S
        else:
            self.children.clear()  # killed, but not reaped in time: stuck in the kernel
        self._finish_if_alone()

    def _finish_if_alone(self) -> None:
        if self._leaving is None or self._actions.exit is not None:
            return
        if not self.children:
            self._send(messages.Goodbye(self._why))
            self._actions.records.append(records.Ended(self._why, self.settings.member_id))
            self._actions.exit = self._leaving

    # ---- small change ----------------------------------------------------------------------------------------

    def next_deadline(self) -> float | None:
        """When `decide` should be called even if nothing happens; None if there is no need."""
        return self._leave_at if self._leaving is None else self._deadline

    def take_actions(self) -> AgentActions:
        """All that must be done now; given out once."""
        actions, self._actions = self._actions, AgentActions()
        return actions

    def _start(self) -> None:
        self._started += 1
        child = Child(self._started, SlaveId(f"slave {self._started}"))
        self.children[child.number] = child
        self._actions.start.append(child.number)
        for message, frames in self._algorithms:
            self._tell(child, message, frames)

    def _tell(self, child: Child, message: messages.Message, frames: Sequence[Buffer] = ()) -> None:
        self._actions.to_slaves.append((child.number, message, frames))

    def _send(self, message: messages.Message, frames: Sequence[Buffer] = ()) -> None:
        self._actions.to_master.append((message, frames))

    def check(self) -> None:
        """Hold the children against the settings; tests call it after every event."""
        assert len(self.children) <= self.settings.slaves, "more slaves than asked for"
        for number, child in self.children.items():
            assert child.number == number and child.state is not ChildState.GONE, f"slave {number} is gone"
