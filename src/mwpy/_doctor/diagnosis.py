"""What a doctor concludes from what an examination found where agents are to run.

An examination tells what it saw and judges nothing. Here it is held against what an agent needs, and against the same
examination on this machine, where there is one; each fault comes with what to do about it.
"""

from __future__ import annotations

from attrs import field, frozen

from mwpy._values.staleness import is_stale

__all__ = ["Address", "Finding", "Report", "diagnose"]

SKEW_S = 30.0
"""A clock that is wrong by more confuses the age of a resource file, and the time that a job has left."""

LEAST_MEMORY = 256 << 20
"""Bytes: an agent and a slave with nothing to do take a third of it."""

LEAST_DISK = 100 << 20
"""Bytes: a packed application unpacks itself to more than half of it."""

LEAST_LEFT_S = 60.0
"""Seconds: a job with less is over before it is of use."""


@frozen
class Address:
    """A candidate address of the master, and what came of trying it."""

    address: str
    fault: str
    """Empty if whoever listens there has the master's key, and took ours."""
    seconds: float


@frozen
class Report:
    """What was found where an agent would run."""

    host: str
    python: str
    executable: str
    clock: float
    """Unix seconds."""
    libraries: dict[str, str]
    """mwpy, and what it is made of, with versions."""
    cores: int
    memory: int | None
    """Bytes that are free, or that the job has left; None if that is not to be had."""
    disk: int
    """Bytes that are free in the folder of the job."""
    seconds_left: float | None = None
    """What is left of the time that the job was given; None if it was given no limit, or none is known."""
    file_fault: str = ""
    file_age: float | None = None
    """Seconds, by the clock there."""
    update_interval: float = 0.0
    addresses: list[Address] = field(factory=list)
    """Those that were tried: none after the first that works."""
    agent: str = ""
    """What the master named it; empty if it was not let in."""
    refused: str = ""
    """Why the master did not let it in, though it was connected."""
    round_trip_s: float | None = None
    imports: dict[str, str] | None = None
    """Packages that the application imported, with versions; None if it could not be imported."""
    import_fault: str = ""


@frozen
class Finding:
    """One thing that was looked at: what was found, and what to do if it is a fault."""

    about: str
    found: str
    remedy: str = ""
    """Empty if all is well."""


def diagnose(there: Report, here: Report | None, earliest: float, latest: float) -> list[Finding]:
    """Draw conclusions.

    Args:
        there: from the machine where agents are to run.
        here: from this machine, if that is another one.
        earliest: when the clock there was read at the earliest, by the clock here.
        latest: when at the latest.
    """
    return [
        Finding("machine", f"{there.host}, {_counted(there.cores, 'core')}"),
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


def _python(there: Report, here: Report | None) -> Finding:
    found = f"{there.python} ({there.executable})"
    if here is None or _minor(there) == _minor(here):
        return Finding("Python", found)
    remedy = "use the same minor version there, or pack the script for it; else functions by value do not run there"
    return Finding("Python", f"{found}, here {here.python}", remedy)


def _minor(report: Report) -> list[str]:
    return report.python.split(".")[:2]


def _libraries(there: Report, here: Report | None) -> Finding:
    found = _listed(there.libraries)
    other = _differences(there.libraries, here.libraries if here else {})
    if "mwpy" in other:
        return Finding("libraries", f"{found}; {_listed(other)}", "install the same version of mwpy there")
    return Finding("libraries", f"{found}{f'; {_listed(other)}' if other else ''}")


def _differences(there: dict[str, str], here: dict[str, str]) -> dict[str, str]:
    return {
        name: f"{there[name] or 'none'} there, {here[name] or 'none'} here"
        for name in there
        if name in here and there[name] != here[name]
    }


def _clock(there: Report, earliest: float, latest: float) -> Finding:
    skew = min(0.0, there.clock - earliest) + max(0.0, there.clock - latest)
    if abs(skew) <= SKEW_S:
        return Finding("clock", f"as here, within {max(1.0, latest - earliest):.0f} s")
    direction = "ahead of" if skew > 0 else "behind"
    return Finding("clock", f"at least {abs(skew):.0f} s {direction} the one here", "have both set by NTP")


def _file(there: Report) -> Finding:
    if there.file_fault:
        return Finding("resource file", there.file_fault, "see that the job gets it, or that the path is shared")
    age = there.file_age or 0.0
    if is_stale(age, there.update_interval):
        return Finding(
            "resource file",
            f"written {age:.0f} s ago, though its master writes it every {there.update_interval:.0f} s",
            "see whether the master lives, and give the job a fresh copy",
        )
    return Finding("resource file", f"read, written {age:.0f} s ago")


def _connection(there: Report) -> list[Finding]:
    """One address that works is enough: the others are told of, and are no faults."""
    works = any(not each.fault for each in there.addresses)
    tried = []
    for each in there.addresses:
        found = each.fault or f"connected in {1000 * each.seconds:.0f} ms, and the keys are right"
        tried.append(Finding("address", f"{each.address}: {found}", "" if works else _way(each.fault)))
    if there.agent:
        trip = 1000 * (there.round_trip_s or 0.0)
        return [*tried, Finding("master", f"let it in as {there.agent}; there and back in {trip:.1f} ms")]
    if works:
        remedy = "give the job a fresh copy of the resource file, or see what the master says"
        return [*tried, Finding("master", f"did not let it in: {there.refused}", remedy)]
    return tried


def _way(fault: str) -> str:
    """What to do about an address that does not work."""
    if "key" in fault or "no master of mwpy" in fault:
        return "give the job a fresh copy of the resource file: another computation has that address now"
    if "no such host" in fault:
        return "start the master with --mw-master-host and an address that is known there"
    return "see whether the master lives, and a firewall is between; --mw-master-port chooses a port that is open"


def _imports(there: Report, here: Report | None) -> Finding:
    if there.imports is None:
        return Finding("application", there.import_fault, "install there what it lacks, or pack the script (mwpy pack)")
    found = f"imported; its packages: {_listed(there.imports) or 'none'}"
    other = _differences(there.imports, (here.imports if here else None) or {})
    if other:
        return Finding("application", f"{found}; but {_listed(other)}", "install the same versions, or pack the script")
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


def _listed(things: dict[str, str]) -> str:
    return ", ".join(f"{name} {value}" for name, value in things.items())


def _counted(count: int, noun: str) -> str:
    return f"{count} {noun}{'' if count == 1 else 's'}"
