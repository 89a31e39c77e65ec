"""Who gets which tasks now, in which messages, and who must give some back."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain

from attrs import define, field

from mwpy._core.holding import count_of
from mwpy._core.master import allocation
from mwpy._core.master.commands import Definition
from mwpy._core.master.ledger import Ledger
from mwpy._core.master.stable import Agent, Slave, SlaveEvent
from mwpy._values import messages, records
from mwpy._values.algorithm import Algorithm
from mwpy._values.ids import Buffer
from mwpy._values.task import SlaveState, Span

__all__ = ["Dispatcher"]

_IDLE, _FEED = SlaveState.IDLE, SlaveEvent.FEED


@define(eq=False)
class Dispatcher(Ledger):
    """The ledger, and the sending of tasks."""

    _definitions: dict[Algorithm, Definition] = field(factory=dict)
    _look_again: float | None = None
    """When to look again for a slave to take tasks back from."""

    def _send_addressed(self, now: float) -> None:
        for sid in list(self.jar.addressed):
            slave = self.stable.slaves[sid]
            queue = self.jar.addressed[sid]
            while queue:
                algorithm = queue[0].algorithm
                reason = slave.agent.refused.get(algorithm)
                if reason is not None:
                    self._settle_unwanted(sid, queue[0], f"{sid}, to which it was addressed, cannot run it: {reason}")
                    continue
                count = allocation.room(self.stable, slave, algorithm, self.settings.task_group)
                if slave.freed or slave.state is SlaveState.SHUTTING_DOWN or not count:
                    break
                self._feed(slave, self.jar.heads(queue, count, allocation.MAX_GROUP_BYTES, slave.agent.refused), now)

    def _send_unaddressed(self, now: float) -> None:
        """First to those who have nothing, then to those who will soon have nothing."""
        idle = [slave for slave in self.stable.idle.values() if slave.runs_unaddressed]
        hungry = [slave for slave in self.stable.hungry.values() if slave.runs_unaddressed]
        self._share_out(idle, len(idle) + len(hungry), now)
        if self.jar.queues:
            hungry = [slave for slave in self.stable.hungry.values() if slave.runs_unaddressed]
            self._share_out(hungry, len(hungry), now)

    def _share_out(self, slaves: Sequence[Slave], takers: int, now: float) -> None:
        """Send slaves their part of what waits, if so many take part."""
        for slave in slaves:
            self._fill(slave, -(-self.jar.num_unaddressed // takers), now)
            if not self.jar.queues:
                return

    def _fill(self, slave: Slave, share: int, now: float) -> None:
        """Send a slave what it has room for, at most its share; no longer hungry if it is full.

        It gets nothing of another algorithm while it has no room for the one whose turn it is, or that would wait on.
        """
        fixed = self.settings.task_group
        for algorithm in list(self.jar.queues):
            if algorithm in slave.agent.refused:
                continue
            count = allocation.room(self.stable, slave, algorithm, fixed)
            if not count:
                break
            count = count if fixed else min(count, share)
            spans = self.jar.heads(self.jar.queues[algorithm], count, allocation.MAX_GROUP_BYTES)
            self._feed(slave, spans, now)
            if self.jar.queues:
                self.jar.next_turn(algorithm)
            share -= sum(map(count_of, spans))
            if share <= 0:
                return
        if allocation.is_full(self.stable, slave, fixed):
            self.stable.hungry.pop(slave.sid, None)

    def _feed(self, slave: Slave, spans: list[Span], now: float) -> None:
        if not slave.outstanding:
            slave.last_heard = now
        self._record(records.TasksAllocated(slave.sid, spans))
        slave.outstanding.extend(spans)
        if slave.state is _IDLE:
            self._change(slave, _FEED)
        slave.barren = False
        self.stable.hungry[slave.sid] = slave
        firsts: list[int] = []
        counts: list[int] = []
        attempts: list[int] = []
        numbers: list[int] = []
        payloads: list[bytes] = []
        buffers: list[Sequence[Buffer]] = []
        unknown: dict[Algorithm, None] = {}
        for span in spans:
            slave.load[span.algorithm] += span.count
            if span.algorithm not in slave.agent.known:
                unknown[span.algorithm] = None
            firsts.append(span.first)
            counts.append(span.count)
            attempts.append(span.attempt)
            numbers.append(self._definitions[span.algorithm].header.number)
            buffers += span.buffers or [()] * span.count
            payloads += span.payloads
        if unknown:
            self._send_definitions(slave.agent, unknown)
        sizes = [*map(len, buffers)] if any(buffers) else []
        header = messages.Tasks(slave.number, firsts, counts, attempts, numbers, sizes)
        payload = messages.payload(len(payloads), payloads)
        self._send(slave.agent, header, [payload, *chain.from_iterable(buffers)])

    def _send_definitions(self, agent: Agent, unknown: dict[Algorithm, None]) -> None:
        agent.known.update(unknown)
        definitions = [self._definitions[algorithm] for algorithm in unknown]
        self._send(
            agent,
            messages.Algorithms([definition.header for definition in definitions]),
            [definition.function for definition in definitions if not definition.header.reference],
        )

    def _take_back(self, now: float) -> None:
        """When slaves idle and nothing is left to send, take tasks back from the fullest slave."""
        self._look_again = None
        if self.settings.task_group is not None or self.jar.queues or self.jar.runnable < 2:
            return
        idle = self.stable.idle.values()
        thieves = len([slave for slave in idle if slave.runs_unaddressed and not slave.agent.refused])
        while thieves > 0:
            slave, self._look_again = allocation.victim(self.stable, now)
            if slave is None:
                return
            slave.revoking = True
            count = max(1, slave.num_outstanding // 2)
            self._send(slave.agent, messages.Revoke(slave.number, count))
            thieves -= count
