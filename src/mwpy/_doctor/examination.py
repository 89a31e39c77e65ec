"""Check whether an agent could serve on this machine: `mwpy doctor` sends this examination instead of an agent.

The examination does what an agent does before it starts its slaves: it reads the resource file, and tries the addresses
until one works. Then it sends a Hello without slaves, and a Goodbye. So the computation is not disturbed. It also
starts one slave, which exits after its imports, to check whether the script can be imported. The report is the last
line of standard error, because every batch system brings standard error back.
"""

from __future__ import annotations

import json
import os
import platform
import shutil
import sys
from collections.abc import Sequence
from typing import Any

from msgspec.structs import asdict

from mwpy import resource_file
from mwpy._doctor.diagnosis import Address, Report
from mwpy._roles.join import MasterContact, find_master, try_address, visit
from mwpy._system import clock, packages, process
from mwpy._transport.link import AgentLink, library_versions
from mwpy._values import messages
from mwpy._values.environment import EXAMINED, SLAVE_VARIABLE
from mwpy._values.errors import ExitCode, MwpyError
from mwpy._values.options import Options

__all__ = ["read_report", "run"]

MARK = "MWPY-EXAMINATION "
"""The start of the line with the report."""

IMPORT_S = 120.0
"""Seconds that the imports of a script may take."""

FAULT_CHARACTERS = 1500
PACKAGES_REPORTED = 100
"""Limits of a report. Batch systems bring back the last 8 KiB of standard error."""


def run(options: Options, slave_command: Sequence[str], version: str) -> int:
    """Examine this machine, and write the report to standard error. Return the exit code, which is always 0."""
    report = _examine(options, slave_command, version)
    addresses = [asdict(address) for address in report.addresses]
    sys.stderr.write(f"\n{MARK}{json.dumps(asdict(report) | {'addresses': addresses})}\n")
    sys.stderr.flush()
    return ExitCode.OK


def read_report(text: str) -> Report | None:
    """Find the report in the standard error of an examination; None if there is none."""
    lines = [line.removeprefix(MARK) for line in text.splitlines() if line.startswith(MARK)]
    if not lines:
        return None
    fields: dict[str, Any] = json.loads(lines[-1])
    fields["addresses"] = [Address(**each) for each in fields["addresses"]]
    return Report(**fields)


def _examine(options: Options, slave_command: Sequence[str], version: str) -> Report:
    return Report(
        host=platform.node(),
        python=platform.python_version(),
        executable=sys.executable,
        clock=clock.wall(),
        libraries={"mwpy": version, **library_versions(), **packages.versions(["msgspec", "cloudpickle"])},
        cores=process.count_cores(),
        memory=_free_memory(),
        disk=shutil.disk_usage(os.getcwd()).free,
        seconds_left=options.seconds_left(clock.wall()),
        **_connection(options),
        **_imports(slave_command),
    )


def _free_memory() -> int | None:
    """Return the free memory of the machine, or of the job's control group if that is less."""
    free: list[int] = []
    try:
        with open("/proc/meminfo", encoding="ascii") as file:
            free += [1024 * int(line.split()[1]) for line in file if line.startswith("MemAvailable:")]
        with open("/proc/self/cgroup", encoding="ascii") as file:
            group = "/sys/fs/cgroup" + file.read().strip().rpartition("::")[2]
        with open(f"{group}/memory.max", encoding="ascii") as most, open(f"{group}/memory.current") as now:
            free.append(int(most.read()) - int(now.read()))
    except (OSError, ValueError):  # no such file here, or no limit
        pass
    return min(free, default=None)


def _connection(options: Options) -> dict[str, Any]:
    """Read the resource file and try its addresses; return the results as fields of a report."""
    found: dict[str, Any] = {}
    try:
        if options.resource_file is not None:
            content = resource_file.read(options.resource_file)
            found = {"file_age": clock.wall() - content.timestamp, "update_interval": content.update_interval}
        contact = find_master(options)
    except MwpyError as error:
        return {**found, "file_fault": str(error)}
    if contact is None:
        return {**found, "file_fault": "it says that the computation is finished"}
    found["addresses"] = []
    for address in contact.addresses:
        began = clock.monotonic()
        link = try_address(contact, address)
        fault, fate = ("", "") if isinstance(link, AgentLink) else (link.reason, link.fate)
        found["addresses"].append(Address(address, fault, clock.monotonic() - began, fate))
        if isinstance(link, AgentLink):  # like an agent, try no other address
            found |= _visit(link, contact)
            link.close(1.0)
            break
    return found


def _visit(link: AgentLink, contact: MasterContact) -> dict[str, Any]:
    """Visit the master like an agent without slaves."""
    began = clock.monotonic()
    answer = visit(link, contact, "it was an examination by mwpy doctor")
    match answer:
        case messages.Welcome(agent):
            return {"agent": agent, "round_trip_s": clock.monotonic() - began}
        case messages.Refused(reason):
            return {"refused": reason}
        case messages.Shutdown():
            return {"refused": "the computation is ending"}
        case _:
            return {"refused": str(answer)}


def _imports(slave_command: Sequence[str]) -> dict[str, Any]:
    """Start a slave that imports the script and exits; return the result as fields of a report."""
    try:
        ran = process.run(slave_command, environment={SLAVE_VARIABLE: EXAMINED}, timeout_s=IMPORT_S)
    except process.TimedOut as error:
        return {"import_fault": _failed_start(f"killed, because it ran for {IMPORT_S:.0f} s", error.err)}
    except OSError as error:
        return {"import_fault": f"a slave cannot be started: {error}"}
    try:
        imported: dict[str, str] = json.loads(ran.out.splitlines()[-1])
    except (ValueError, IndexError):
        return {"import_fault": _failed_start(ran.end, ran.err)}
    return {"imports": dict(sorted(imported.items())[:PACKAGES_REPORTED])}


def _failed_start(end: str, stderr: str) -> str:
    return f"a slave does not start: {end}. It wrote last:\n{stderr.strip()[-FAULT_CHARACTERS:] or '(nothing)'}"
