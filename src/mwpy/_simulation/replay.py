"""The replay property: the records of a master build its state.

A `Replay` takes each record as the master gives it out, stores it as bytes, reads it again and applies it to an empty
state. That state must always have the same tasks, attempts, agents, slaves and counts as the master's own. A record
must never change after it was given out. Tags are left out: they never leave the master.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from msgspec import Struct, field

from mwpy._core.master.members import Members
from mwpy._core.master.spans import Span
from mwpy._core.master.state import MasterSettings, MasterState
from mwpy._core.master.taskjar import Taskjar
from mwpy._values import records

__all__ = ["Replay"]


class Replay(Struct, eq=False):
    """Rebuilds the state of one master from its records."""

    rebuilt: MasterState = field(default_factory=lambda: MasterState(MasterSettings("replayed", "")))
    _stream: list[tuple[records.Record, bytes]] = field(default_factory=list)

    @property
    def taken(self) -> list[records.Record]:
        """All records that were taken, in their order."""
        return [record for record, _ in self._stream]

    def recorded(self, record: records.Record) -> None:
        """Take the next record."""
        data = records.encode(record)
        self._stream.append((record, data))
        self.rebuilt.record(records.decoder()(data))
        self.rebuilt.take_actions()  # drops the actions, which contain the same records

    def check(self, original: MasterState) -> None:
        """Assert that both states are the same. Call this when all records of the original were taken.

        Args:
            original: the state of the master.
        """
        self.rebuilt.check()
        assert _tasks(self.rebuilt.jar) == _tasks(original.jar), "the records do not build the same tasks"
        assert _members(self.rebuilt.members) == _members(original.members), "the records do not build the same slaves"

    def check_end(self, original: MasterState) -> None:
        """Assert that both states are the same, and that no record has changed since it was taken."""
        self.check(original)
        for record, data in self._stream:
            assert records.encode(record) == data, f"a record was changed later: {record}"


def _tasks(jar: Taskjar) -> dict[str, Any]:
    """Everything about tasks that must be the same."""
    return {
        "queues": {number: _each(queue) for number, queue in jar.pending.queues.items()},
        "suspects": {number: _each(queue) for number, queue in jar.pending.suspects.items()},
        "addressed": {sid: _each(queue) for sid, queue in jar.pending.addressed.items()},
        "blocked": _each(jar.blocked.tasks.values()),
        "results": {
            number: (each.is_held, each.waiting, [*map(bytes, each.frames)], each.cause, each.root)
            for number, each in jar.blocked.results.items()
        },
        "delayed": _each(jar.delayed.tasks.values()),
        "held": {sid: (_each(held.spans), dict(held.load)) for sid, held in jar.held.items()},
        "several": {number: list(live) for number, live in jar.allocated.several.items()},
        "pending": jar.pending.counts,
        "counts": (jar.runnable, jar.pending.num_unaddressed, jar.num_allocated, jar.away, jar.ended),
        "failures": (jar.failed, jar.cancelled),
        "states": jar.left.bytes,
        "algorithms": {
            number: (defined.record, defined.leaves_state) for number, defined in jar.algorithms.defined.items()
        },
    }


def _each(spans: Iterable[Span]) -> list[tuple[Any, ...]]:
    """The tasks of a queue, one by one and in their order, because spans may be cut at other places."""
    return [
        (
            number,
            span.algorithm.number,
            span.policy,
            bytes(payload),
            [bytes(buffer) for buffer in (span.buffers[place] if span.buffers else ())],
            (span.state, span.attempt, span.sent, span.sid, span.pause_s, [*span.refers]),
            None if span.left is None else ([*map(bytes, span.left.frames)], span.left.attempt, span.left.num_lost),
            [(death.sid, death.attempt, death.cause, death.reason, death.words) for death in span.deaths],
        )
        for span in spans
        for place, (number, payload) in enumerate(zip(span.ids, span.payloads, strict=True))
    ]


def _members(members: Members) -> dict[str, Any]:
    """Everything about agents and slaves that must be the same."""
    return {
        "agents": {
            agent.name: (
                agent.address,
                agent.announced,
                agent.job,
                agent.python,
                agent.leaving,
                agent.loss,
                agent.refused,
            )
            for agent in members.agents.values()
        },
        "slaves": {
            slave.sid: (slave.agent.name, slave.number, slave.kind, slave.state, slave.refused)
            for slave in members.slaves.values()
        },
        "idle": list(members.idle),
        "excluded": members.excluded,
        "seen": (members.agents_seen, members.slaves_seen),
    }
