"""What a doctor concludes from an examination, and how it sends one as a job and waits for the report."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from attrs import define, field
from msgspec import to_builtins
from msgspec.structs import replace

from mwpy._batch import BatchUnavailable, Launch, NoFreePlace
from mwpy._doctor.examination import (
    MARK,
    Consultation,
    Finding,
    Report,
    about_addresses,
    about_file,
    about_resources,
    diagnose,
)
from mwpy._values.jobs import End, Job, JobState, Outcome

# Which findings are faults, and their remedies

HEALTHY = Report(
    machine="node1, 8 cores",
    python="3.11.7",
    executable="/usr/bin/python3",
    clock=1000.0,
    libraries={"mwpy": "1.0", "pyzmq": "27"},
    connection=[Finding("resource file", "read")],
    resources=[Finding("disk", "free")],
    imports={"numpy": "2.4"},
)


def faults(there: Report, here: Report | None = None) -> list[tuple[str, str, str]]:
    """Return the faults, if the clock here showed 999 s before and 1001 s after the examination."""
    found = diagnose(there, here, 999.0, 1001.0)
    return [(each.about, each.found, each.remedy) for each in found if each.remedy]


@pytest.mark.parametrize("here", [None, HEALTHY])
def test_all_is_reported_even_without_a_fault(here: Report | None) -> None:
    assert faults(HEALTHY, here) == []
    found = diagnose(HEALTHY, here, 999.0, 1001.0)
    assert [each.about for each in found] == [
        *("machine", "Python", "libraries", "clock", "resource file", "application", "disk")
    ]
    assert found[5].found == "imported; its packages: numpy 2.4"
    assert diagnose(replace(HEALTHY, imports={}), here, 999.0, 1001.0)[5].found.startswith(
        "imported; its packages: none"
    )


def test_what_is_not_known_is_no_fault() -> None:
    """The memory of a machine, or the time limit of a job."""
    found = about_resources(None, 8 << 30, None)
    assert [(each.found, each.remedy) for each in found] == [
        *(("not known", ""), ("8590 MB free", ""), ("no limit is known", ""))
    ]


@pytest.mark.parametrize(
    ("found", "about", "text", "remedy"),
    [
        (diagnose(replace(HEALTHY, clock=900.0), None, 999.0, 1001.0), "clock", "at least 99 s behind the one", "NTP"),
        (diagnose(replace(HEALTHY, clock=1101.0), None, 999.0, 1001.0), "clock", "at least 100 s ahead of the", "NTP"),
        (
            diagnose(replace(HEALTHY, imports=None, import_fault="No module"), HEALTHY, 999.0, 1001.0),
            *("application", "No module", "pack the script"),
        ),
        ([about_file(5000.0, 300.0)], "resource file", "written 5000 s ago", "a fresh copy"),
        ([about_file(-4922.0, 300.0)], "resource file", "the master's clock is 4922 s ahead", "NTP"),
        (about_addresses({"a": ("none", "unknown host")}, ""), "address", "a: none", "--mw-master-host"),
        (about_resources(1 << 20, 8 << 30, 600.0), "memory", "1 MB free", "ask the batch system"),
        (about_resources(8 << 30, 1 << 20, 600.0), "disk", "1 MB free", "ask the batch system"),
        (about_resources(8 << 30, 8 << 30, 10.0), "time left", "10 s", "more time"),
    ],
)
def test_a_fault_comes_with_its_remedy(found: list[Finding], about: str, text: str, remedy: str) -> None:
    """There is one fault, and all other findings are good."""
    [fault] = [each for each in found if each.remedy]
    assert fault.about == about
    assert text in fault.found
    assert remedy in fault.remedy


@pytest.mark.parametrize(
    ("changes", "about", "found"),
    [
        ({"python": "3.13.5"}, "Python", "3.13.5 (/usr/bin/python3), here 3.11.7"),
        ({"libraries": {"mwpy": "2.0"}}, "libraries", "mwpy 2.0 there, 1.0 here"),
        ({"imports": {"numpy": "1.26"}}, "application", "numpy 1.26 there, 2.4 here"),
    ],
)
def test_another_version_than_here_is_a_fault(changes: dict[str, Any], about: str, found: str) -> None:
    """This holds for Python's minor versions, mwpy, and the application's packages, if there is a report from here."""
    wrong = faults(replace(HEALTHY, **changes), HEALTHY)
    assert [each[0] for each in wrong] == [about]
    assert found in wrong[0][1]
    assert faults(replace(HEALTHY, **changes)) == []


def test_another_version_of_a_library_or_another_patch_version_of_python_is_no_fault() -> None:
    """Nevertheless, master and agents understand each other."""
    other = replace(HEALTHY, python="3.11.2", libraries={"mwpy": "1.0", "pyzmq": "26"})
    assert faults(other, HEALTHY) == []
    assert "pyzmq 26 there, 27 here" in diagnose(other, HEALTHY, 999.0, 1001.0)[2].found


# How the report comes

LAUNCH = Launch("m", "/r.rsc", ("python", "--mw-slave"), 1, "/logs")

WELL = Outcome.of_process(0, 1.0, f"a warning\n{MARK}{json.dumps(to_builtins(HEALTHY))}\n")


@define
class FakeClock:
    """A clock that moves only during a sleep."""

    now: float = 1000.0

    def monotonic(self) -> float:
        return self.now

    wall = monotonic

    def sleep(self, seconds: float, /) -> None:
        self.now += seconds


@define
class FakeBatch:
    """A batch system with one job. The job has the given states one after the other, and then it has ended."""

    states: list[Job]
    outcomes: list[Outcome | None]
    removed: list[str] = field(factory=list)

    def submit(self, launch: Launch, count: int) -> list[str]:
        assert (launch, count) == (LAUNCH, 1)
        return ["1"]

    def free_places(self, slaves: int) -> None:
        pass

    def jobs(self) -> list[Job]:
        if not self.states:
            return [Job("2", "other", JobState.RUNNING)]
        return [self.states.pop(0) if len(self.states) > 1 or self.outcomes else self.states[0]]

    def remove(self, job_ids: Sequence[str]) -> None:
        self.removed += job_ids

    def outcome(self, job_id: str) -> Outcome | None:
        assert job_id == "1"
        return self.outcomes.pop(0) if len(self.outcomes) > 1 else self.outcomes[0]


def job(state: JobState, note: str = "") -> Job:
    return Job("1", "m", state, note=note)


@pytest.fixture
def said() -> list[str]:
    return []


@pytest.fixture
def consult(said: list[str]) -> Callable[[FakeBatch], Consultation]:
    return lambda batch: Consultation(batch, 600.0, said.append, FakeClock())


def test_the_report_of_a_job_is_read_and_its_states_are_said_once(
    consult: Callable[[FakeBatch], Consultation], said: list[str]
) -> None:
    """The output may arrive after the job has left the queue."""
    states = [job(JobState.QUEUED), job(JobState.QUEUED), job(JobState.QUEUED, "no room"), job(JobState.RUNNING)]
    batch = FakeBatch(states, [None, Outcome.of_process(0, 1.0, ""), WELL])
    assert consult(batch).report(LAUNCH) == HEALTHY
    assert said == ["job 1 is submitted", "job 1 is queued", "job 1 is queued: no room", "job 1 is running"]
    assert batch.removed == []


def test_a_job_that_does_not_end_is_removed(consult: Callable[[FakeBatch], Consultation]) -> None:
    batch = FakeBatch([job(JobState.QUEUED)], [])
    [finding] = consult(batch).findings(LAUNCH)
    assert finding.found == "it is still queued after 600 s"
    assert "--timeout" in finding.remedy
    assert batch.removed == ["1"]


def test_a_held_job_is_removed_at_once(consult: Callable[[FakeBatch], Consultation]) -> None:
    batch = FakeBatch([job(JobState.HELD, "no such file")], [])
    consultation = consult(batch)
    [finding] = consultation.findings(LAUNCH)
    assert (finding.found, finding.remedy) == (
        "it is held: no such file",
        "correct what the batch system names, and try again",
    )
    assert consultation.clock.monotonic() == 1000.0
    assert batch.removed == ["1"]


@pytest.mark.parametrize(
    ("outcome", "waited_s", "found", "remedy"),
    [
        (None, 30.5, "it is not known how 1 ended", "look into /logs"),
        (
            Outcome(End.LOST, "its node failed", None, 1.0),
            *(30.5, "there is no report: its node failed. It wrote last:\n(nothing)", "another --command"),
        ),
        (
            Outcome.of_process(127, 1.0, "not found\n"),
            *(0.0, "there is no report: exit code 127. It wrote last:\nnot found", "another --command"),
        ),
    ],
)
def test_a_job_without_a_report_is_waited_for_only_if_a_report_may_still_come(
    consult: Callable[[FakeBatch], Consultation], outcome: Outcome | None, waited_s: float, found: str, remedy: str
) -> None:
    consultation = consult(FakeBatch([], [outcome]))
    [finding] = consultation.findings(LAUNCH)
    assert finding.found == found
    assert remedy in finding.remedy
    assert consultation.clock.monotonic() == 1000.0 + waited_s


def test_a_batch_system_that_does_not_answer_is_a_fault(consult: Callable[[FakeBatch], Consultation]) -> None:
    class Down(FakeBatch):
        def submit(self, launch: Launch, count: int) -> list[str]:
            raise BatchUnavailable("it is down")

    [finding] = consult(Down([], [])).findings(LAUNCH)
    assert (finding.about, finding.found) == ("batch system", "it is down")


def test_a_host_without_a_free_slot_is_no_fault(consult: Callable[[FakeBatch], Consultation]) -> None:
    class Full(FakeBatch):
        def submit(self, launch: Launch, count: int) -> list[str]:
            raise NoFreePlace("no host of hosts has 1 free slot now")

    [finding] = consult(Full([], [])).findings(LAUNCH)
    assert (finding.about, finding.remedy, finding.spare) == ("batch system", "", True)
    assert finding.found.startswith("no host of hosts has 1 free slot now, so nothing was examined there: wait, or ask")
