"""A slave process as its agent sees it, the events that reach an agent, and the state that its parts share.

A slave process as its agent sees it: its lifecycle, the tasks that it holds, and the moments when something is due.

The agent knows which tasks a slave holds, in their order. When a result arrives, its task is removed. Results for a
task that is not held are dropped, because the slave also sends the results that the agent has already read in its
journal.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from itertools import repeat

from attrs import Factory, define, evolve, frozen
from msgspec import Struct
from msgspec.structs import replace

from mwpy._core.holding import TaskIds, divided, take_named
from mwpy._values import messages, records
from mwpy._values.bounds import MAX_SECONDS, MAX_TASKS, Buffer, SlaveId
from mwpy._values.causes import Cause, PlainEnum
from mwpy._values.errors import ExitCode, InternalError
from mwpy._values.last_words import LastWords
from mwpy._values.messages import Share
from mwpy._values.options import DEFAULT_START_TIMEOUT_S
from mwpy._values.policy import Limits
from mwpy._values.requires import Given


class ChildState(PlainEnum):
    """The state of a slave process in its agent."""

    WAITING = "waiting"
    STARTING = "starting"
    READY = "ready"
    STOPPING = "stopping"
    KILLED = "killed"
    GONE = "gone"


class ChildEvent(PlainEnum):
    """What can happen to a slave process."""

    START = "start"
    GET_READY = "get ready"
    STOP = "stop"
    KILL = "kill"
    EXIT = "exit"


_S = ChildState
TRANSITIONS: dict[ChildEvent, dict[ChildState, ChildState]] = {
    ChildEvent.START: {_S.WAITING: _S.STARTING},
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


@frozen(eq=False)
class HeldSpan:
    """Tasks that were passed on to a slave and are not finished; see `holding`."""

    first: int
    count: int
    attempt: int
    position: int
    """Position of the first of these tasks. Positions count the tasks passed on to this slave, from 1."""
    limits: Limits | None = None
    """The limits of each of these tasks."""

    def cut(self, count: int) -> tuple[HeldSpan, HeldSpan]:
        """Split into the first `count` tasks and the others."""
        left = self.count - count
        rest = HeldSpan(self.first + count, left, self.attempt, self.position + count, self.limits)
        return evolve(self, count=count), rest


class Doom(Struct, frozen=True):
    """The running task for which a slave is killed, if it still runs it when the agent looks."""

    task: int
    attempt: int
    position: int
    because: str
    """Why the slave is killed."""
    cause: Cause
    """The cause of the loss of the task."""
    allowed: int = 0
    """As in `SlaveDied`."""


class Former(Struct, frozen=True):
    """The generation of the master to which a slave belongs that has outlived it."""

    generation: str
    sid: SlaveId
    """The id that the slave had there."""


class Due(PlainEnum):
    """What an agent does for a slave at a certain moment; see `AgentCore`."""

    START = "end its start, which takes too long"
    SILENCE = "read its journal, because it is silent"
    TIME = "look how long its task runs"
    MEMORY = "measure the memory that it uses"
    SPARED = "kill it if it still runs a task that is not wanted any more"
    KILL = "kill it, because it does not end"
    COLLECT = "collect its last results and output, after it has ended"
    STATE = "send the newest state of its task to the master"
    REPORT = "send the newest report of its task to the master"


@define(eq=False, repr=False)
class Newest:
    """The newest state or report of a slave's tasks, on its way to the master; see `Traffic.left`."""

    waiting: tuple[messages.Checkpoint | messages.Reported, Sequence[Buffer]] | None = None
    """It and its frames, until it is sent to the master."""
    until: float = 0.0
    """How long it waits at least."""
    is_unread: bool = False
    """Whether one was sent to the master, and the master has not answered."""


@define(eq=False, repr=False)
class Child:
    """A slave process, as its agent sees it."""

    number: int
    name: SlaveId
    """Its slave id, after the master has given it one."""
    started_at: float
    """When the agent decided to start it."""
    state: ChildState = ChildState.STARTING
    """While it waits for the template, it has no process."""
    held: deque[HeldSpan] = Factory(deque)
    """The tasks that were passed on to it and are not finished, in order."""
    given: Given | None = None
    """What the last tasks were given that it got; None if they required nothing."""
    has_gpus: bool = False
    """Whether it was ever given GPUs: then only the master that gave them knows which ones it can use."""
    former: Former | None = None
    """The former generation to which it belongs; None if it belongs to the present one. See `contact.py`."""
    is_asked: bool = False
    """Whether it was sent `NextGeneration`, and has not answered."""
    sets_up: messages.SetUp | None = None
    """The set-up of the agent that it runs, instead of tasks; None for a slave."""
    set_up_ended: messages.SetUpEnded | None = None
    """How this has ended; None while it runs."""
    after: messages.SetUp | None = None
    """The last set-up that was done before it was started."""
    failed_before: int = 0
    """How many slaves in a row before it could not load an algorithm, and were replaced."""
    load_failed: bool = False
    """Whether it could not load an algorithm, and will be replaced."""
    passed_on: int = 0
    """How many tasks were ever passed on to it: the position of the last."""
    replaced_because: str = ""
    """Why it ends between two tasks although nothing is wrong with it, as it says; else empty."""
    dues: dict[Due, float] = Factory(dict)
    """When something is due for it."""
    is_replaced: bool = False
    """Whether it is replaced before it was ready: the master never hears of it."""
    is_up: bool = False
    """Whether it has sent a message."""
    unprinted: bytearray = Factory(bytearray)
    """The part of its standard error that the agent holds back."""
    doomed: Doom | None = None
    """The task that it runs and must not finish, because it is cancelled or over its limit; None if it runs none."""
    newest: dict[Due, Newest] = Factory(lambda: {Due.STATE: Newest(), Due.REPORT: Newest()})
    """The newest state that a task of it left, and the newest report."""
    killed_at: int | None = None
    """Position of the task for which it was killed. In its memory may be the next position, because a slave
    writes it before it notices a recall."""
    allowed: int = 0
    """As in `SlaveDied`."""
    killed_because: str = ""
    """Why the agent killed it; empty if it did not."""
    loss: Cause = Cause.CRASH
    """The cause of the loss of the task that it runs, if it ends now."""
    measured: int = 0
    """Position of the task that it ran when its memory was measured. If it ran none: of the next task."""
    used: int = 0
    """The memory that was measured last."""
    exactly: bool = False
    """Whether it is measured exactly the next time, because its job seems to be short of memory."""
    peak_bytes: int = 0
    """The most memory that was measured."""
    kills: int = 0
    """How many of its processes the kernel had killed then for lack of memory."""
    memory_limit: int | None = None
    """The limit that the kernel enforces for it, if it can."""
    stood_at: int = 0
    """Position of the task that it had started last when the agent looked at it during a silence."""
    started: int = 0
    """Position of the task that it started last, as far as it is known."""
    condemned: str = ""
    """Why the agent does not trust it any more; empty while the agent trusts it. Unless it has ended, it is killed."""
    ended: bool = False
    """Whether its process has ended."""

    def due(self, due: Due, at: float) -> None:
        """Let something be done at this moment, unless it is due before."""
        self.dues[due] = min(at, self.dues.get(due, at))

    def change(self, event: ChildEvent) -> None:
        """Change the state. An event that the table does not allow in this state is a fault of mwpy."""
        target = TRANSITIONS[event].get(self.state)
        if target is None:
            raise InternalError(f"slave {self.number} is {self.state.value}, which cannot {event.value}")
        self.state = target

    def kill(self, because: str, cause: Cause) -> None:
        """Record that the agent kills it, and why. `cause` is that of the loss of the task that it runs."""
        self.change(ChildEvent.KILL)
        self.killed_because, self.loss, self.doomed = because, cause, None
        self.dues = {due: at for due, at in self.dues.items() if due is Due.COLLECT}

    @property
    def is_ready(self) -> bool:
        """Whether it takes tasks."""
        return self.state is ChildState.READY

    def hold(self, group: messages.Tasks) -> None:
        """Record that a group is passed on to it."""
        position, self.given = self.passed_on + 1, group.given
        self.has_gpus = self.has_gpus or bool(group.given is not None and group.given.gpus)
        limits = group.limits or repeat(None, len(group.tasks))
        for first, count, attempt, own in zip(group.tasks, group.counts, group.attempts, limits, strict=True):
            self.held.append(HeldSpan(first, count, attempt, position, own))
            position += count
        self.passed_on = position - 1

    def end(self, message: messages.Results | messages.AlgorithmFailed) -> list[range]:
        """Remove the tasks that a message of the slave names from those that it holds.

        Returns:
            The positions, among the tasks of the message, of those that it held, as ranges.
        """
        if self.doomed is not None and _names(message, self.doomed):
            self.doomed = None
            self.dues.pop(Due.SPARED, None)
        return take_named(self.held, message)

    def holds(self, task: int, attempt: int) -> bool:
        """Whether it holds a task in this attempt."""
        return any(span.first <= task < span.first + span.count and span.attempt == attempt for span in self.held)

    @property
    def memory_limits(self) -> list[int | None]:
        """The limit of memory of each span that it holds, or of the set-up that it runs."""
        if self.sets_up is not None:
            return [self.sets_up.memory_max]
        return [None if span.limits is None else span.limits.memory for span in self.held]

    def cancel(self, ids: TaskIds, started: int, spared_until: float | None) -> messages.Revoked:
        """Remove cancelled tasks from those that it holds.

        Args:
            ids: the cancelled tasks, which other slaves may hold.
            started: position of the last task that it started.
            spared_until: when to kill it if it still runs one of them then; None if the tasks that it has started may
                finish. Then it still holds them.

        Returns:
            The removed tasks that it has not started. If these are `MAX_TASKS` spans, it may hold more.
        """
        running = self.running(started)
        kept, unstarted = deque[HeldSpan](), list[HeldSpan]()
        for part, named in divided(self._cut_behind(started), ids):
            has_begun = part.position <= started
            if named and not has_begun and len(unstarted) < MAX_TASKS:
                unstarted.append(part)
            elif not (named and has_begun) or spared_until is None:
                kept.append(part)
        self.held = kept
        if self.running(started) != running:
            because = f"because it ran task {running[0]}, whose result is not wanted any more"
            self.doomed = Doom(*running, started, because, Cause.CANCELLED)
            if spared_until is not None:
                self.dues[Due.SPARED] = spared_until
        return self._revoked(unstarted, cancelled=True)

    def _cut_behind(self, started: int) -> Iterator[HeldSpan]:
        """The tasks that it holds. Of each span it has started either all tasks or none."""
        for span in self.held:
            begun = started + 1 - span.position
            if 0 < begun < span.count:
                yield from span.cut(begun)
            else:
                yield span

    def take_back(self, started: int, count: int) -> messages.Revoked:
        """Remove the last tasks that it holds and has not started, at most `MAX_TASKS` spans.

        Args:
            started: position of the last task that it started.
            count: how many tasks to take back at most.
        """
        unstarted = deque[HeldSpan]()
        while self.has_unstarted(started) and count > 0 and len(unstarted) < MAX_TASKS:
            span = self.held.pop()
            keep = max(0, started + 1 - span.position, span.count - count)
            if keep:
                kept, span = span.cut(keep)
                self.held.append(kept)
            unstarted.appendleft(span)
            count -= span.count
        return self._revoked([*unstarted])

    def has_unstarted(self, started: int) -> bool:
        """Whether it holds tasks behind the position of the task that it started last."""
        return bool(self.held) and self.held[-1].position + self.held[-1].count - 1 > started

    def _revoked(self, unstarted: Sequence[HeldSpan], *, cancelled: bool = False) -> messages.Revoked:
        firsts, counts = [span.first for span in unstarted], [span.count for span in unstarted]
        return messages.Revoked(self.number, firsts, counts, [span.attempt for span in unstarted], cancelled)

    def believes(self, started: int) -> bool:
        """Whether it may have started the task at this position last; if so, remember it."""
        if not self.started <= started <= self.passed_on:
            return False
        self.started = started
        return True

    def lost(self, started: int) -> list[tuple[int, int, int]]:
        """First id, count and attempt of the held tasks before position `started`: they ran, but left no result."""
        spans = ((span.first, min(span.count, started - span.position), span.attempt) for span in self.held)
        return [entry for entry in spans if entry[1] > 0]

    def running(self, started: int) -> tuple[int, int]:
        """Id and attempt of the task at position `started`, if it is held; else (0, 0).

        If its agent does not trust it, the task may be unknown. Then it is the first that it holds.
        """
        if self.condemned and self.held:
            started = max(self.started, self.held[0].position)
        span = self.span_at(started)
        return (0, 0) if span is None else (span.first + started - span.position, span.attempt)

    def span_at(self, position: int) -> HeldSpan | None:
        """The span with the task at a position, if this task is held."""
        return next((span for span in self.held if span.position <= position < span.position + span.count), None)


def _names(message: messages.Results | messages.AlgorithmFailed, doomed: Doom) -> bool:
    """Whether a message names a task in its attempt."""
    entries = zip(message.tasks, message.counts, message.attempts, strict=True)
    return any(first <= doomed.task < first + count and attempt == doomed.attempt for first, count, attempt in entries)


# What the agent's core receives and returns: settings, events and actions.


FAREWELL_S = 2.0
"""Seconds that slaves get for their tear-down when the master is lost, and that killed slaves get to disappear."""


@frozen
class AgentSettings:
    """What the core needs to know about its agent."""

    hello: messages.Hello
    """The first message on the connection."""
    grace_s: float = 5.0
    ends_at: float | None = None
    """When the batch system will end this agent, if that is known. The agent leaves early enough to end cleanly."""
    client_timeout_s: float = 30.0
    """After this silence, the master counts this agent as lost."""
    idle_exit_s: float | None = None
    """The agent leaves when its slaves held no task for this long; None if it stays."""
    memory_bytes: int | None = None
    """How much memory the slaves may use together, because their job has no more; None if this is unknown."""
    max_share_bytes: int = 1 << 30
    """When all shared objects take more than this, the agent drops those that no task needs. The manual names this
    number."""
    keeps_outputs: bool = True
    """Whether the agent keeps the large outputs of its slaves. It need not on the machine of the master."""
    max_share_files: int = 500
    """When there are more shared objects than this, the agent drops those that no task needs: each is an open file. The
    manual names this number."""
    start_timeout_s: float = DEFAULT_START_TIMEOUT_S
    """A slave that is not ready after this time is killed, and counts as a failed start."""
    forks: bool = False
    """Whether slaves are forked from a template, and not started as fresh interpreters."""

    @property
    def tasks_end_at(self) -> float | None:
        """When the tasks of this agent must have ended; None if this is not known."""
        return None if self.ends_at is None else self.ends_at - FAREWELL_S

    def hello_at(self, now: float) -> messages.Hello:
        """The first message, if it is sent at this time."""
        end_at = self.tasks_end_at
        left_s = None if end_at is None else min(max(0.0, end_at - now), MAX_SECONDS)
        return replace(self.hello, seconds_left=left_s)


# ---- events --------------------------------------------------------------------------------------------------------


class AgentEvent(Struct, frozen=True):
    """Something that has happened: each kind is a class."""


class OutageEvent(AgentEvent, frozen=True):
    """Something that concerns the connection to the master."""


class Heard(AgentEvent, frozen=True):
    """A message of the master arrived."""

    message: messages.Message
    frames: Sequence[Buffer] = ()
    """All its frames as they were received, the header first."""


class SlaveHeard(AgentEvent, frozen=True):
    """A message of a slave arrived in its stream."""

    slave: int
    message: messages.Message
    frames: Sequence[Buffer] = ()
    """All its frames as they were received, the header first."""


class StreamEnded(AgentEvent, frozen=True):
    """The stream of a slave is closed by the slave and by all processes that it forked."""

    slave: int


class Looked(AgentEvent, frozen=True):
    """The memory that a slave shares with the agent was read, and after that what the slave had sent was reported."""

    slave: int
    started: int
    """Position of the last task that it had started; 0 if it started none."""
    began: float = 0.0
    """When it started this task, if the task has a limit of time and runs; else 0."""
    results: messages.Results | None = None
    """The results in its journal: those that it has finished and not sent. None if there are none."""
    frames: Sequence[Buffer] = ()
    """The results as a message, the header first."""


class Measured(AgentEvent, frozen=True):
    """The memory was measured that a slave and its descendants use."""

    slave: int
    started: int
    """Position of the last task that it started; 0 if it started none."""
    used: int
    """In bytes."""
    kills: int
    """How many of its processes the kernel has killed because the limit of its control group was reached."""


OVERWROTE = "it overwrote the memory that it shares with its agent"
UNREADABLE = "what it sent cannot be read"


class Nonsense(AgentEvent, frozen=True):
    """A slave shows nonsense, because some code in it wrote into its stream, or into the memory of its agent."""

    slave: int
    fault: str
    """`UNREADABLE` or `OVERWROTE`."""
    details: str


class ErrorOutput(AgentEvent, frozen=True):
    """A slave wrote to its standard error."""

    slave: int
    data: bytes


class ExitSeen(AgentEvent, frozen=True):
    """A slave process has ended. Its stream, journal and output may still contain something."""

    slave: int
    by_sigkill: bool


class Forked(AgentEvent, frozen=True):
    """The template has started a slave, or could not."""

    slave: int
    failure: str = ""
    """Why it could not; empty if it could."""
    unsafe: str = ""
    """Why the template must not fork. If so, the template itself has become this slave, and there is no template."""
    template_bytes: int = 0
    """How much memory the template has. Its slaves share it, and it does not count for them."""


class SlaveExited(AgentEvent, frozen=True):
    """A slave has ended. Everything in its stream and journal was reported before."""

    slave: int
    reason: str
    words: LastWords
    started: int
    """Position of the last task that the slave started; 0 if it started none."""
    error_output: bytes = b""
    """The end of its standard error, and the report of its fault handler."""
    out_of_memory: bool = False
    """Whether the kernel killed it because the memory of its control group was used up."""
    code: int | None = None
    """Its exit code, or the negative number of the signal that ended it; None if it had no process."""


class Recalled(AgentEvent, frozen=True):
    """A slave was stopped: it starts no other task until it reads which tasks were taken back."""

    slave: int
    started: int
    """Position of the last task that it started, and perhaps finished; 0 if it started none."""
    wanted: int | messages.Cancel | None
    """How many tasks to take back at most; or which tasks are cancelled; None to take nothing back, only to look."""


class ShareOpened(AgentEvent, frozen=True):
    """There is room for a shared object."""

    share: Share
    """Its location is that of the agent's content."""
    is_complete: bool
    """Whether the content is here already, because it was on this host."""


class ShareNotKept(AgentEvent, frozen=True):
    """There is no room for a shared object, for this reason."""

    digest: str
    reason: str


class LookedUp(AgentEvent, frozen=True):
    """The installed versions of the requested packages; empty for a package that is not installed."""

    packages: dict[str, str]


class Found(AgentEvent, frozen=True):
    """Where the requested programs are; an empty text for one that is not found."""

    programs: dict[str, str]


class Terminated(AgentEvent, frozen=True):
    """The batch system wants the machine back, or a person removes this agent."""

    reason: str
    cause: Cause = Cause.EVICTED
    used: dict[int, int] = {}
    """How many bytes of memory each busy slave used then, by number; empty if they were not measured."""


class Resumed(AgentEvent, frozen=True):
    """This process was stopped for some seconds, with or without its slaves."""

    stopped_s: float


class AddressesFound(OutageEvent, frozen=True):
    """The addresses at which the master may be now."""

    addresses: Sequence[str]


class ComputationOver(OutageEvent, frozen=True):
    """The resource file says that this master has ended."""

    reason: str
    finished: bool
    """Whether the computation is finished."""


class AttemptFailed(OutageEvent, frozen=True):
    """The master does not answer at an address, or not any more."""


class Disconnected(OutageEvent, frozen=True):
    """The connection to the master ended."""

    reason: str
    returns: bool = True
    """Whether the agent may come back."""


# ---- actions -------------------------------------------------------------------------------------------------------


class Outgoing(Struct, frozen=True):
    """A message to send."""

    message: messages.Message
    payload: Sequence[Buffer] = ()
    """The frames behind the header."""
    received: Sequence[Buffer] = ()
    """All frames as they were received, if the message is passed on unchanged; else empty."""


class OpenShare(Struct, frozen=True):
    """Make room for a shared object, and report `ShareOpened` or `ShareNotKept`."""

    share: Share
    content: Buffer = b""
    """Its content, if it is here; else empty."""


class WriteShare(Struct, frozen=True):
    """Write a part of a shared object. Report `ShareNotKept` if it cannot be written."""

    digest: str
    start: int
    part: Buffer


class DropShare(Struct, frozen=True):
    """Drop the content of a shared object, if there is any."""

    digest: str


class AgentActions(Struct):
    """Everything to do now. The order of the fields is the order of execution."""

    records: list[records.Record] = []
    error_output: list[bytes] = []
    """What slaves wrote to standard error, for the agent's own standard error."""
    end_template: bool = False
    """End the template, because its script was edited."""
    module_path: str = ""
    """Where all processes find modules that are started from now on; empty if this has not changed."""
    environment: dict[str, str] = {}
    """Environment variables for all processes that are started from now on."""
    start: list[int] = []
    """Slaves to start as fresh interpreters. Report `SlaveExited` for a slave that cannot be started."""
    fork: list[int] = []
    """Slaves to start with the template. If there is none, start one, which then starts the slave. Report `Forked`,
    or, if the template ends before that, `SlaveExited`."""
    feed: list[int] = []
    """Slaves that had no task and get tasks now: write the time into the memory that is shared with them."""
    end_at: float | None = None
    """When the tasks of all slaves must have ended: write this time into the memory that is shared with them."""
    limit_memory: list[tuple[int, int | None]] = []
    """Pairs (slave, bytes): let the kernel limit the memory of the slave and its descendants, if it can."""
    share_files: list[OpenShare | WriteShare | DropShare] = []
    to_slaves: list[tuple[int, Outgoing]] = []
    recall: list[tuple[int, int | messages.Cancel | None]] = []
    """Pairs (slave, `Recalled.wanted`): report `Recalled` for each slave that still exists."""
    abort: list[int] = []
    """Slaves that hang: let them write where, and end."""
    kill: list[int] = []
    look: list[int] = []
    """Slaves that are silent or may be over a limit: report `Looked` or `Nonsense`."""
    measure: list[tuple[int, int]] = []
    """Pairs (slave, bytes): report `Measured`. Up to this number of bytes, a rough number is enough."""
    collect: list[int] = []
    """Slaves that have ended: report their remaining output and results, then `SlaveExited`."""
    succeeds: str | None = None
    """The session with this generation of the master has ended: bring its results to the next generation."""
    to_master: list[Outgoing] = []
    ask_addresses: bool = False
    """Find out where the master may be, and report `AddressesFound` or `ComputationOver`."""
    connect_to: str | None = None
    """An address: connect to it, and report `AttemptFailed`, or the answer of the master to `Hello`."""
    exit: ExitCode | None = None
    look_up: list[str] = []
    """Packages: report `LookedUp`. This is the last action, because it reads files."""
    find: list[str] = []
    """Programs: report `Found`, at the same time."""


# The state that all parts of the agent's core share: settings, slaves, and the actions that are not taken yet.


UNBOUNDED = 1 << 30
"""A recall of this many tasks takes back all that are not started."""

_LIVING = (ChildState.STARTING, ChildState.READY, ChildState.STOPPING)


@define(eq=False, repr=False)
class AgentState:
    """The state that the parts of an agent's core share."""

    settings: AgentSettings
    children: dict[int, Child] = Factory(dict)
    """The slave processes, by number."""
    actions: AgentActions = Factory(AgentActions)
    template_bytes: int = 0
    """How much memory the template has, which slaves share."""

    def living(self) -> list[Child]:
        """The slaves that have a process and were not killed."""
        return [child for child in self.children.values() if child.state in _LIVING]

    def stop(self, child: Child, finished: bool) -> None:
        """Let a slave finish its running task and end, and take back its other tasks. A set-up is killed."""
        if child.sets_up is not None:
            child.kill("because its agent leaves", child.loss)
            self.actions.kill.append(child.number)
            return
        if child.held:
            self.actions.recall.append((child.number, UNBOUNDED))
        child.change(ChildEvent.STOP)
        self.to_slave(child, messages.Shutdown(finished, 0.0))

    def record(self, record: records.Record) -> None:
        """State a fact."""
        self.actions.records.append(record)

    def to_slave(self, child: Child, message: messages.Message) -> None:
        """Send a message of the agent's own to a slave."""
        self.actions.to_slaves.append((child.number, Outgoing(message)))

    def to_master(self, message: messages.Message) -> None:
        """Send a message of the agent's own to the master."""
        self.actions.to_master.append(Outgoing(message))
