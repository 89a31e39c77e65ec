"""Checks from outside that a run with too many failures stops, and goes on when the algorithm knows of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec import Struct

from mwpy._core.master.state import Stopped
from mwpy._values import records
from mwpy._values.max_failures import MaxFailures

__all__ = ["StopChecker"]


class StopChecker(Struct, eq=False):
    """Checks the stops of one computation. Each method raises an `AssertionError` that says what is wrong."""

    failures: int = 0
    """How many failures the algorithm got since the run went on after the last stop."""
    stopped: int = 0
    """How many stops the algorithm does not know to be over. If there is one, the master may cancel all tasks."""
    _sends_nothing: bool = False
    """Whether it may send no task, because the algorithm does not know of the stop yet."""
    _submitted: int = 0
    """The last task that was submitted before the algorithm knew of the stop."""

    def recorded(self, record: records.Record) -> None:
        """The master states a fact."""
        match record:
            case records.Notice(text) if text.startswith("the run is stopped"):
                self.stopped += 1
                self._sends_nothing = True
            case records.TasksAllocated(sid) | records.AttemptsStarted(sid):
                assert not self._sends_nothing, f"{sid} is sent tasks although the run is stopped"

    def learned(self, stopped: Stopped, limit: MaxFailures) -> None:
        """The algorithm learns that the run is stopped, and has all results that came before."""
        assert self.stopped, "a stop was not recorded"
        assert limit.is_reached(stopped.failed, stopped.ended), f"{stopped.failed} failures are not too many"
        assert stopped.failed <= self.failures, f"there were {self.failures} failures, not {stopped.failed}"

    def lets_go_on(self, submitted: int) -> None:
        """The algorithm lets the run go on. It has submitted tasks up to this number."""
        self._sends_nothing, self._submitted = False, submitted

    def went_on(self, not_run: Sequence[int], ended: Mapping[int, str]) -> None:
        """The algorithm learns which tasks did not run. All tasks that it submitted before have ended."""
        self.stopped, self.failures = self.stopped - 1, 0
        assert all(task in ended for task in range(1, self._submitted + 1)), "a task goes on after a stop"
        wrong = [task for task in not_run if ended[task] not in ("cancelled", "discarded")]
        assert not wrong, f"tasks {wrong} are reported as not run, and they ran"
