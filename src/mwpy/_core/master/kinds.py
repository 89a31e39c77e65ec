"""The kinds of slaves: how many of each kind the algorithm wants, and which slaves have which kind."""

from __future__ import annotations

from collections.abc import Iterator

from msgspec import Struct, field

from mwpy._core.master.handback import HandBack
from mwpy._core.master.members import ConnectedSlave, SlaveEvent
from mwpy._core.master.state import MasterState
from mwpy._values import records
from mwpy._values.ids import SlaveId
from mwpy._values.task import SlaveKind, SlaveState

__all__ = ["SlaveKinds"]

_UNORDERED = SlaveKind.UNORDERED
_BUSY, _DRAIN = SlaveState.BUSY, SlaveEvent.DRAIN


class SlaveKinds(Struct, eq=False):
    """Assigns kinds to slaves."""

    state: MasterState
    handback: HandBack
    wanted: dict[SlaveKind, int] = field(default_factory=lambda: dict.fromkeys(SlaveKind, 0))
    """How many slaves of each kind the algorithm asked for."""
    unordered_unasked: bool = True
    """Whether the algorithm never said how many unordered slaves it wants. Then it wants as many as there are tasks."""
    expected: int = 0
    """How many tasks wait outside of the master for slaves."""

    def allocate(self, amount: int, kind: SlaveKind) -> None:
        """Want `amount` more slaves of a kind; unordered slaves may become ordered or intermingle."""
        self._want(kind, self.wanted[kind] + amount)
        self._fill_vacancies()

    def deallocate(self, amount: int, kind: SlaveKind) -> None:
        """Want `amount` fewer slaves of a kind; no slave is stopped."""
        self._want(kind, max(0, self.wanted[kind] - amount))

    def _want(self, kind: SlaveKind, amount: int) -> None:
        self.wanted[kind] = amount
        if kind is _UNORDERED:
            self.unordered_unasked = False

    def free(self, sid: SlaveId) -> None:
        """Make an ordered or intermingle slave unordered when it has finished the tasks that it holds."""
        slave = self.state.members.slaves.get(sid)
        if slave is None or slave.kind is _UNORDERED or slave.freed:
            return
        self.deallocate(1, slave.kind)
        slave.freed = True
        self._settle_freed(slave)

    def unload(self, slave: ConnectedSlave) -> None:
        """Update a slave that holds fewer tasks than before."""
        if slave.state is _BUSY:
            if slave.held.spans:
                self.state.members.hungry[slave.sid] = slave
            else:
                self.state.change(slave, _DRAIN)
        if slave.freed:
            self._settle_freed(slave)

    def lost(self, slave: ConnectedSlave, why: str) -> None:
        """Handle the end of a slave: the tasks that are addressed to it, and its place in its kind."""
        self.handback.release_addressed(slave.sid, f"is gone: {why}" if why else "is gone")
        if slave.kind is not _UNORDERED:
            self.state.actions.disconnected.append(slave.sid)
            self._fill_vacancies()

    def count(self, kind: SlaveKind) -> int:
        """How many slaves of a kind there are. A freed slave counts as unordered."""
        members = self.state.members
        special = sum(slave.kind_to_be is kind for slave in members.special.values())
        return special + (len(members.slaves) - len(members.special) if kind is _UNORDERED else 0)

    def vacancies(self) -> Iterator[SlaveKind]:
        """The kinds that lack slaves: one entry for each missing slave, ordered before intermingle."""
        for kind in (SlaveKind.ORDERED, SlaveKind.INTERMINGLE):
            if self.wanted[kind]:
                for _ in range(self.wanted[kind] - self.count(kind)):
                    yield kind

    def next_kind(self) -> SlaveKind:
        """The kind that the next slave gets."""
        return next(self.vacancies(), _UNORDERED)

    def _fill_vacancies(self) -> None:
        """Give unordered slaves the kinds that lack slaves. Idle slaves come first."""
        members = self.state.members
        for kind in list(self.vacancies()):
            free = (
                slave
                for slave in (*members.idle.values(), *members.slaves.values())
                if slave.kind is _UNORDERED and slave.state in (SlaveState.IDLE, SlaveState.BUSY)
            )
            slave = next(free, None)
            if slave is None:
                return
            self._set_kind(slave, kind)
            self.state.actions.connected.append(slave.sid)

    def _settle_freed(self, slave: ConnectedSlave) -> None:
        if not slave.held.spans:
            slave.freed = False
            self._set_kind(slave, _UNORDERED)
            self.handback.release_addressed(slave.sid, "is gone: it was freed")
            self._fill_vacancies()

    def _set_kind(self, slave: ConnectedSlave, kind: SlaveKind) -> None:
        self.state.record(records.SlaveChanged(slave.sid, slave.state, kind))

    def check(self) -> None:
        """Assert that a freed slave that holds no task is unordered."""
        for slave in self.state.members.slaves.values():
            assert not slave.freed or slave.held.spans, f"{slave.sid} is freed and holds nothing, but is not unordered"
            assert not slave.freed or slave.kind is not _UNORDERED, f"{slave.sid} is unordered and freed"
