"""The state of a master: its tasks, its agents and slaves, and its actions.

All parts of the master's core share one `MasterState`. Every change of a task or a slave goes through `record`, which
applies the record and adds it to the actions. So the records that a master gives out, applied to an empty state, build
the same state.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from msgspec import Struct

from mwpy._core.master.commands import Asking
from mwpy._core.master.events import Send
from mwpy._core.master.failed_calls import FailedCall
from mwpy._core.master.members import TRANSITIONS as SLAVE_TRANSITIONS
from mwpy._core.master.members import (
    ConnectedAgent,
    ConnectedSlave,
    Members,
    SlaveEvent,
)
from mwpy._core.master.notices import Notices
from mwpy._core.master.spans import Span
from mwpy._core.master.taskjar import Taskjar
from mwpy._values import messages, records
from mwpy._values.bounds import MAX_WAITING_BYTES
from mwpy._values.environment import OWN_ADDRESS
from mwpy._values.errors import InternalError
from mwpy._values.ids import Buffer, SlaveId, TaskId
from mwpy._values.log_messages import LogRow
from mwpy._values.max_failures import MaxFailures
from mwpy._values.option_table import DEFAULT_CLIENT_TIMEOUT_S
from mwpy._values.reports import Report
from mwpy._values.stretch import Stretch
from mwpy._values.task import Result, UnrunnableTask

__all__ = ["Actions", "LogGroup", "MasterSettings", "MasterState", "Stopped"]


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


class Actions(Struct):
    """Everything that must be done now; the order of the fields is the order of execution."""

    records: list[records.Record] = []
    sends: list[Send] = []
    forget: list[bytes] = []
    disconnect: list[bytes] = []
    results: list[Result[object]] = []
    stretches: list[Stretch] = []
    """Values of items of maps."""
    unrunnable: list[UnrunnableTask] = []
    connected: list[SlaveId] = []
    disconnected: list[SlaveId] = []
    failed: list[FailedCall] = []
    """The calls of those results that are failures of tasks."""
    cancelled: list[tuple[Asking, list[TaskId]]] = []
    """The answers to `CancelTasks` and `HoldResults`: those of its tasks that had not ended; to `GoOn`: the tasks that
    did not run; to `TakeReports`: none, because `reports` has them."""
    reports: list[Report] = []
    """The newest reports of tasks that run, if the algorithm has asked for them."""
    result_bytes: int = 0
    """About how many bytes `results` and `stretches` take."""
    logged: list[LogGroup] = []
    """What tasks have logged."""
    stopped: Stopped | None = None
    """Whether the run is stopped just now."""
    ends_at: float | None = None
    """When the master ends, if it is out of time from now on."""


Move = Callable[[Any, Sequence[tuple[Any, ...]]], list[Span]]
Change = Callable[[Any], None]
_NO_CHANGES: tuple[Move | None, Change | None] = None, None


class MasterState:
    """Tasks, agents, slaves and actions."""

    def __init__(self, settings: MasterSettings) -> None:
        self.settings = settings
        self.jar = Taskjar()
        self.members = Members(self.jar.held)
        self.actions = Actions()
        self.wall = 0.0
        """The time of this iteration in seconds since 1970, for what the user gets; no decision depends on it."""
        self.now = 0.0
        """The monotonic time of the last event, for figures; no decision depends on it."""
        self.closing: messages.Shutdown | None = None
        """What the agents are sent at the end; None while the computation runs."""
        self.notices = Notices()
        """What the user was shown."""
        self._changes = self._list_changes()
        """What each kind of record does to the tasks, and to agents and slaves."""

    def _list_changes(self) -> dict[type, tuple[Move | None, Change | None]]:
        moves, changes = self.jar.changes, self.members.changes
        return {kind: (moves.get(kind), changes.get(kind)) for kind in (*moves, *changes)}

    def record(self, record: records.Record, tags: Sequence[tuple[Any, ...]] = ()) -> list[Span]:
        """Change the state as a record says, and add the record to the actions.

        Args:
            record: what happened.
            tags: with `TasksSubmitted`, the tags of each of its entries.

        Returns:
            The spans of the record's tasks, in their new state.

        Raises:
            InternalError: the record contradicts the state; the fault of mwpy itself.
        """
        move, change = self._changes.get(type(record), _NO_CHANGES)
        spans = [] if move is None else move(record, tags)
        if change is not None:
            change(record)
        self.actions.records.append(record)
        return spans

    def change(self, slave: ConnectedSlave, event: SlaveEvent) -> None:
        """Move a slave along its lifecycle.

        Raises:
            InternalError: the table has no such transition; the fault of mwpy itself.
        """
        state = SLAVE_TRANSITIONS[event].get(slave.state)
        if state is None:
            raise InternalError(f"{slave.sid} is {slave.state.value}, which cannot {event.value}")
        self.record(records.SlaveChanged(slave.sid, state, slave.kind))

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

    def notice(self, text: str, key: str = "") -> None:
        """Show the user a message. Messages with the same key are shown only once, and not too many of them."""
        for shown in self.notices.chosen(text, key, self.now):
            self.notices.shown(shown, self.now)
            self.record(records.Notice(shown))

    def take_actions(self) -> Actions:
        """Everything that must be done now; given out once."""
        actions, self.actions = self.actions, Actions()
        return actions

    def check(self) -> None:
        """Recompute every derived figure."""
        self.jar.check()
        self.members.check()
