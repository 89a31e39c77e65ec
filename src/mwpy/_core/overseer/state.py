"""The state that the parts of an overseer's core share, and what it complains about."""

from __future__ import annotations

from enum import Enum

from msgspec import Struct, field

from mwpy._core.overseer.computation import UNCONNECTED_S, WatchedComputation
from mwpy._core.overseer.files import OverseerActions
from mwpy._values.phrases import counted, first_of


class OverseerSettings(Struct, frozen=True):
    """The options that the core needs; `cli/oversee.py` describes them."""

    max_jobs: int = 1000
    max_per_minute: int = 200
    patience_s: float = 60.0
    interval_s: float = 10.0
    job_limit_s: float | None = None
    """After how many seconds a batch system ends each job; None if this is not known."""


class OverseerState(Struct, eq=False):
    """The watched computations, and the actions that were decided."""

    settings: OverseerSettings
    computations: dict[str, WatchedComputation] = field(default_factory=dict)
    """The watched computations, by mark."""
    free_places: int | None = None
    """How many more jobs the batch system can take, by its last list; None if it has a queue."""
    actions: OverseerActions = field(default_factory=OverseerActions)

    def say(self, computation: WatchedComputation | None, text: str) -> None:
        """Request that a line is printed, about a computation or about all."""
        self.actions.say.append(f"{computation.name}: {text}" if computation else text)

    def active(self, now: float) -> list[WatchedComputation]:
        """The computations whose files are current, the most important ones first."""
        found = [each for each in self.computations.values() if each.file.is_current(now)]
        return sorted(found, key=lambda each: -each.priority)


# Decides what to report as wrong, and when to repeat it.


SAY_AGAIN_S = 300.0
"""Seconds until a complaint is repeated. Each interval is twice the one before."""

EXPLAIN_AFTER_S = 30.0
"""Seconds until the reason why jobs wait is reported. Most jobs start sooner if their machine is free."""


class About(Enum):
    """What a complaint is about."""

    FILE = "file"
    STALENESS = "staleness"
    BATCH = "batch system"
    SUBMISSION = "submission"
    REMOVAL = "removal"
    LIMIT = "limit"
    TIME = "time"
    UNCONNECTED = "unconnected"
    WAITING = "waiting"
    HOSTS = "machines"
    EXCLUDED = "excluded machines"


class _Complaint(Struct):
    say_at: float
    interval_s: float = SAY_AGAIN_S


class Complaints(Struct, eq=False):
    """Reports each fault at growing intervals, and reports once when it has ended."""

    _state: OverseerState
    _open: dict[tuple[str, About], _Complaint] = field(default_factory=dict)
    """The open complaints, by mark and subject. The mark is empty if no computation is concerned."""

    def complain(
        self, computation: WatchedComputation | None, about: About, text: str, now: float, after_s: float = 0.0
    ) -> None:
        """Complain about something that is wrong now, or is right if the text is empty. The first report comes when it
        has lasted for `after_s`."""
        if not text:
            self.resolve(computation, about)
            return
        key = (computation.mark if computation else "", about)
        complaint = self._open.setdefault(key, _Complaint(now + after_s))
        if now >= complaint.say_at:
            self._state.say(computation, text)
            complaint.say_at = now + complaint.interval_s
            complaint.interval_s *= 2

    def resolve(self, computation: WatchedComputation | None, about: About, text: str = "") -> None:
        """Record that something is right. If a complaint about it was reported, report this text."""
        if self._open.pop((computation.mark if computation else "", about), None) is not None and text:
            self._state.say(computation, text)

    def report_staleness(self, computation: WatchedComputation, now: float) -> None:
        """Complain about a master that no longer writes its resource file."""
        file = computation.file
        if file.need is None or file.finished or not file.is_stale(now):
            self.resolve(computation, About.STALENESS, "continues, because the master writes its resource file again")
            return
        text = (
            f"pauses: the resource file is {file.need.age_s:.0f} s old, though its master writes it every "
            f"{file.need.interval_s:.0f} s. Is the master dead? Start it again, or remove the jobs with --remove"
        )
        self.complain(computation, About.STALENESS, text, now)

    def report_limit(self, computation: WatchedComputation, short: int, now: float) -> None:
        """Complain that the limit prevents this number of useful jobs."""
        why = f"--max allows only {self._state.settings.max_jobs}"
        if self._state.free_places is not None:
            why = f"all hosts are full, or {why}"
        text = f"{counted(short, 'more job')} would be useful, but {why}" if short > 0 else ""
        self.complain(computation, About.LIMIT, text, now)

    def report_hosts(self, computation: WatchedComputation, now: float) -> None:
        """Complain about machines on which jobs or tasks fail although they run well elsewhere."""
        failing, excluded = computation.hosts.failing(now), computation.hosts.excluded
        about_failing = (
            f"jobs fail at their start on {', '.join(failing)} and run well elsewhere, so none is submitted to "
            f"{'it' if len(failing) == 1 else 'them'}. Ask your administrator, or read the output of the jobs"
        )
        about_excluded = (
            f"tasks fail on {', '.join(excluded)} that succeed elsewhere, so the master sends no more work there, "
            f"and no job is submitted to {'it' if len(excluded) == 1 else 'them'}. The master's messages say more"
        )
        self.complain(computation, About.HOSTS, about_failing if failing else "", now)
        self.complain(computation, About.EXCLUDED, about_excluded if excluded else "", now)

    def report_delays(self, computation: WatchedComputation, now: float) -> None:
        """Complain about jobs that run without connecting, and about the reason why others keep waiting."""
        unconnected, noted = computation.unconnected(), [job for job in computation.waiting() if job.note]
        count, one = len(unconnected), len(unconnected) == 1
        about_unconnected = (
            f"{counted(count, 'job')} ran for {UNCONNECTED_S:.0f} s and {'is' if one else 'are'} not "
            f"connected, so others replace {'it' if one else 'them'}. Can the jobs reach the master, and does "
            f"their script leave MWPY_JOB unchanged? {first_of((job.job_id for job in unconnected), count)}"
        )
        self.complain(computation, About.UNCONNECTED, about_unconnected if unconnected else "", now)
        verb, why = "waits" if len(noted) == 1 else "wait", ""
        if noted:
            why = f"{counted(len(noted), 'job')} still {verb}. The reason for job {noted[0].job_id}: {noted[0].note}"
        self.complain(computation, About.WAITING, why, now, after_s=EXPLAIN_AFTER_S)
