"""What a doctor concludes from the report of an examination.

What an examination finds is compared with what an agent needs, and its report with one from this machine, if there is
one. Each fault comes with its remedy.
"""

from __future__ import annotations

from msgspec import Struct

from mwpy._values.jobs import Job, JobState, Outcome
from mwpy._values.phrases import is_stale

SKEW_S = 30.0
"""A clock with a larger error, in seconds, falsifies the age of a resource file and the remaining time of a job."""

LEAST_MEMORY = 256 << 20
"""The least free memory, in bytes. An agent and a slave without work need a third of it."""

LEAST_DISK = 100 << 20
"""The least free disk space, in bytes. An unpacked application needs more than half of it."""

LEAST_LEFT_S = 60.0
"""A job with fewer seconds ends before it is useful."""

REMEDIES = {
    "refused": "give the job a fresh copy of the resource file: another computation has this address now",
    "unknown host": "start the master with --mw-master-host and an address that is known there",
}
"""The remedy for an address without a connection, by the result of the attempt."""

OTHER_REMEDY = (
    "check that the master is running, and that no firewall blocks the port; --mw-master-port chooses an open port"
)


class Finding(Struct, frozen=True):
    """One thing that was examined: what was found, and the remedy if it is a fault."""

    about: str
    found: str
    remedy: str = ""
    """Empty if there is no fault."""
    spare: bool = False
    """Whether it does not work, and is not needed."""


class Report(Struct, frozen=True):
    """What an examination found on the machine of an agent: what must be compared with this machine, and findings."""

    machine: str
    python: str
    executable: str
    clock: float
    """Unix seconds."""
    libraries: dict[str, str]
    """The versions of mwpy and of the libraries that it uses."""
    connection: list[Finding]
    """The resource file, and the master's addresses. No address is tried after the first one that works."""
    resources: list[Finding]
    imports: dict[str, str] | None = None
    """The versions of the packages that the application imported; None if it could not be imported."""
    import_fault: str = ""


def diagnose(there: Report, here: Report | None, earliest: float, latest: float) -> list[Finding]:
    """Draw conclusions from a report.

    Args:
        there: the report from the machine where agents run.
        here: a report from this machine; None if there is none.
        earliest: the earliest time, by the clock of this machine, at which the other clock was read.
        latest: the latest such time.
    """
    versions = [_python(there, here), _libraries(there, here), _clock(there, earliest, latest)]
    application = _imports(there, here)
    return [Finding("machine", there.machine), *versions, *there.connection, application, *there.resources]


def stuck(job: Job, timeout_s: float) -> Finding:
    """The fault of a job that did not end in time, or that is held."""
    note = f": {job.note}" if job.note else ""
    if job.state is JobState.HELD:
        return Finding("job", f"it is held{note}", "correct what the batch system names, and try again")
    remedy = "ask for resources that the batch system has, or wait longer (--timeout)"
    return Finding("job", f"it is still {job.state.value} after {timeout_s:.0f} s{note}", remedy)


def no_report(job_id: str, outcome: Outcome | None, log_dir: str) -> Finding:
    """The fault of a job that ended without a report."""
    if outcome is None:
        return Finding("job", f"it is not known how {job_id} ended", f"look into {log_dir}")
    stderr = outcome.stderr.strip() or "(nothing)"
    remedy = "check that its program, Python and mwpy are there, or give another --command"
    return Finding("job", f"there is no report: {outcome.description}. It wrote last:\n{stderr}", remedy)


def _python(there: Report, here: Report | None) -> Finding:
    found = f"{there.python} ({there.executable})"
    if here is None or _minor(there) == _minor(here):
        return Finding("Python", found)
    remedy = (
        "use the same minor version there, or pack the script for it; otherwise functions by value do not run there"
    )
    return Finding("Python", f"{found}, here {here.python}", remedy)


def _minor(report: Report) -> list[str]:
    return report.python.split(".")[:2]


def _libraries(there: Report, here: Report | None) -> Finding:
    found = _list(there.libraries)
    other = _differences(there.libraries, here.libraries if here else {})
    if "mwpy" in other:
        return Finding("libraries", f"{found}; {_list(other)}", "install the same version of mwpy there")
    return Finding("libraries", f"{found}{f'; {_list(other)}' if other else ''}")


def _differences(there: dict[str, str], here: dict[str, str]) -> dict[str, str]:
    return {
        name: f"{there[name] or 'none'} there, {here[name] or 'none'} here"
        for name in there
        if name in here and there[name] != here[name]
    }


def _clock(there: Report, earliest: float, latest: float) -> Finding:
    skew = min(0.0, there.clock - earliest) + max(0.0, there.clock - latest)
    if abs(skew) <= SKEW_S:
        return Finding("clock", f"the same time as here, within {max(1.0, latest - earliest):.0f} s")
    relation = "ahead of" if skew > 0 else "behind"
    return Finding("clock", f"at least {abs(skew):.0f} s {relation} the one here", "let NTP set both clocks")


def about_file(age_s: float, update_interval_s: float) -> Finding:
    """Judge the age of the resource file, by the clock of the machine that has read it."""
    if age_s < -SKEW_S:
        found = (
            f"the master's clock is {-age_s:.0f} s ahead of the clock of this job, so the age of the file is not known"
        )
        return Finding("resource file", found, "let NTP set the clocks of both machines")
    if is_stale(age_s, update_interval_s):
        found = f"written {age_s:.0f} s ago, though its master writes it every {update_interval_s:.0f} s"
        return Finding("resource file", found, "check that the master is running, and give the job a fresh copy")
    return Finding("resource file", f"read, written {max(0.0, age_s):.0f} s ago")


def about_addresses(failed: dict[str, tuple[str, str]], works: str) -> list[Finding]:
    """Judge the attempts to connect. One address that works is enough. The other addresses are then reported as spare.

    Args:
        failed: the addresses without a connection. Each has a fault, and one of `refused`, `unreachable`, `lost` and
            `unknown host`.
        works: what was found at the address that works; empty if there is none.
    """
    if not failed and not works:
        remedy = "start the master with --mw-master-host and an address of its machine"
        return [Finding("address", "the resource file names no address of the master", remedy)]
    tried = [
        Finding("address", f"{each}: {fault}", "" if works else REMEDIES.get(fate, OTHER_REMEDY), spare=bool(works))
        for each, (fault, fate) in failed.items()
    ]
    return [*tried, Finding("address", works)] if works else tried


def about_resources(memory: int | None, disk: int, seconds_left: float | None) -> list[Finding]:
    """Judge how much memory and disk space is free, in bytes, and how much time is left. None is not known."""
    ask, left = "ask the batch system for more", Finding("time left", "no limit is known")
    if seconds_left is not None:
        left = Finding("time left", f"{seconds_left:.0f} s", f"{ask} time" if seconds_left < LEAST_LEFT_S else "")
    return [
        Finding("memory", "not known") if memory is None else _amount("memory", memory, LEAST_MEMORY, ask),
        _amount("disk", disk, LEAST_DISK, f"{ask}, or clear the folder of the job"),
        left,
    ]


def _amount(about: str, amount: int, least: int, remedy: str) -> Finding:
    return Finding(about, f"{amount / 1e6:.0f} MB free", remedy if amount < least else "")


def _imports(there: Report, here: Report | None) -> Finding:
    if there.imports is None:
        remedy = "install the missing packages there, or pack the script (mwpy pack)"
        return Finding("application", there.import_fault, remedy)
    found = f"imported; its packages: {_list(there.imports) or 'none'}"
    other = _differences(there.imports, (here.imports if here else None) or {})
    if other:
        return Finding("application", f"{found}; but {_list(other)}", "install the same versions, or pack the script")
    return Finding("application", found)


def _list(values: dict[str, str]) -> str:
    return ", ".join(f"{name} {value}" for name, value in values.items())
