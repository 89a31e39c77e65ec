"""The examination of `mwpy doctor`: what is sent, what it finds on an agent's machine, and what follows from that.

`mwpy doctor` sends it instead of an agent, to check whether an agent could serve on a machine.

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
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from attrs import evolve
from msgspec import Struct
from msgspec.structs import replace

from mwpy import resource_file
from mwpy._batch import Batch, BatchUnavailable, Launch, NoFreePlace
from mwpy._batch.local import Local
from mwpy._roles.join import MasterContact, find_master, try_address, visit
from mwpy._roles.overseer import agent_command
from mwpy._system import clock, memory, process
from mwpy._system.clock import Clock
from mwpy._transport.link import AgentLink, library_versions
from mwpy._values import installed, messages
from mwpy._values.errors import ExitCode, MwpyError
from mwpy._values.jobs import Job, JobState, Outcome
from mwpy._values.messagepack import from_plain, to_plain
from mwpy._values.options import EXAMINED, SLAVE_VARIABLE, Options
from mwpy._values.phrases import counted, is_stale
from mwpy.resource_file import ResourceFile

# What an examination finds is compared with what an agent needs, and its report with one from this machine, if there is
# one. Each fault comes with its remedy.


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
    other = here or there
    install, same = "install the same version of mwpy there", "install the same versions, or pack the script"
    python = (
        "use the same minor version there, or pack the script for it; otherwise functions by value do not run there"
    )
    differs = there.python.split(".")[:2] != other.python.split(".")[:2]
    found = f"{there.python} ({there.executable})" + (f", here {other.python}" if differs else "")
    versions = Finding("Python", found, python if differs else "")
    libraries = _compared("libraries", _list(there.libraries), there.libraries, other.libraries, ["mwpy"], install)
    application = Finding(
        "application", there.import_fault, "install the missing packages there, or pack the script (mwpy pack)"
    )
    if (imports := there.imports) is not None:
        found = f"imported; its packages: {_list(imports) or 'none'}"
        application = _compared("application", found, imports, other.imports or {}, imports, same)
    clock = _clock(there, earliest, latest)
    machine = Finding("machine", there.machine)
    return [machine, versions, libraries, clock, *there.connection, application, *there.resources]


def _list(values: Mapping[str, str]) -> str:
    return ", ".join(f"{name} {value}" for name, value in values.items())


def _compared(
    about: str, found: str, there: Mapping[str, str], here: Mapping[str, str], matter: Iterable[str], remedy: str
) -> Finding:
    """Name the versions that are others than here. It is a fault if one of those that `matter` is."""
    other = {
        name: f"{version or 'none'} there, {here[name] or 'none'} here"
        for name, version in there.items()
        if here.get(name, version) != version
    }
    return Finding(about, f"{found}; {_list(other)}" if other else found, remedy if {*matter} & other.keys() else "")


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


# The examination itself, on the machine of the agent.


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
    sys.stderr.write(f"\n{MARK}{json.dumps(to_plain(report))}\n")
    sys.stderr.flush()
    return ExitCode.OK


def read_report(text: str) -> Report | None:
    """Find the report in the standard error of an examination; None if there is none."""
    lines = [line.removeprefix(MARK) for line in text.splitlines() if line.startswith(MARK)]
    if not lines:
        return None
    return from_plain(json.loads(lines[-1]), Report)


def _examine(options: Options, slave_command: Sequence[str], version: str) -> Report:
    return Report(
        machine=f"{platform.node()}, {counted(process.count_cores(), 'core')}",
        python=platform.python_version(),
        executable=sys.executable,
        clock=clock.wall(),
        libraries={"mwpy": version, **library_versions(), **installed.versions(["msgspec", "cloudpickle", "attrs"])},
        connection=_connection(options),
        resources=about_resources(
            memory.free_bytes(), shutil.disk_usage(os.getcwd()).free, options.seconds_left(clock.wall())
        ),
        **_imports(slave_command),
    )


def _connection(options: Options) -> list[Finding]:
    """Read the resource file and try its addresses."""
    file = Finding("resource file", "not given")
    try:
        if options.resource_file is not None:
            content = resource_file.read(options.resource_file)
            file = about_file(clock.wall() - content.timestamp, content.update_interval)
        contact = find_master(options)
        fault = "it says that the computation is finished" if contact is None else ""
    except MwpyError as error:
        contact, fault = None, str(error)
    if contact is None:
        return [Finding("resource file", fault, "check that the job gets the file, or that its path is shared")]
    failed: dict[str, tuple[str, str]] = {}
    for address in contact.addresses:
        began = clock.monotonic()
        link = try_address(contact, address)
        if isinstance(link, AgentLink):  # like an agent, try no other address
            took_ms = 1000 * (clock.monotonic() - began)
            works = f"{address}: connected in {took_ms:.0f} ms, and the keys are right"
            found = [file, *about_addresses(failed, works), _visit(link, contact)]
            link.close(1.0)
            return found
        failed[address] = link.reason, link.fate
    return [file, *about_addresses(failed, "")]


def _visit(link: AgentLink, contact: MasterContact) -> Finding:
    """Visit the master like an agent without slaves."""
    began = clock.monotonic()
    match visit(link, contact, "it was an examination by mwpy doctor"):
        case messages.Welcome(agent):
            round_trip_ms = 1000 * (clock.monotonic() - began)
            return Finding("master", f"accepted it as {agent}; round trip {round_trip_ms:.1f} ms")
        case messages.Refused(reason):
            pass
        case messages.Shutdown():
            reason = "the computation is ending"
        case other:
            reason = str(other)
    remedy = "give the job a fresh copy of the resource file, or read the messages of the master"
    return Finding("master", f"did not accept it: {reason}", remedy)


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


# Start an examination, here or through a batch system, and draw conclusions from its report.


LOOK_S = 0.5
"""Seconds between two looks at the queue."""

LATE_S = 30.0
"""For this many seconds after the end of a job, a batch system may not know yet how the job ended."""


def examine(
    launch: Launch,
    content: ResourceFile,
    batches: Mapping[str, Batch],
    command: Sequence[str],
    timeout_s: float,
    say: Callable[[str], None],
) -> list[Finding]:
    """Examine whether agents can serve a computation.

    Args:
        launch: how a job is launched, without its command.
        content: the content of the resource file.
        batches: the batch systems that run an agent each, by the name that their findings get; none for this machine.
        command: a program that the job runs instead of the one in the resource file, if it is not empty.
        timeout_s: how long the job may wait and run.
        say: is called with a line for each state of the job.
    """
    os.makedirs(launch.log_dir, exist_ok=True)
    launch = evolve(launch, command=_examining(content, command))
    with tempfile.TemporaryDirectory(prefix="mwpy-doctor-") as folder:
        local = Consultation(Local(Path(folder)), timeout_s, say)
        if not batches and not command:
            return local.findings(launch)
        report = local.report(evolve(launch, command=_examining(content, ()), prologue=""))
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
            return self._report_of(job_id, launch.log_dir)
        except NoFreePlace as error:
            advice = "so nothing was examined there: wait, or ask again when a slot is free"
            return Finding("batch system", f"{error}, {advice}", spare=True)
        except BatchUnavailable as error:
            return Finding("batch system", str(error), "check that it runs, and that you may use it")

    def _report_of(self, job_id: str, log_dir: str) -> Report | Finding:
        """Wait for the end of a job, or remove it. Its output may arrive a little later than its end."""
        deadline, said, has_ended = self.clock.monotonic() + self.timeout_s, "", False
        while True:
            job = None if has_ended else next((each for each in self.batch.jobs() if each.job_id == job_id), None)
            if job is None:
                deadline = deadline if has_ended else self.clock.monotonic() + LATE_S
                has_ended, outcome = True, self.batch.outcome(job_id)
                report = read_report(outcome.stderr) if outcome is not None else None
                failed = outcome is not None and outcome.exit_code
                if report is not None or failed or self.clock.monotonic() > deadline:
                    return report or no_report(job_id, outcome, log_dir)
            elif job.state is JobState.HELD or self.clock.monotonic() > deadline:
                self.batch.remove([job_id])
                return stuck(job, self.timeout_s)
            elif (line := f"job {job_id} is {job.state.value}{f': {job.note}' if job.note else ''}") != said:
                self.say(line)
                said = line
            self.clock.sleep(LOOK_S)
