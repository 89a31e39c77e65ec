"""mwpy doctor RESOURCE_FILE [--with SYSTEM]: look whether agents can serve a computation, and what is in their way.

One job is submitted, as `mwpy oversee` does it: the agent that it starts looks around instead of serving, and tells
what it found (see `examination`). The same is done first on this machine, with the command that the master gave, to
compare. Without --with it is done here alone.
"""

from __future__ import annotations

import argparse
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path

from attrs import evolve

from mwpy import resource_file
from mwpy._batch import Batch, BatchUnavailable, Job, JobState, Launch, Outcome
from mwpy._batch.local import Local
from mwpy._doctor import examination
from mwpy._doctor.diagnosis import Finding, Report, diagnose
from mwpy._roles.overseen_files import agent_command, mark_of
from mwpy._system import clock
from mwpy._values.errors import ExitCode
from mwpy.cli import oversee
from mwpy.resource_file import ResourceFile

__all__ = ["main"]

DESCRIPTION = """Send one agent through a batch system, or start one here, that looks whether it could serve the
computation: which addresses of the master work, keys, clock, Python, libraries, imports of the application, memory,
disk, time left. Each fault is told with what to do. The computation is not disturbed."""

EPILOG = "Exit codes: 0 all is well; 1 a fault was found; 2 a bad option, or no resource file."

FAULT_FOUND = 1

LOOK_S = 0.5
"""Seconds between two looks at the queue."""

LATE_S = 30.0
"""Seconds after the end of a job in which a batch system may not know yet what became of it."""


def main(arguments: Sequence[str]) -> int:
    """Examine; returns the exit code."""
    given = _parser().parse_args(arguments)
    content = resource_file.read(given.path)
    if content.computation_status == resource_file.FINISHED:
        print(f"ok      computation: finished, says {given.path}; agents exit with 0")
        return ExitCode.OK
    with tempfile.TemporaryDirectory(prefix="mwpy-doctor-") as folder:
        log_dir = (given.log_dir or Path(f"{given.path}.jobs")).absolute()
        log_dir.mkdir(parents=True, exist_ok=True)
        launch = Launch(
            mark=f"doctor-{os.getpid()}-{mark_of(given.path)}",
            resource_path=os.path.abspath(given.path),
            command=_command(content, given.command),
            slaves=1,
            log_dir=str(log_dir),
            extra=tuple(given.line),
        )
        local = Local(Path(folder))
        if given.system in (None, "local"):
            findings = _findings(local, launch, given.timeout)
        else:
            here = _report(local, evolve(launch, command=_command(content, ())), given.timeout)
            findings = _findings(oversee.SYSTEMS[given.system](given), launch, given.timeout, here)
    for each in findings:
        print(_line(each))
    faults = sum(bool(each.remedy) for each in findings)
    print(f"{faults} {'fault' if faults == 1 else 'faults'} found" if faults else "all is well")
    return FAULT_FOUND if faults else ExitCode.OK


def _parser() -> argparse.ArgumentParser:
    parser = oversee.Parser(prog="mwpy doctor", description=DESCRIPTION, epilog=EPILOG, allow_abbrev=False)
    parser.add_argument("path", type=Path, metavar="RESOURCE_FILE", help="what the master writes")
    parser.add_argument("--with", dest="system", choices=[*oversee.SYSTEMS], help="where to send the agent; here")
    parser.add_argument(
        "--timeout",
        type=oversee.number(0.1, float),
        default=600.0,
        metavar="SECONDS",
        help="how long the job may wait in the queue and run before it is removed; 600",
    )
    oversee.add_places(parser)
    return parser


def _line(finding: Finding) -> str:
    text = f"{'FAULT' if finding.remedy else 'ok':<8}{finding.about}: {finding.found}"
    return f"{text}\n        -> {finding.remedy}" if finding.remedy else text


def _command(content: ResourceFile, program: Sequence[str]) -> tuple[str, ...]:
    words = agent_command(content, program, 1)
    role = words.index("--mw-slave") + 1
    return (*words[:role], "--mw-examine", *words[role:])


def _findings(batch: Batch, launch: Launch, timeout_s: float, here: object = None) -> list[Finding]:
    """Examine there, and hold it against what was found here, if that told anything."""
    earliest = clock.wall()
    there = _report(batch, launch, timeout_s)
    latest = clock.wall()
    if isinstance(there, Finding):
        return [there]
    return diagnose(there, here if isinstance(here, Report) else None, earliest, latest)


def _report(batch: Batch, launch: Launch, timeout_s: float) -> Report | Finding:
    """Send one job and wait for what it tells; or what became of it instead."""
    try:
        job_id = batch.submit(launch, 1)[0]
        print(f"job {job_id} is submitted", flush=True)
        last = _wait(batch, job_id, timeout_s)
        if last is not None:
            batch.remove([job_id])
            return _stuck(last, timeout_s)
        outcome = _outcome(batch, job_id)
    except BatchUnavailable as error:
        return Finding("batch system", str(error), "see that it runs, and that you may use it")
    if outcome is None:
        return Finding("job", f"nothing is known of the end of {job_id}", f"look into {launch.log_dir}")
    found = examination.read_report(outcome.stderr)
    if found is None:
        wrote = outcome.stderr.strip() or "(nothing)"
        remedy = "see that its program, Python and mwpy are there, or give another --command"
        return Finding("job", f"it told nothing: {outcome.description}. It wrote last:\n{wrote}", remedy)
    return found


def _wait(batch: Batch, job_id: str, timeout_s: float) -> Job | None:
    """Wait for the end of a job; as what it was last seen if it does not end."""
    deadline = clock.monotonic() + timeout_s
    said = ""
    while True:
        job = next((each for each in batch.jobs() if each.job_id == job_id), None)
        if job is None:
            return None
        if job.state is JobState.HELD or clock.monotonic() > deadline:
            return job
        told = f"job {job_id} is {job.state.value}{f': {job.note}' if job.note else ''}"
        if told != said:
            print(told, flush=True)
            said = told
        clock.sleep(LOOK_S)


def _stuck(job: Job, timeout_s: float) -> Finding:
    note = f": {job.note}" if job.note else ""
    if job.state is JobState.HELD:
        return Finding("job", f"it is held{note}", "mend what the batch system says, and try again")
    remedy = "ask for what the batch system has, or wait longer (--timeout)"
    return Finding("job", f"it is still {job.state.value} after {timeout_s:.0f} s{note}", remedy)


def _outcome(batch: Batch, job_id: str) -> Outcome | None:
    """What became of a job; its files may come a little later than its end."""
    deadline = clock.monotonic() + LATE_S
    while True:
        outcome = batch.outcome(job_id)
        told = outcome is not None and (outcome.exit_code or examination.read_report(outcome.stderr) is not None)
        if told or clock.monotonic() > deadline:
            return outcome
        clock.sleep(LOOK_S)
