"""How many tasks a slave is sent, and from whom tasks are taken back.

The aim is that no slave ever waits for the network while there are tasks, and that no task waits behind
another while a slave is idle. So the master learns how long a task of each algorithm takes on each slave and
keeps a fraction of a second of work ahead of each (`AHEAD_S`). While it knows nothing of an algorithm, a slave gets
one task at a time: it might run for an hour. When tasks are longer than what is to be ahead, a slave has one
running and one waiting. When there is nothing left to send and a slave idles, unstarted tasks are taken back
from slaves that hold several, half of them at a time.

A fixed task group is obeyed instead: that many tasks in a message, the next when fewer than
that many are left.
"""

from __future__ import annotations

from mwpy._core.master.members import ConnectedSlave, Members
from mwpy._values.task import SlaveKind, SlaveState

__all__ = ["fullest", "is_full", "learn", "pace_of", "room"]

_BUSY = SlaveState.BUSY

AHEAD_S = 0.25
"""Seconds of work that a slave should have before it. Long against a round trip, short against a
user's patience when other slaves fall idle."""

OVERHEAD_S = 5e-6
"""Seconds that a task costs a slave beside its own computing, so that a task of no length has one."""

MAX_GROUP_TASKS = 1000
"""Tasks in one message. Beyond this nothing more is gained a task, and the group's first result waits."""

MAX_GROUP_BYTES = 1 << 20
"""Payload bytes after which a group is full; a larger task travels alone."""

MAX_OUTSTANDING = 5000
"""Tasks at one slave: those of a lost one must be sent again."""

LEARNING_RATE = 0.3
"""Weight of the newest group in what was learned: quick to follow a change, slow to follow an outlier."""

WORTH_TAKING_S = 0.02
"""Seconds of work below which a busy slave's queue is not worth a round trip to share."""

SILENT_S = 0.1
"""Seconds without a result after which a slave's queue is worth sharing however short its tasks were
expected to be: the running one is longer."""


def learn(known: float | None, seconds: float) -> float:
    """Mix how long a task just took, in seconds, into what was known."""
    seconds += OVERHEAD_S
    return seconds if known is None else known + LEARNING_RATE * (seconds - known)


def pace_of(members: Members, slave: ConnectedSlave, algorithm: int) -> float | None:
    """How long a task of an algorithm takes on a slave, in seconds; None if nothing is known."""
    return slave.pace.get(algorithm) or members.pace.get(algorithm)


def work_before(members: Members, slave: ConnectedSlave) -> float:
    """Seconds of work that a slave holds, as far as known."""
    return sum(count * (pace_of(members, slave, algorithm) or 0.0) for algorithm, count in slave.held.load.items())


def room(members: Members, slave: ConnectedSlave, algorithm: int, fixed: int | None) -> int:
    """How many tasks of an algorithm a slave should be sent now.

    Args:
        fixed: the size of a task group that the user chose, or None.
    """
    held = slave.held.count
    if fixed is not None:
        return fixed if held < fixed else 0
    pace = pace_of(members, slave, algorithm)
    if pace is None:
        return 0 if held else 1
    work = work_before(members, slave) if held else 0.0
    if _is_full(held, work):
        return 0
    return max(1 if held < 2 else 0, min(int((AHEAD_S - work) / pace), MAX_GROUP_TASKS))


def is_full(members: Members, slave: ConnectedSlave, fixed: int | None) -> bool:
    """Whether a slave needs no more tasks now, of whatever algorithm; see `room`."""
    held = slave.held.count
    if fixed is not None:
        return held >= fixed
    return _is_full(held, work_before(members, slave))


def _is_full(held: int, work: float) -> bool:
    return held >= 2 and (held > MAX_OUTSTANDING / 2 or work > AHEAD_S / 2)


def useful(members: Members, pending: int, fixed: int | None) -> int:
    """How many unordered slaves could have work of these pending tasks, and of what slaves hold.

    What cannot be taken back from a slave is of no use to others: were slaves asked for it, they would be idle.

    Args:
        pending: how many pending tasks any slave may run.
        fixed: the size of a task group that the user chose, or None.
    """
    slaves = -(-pending // (fixed or 1))
    for slave in members.slaves.values():
        if slave.held.spans:
            shared = fixed is None and (slave.asked_back or _has_to_spare(slave))
            slaves += slave.kind_to_be is SlaveKind.UNORDERED
            slaves += slave.held.count - 1 if shared else 0
    return slaves


def fullest(members: Members, now: float) -> tuple[ConnectedSlave | None, float | None]:
    """Choose the slave from which tasks are taken back for idle ones.

    Returns:
        The slave with the most work among those worth it, or None; and when to look again at the latest, or
        None if nothing will change by itself.
    """
    best: ConnectedSlave | None = None
    most = 0.0
    later: float | None = None
    for slave in members.slaves.values():
        if not _has_to_spare(slave):
            continue
        work = work_before(members, slave)
        if now >= slave.last_heard + SILENT_S or work > WORTH_TAKING_S:
            if best is None or work > most:
                best, most = slave, work
        elif later is None or slave.last_heard + SILENT_S < later:
            later = slave.last_heard + SILENT_S
    return best, later


def _has_to_spare(slave: ConnectedSlave) -> bool:
    return (
        slave.state is _BUSY
        and not slave.asked_back
        and not slave.gave_nothing_back
        and slave.held.count >= 2
        and not any(span.policy.sid for span in slave.held.spans)
    )
