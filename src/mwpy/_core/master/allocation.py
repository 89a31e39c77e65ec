"""Arithmetic: how many tasks a slave is sent, and which slave gives tasks back.

No slave should wait for the network while tasks are pending. No task should wait behind another one while a slave is
idle. So the master learns how long a task of each algorithm takes on each slave, and keeps a fraction of a second of
work ahead of each slave (`AHEAD_S`). While nothing is known of an algorithm, a slave gets one task at a time, because
that task may run for an hour. When one task takes longer than `AHEAD_S`, a slave has one task running and one waiting.
When no task is pending and a slave is idle, the slave with the most work gives back up to half of its tasks. It gives
back only tasks that it has not started.

A fixed task group replaces all this: a message has exactly that many tasks, and the next message is sent when the slave
holds fewer.
"""

from __future__ import annotations

from math import inf

from mwpy._core.master.members import ConnectedSlave, Members
from mwpy._core.master.pending import PendingTasks
from mwpy._core.master.spans import Span, portion_of
from mwpy._values.task import SlaveKind, SlaveState

__all__ = ["fullest", "is_full", "learn", "least", "most_bytes", "most_in_time", "pace_of", "room", "spent"]

_BUSY, _SHUTTING_DOWN = SlaveState.BUSY, SlaveState.SHUTTING_DOWN

AHEAD_S = 0.25
"""Seconds of work that a slave should hold: much longer than a round trip, and too short for a user to notice idle
slaves."""

OVERHEAD_S = 5e-6
"""Seconds that a task costs a slave in addition to its compute time. So an empty task does not take zero seconds."""

STRETCH_OVERHEAD_S = 5e-7
"""The same for a task of a stretch."""

LEAST_S = 0.0005
"""Seconds of work in a message, if there are enough tasks. A message costs master and agent together a third of it."""

MAX_GROUP_TASKS = 1000
"""Largest number of tasks in one message. More would not make a task cheaper, and would delay the first result."""

MAX_GROUP_BYTES = 1 << 20
"""Largest size of the payloads in one message, in bytes; a larger task travels alone."""

AHEAD_GROUP_BYTES = 9 << 19
"""The same for a slave that has a task: it does not wait for the message. Four arrays of 1 MiB fit."""

MAX_OUTSTANDING = 5000
"""Largest number of tasks at one slave: when the slave is lost, they must all be sent again. A portion of a map counts
as `PORTION_TASKS`, because it is sent again as one thing."""

PORTION_TASKS = 250

LEARNING_RATE = 0.3
"""Weight of the newest group in the learned pace. The pace follows a change quickly, and an outlier only a little."""

WORTH_TAKING_S = 0.02
"""Tasks are taken back only from a slave with at least this many seconds of work: less is not worth the round trip."""

SILENT_S = 0.1
"""After this many seconds without a result, tasks of a slave are taken back even if they should be short: the running
task takes longer than expected."""


def learn(known: float | None, seconds: float, overhead_s: float = OVERHEAD_S) -> float:
    """The new pace after a task took `seconds`; `known` is the pace before, or None if nothing was known."""
    seconds += overhead_s
    return seconds if known is None else known + LEARNING_RATE * (seconds - known)


def pace_of(members: Members, slave: ConnectedSlave, algorithm: int) -> float | None:
    """How long a task of an algorithm takes on a slave, in seconds; None if nothing is known."""
    return slave.pace.get(algorithm) or members.pace.get(algorithm)


def work_before(members: Members, slave: ConnectedSlave) -> float:
    """The work that a slave holds, in seconds; tasks of unknown pace count as zero."""
    work = 0.0
    for algorithm, count in slave.held.load.items():
        work += count * (pace_of(members, slave, algorithm) or 0.0)
    return work


def least(members: Members, slave: ConnectedSlave, algorithm: int) -> int:
    """How many tasks of an algorithm are worth a message."""
    pace = pace_of(members, slave, algorithm)
    return 1 if pace is None else max(1, int(LEAST_S / pace))


def room(members: Members, slave: ConnectedSlave, algorithm: int, fixed: int | None, portion: int = 0) -> int:
    """How many tasks of an algorithm a slave should be sent now.

    Args:
        fixed: the size of a task group that the user chose, or None.
        portion: how many tasks the portion has that is sent next; 0 if it is none.
    """
    if slave.agent.is_full:
        return 0
    held = slave.held.count if slave.held.spans else 0
    if fixed is not None:
        return fixed if held < fixed else 0
    pace = pace_of(members, slave, algorithm)
    if pace is None:
        return 0 if held else 1
    if not held:
        return max(1, min(int(AHEAD_S / pace), max(MAX_GROUP_TASKS, portion)))
    work = work_before(members, slave)
    if _is_full(slave, work):
        return 0
    return max(1 if held < 2 else 0, min(int((AHEAD_S - work) / pace), max(MAX_GROUP_TASKS, portion)))


def most_bytes(slave: ConnectedSlave) -> int:
    """The largest size of the payloads in the next message to a slave."""
    return AHEAD_GROUP_BYTES if slave.held.spans else MAX_GROUP_BYTES


def most_in_time(slave: ConnectedSlave, span: Span, now: float) -> int:
    """How many tasks of a span can finish on a slave, behind those that it holds, before the time of its agent is over.

    Tasks of unknown duration count as zero.
    """
    left_s, needed_s = slave.agent.ends_in_s(now), span.needed_s
    if left_s == inf or not needed_s:
        return MAX_GROUP_TASKS
    left_s -= sum(held.count * (held.needed_s or 0.0) for held in slave.held.spans)
    return max(0, min(int(left_s / needed_s), MAX_GROUP_TASKS))


def is_full(members: Members, slave: ConnectedSlave, fixed: int | None) -> bool:
    """Whether a slave needs no more tasks of any algorithm now; see `room`."""
    if fixed is not None:
        return slave.held.count >= fixed
    return _is_full(slave, work_before(members, slave))


def _is_full(slave: ConnectedSlave, work: float) -> bool:
    held, most = slave.held.count, MAX_OUTSTANDING / 2
    return held >= 2 and (work > AHEAD_S / 2 or (held > most and _outstanding(slave) > most))


def _outstanding(slave: ConnectedSlave) -> int:
    return sum(min(portion_of(span), PORTION_TASKS) or span.count for span in slave.held.spans)


def useful(members: Members, pending: int, fixed: int | None) -> int:
    """How many unordered slaves could have work. Pending tasks count, and so do tasks that slaves hold.

    Tasks that cannot be taken back from their slave do not count: slaves that are started for such tasks would be idle.

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


def spent(members: Members, pending: PendingTasks, now: float) -> int:
    """How many unordered slaves are idle although tasks wait, because their agents have too little time left.

    Those on excluded hosts do not count.
    """
    if not pending.queues:
        return 0
    return sum(
        slave.kind is SlaveKind.UNORDERED
        and slave.agent.ends_at is not None
        and slave.agent.host not in members.excluded
        and pending.first_turn((), slave.agent.ends_in_s(now)) is None
        for slave in members.idle.values()
    )


def fullest(members: Members, now: float) -> tuple[ConnectedSlave | None, float | None]:
    """Choose the slave from which tasks are taken back for idle slaves.

    Returns:
        Two values. First, the slave with the most work, if its work is worth taking back; else None. Second, the latest
        time to look again, on the core's clock; None if time alone changes nothing.
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
        slave.state in (_BUSY, _SHUTTING_DOWN)
        and not slave.agent.leaving
        and not slave.asked_back
        and not slave.gave_nothing_back
        and slave.held.count >= 2
        and not any(span.policy.sid for span in slave.held.spans)
    )
