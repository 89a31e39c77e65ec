"""Which slave is sent which tasks now, and which slave is asked to give tasks back."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain

from msgspec import Struct
from msgspec.structs import replace

from mwpy._core.holding import count_of
from mwpy._core.master import allocation
from mwpy._core.master.algorithms import Defined
from mwpy._core.master.definitions import Definitions
from mwpy._core.master.handback import HandBack
from mwpy._core.master.isolation import Isolation
from mwpy._core.master.members import ConnectedSlave, SlaveEvent
from mwpy._core.master.shares import Shares
from mwpy._core.master.spans import Span, portion_of
from mwpy._core.master.state import MasterState
from mwpy._values import groups, messages, records
from mwpy._values.ids import Buffer
from mwpy._values.packed import PackedCalls
from mwpy._values.policy import Limits
from mwpy._values.share_messages import Share
from mwpy._values.task import SlaveState

__all__ = ["Dispatch"]

_IDLE, _FEED = SlaveState.IDLE, SlaveEvent.FEED
_NOT_FED = (SlaveState.SHUTTING_DOWN, SlaveState.AWAY)


class Dispatch(Struct, eq=False):
    """Sends pending tasks to slaves."""

    state: MasterState
    handback: HandBack
    isolation: Isolation
    definitions: Definitions
    shares: Shares
    look_again: float | None = None
    """When to look again for a slave that can give tasks back; None if there is no need."""

    def decide(self, now: float) -> None:
        """Send tasks to slaves that have room. If no task is pending then, take tasks back for idle slaves."""
        pending = self.state.jar.pending
        if pending.suspects or self.isolation.reserved:
            self._send_suspects(now)
        if pending.addressed:
            self._send_addressed(now)
        if pending.queues:
            self._send_unaddressed(now)
        self.look_again = None
        if self.state.jar.runnable > 1 and not pending.queues and self.state.settings.task_group is None:
            self._take_back(now)

    def _send_suspects(self, now: float) -> None:
        """Send suspects first, because nothing else may be sent to the agents that are reserved for them."""
        pending = self.state.jar.pending
        for slave, lane in self.isolation.places(now):
            chosen = pending.heads(pending.suspects[lane], 1, allocation.MAX_GROUP_BYTES)
            self.feed(slave, records.TasksAllocated(slave.sid, chosen), now)

    def _send_addressed(self, now: float) -> None:
        pending, fixed = self.state.jar.pending, self.state.settings.task_group
        for sid in list(pending.addressed):
            slave = self.state.members.slaves[sid]
            refused = slave.refused
            while queue := pending.addressed.get(sid):
                algorithm = queue[0].algorithm.number
                if algorithm in refused:
                    reason = f"{sid}, to which it was addressed, cannot run it: {refused[algorithm]}"
                    self.handback.release(sid, queue[0], reason)
                    continue
                expected_s = queue[0].policy.seconds_expected
                if expected_s is not None and not slave.agent.has_time(queue[0], now):
                    left_s = slave.agent.ends_in_s(now)
                    reason = f"{sid}, to which it was addressed, has {left_s:.0f} s left, and it takes {expected_s:g} s"
                    self.handback.release(sid, queue[0], reason)
                    continue
                count = allocation.room(self.state.members, slave, algorithm, fixed)
                if slave.agent.ends_at is not None:  # the next span may take longer
                    most = queue[0].count if expected_s is None else allocation.most_in_time(slave, queue[0], now)
                    count = min(count, queue[0].count, most)
                if slave.freed or slave.state in _NOT_FED or slave.agent.reserved or not count:
                    break
                if slave.asked_back:  # it may give back this task, and would then run the next one before it
                    break
                chosen = pending.heads(queue, count, allocation.MAX_GROUP_BYTES, refused)
                self.feed(slave, records.TasksAllocated(slave.sid, chosen), now)

    def _send_unaddressed(self, now: float) -> None:
        """Send tasks first to idle slaves, then to busy slaves that have room for more.

        All these slaves share the tasks. But short tasks are not spread so thinly that a message costs more than its
        tasks: if they are few, they go to the idle slaves only, or to the busy ones whose turn it is.
        """
        members = self.state.members
        idle = [slave for slave in members.idle.values() if slave.has_room]
        hungry = [slave for slave in members.hungry.values() if slave.has_room]
        even = -(-self.state.jar.pending.num_unaddressed // max(1, len(idle)))
        self._share_out(idle, len(idle) + len(hungry), even, now)
        if self.state.jar.pending.queues:
            hungry = [slave for slave in members.hungry.values() if slave.has_room]
            self._share_out(hungry, len(hungry), self.state.jar.pending.num_unaddressed, now)

    def _share_out(self, slaves: Sequence[ConnectedSlave], takers: int, largest: int, now: float) -> None:
        """Send each slave its share of the pending tasks. `takers` slaves share these tasks. If a share is not worth a
        message, it is larger, at most `largest`."""
        pending = self.state.jar.pending
        for slave in slaves:
            self._fill(slave, -(-pending.num_unaddressed // takers), largest, now)
            if not pending.queues:
                return

    def _fill(self, slave: ConnectedSlave, share: int, largest: int, now: float) -> None:
        """Send a slave as many tasks as it has room for, at most its share. A full slave is no longer hungry.

        If the share is not worth a message, the slave may get more, at most `largest`.

        It is the turn of one algorithm. While the slave has no room for this algorithm, it gets no task of another one.
        Otherwise the first algorithm would wait forever. An algorithm for which the time of the agent is too short has
        no turn.
        """
        members, pending, fixed = self.state.members, self.state.jar.pending, self.state.settings.task_group
        for _ in range(len(pending.queues)):
            lane = pending.first_turn(slave.refused, slave.agent.ends_in_s(now))
            if lane is None:
                break
            queue = pending.queues[lane]
            portion = portion_of(queue[0])
            count = allocation.room(members, slave, queue[0].algorithm.number, fixed, portion)
            if slave.agent.ends_at is not None:
                count = min(count, allocation.most_in_time(slave, queue[0], now))
            if not count:
                break
            if not fixed:  # a portion is not divided to be shared
                worthwhile = min(largest, allocation.least(members, slave, queue[0].algorithm.number))
                count = min(count, max(share, portion, worthwhile))
            chosen = pending.heads(queue, count, allocation.most_bytes(slave))
            self.feed(slave, records.TasksAllocated(slave.sid, chosen), now)
            if pending.queues:
                pending.next_turn(lane)
            share -= sum(map(count_of, chosen))
            if share <= 0:
                return
        if allocation.is_full(members, slave, fixed):
            members.hungry.pop(slave.sid, None)

    def feed(self, slave: ConnectedSlave, record: records.TasksAllocated | records.AttemptsStarted, now: float) -> None:
        """Send a slave tasks from the head of a queue, or another attempt of a task, as a record says."""
        state, members = self.state, self.state.members
        if not slave.held.spans:
            slave.last_heard = now
        spans = state.record(record)
        if slave.state is _IDLE:
            state.change(slave, _FEED)
        slave.gave_nothing_back = False
        members.hungry.pop(slave.sid, None)
        members.hungry[slave.sid] = slave  # the last of them, so that all have their turns
        firsts: list[int] = []
        counts: list[int] = []
        attempts: list[int] = []
        numbers: list[int] = []
        num_tasks = 0
        runs_once = False
        payloads: list[bytes] = []
        buffers: list[Sequence[Buffer]] = []
        portions: list[int] = []
        limits: list[Limits | None] = []
        agent = slave.agent
        unknown: dict[int, Defined] = {}
        shares: dict[str, Share] = {}
        for span in spans:
            firsts.append(span.first)
            counts.append(span.count)
            attempts.append(span.attempt)
            number = span.algorithm.number
            numbers.append(number)
            runs_once = runs_once or not span.policy.retry
            most = span.policy.limits
            limits.append(most if most is None or most.memory is None else _with_expected(most, span))
            if number not in agent.known:
                unknown[number] = span.algorithm
            elif span.algorithm.size:
                agent.by_value.move_to_end(number)
            if span.buffers or span.algorithm.shares:
                shares |= self.shares.needed_by(span, agent)
            calls, own = span.payloads, span.buffers
            portions.append(calls.kind if type(calls) is PackedCalls and span.left is None else 0)
            if span.left is not None:
                payload, large = span.resumed(span.left)
                calls, own = (payload,), (large,)
            if own and not buffers:
                buffers += [()] * num_tasks
            if own or buffers:
                buffers += own or [()] * span.count
            num_tasks += span.count
            payloads += [calls.data] if type(calls) is PackedCalls else calls
        if unknown:
            self.definitions.send(agent, unknown)
        sizes = [*map(len, buffers)] if any(buffers) else []
        own_limits = limits if any(limits) else []
        portions = portions if any(portions) else []
        columns = firsts, counts, attempts, numbers, sizes, own_limits
        header = messages.Tasks(slave.number, *columns, [*shares.values()], portions)
        first = groups.payload(num_tasks, payloads)
        state.send(agent, header, [first, *chain.from_iterable(buffers)], after_commit=runs_once)

    def _take_back(self, now: float) -> None:
        """If slaves are idle, ask the slave with the most work to give tasks back."""
        state = self.state
        idle = [slave for slave in state.members.idle.values() if slave.has_room and not slave.refused]
        while idle:
            slave, self.look_again = allocation.fullest(state.members, now)
            if slave is None:
                return
            last = slave.held.spans[-1]
            if not any(each.agent.has_time(last, now) for each in idle):
                return
            slave.asked_back = True
            count = max(1, slave.held.count // 2)
            state.send(slave.agent, messages.Revoke(slave.number, count))
            del idle[:count]


def _with_expected(limits: Limits, span: Span) -> Limits:
    """The limits of tasks, with how much memory they may use when memory is short, after they were killed for that."""
    expected = max((death.more_memory for death in span.deaths), default=0)
    return replace(limits, expected=expected or None)
