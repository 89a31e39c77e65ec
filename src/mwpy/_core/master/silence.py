"""Why nothing progresses, and what takes long.

If nothing can progress, the master reports the reason, and repeats the report at growing intervals.

If a slave tries a task and fails at once, this is not progress. While a slave works, nothing is said; after some
seconds of work, the work counts as progress. A new reason does not wait for the long interval.
"""

from __future__ import annotations

from collections.abc import Iterator

from attrs import Factory, define

from mwpy._core.master.admission import SlaveKinds
from mwpy._core.master.answers import Answers
from mwpy._core.master.members import ConnectedSlave
from mwpy._core.master.state import MasterState, Waiting
from mwpy._core.pauses import Pause, between_messages
from mwpy._values.phrases import duration, first_of

FIRST_S = 5.0
"""Seconds without possible progress before the first message. The manual names this number."""

LOOK_AGAIN_S = 1.0
"""Seconds after progress until the watch checks for progress again."""


@define(eq=False, repr=False)
class Silence:
    """Says why nothing progresses."""

    state: MasterState
    kinds: SlaveKinds
    answers: Answers
    waits_for_disk: bool = False
    """Whether results wait for the disk of the run database. The master says so if this takes long."""
    deadline: float | None = None
    """When to look again if nothing changes, on the core's clock; None if there is no need."""
    _since: float | None = None
    """Since when nothing progresses; None if something does."""
    _work: float | None = None
    """Since when a slave is at work; None if none is."""
    _quiet: Pause = Factory(lambda: between_messages(FIRST_S))
    _reasons: set[str] = Factory(set)
    """The reasons since then."""

    def decide(self, waiting: Waiting, awaited: str, now: float) -> None:
        """Report why nothing progresses, if the report is due.

        Args:
            waiting: whether the master algorithm waits in `mw.loop()`.
            awaited: which tasks wait for agents of former generations, or still run there; empty if none do.
            now: the time on the core's clock, in seconds.
        """
        waited_for = self.state.jar.runnable > 0 or self._is_waited_for_without_tasks(waiting)
        waited_for = waited_for and not (self.answers.feeding.out_of_time or self.waits_for_disk)
        actions = self.state.actions
        if actions.results or actions.owned or actions.unrunnable or actions.connected or not waited_for:
            self._reset(now + LOOK_AGAIN_S if waited_for else None)
        elif (found := self.answers.why_stuck(awaited, now)) is not None:
            self._observe(*found, now)
        elif self._work is None:  # a slave is at work, and may make progress
            self.deadline, self._work = None, now

    def _reset(self, deadline: float | None) -> None:
        """There was progress, or the user does not wait. Look again no later than at the deadline."""
        self.deadline = deadline
        self._since = self._work = None
        self._quiet.reset()
        self._reasons.clear()

    def _observe(self, reason: str, text: str, now: float) -> None:
        """Nothing can progress at present, for a reason."""
        if self._work is not None and now >= self._work + FIRST_S:
            self._reset(None)
        self._work = None
        if self._since is None:
            self._since = now
            self._quiet.begin(now)
        if reason not in self._reasons:
            self._reasons.add(reason)
            self._quiet.until = min(self._quiet.until, now + FIRST_S)
        if now >= self._quiet.until:
            self._quiet.begin(now)
            self.state.notice(f"nothing has progressed for {duration(round(now - self._since))}: {text}")
        self.deadline = self._quiet.until

    def _is_waited_for_without_tasks(self, waiting: Waiting) -> bool:
        """Whether the user waits for slaves; `mw.loop(1.0)` without any task may be meant as a sleep."""
        wants_slaves = waiting is Waiting.FOR_A_WHILE and any(self.kinds.vacancies())
        return wants_slaves or waiting is Waiting.FOREVER


# Reports tasks that run for long, because a task may hang, and mwpy has no limit for its time.
#
# The master does not know when a task started. It knows when its slave was last heard: when the last result arrived, or
# when the slave was sent tasks while it had none. The task that the slave has held for the longest time has been
# running since then. A long task may be what the user wants, so a report only names it, and the reports become rare.


FIRST_LOOK_S = 60.0
"""Seconds of running before a task is reported, and the shortest interval between two reports. The manual names this
number."""

USUAL = 10.0
"""A task is reported when it runs this many times as long as the tasks of its algorithm that have ended. The manual
names this number."""


@define(eq=False, repr=False)
class LongTasks:
    """Says which tasks run for long. While there are such tasks, it looks less and less often."""

    state: MasterState
    deadline: float | None = None
    """When to look next, on the core's clock; None if no task is at a slave."""
    _pause: Pause = Factory(lambda: between_messages(FIRST_LOOK_S))

    def decide(self, now: float) -> None:
        """Report the tasks that run for long at the time `now`, if it is time to look."""
        if not self.state.jar.num_allocated:
            self.deadline = None
        elif self.deadline is None or now >= self.deadline:
            if self.deadline is None or not self._report(now):
                self._pause.reset()
            self._pause.begin(now)
            self.deadline = self._pause.until

    def _report(self, now: float) -> bool:
        slaves = sorted(self._slaves_with_long_tasks(now), key=lambda slave: slave.last_heard)
        if slaves:
            named = first_of((_describe(slave, now) for slave in slaves), len(slaves))
            self.state.notice(
                f"running for long: {named}. If such a task hangs, cancel it with mw.cancel, or kill the "
                f"process of its slave; the policy seconds_max limits the time of a task"
            )
        return bool(slaves)

    def _slaves_with_long_tasks(self, now: float) -> Iterator[ConnectedSlave]:
        for slave in self.state.members.slaves.values():
            if slave.held.spans and not slave.given_back:  # else it runs a task that others have
                usual_s = self.state.members.pace.get(slave.held.spans[0].algorithm.number, 0.0)
                if now >= slave.last_heard + max(FIRST_LOOK_S, USUAL * usual_s):
                    yield slave


def _describe(slave: ConnectedSlave, now: float) -> str:
    span = slave.held.spans[0]
    running = duration(round(now - slave.last_heard))
    return f"task {span.first} ({span.algorithm.name}) for {running} on {slave.sid} at {slave.agent.host}"
