"""The books of the master: the tasks, the slaves, and what must be done, always changed together.

Every change of a task goes through a record, and every record is given out. What is here decides nothing but
what follows by itself: a slave without tasks is idle, a task of a lost slave waits again or is handed back as its
policy says.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from itertools import repeat

from attrs import define, field, frozen
from msgspec import Struct

from mwpy._core.holding import take
from mwpy._core.master.events import Send
from mwpy._core.master.stable import Agent, Slave, SlaveEvent, Stable
from mwpy._core.master.taskjar import Taskjar
from mwpy._values import messages, records
from mwpy._values.errors import TaskFailed
from mwpy._values.ids import Buffer, SlaveId, TaskId
from mwpy._values.last_words import Death
from mwpy._values.task import Result, SlaveKind, SlaveState, Span, UnrunnableTask

__all__ = ["Actions", "Ledger", "MasterSettings"]

_IDLE, _BUSY, _DRAIN = SlaveState.IDLE, SlaveState.BUSY, SlaveEvent.DRAIN

WORDS_KEPT = 64 << 20
"""Characters of last words, and as many bytes of memory or a few times that, which the histories of all tasks keep."""

DEATH_OVERHEAD = 1000
"""What a death counts besides its words, so that the number of those that are remembered is bounded."""

OLD_WORDS_CHARACTERS = 300
"""So much is kept of each text of the last words of older deaths."""


@frozen
class MasterSettings:
    """What the core must know of the options; their sentences are in `options.py`."""

    member_id: str
    generation: str
    client_timeout_s: float = 30.0
    task_group: int | None = None
    result_group: int = 0
    max_result_bytes: int = 1 << 30
    max_call_bytes: int = 1 << 30
    only_here: bool = False
    """Whether no slaves can join but those that the master itself starts on its machine."""


class Actions(Struct):
    """All that must be done now; the fields are in the order of doing."""

    records: list[records.Record] = []
    sends: list[Send] = []
    forget: list[bytes] = []
    results: list[Result[object]] = []
    unrunnable: list[UnrunnableTask] = []
    connected: list[SlaveId] = []
    disconnected: list[SlaveId] = []


@define(eq=False)
class Ledger:
    """Tasks, slaves and actions."""

    settings: MasterSettings
    jar: Taskjar = field(factory=Taskjar)
    stable: Stable = field(factory=Stable)
    _actions: Actions = field(factory=Actions)
    _said: dict[str, None] = field(factory=dict)
    _worded: deque[Death] = field(factory=deque)
    """The latest deaths, whose last words are whole."""
    _words_kept: int = 0
    """What these count."""
    _progressed: bool = False
    """Whether the master algorithm has anything new to fetch since it was last asked why nothing progresses."""

    def take_actions(self) -> Actions:
        """All that must be done now; given out once."""
        actions, self._actions = self._actions, Actions()
        return actions

    def _fill_vacancies(self) -> None:
        """Turn unordered slaves into the kinds that lack some, idle ones first."""
        for kind in list(self.stable.vacancies()):
            free = [
                slave
                for slave in (*self.stable.idle.values(), *self.stable.slaves.values())
                if slave.kind is SlaveKind.UNORDERED and slave.state in (_IDLE, _BUSY)
            ]
            if not free:
                return
            slave = free[0]
            slave.kind = kind
            self._record(records.SlaveChanged(slave.sid, slave.state, kind))
            self._actions.connected.append(slave.sid)
            self._progressed = True

    def _unbind_if_free(self, slave: Slave) -> None:
        if slave.freed and not slave.outstanding:
            slave.freed = False
            slave.kind = SlaveKind.UNORDERED
            self._record(records.SlaveChanged(slave.sid, slave.state, slave.kind))
            self._free_addressed(slave.sid, "it was freed")
            self._fill_vacancies()

    def _after_unloading(self, slave: Slave) -> None:
        if slave.state is _BUSY:
            if slave.outstanding:
                self.stable.hungry[slave.sid] = slave
            else:
                self._change(slave, _DRAIN)
        if slave.freed:
            self._unbind_if_free(slave)

    def _change(self, slave: Slave, event: SlaveEvent) -> None:
        self.stable.change(slave, event)
        self._actions.records.append(records.SlaveChanged(slave.sid, slave.state, slave.kind))  # which is of no task

    def _take(self, slave: Slave, first: int, count: int, attempt: int) -> list[Span]:
        """Take tasks from a slave that it holds in just this attempt; a record must tell what becomes of them."""
        taken = take(slave.outstanding, first, count, attempt)
        for span in taken:
            slave.load[span.algorithm] -= span.count
            if not slave.load[span.algorithm]:
                del slave.load[span.algorithm]
        return taken

    def _take_all(self, slave: Slave) -> list[Span]:
        """Take all that a slave holds, in the order in which it was sent."""
        taken, slave.outstanding = list(slave.outstanding), deque()
        slave.load.clear()
        return taken

    def _return(self, sid: SlaveId, taken: list[Span], reason: str) -> None:
        if taken:
            self._record(records.TasksReturned(sid, taken, reason))

    def _fail(self, span: Span, reason: str) -> None:
        """Fail a span of a single task before it is sent."""
        self._record(records.TasksFailed([span], reason))
        self._progressed = True
        name = span.algorithm.name
        failure = TaskFailed(name, None, "TaskTooLarge", reason)
        self._actions.results.append(Result(span.first, name, None, span.tags[0], 0.0, True, _value=failure))

    def _give_up(self, spans: list[Span], reason: str, deaths: tuple[Death, ...] = ()) -> None:
        self._record(records.TasksGivenUp(spans, reason, deaths))
        self._progressed = True
        for span in spans:
            buffers = span.buffers or repeat(())
            self._actions.unrunnable.extend(
                UnrunnableTask(
                    TaskId(number), span.algorithm.name, span.policy.sid, tag, reason, span.deaths, payload, own
                )
                for number, tag, payload, own in zip(span.ids, span.tags, span.payloads, buffers, strict=False)
            )

    def _remember(self, death: Death) -> None:
        """Note a death; so many that their words fill the memory leave of the oldest only the ends."""
        self._worded.append(death)
        self._words_kept += DEATH_OVERHEAD + death.words.size
        while self._words_kept > WORDS_KEPT:
            oldest = self._worded.popleft()
            self._words_kept -= DEATH_OVERHEAD + oldest.words.size
            oldest.words = oldest.words.cut(OLD_WORDS_CHARACTERS)

    def _lose_slave(self, slave: Slave, reason: str) -> None:
        """Take a slave that holds nothing any more out of the stable."""
        gone = slave.state is SlaveState.SHUTTING_DOWN
        self.stable.change(slave, SlaveEvent.LEAVE if gone else SlaveEvent.LOSE)
        self._free_addressed(slave.sid, reason)
        if slave.kind is not SlaveKind.UNORDERED:
            self._actions.disconnected.append(slave.sid)
            self._fill_vacancies()

    def _free_addressed(self, sid: SlaveId, reason: str) -> None:
        """Settle the tasks addressed to a slave that will not run them."""
        queue = self.jar.addressed.get(sid)
        gone = f"{sid}, to which it was addressed, is gone{': ' if reason else ''}{reason}"
        while queue:
            self._settle_unwanted(sid, queue[0], gone)

    def _settle_unwanted(self, sid: SlaveId, span: Span, reason: str) -> None:
        """Settle the first tasks addressed to a slave, which will not run them."""
        if span.policy.do_it_anyway:
            self._record(records.TasksUnaddressed(sid, [span]))
        else:
            self._give_up([span], reason)

    def _record(self, record: records.Record) -> None:
        self.jar.apply(record)
        self._actions.records.append(record)

    def _send(self, agent: Agent, message: messages.Message, frames: Sequence[Buffer] = ()) -> None:
        self._actions.sends.append(Send(agent.peer, message, frames))

    def _say(self, text: str) -> None:
        self._record(records.Notice(text))

    def _say_once(self, text: str, key: str) -> None:
        if key not in self._said:
            self._said[key] = None
            self._say(text)

    def check(self) -> None:
        """Recompute every derived figure and assert; tests call it after every event."""
        self.jar.check()
        self.stable.check()
        kept = sum(DEATH_OVERHEAD + death.words.size for death in self._worded)
        assert kept == self._words_kept <= WORDS_KEPT, "the last words that are kept were miscounted"
        held = sum(span.count for slave in self.stable.slaves.values() for span in slave.outstanding)
        pending = sum(self.jar.pending.values())
        assert held + pending == self.jar.runnable, "a task is neither held nor pending"
        for sid in self.jar.addressed:
            assert sid in self.stable.slaves, f"tasks wait for {sid}, which is gone"
