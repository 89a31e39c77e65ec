"""What a doctor concludes from the report of an examination.

A report contains facts and no judgement. Here it is compared with what an agent needs, and with a report from this
machine, if there is one. Each fault comes with its remedy.
"""

from __future__ import annotations

from msgspec import Struct, field

from mwpy._values.jobs import Job, JobState, Outcome
from mwpy._values.phrases import counted, is_stale

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


class Address(Struct, frozen=True):
    """A candidate address of the master, and the result of an attempt to connect to it."""

    address: str
    fault: str
    """Empty if the program that listens there has the master's key and accepted ours."""
    seconds: float
    fate: str = ""
    """Without a connection: `refused`, `unreachable`, `lost` or `unknown host`."""


class Report(Struct, frozen=True):
    """What an examination found on the machine of an agent."""

    host: str
    python: str
    executable: str
    clock: float
    """Unix seconds."""
    libraries: dict[str, str]
    """The versions of mwpy and of the libraries that it uses."""
    cores: int
    memory: int | None
    """Bytes that are free, or that the job has left; None if that is not known."""
    disk: int
    """Bytes that are free in the folder of the job."""
    seconds_left: float | None = None
    """The rest of the job's time; None if it has no limit, or none is known."""
    file_fault: str = ""
    file_age: float | None = None
    """The age of the resource file in seconds, by the clock of that machine."""
    update_interval: float = 0.0
    addresses: list[Address] = field(default_factory=list)
    """The addresses that were tried. No address is tried after the first one that works."""
    agent: str = ""
    """The name that the master gave it; empty if the master did not accept it."""
    refused: str = ""
    """Why the master did not accept it, although it was connected."""
    round_trip_s: float | None = None
    imports: dict[str, str] | None = None
    """The versions of the packages that the application imported; None if it could not be imported."""
    import_fault: str = ""


class Finding(Struct, frozen=True):
    """One thing that was examined: what was found, and the remedy if it is a fault."""

    about: str
    found: str
    remedy: str = ""
    """Empty if there is no fault."""
    spare: bool = False
    """Whether it does not work, and is not needed."""


def diagnose(there: Report, here: Report | None, earliest: float, latest: float) -> list[Finding]:
    """Draw conclusions from a report.

    Args:
        there: the report from the machine where agents run.
        here: a report from this machine; None if there is none.
        earliest: the earliest time, by the clock of this machine, at which the other clock was read.
        latest: the latest such time.
    """
    return [
        Finding("machine", f"{there.host}, {counted(there.cores, 'core')}"),
        _python(there, here),
        _libraries(there, here),
        _clock(there, earliest, latest),
        _file(there),
        *_connection(there),
        _imports(there, here),
        _amount("memory", there.memory, LEAST_MEMORY, "ask the batch system for more"),
        _amount("disk", there.disk, LEAST_DISK, "ask the batch system for more, or clear the folder of the job"),
        _time(there),
    ]


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


def _file(there: Report) -> Finding:
    if there.file_fault:
        return Finding(
            "resource file", there.file_fault, "check that the job gets the file, or that its path is shared"
        )
    age = there.file_age or 0.0
    if age < -SKEW_S:
        found = (
            f"the master's clock is {-age:.0f} s ahead of the clock of this job, so the age of the file is not known"
        )
        return Finding("resource file", found, "let NTP set the clocks of both machines")
    if is_stale(age, there.update_interval):
        return Finding(
            "resource file",
            f"written {age:.0f} s ago, though its master writes it every {there.update_interval:.0f} s",
            "check that the master is running, and give the job a fresh copy",
        )
    return Finding("resource file", f"read, written {max(0.0, age):.0f} s ago")


def _connection(there: Report) -> list[Finding]:
    """One address that works is enough. The other addresses are then reported as spare."""
    if not there.addresses and not there.file_fault:
        remedy = "start the master with --mw-master-host and an address of its machine"
        return [Finding("address", "the resource file names no address of the master", remedy)]
    works = any(not each.fault for each in there.addresses)
    tried = []
    for each in there.addresses:
        found = each.fault or f"connected in {1000 * each.seconds:.0f} ms, and the keys are right"
        remedy = "" if works else REMEDIES.get(each.fate, OTHER_REMEDY)
        tried.append(Finding("address", f"{each.address}: {found}", remedy, spare=works and bool(each.fault)))
    if there.agent:
        round_trip_ms = 1000 * (there.round_trip_s or 0.0)
        return [*tried, Finding("master", f"accepted it as {there.agent}; round trip {round_trip_ms:.1f} ms")]
    if works:
        remedy = "give the job a fresh copy of the resource file, or read the messages of the master"
        return [*tried, Finding("master", f"did not accept it: {there.refused}", remedy)]
    return tried


def _imports(there: Report, here: Report | None) -> Finding:
    if there.imports is None:
        remedy = "install the missing packages there, or pack the script (mwpy pack)"
        return Finding("application", there.import_fault, remedy)
    found = f"imported; its packages: {_list(there.imports) or 'none'}"
    other = _differences(there.imports, (here.imports if here else None) or {})
    if other:
        return Finding("application", f"{found}; but {_list(other)}", "install the same versions, or pack the script")
    return Finding("application", found)


def _amount(about: str, amount: int | None, least: int, remedy: str) -> Finding:
    if amount is None:
        return Finding(about, "not known")
    return Finding(about, f"{amount / 1e6:.0f} MB free", remedy if amount < least else "")


def _time(there: Report) -> Finding:
    if there.seconds_left is None:
        return Finding("time left", "no limit is known")
    remedy = "ask the batch system for more time" if there.seconds_left < LEAST_LEFT_S else ""
    return Finding("time left", f"{there.seconds_left:.0f} s", remedy)


def _list(values: dict[str, str]) -> str:
    return ", ".join(f"{name} {value}" for name, value in values.items())
