"""The state of a master, the commands of its algorithm, the events from its agents, and its actions.

All parts of the master's core share one `MasterState`. Every change of a task or a slave goes through `record`, which
applies the record and adds it to the actions. So the records that a master gives out, applied to an empty state, build
the same state.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from enum import Enum, IntEnum
from typing import Any

from attrs import Factory, define, frozen
from msgspec import Struct, field

from mwpy._core.holding import TaskIds, take_out
from mwpy._core.master.algorithms import FailedCall
from mwpy._core.master.members import ConnectedAgent, ConnectedSlave, Members, Pool
from mwpy._core.master.spans import Span, ids_in
from mwpy._core.master.tasks import ENDED, Tags, Taskjar
from mwpy._core.pauses import Pause, between_messages
from mwpy._values import messages, records
from mwpy._values.bounds import MAX_WAITING_BYTES, Buffer, SlaveId, TaskId
from mwpy._values.connections import Garbage, Stranger, TurnedAway, Vanished
from mwpy._values.groups import spans_of
from mwpy._values.messages import LogRow, Message, Report, SetUp
from mwpy._values.options import DEFAULT_CLIENT_TIMEOUT_S, OWN_ADDRESS
from mwpy._values.phrases import counted
from mwpy._values.policy import MaxFailures
from mwpy._values.records import ResultsHandedOver
from mwpy._values.task import Result, SlaveKind, SlaveState, StoredAt, TaskState, UnrunnableTask

# The commands from the algorithm's thread to the master's core.


class AllocateSlaves(Struct, frozen=True):
    """Want `amount` more slaves of a kind; fewer if it is negative."""

    amount: int
    kind: SlaveKind


class EndSoon(Struct, frozen=True):
    """Send no more tasks, because the batch system has said that the known end of the master is near."""


class FreeSlave(Struct, frozen=True):
    """Make an ordered or intermingle slave unordered."""

    sid: SlaveId


class RenewSlaves(Struct, frozen=True):
    """Replace slaves, because modules that they have imported were edited."""

    refused: int | None
    """Only those of agents that cannot run the algorithm with this number; None for all slaves."""
    module_path: str = ""
    """Where new slaves find modules, as in `Renew`."""


class Running(Enum):
    """What happens to tasks that run when they are cancelled."""

    KILL = "kill"
    """They are killed without grace."""
    FINISH = "finish"
    """They may finish, and their results count. If they are lost with their slave, they are cancelled then."""
    LEAVE = "leave"
    """Tasks that slaves have are not cancelled."""
    DISCARD = "discard"
    """They are killed, and none of the cancelled tasks comes back to the algorithm."""


@frozen(eq=False)
class CancelTasks:
    """Cancel tasks. Those that have ended stay as they are."""

    ranges: Sequence[tuple[int, int]]
    """The first id and the count of each range of consecutive ids. The ranges do not overlap."""
    running: Running

    @classmethod
    def of(cls, ids: Sequence[int], running: Running) -> CancelTasks:
        """Cancel the tasks with these ids. Ascending ids make few ranges."""
        firsts, counts, _ = spans_of(ids, [0] * len(ids))
        return cls([*zip(firsts, counts, strict=True)], running)

    @property
    def last(self) -> int:
        """The highest id."""
        return max((first + count - 1 for first, count in self.ranges), default=0)


class GoOn(Struct, frozen=True, eq=False):
    """After a stop because of failures: when all tasks have ended, answer which ones did not run, and go on with the
    tasks that are submitted after this command."""


class HoldResults(Struct, frozen=True, eq=False):
    """Keep the results of those of these tasks that have not ended, because other tasks will refer to them.

    To keep each result until it is fetched would cost something for every task. So the thread of the algorithm asks for
    those to which a task refers, and gives back those that arrive. The answer comes behind all results that were given
    out.
    """

    numbers: Sequence[int]
    """In ascending order."""

    @property
    def last(self) -> int:
        """The highest id."""
        return self.numbers[-1]


class GiveResult(Struct, frozen=True):
    """Keep a result that the algorithm has received and not fetched, because other tasks will refer to it."""

    number: int
    frames: Sequence[Buffer] = ()
    """The encoded value and its large buffers; empty if the task has ended without a value."""
    cause: str = ""
    """Why there is no value: which task did not end well, and why."""
    root: int = 0
    """The id of that task."""
    stored: StoredAt | None = None
    """Where the value is in the run database, if nobody has read it. Then there are no frames."""


class ResultRead(GiveResult, frozen=True):
    """A value was read that `Actions.reads` has asked for."""


class TakeReports(Struct, frozen=True, eq=False):
    """Give out the newest reports of the tasks that run."""


class ReleaseResults(Struct, frozen=True):
    """The algorithm has fetched these results, so that it submits no more tasks that refer to them."""

    numbers: Sequence[int]
    last: int = 0
    """The id of the last task that was submitted before this command: it may refer to these results."""


class Tell(Struct, frozen=True):
    """Show the user a message, once."""

    text: str


class ShutDown(Struct, frozen=True):
    """End the computation."""

    finished: bool
    """Whether the computation is complete; if not, the agents' jobs stay queued."""
    grace_s: float
    """How long slaves may take to end by themselves."""
    of_maps: int = 0
    """About how many of the tasks that have not ended belong to open maps."""
    unread_maps: int = 0
    """How many maps nobody has asked for a value."""
    returned: bool = True
    """Whether the master algorithm came to its end. Then the user hears of what it has left undone."""


Command = (
    AllocateSlaves
    | CancelTasks
    | EndSoon
    | FreeSlave
    | GiveResult
    | GoOn
    | HoldResults
    | ReleaseResults
    | ResultRead
    | RenewSlaves
    | ShutDown
    | TakeReports
    | Tell
)


Asking = CancelTasks | GoOn | HoldResults | TakeReports
"""Commands that the core answers."""


class Waiting(IntEnum):
    """Whether the master algorithm waits in `mw.loop()`, and for how long; the longest time is the largest number."""

    NOT = 0
    FOR_A_WHILE = 1
    FOREVER = 2


# The events of the master's core, and the message that it sends.


class Received(Struct, frozen=True):
    """A well-formed message arrived. `peer` names its connection; no name is used twice."""

    peer: bytes
    address: str
    message: Message
    frames: Sequence[Buffer]


class Returned(Struct, frozen=True):
    """An agent goes on with its session on another connection, from this address."""

    peer: bytes
    address: str


class Stored(Struct, frozen=True):
    """Results that an agent has brought from a former generation are in the run database."""

    record: ResultsHandedOver
    row: int
    """The name of their row."""


class Confirmed(Struct, frozen=True):
    """An agent has said that it has handled messages of the master."""

    peer: bytes
    payload_bytes: int
    """The size of their payloads."""


Event = Received | Garbage | Vanished | Returned | Stranger | TurnedAway | Stored | Confirmed


class Send(Struct, frozen=True):
    """A message to be sent to a peer, with its payload frames."""

    peer: bytes
    message: Message
    frames: Sequence[Buffer] = ()
    after_commit: bool = False
    """Whether it is sent only when the records of the same actions are in the run database, if there is one."""


# Which notices the user sees.
#
# Some texts come from members, and a member may send another text each time. These notices have keys: each key is shown
# once, and a limited number of them in a minute.


KEYS_KEPT = 1000
"""How many keys of notices are remembered. When there are more, the oldest is forgotten, and may be said again."""

NOTICES_KEPT = 20
"""How many of the newest notices an inquirer gets."""

FIRST_PAUSE_S = 60.0
"""Seconds until a notice about a condition that lasts is shown for the second time."""

NOTICES_A_MINUTE = 100
"""How many notices with a key are shown in a minute."""


@define(eq=False, repr=False)
class Notices:
    """Chooses the notices that are shown."""

    newest: deque[tuple[float, str]] = Factory(lambda: deque(maxlen=NOTICES_KEPT))
    """The newest notices, and when they were shown, by the monotonic clock."""
    _keys: dict[str, Pause] = Factory(dict)
    """The keys of the notices that were shown, with the pauses between those that are shown again; the oldest is
    first."""
    _shown_at: deque[float] = Factory(deque)
    """When those of the last minute were shown."""
    _left_out: int = 0
    """How many notices were not shown since the last one that was."""

    def chosen(self, text: str, key: str, now: float, *, lasts: bool = False) -> list[str]:
        """Return what is shown in place of a notice: the notice, or nothing.

        Args:
            key: notices with the same key are shown only once. It is empty for a notice that no member causes. Such a
                notice is always shown.
            now: the monotonic time.
            lasts: whether it is about a condition, so that it is shown again while it comes again and again.
        """
        if not key:
            return [text]
        known = self._keys.get(key)
        if known is not None and (not lasts or now < known.until):
            return []
        while self._shown_at and self._shown_at[0] <= now - 60:
            self._shown_at.popleft()
        if len(self._shown_at) >= NOTICES_A_MINUTE:
            self._left_out += 1
            return []
        self._shown_at.append(now)
        pause = self._keys[key] = known or between_messages(FIRST_PAUSE_S)
        pause.begin(now)
        if len(self._keys) > KEYS_KEPT:
            del self._keys[next(iter(self._keys))]
        if not self._left_out:
            return [text]
        missing = f"{counted(self._left_out, 'message')} more came within a minute, and were left out"
        self._left_out = 0
        return [missing, text]


UNLESS_QUEUED = "If none is queued in a batch system"
"""The master does not see the queues of batch systems, so it does not know whether slaves will come from there."""


def how_to_start(by_hand: str = "python APP --mw-slave --mw-resource-file FILE", file: str = "FILE") -> str:
    """Return how slaves can be started: by a command, or by an overseer that reads the resource file."""
    return f"{UNLESS_QUEUED}, start some with `{by_hand}`, or with `mwpy oversee {file} --with SYSTEM`"


class MasterSettings(Struct, frozen=True):
    """The options that the core uses; `_values/options.py` describes them."""

    member_id: str
    generation: str
    task_group: int | None = None
    result_group: int = 0
    max_result_bytes: int = 1 << 30
    max_call_bytes: int = 1 << 30
    client_timeout_s: float = DEFAULT_CLIENT_TIMEOUT_S
    max_definition_bytes: int = 64 << 20
    """How large all functions by value may be that a process keeps, unless its tasks need them."""
    only_here: bool = False
    """Whether only slaves on the master's own machine can join."""
    log_levels: dict[str, int] | None = None
    """The levels of the loggers in the master's process at its start, by name; None if slaves send no records."""
    in_this_process: bool = False
    """Whether the only slave is in the master's process, so that nobody can enforce limits of tasks."""
    max_agents: int = 1 << 16
    """How many agents there is room for."""
    max_open_files: int = 1 << 16
    """How many files the process may have open, which limits the number of agents."""
    max_failures: MaxFailures | None = None
    """At how many failures the computation stops; None for no limit."""
    max_waiting_bytes: int = 1 << 30
    """About how many bytes of results may wait for the algorithm until no more tasks are sent."""
    feeds_until: float | None = None
    """When no more tasks are sent, because the master ends soon, on the core's clock; None if its time has no limit."""
    ends_at: float | None = None
    """When the master ends then."""
    started_at: float = 0.0
    """When the master started, on the core's clock."""
    set_up: SetUp | None = None
    """What each agent runs before its first slave starts; None for nothing."""
    set_up_stops: bool = False
    """Whether the run ends if this fails on a host. If not, the host is excluded."""
    advice: str = how_to_start()
    """How to start slaves if none is there."""
    run_offers: dict[str, int] = field(default_factory=dict)
    """The amounts that the whole run has, by name; those of agents do not count for these names."""


class Stopped(Struct, frozen=True):
    """The run was stopped because of failures."""

    failed: int
    """How many tasks had failed then, since the run went on after the last stop."""
    ended: int
    """How many tasks had ended then, with the failed ones and without the cancelled ones."""


class LogGroup(Struct, frozen=True):
    """What the tasks of a slave have logged."""

    sid: SlaveId
    host: str
    rows: Sequence[LogRow]
    left_out: int
    """How many records of any slave were left out before these."""
    size: int
    """About how many bytes they take."""


@define
class Actions:
    """Everything that must be done now; the order of the fields is the order of execution."""

    records: list[records.Record] = Factory(list)
    sends: list[Send] = Factory(list)
    reads: list[tuple[int, StoredAt]] = Factory(list)
    """Values of tasks, by id, that are in the run database, and for which blocked tasks wait."""
    forget: list[bytes] = Factory(list)
    disconnect: list[bytes] = Factory(list)
    results: list[Result[object]] = Factory(list)
    unrunnable: list[UnrunnableTask] = Factory(list)
    owned: dict[Any, list[Any]] = Factory(dict)
    """What has ended of tasks that have an owner, by owner: results, unrunnable tasks, and values of items as
    `Stretch`. `results` and `unrunnable` have the others."""
    connected: list[SlaveId] = Factory(list)
    disconnected: list[SlaveId] = Factory(list)
    failed: list[FailedCall] = Factory(list)
    """The calls of those results that are failures of tasks."""
    cancelled: list[tuple[Asking, list[TaskId]]] = Factory(list)
    """The answers to `CancelTasks` and `HoldResults`: those of its tasks that had not ended; to `GoOn`: the tasks that
    did not run; to `TakeReports`: none, because `reports` has them."""
    reports: list[tuple[Any, Report]] = Factory(list)
    """The newest reports of tasks that run, with the owners of the tasks, if the algorithm has asked for them."""
    result_bytes: int = 0
    """About how many bytes `results` and `owned` take."""
    logged: list[LogGroup] = Factory(list)
    """What tasks have logged."""
    stopped: Stopped | None = None
    """Whether the run is stopped just now."""
    ends_at: float | None = None
    """When the master ends, if it is out of time from now on."""

    def ended(self, owner: Any) -> list[Any]:
        """Where the results of tasks with this owner belong; None for the algorithm."""
        return self.results if owner is None else self.owned.setdefault(owner, [])


Change = Callable[..., list[Span] | None]
_NO_CHANGES: tuple[Change | None, Change | None] = None, None


class MasterState:
    """Tasks, agents, slaves and actions."""

    def __init__(self, settings: MasterSettings) -> None:
        self.settings = settings
        self.jar = Taskjar()
        self.members = Members(self.jar.held)
        self.members.pool = Pool(settings.run_offers)
        self.actions = Actions()
        self.wall = 0.0
        """The time of this iteration in seconds since 1970, for what the user gets; no decision depends on it."""
        self.now = settings.started_at
        """The monotonic time of the last event or iteration, or of the start."""
        self.closing: messages.Shutdown | None = None
        """What the agents are sent at the end; None while the computation runs."""
        self.notices = Notices()
        """What the user was shown."""
        moves, changes = self.jar.changes, self.members.changes
        self._changes = {kind: (moves.get(kind), changes.get(kind)) for kind in (*moves, *changes)}
        """What each kind of record does to the tasks, and to agents and slaves."""

    def record(self, record: records.Record, *tags: Tags) -> list[Span]:
        """Change the state as a record says, and add the record to the actions.

        Args:
            record: what happened.
            tags: with `TasksSubmitted`, the tags and the owner of each of its entries.

        Returns:
            The spans of the record's tasks, in their new state.

        Raises:
            InternalError: the record contradicts the state; the fault of mwpy itself.
        """
        move, change = self._changes.get(type(record), _NO_CHANGES)
        spans = (None if move is None else move(record, *tags)) or []
        if change is not None:
            change(record)
        self.actions.records.append(record)
        if self.members.given_back and spans and spans[0].state in ENDED:
            self._end_elsewhere(TaskIds((span.first, span.count) for span in spans))
        return spans

    def settle(self, slave: ConnectedSlave, *, killed: bool = False) -> None:
        """Record the state of a slave whose tasks or whose agent have changed.

        Args:
            killed: whether tasks have ended for the master that it may still run, until its agent kills it. Then it
                keeps what it was given until its end, unless it sends the result of another task before.
        """
        if not slave.given_back:
            self.members.given_back.pop(slave.sid, None)
        state = slave.next_state
        slave.runs_ended = slave.given is not None and (killed or slave.runs_ended)
        if slave.given is not None and not slave.is_busy:
            if slave.runs_ended and not self.settings.in_this_process:
                self.replace(slave)
                return
            if state is not SlaveState.SHUTTING_DOWN or not slave.is_replaced:
                self.members.take_from(slave)
        if state is not slave.state:
            self.record(records.SlaveChanged(slave.sid, state, slave.kind))
        if state is SlaveState.BUSY:
            self.members.hungry[slave.sid] = slave

    def ask_back(self, slave: ConnectedSlave, count: int) -> None:
        """Ask a slave for at most this many tasks that it has not started."""
        slave.asked_back = True
        self.send(slave.agent, messages.Revoke(slave.number, count))

    def replace(self, slave: ConnectedSlave) -> None:
        """Let the agent of a slave replace it by a new one. It gets no more tasks."""
        if not slave.is_replaced:
            slave.is_replaced = True
            self.send(slave.agent, messages.Renew(slave=slave.number))
        if slave.state is not SlaveState.SHUTTING_DOWN:
            self.record(records.SlaveChanged(slave.sid, SlaveState.SHUTTING_DOWN, slave.kind))

    # ---- tasks that are given to other slaves --------------------------------------------------------------
    #
    # A task may be taken from a slave that may run it, and given to another one: once, if its policy allows this. It is
    # pending then, like any other task that came back, and its former slave learns nothing of it. If this slave answers
    # first, with a value, it has the task again. When the task ends elsewhere, its agent kills it. If the task is
    # cancelled and may finish, it may finish at the slave that has it now. This happens to stragglers (`Dispatch`) and
    # to tasks of agents that are away (`Losses`).

    def given_away(self) -> TaskIds:
        """The tasks that were taken from slaves which may still run them."""
        return TaskIds(
            (span.first, span.count) for slave in self.members.given_back.values() for span in slave.given_back
        )

    def may_give_away(self, span: Span, given: TaskIds) -> bool:
        """Whether the tasks of a span may be given to another slave although one may run them: once, and not if the
        next loss would end them.

        Args:
            given: those that were given to others already.
        """
        is_for_any = span.policy.sid is None and span.state is TaskState.ALLOCATED
        return is_for_any and span.can_lose(1) and not any(given.among(span))

    def give_away(self, slave: ConnectedSlave, spans: Sequence[Span], reason: str) -> None:
        """Take tasks from a slave, so that others run them. It may still run them, and its results of them count."""
        if spans:
            slave.given_back.extend(span.between(0, span.count) for span in spans)
            self.members.given_back[slave.sid] = slave
            self.record(records.TasksReturned(slave.sid, [span.whole for span in spans], reason))
            self.settle(slave)

    def reclaim(self, slave: ConnectedSlave, spans: Sequence[Span], *, only_pending: bool = False) -> None:
        """Give a slave tasks again that were taken from it. The slaves that have them now are killed.

        Args:
            spans: the tasks, in the attempts in which the slave has them.
            only_pending: leave out those that other slaves have.
        """
        for attempt in dict.fromkeys(span.attempt for span in spans):
            ids = TaskIds((span.first, span.count) for span in spans if span.attempt == attempt)
            for holder, found in [*self.jar.places(ids)]:
                if holder is None or not only_pending:
                    take_out(slave.given_back, ids_in(found))
                    self.record(records.TasksReclaimed(slave.sid, found, attempt, holder))
                    if holder is not None and holder in self.members.slaves:
                        self.cancel_elsewhere(self.members.slaves[holder], found)
        self.settle(slave)

    def _end_elsewhere(self, ids: TaskIds) -> None:
        """Tasks have ended: let the agents kill them at the slaves that had them before."""
        for slave in [*self.members.given_back.values()]:
            if ended := take_out(slave.given_back, ids):
                self.cancel_elsewhere(slave, [span.whole for span in ended])

    def cancel_elsewhere(self, slave: ConnectedSlave, tasks: Sequence[records.TaskRange]) -> None:
        """Tasks that a slave had have ended elsewhere: let its agent kill them."""
        self.cancel_at(slave.agent, tasks)
        slave.last_heard = self.now
        self.settle(slave, killed=True)

    # ---- messages ------------------------------------------------------------------------------------------

    def cancel_at(self, agent: ConnectedAgent, tasks: Iterable[records.TaskRange], *, kill: bool = True) -> None:
        """Let an agent cancel tasks that its slaves hold.

        Args:
            tasks: two of its slaves may run the same task, which is then named twice.
            kill: whether it kills slaves that run them.
        """
        ranges = ids_in(tasks).ranges
        self.send(agent, messages.Cancel([first for first, _ in ranges], [count for _, count in ranges], kill=kill))

    def send(
        self,
        agent: ConnectedAgent,
        message: messages.Message,
        frames: Sequence[Buffer] = (),
        *,
        after_commit: bool = False,
    ) -> None:
        """Send a message to an agent.

        Args:
            after_commit: as in `Send`.
        """
        if frames and agent.address != OWN_ADDRESS:
            size = sum(map(len, frames))
            agent.waiting_bytes += size
            agent.largest_bytes = max(agent.largest_bytes, size)
            if agent.waiting_bytes > MAX_WAITING_BYTES + 2 * agent.largest_bytes:
                self.members.slow[agent.name] = agent
        self.actions.sends.append(Send(agent.peer, message, frames, after_commit))

    def notice(self, text: str, key: str = "", *, lasts: bool = False) -> None:
        """Show the user a message. Messages with the same key are shown only once, and not too many of them.

        Args:
            lasts: whether it is about a condition. While it comes again and again, it is shown again after pauses.
        """
        for shown in self.notices.chosen(text, key, self.now, lasts=lasts):
            self.notices.newest.append((self.now, shown))
            self.record(records.Notice(shown))

    def take_actions(self) -> Actions:
        """Everything that must be done now; given out once."""
        actions, self.actions = self.actions, Actions()
        return actions

    def check(self) -> None:
        """Recompute every derived figure."""
        self.jar.check()
        self.members.check()
