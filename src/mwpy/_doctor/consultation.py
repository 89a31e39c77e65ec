"""Start an examination, here or through a batch system, and draw conclusions from its report."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from mwpy._batch import Batch, BatchUnavailable, Job, JobState, Launch, Outcome
from mwpy._batch.local import Local
from mwpy._doctor.diagnosis import Finding, Report, diagnose, no_report, stuck
from mwpy._doctor.examination import read_report
from mwpy._roles.overseen_files import agent_command, mark_of
from mwpy._system import clock
from mwpy._system.clock import Clock
from mwpy.resource_file import ResourceFile

__all__ = ["Consultation", "examine"]

LOOK_S = 0.5
"""Seconds between two looks at the queue."""

LATE_S = 30.0
"""For this many seconds after the end of a job, a batch system may not know yet how the job ended."""


def examine(
    path: Path,
    content: ResourceFile,
    batches: Mapping[str, Batch],
    *,
    command: Sequence[str],
    log_dir: Path | None,
    extra: tuple[str, ...],
    timeout_s: float,
    say: Callable[[str], None],
) -> list[Finding]:
    """Examine whether agents can serve a computation.

    Args:
        path: the resource file.
        content: its content.
        batches: the batch systems that run an agent each, by the name that their findings get; none for this machine.
        command: a program that the job runs instead of the one in the resource file, if it is not empty.
        log_dir: the folder for the job's output; None for a folder beside the resource file.
        extra: lines for the submission.
        timeout_s: how long the job may wait and run.
        say: is called with a line for each state of the job.
    """
    log_dir = (log_dir or Path(f"{path}.jobs")).absolute()
    log_dir.mkdir(parents=True, exist_ok=True)
    launch = Launch(
        mark=f"doctor-{os.getpid()}-{mark_of(path)}",
        resource_path=os.path.abspath(path),
        command=_examining(content, command),
        slaves=1,
        log_dir=str(log_dir),
        extra=extra,
    )
    with tempfile.TemporaryDirectory(prefix="mwpy-doctor-") as folder:
        local = Consultation(Local(Path(folder)), timeout_s, say)
        if not batches and not command:
            return local.findings(launch)
        report = local.report(replace(launch, command=_examining(content, ())))
        here = report if isinstance(report, Report) else None
        if not batches:
            return local.findings(launch, here)
        return [
            replace(each, about=f"{name}: {each.about}" if name else each.about)
            for name, batch in batches.items()
            for each in Consultation(batch, timeout_s, say).findings(launch, here)
        ]


def _examining(content: ResourceFile, program: Sequence[str]) -> tuple[str, ...]:
    """The command of an agent that examines its machine instead of serving."""
    words = agent_command(content, program, 1)
    role = words.index("--mw-slave") + 1
    return (*words[:role], "--mw-examine", *words[role:])


class Consultation(Struct, frozen=True):
    """Sends an examination as a job, and waits for its report."""

    batch: Batch
    timeout_s: float
    """How long the job may wait and run."""
    say: Callable[[str], None]
    clock: Clock = clock

    def findings(self, launch: Launch, here: Report | None = None) -> list[Finding]:
        """Examine, and compare the report with one from this machine, if there is one."""
        earliest = self.clock.wall()
        there = self.report(launch)
        latest = self.clock.wall()
        return [there] if isinstance(there, Finding) else diagnose(there, here, earliest, latest)

    def report(self, launch: Launch) -> Report | Finding:
        """Return the report of a job; without a report, the fault."""
        try:
            [job_id] = self.batch.submit(launch, 1)
            self.say(f"job {job_id} is submitted")
            remaining = self._wait(job_id)
            if remaining is not None:
                self.batch.remove([job_id])
                return stuck(remaining, self.timeout_s)
            outcome = self._outcome(job_id)
        except BatchUnavailable as error:
            return Finding("batch system", str(error), "check that it runs, and that you may use it")
        report = read_report(outcome.stderr) if outcome is not None else None
        return report or no_report(job_id, outcome, launch.log_dir)

    def _wait(self, job_id: str) -> Job | None:
        """Wait for the end of a job. If it does not end, return its last state."""
        deadline = self.clock.monotonic() + self.timeout_s
        last = ""
        while True:
            job = next((each for each in self.batch.jobs() if each.job_id == job_id), None)
            if job is None:
                return None
            if job.state is JobState.HELD or self.clock.monotonic() > deadline:
                return job
            line = f"job {job_id} is {job.state.value}{f': {job.note}' if job.note else ''}"
            if line != last:
                self.say(line)
                last = line
            self.clock.sleep(LOOK_S)

    def _outcome(self, job_id: str) -> Outcome | None:
        """Return how a job ended. Its output may arrive a little later than its end."""
        deadline = self.clock.monotonic() + LATE_S
        while True:
            outcome = self.batch.outcome(job_id)
            complete = outcome is not None and (outcome.exit_code or read_report(outcome.stderr) is not None)
            if complete or self.clock.monotonic() > deadline:
                return outcome
            self.clock.sleep(LOOK_S)
