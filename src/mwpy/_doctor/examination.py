"""Look whether an agent could serve here, without being one: what `mwpy doctor` sends in an agent's place.

It does what an agent does, up to the point where that would start its slaves: reads the resource file, tries the
addresses until one works, and says Hello with no slaves and then Goodbye, so that the computation goes on as if nothing
had happened. Its slave is started once, to see whether the script can be imported, and ends there. What was found is
the last line of standard error, since that is what every batch system brings back.
"""

from __future__ import annotations

import json
import os
import platform
import shutil
import sys
from collections.abc import Sequence
from typing import Any

from attrs import asdict

from mwpy import resource_file
from mwpy._doctor.diagnosis import Address, Report
from mwpy._roles.join import CONNECT_S, Direction, find_master, try_address
from mwpy._system import clock, packages, process
from mwpy._transport import wire
from mwpy._transport.link import AgentLink, library_versions
from mwpy._values import messages
from mwpy._values.environment import EXAMINED, JOB_VARIABLE, SLAVE_VARIABLE
from mwpy._values.errors import ExitCode, MwpyError, ProtocolError
from mwpy._values.options import Options

__all__ = ["read_report", "run"]

MARK = "MWPY-EXAMINATION "
"""What the line with the report begins with."""

IMPORT_S = 120.0
"""Seconds that a script gets for its imports."""

FAULT_CHARACTERS = 1500
PACKAGES_REPORTED = 100
"""Limits of a report: of what was written to standard error, batch systems bring back 8 KiB."""


def run(options: Options, slave_command: Sequence[str], version: str) -> int:
    """Examine as this version of mwpy, and write the report to standard error; returns the exit code, always 0."""
    told = asdict(_examine(options, slave_command, version))
    sys.stderr.write(f"\n{MARK}{json.dumps(told)}\n")
    sys.stderr.flush()
    return ExitCode.OK


def read_report(text: str) -> Report | None:
    """Find the report in what an examination wrote to standard error; None if there is none."""
    lines = [line.removeprefix(MARK) for line in text.splitlines() if line.startswith(MARK)]
    if not lines:
        return None
    told: dict[str, Any] = json.loads(lines[-1])
    told["addresses"] = [Address(**each) for each in told["addresses"]]
    return Report(**told)


def _examine(options: Options, slave_command: Sequence[str], version: str) -> Report:
    left = options.lifetime
    if left is None and options.job_end is not None:
        left = options.job_end - clock.wall()
    return Report(
        host=platform.node(),
        python=platform.python_version(),
        executable=sys.executable,
        clock=clock.wall(),
        libraries={"mwpy": version, **library_versions(), **packages.versions(["msgspec", "cloudpickle", "attrs"])},
        cores=len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1,
        memory=_free_memory(),
        disk=shutil.disk_usage(os.getcwd()).free,
        seconds_left=left,
        **_connection(options),
        **_imports(slave_command),
    )


def _free_memory() -> int | None:
    """What the machine has free, or the control group of the job if that is less."""
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
    """What came of the resource file and of each address in it."""
    found: dict[str, Any] = {}
    try:
        if options.resource_file is not None:
            given = resource_file.read(options.resource_file)
            found = {"file_age": clock.wall() - given.timestamp, "update_interval": given.update_interval}
        direction = find_master(options)
    except MwpyError as error:
        return {**found, "file_fault": str(error)}
    if direction is None:
        return {**found, "file_fault": "it says that the computation is finished"}
    found["addresses"] = []
    for address in direction.addresses:
        began = clock.monotonic()
        link = try_address(direction, address, options.client_timeout)
        fault = "" if isinstance(link, AgentLink) else link.reason
        found["addresses"].append(Address(address, fault, clock.monotonic() - began))
        if isinstance(link, AgentLink):  # as an agent, go no further
            found |= _visit(link, direction)
            link.close(1.0)
            break
    return found


def _visit(link: AgentLink, direction: Direction) -> dict[str, Any]:
    """Say Hello, hear the answer, and say Goodbye."""
    python = f"{sys.version_info.major}.{sys.version_info.minor}"
    job = os.environ.get(JOB_VARIABLE, "")
    began = clock.monotonic()
    hello = messages.Hello(direction.member_id, direction.generation, platform.node(), os.getpid(), python, 0, job)
    link.send(wire.encode(hello))
    answer = _answer(link)
    match answer:
        case messages.Welcome(agent):
            link.send(wire.encode(messages.Goodbye("it was an examination by mwpy doctor")))
            return {"agent": agent, "round_trip_s": clock.monotonic() - began}
        case messages.Refused(reason):
            return {"refused": reason}
        case messages.Shutdown():
            return {"refused": "the computation ends"}
        case _:
            return {"refused": str(answer)}


def _answer(link: AgentLink) -> messages.Message | str:
    deadline = clock.monotonic() + CONNECT_S
    while (left := deadline - clock.monotonic()) > 0:
        fates, received, _ = link.poll(left)
        for frames in received:
            try:
                return wire.decode(frames)[0]
            except ProtocolError as error:
                return str(error)
        if fates:
            return "it ended the connection"
    return f"no answer within {CONNECT_S:.0f} s, though it took the keys"


def _imports(slave_command: Sequence[str]) -> dict[str, Any]:
    """What came of starting a slave."""
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
