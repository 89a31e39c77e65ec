"""How a doctor sends an examination through a batch system and waits for the report, in simulated time."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence

import pytest
from attrs import define, field
from msgspec import to_builtins

from mwpy._batch import BatchUnavailable, Launch
from mwpy._doctor.diagnosis import Report
from mwpy._doctor.examination import MARK, Consultation
from mwpy._values.jobs import End, Job, JobState, Outcome

LAUNCH = Launch("m", "/r.rsc", ("python", "--mw-slave"), 1, "/logs")

REPORT = Report("node1", "3.11.7", "/usr/bin/python3", 1000.0, {"mwpy": "1"}, [], [], imports={})

WELL = Outcome.of_process(0, 1.0, f"a warning\n{MARK}{json.dumps(to_builtins(REPORT))}\n")


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
    assert consult(batch).report(LAUNCH) == REPORT
    assert said == ["job 1 is submitted", "job 1 is queued", "job 1 is queued: no room", "job 1 is running"]
    assert batch.removed == []


def test_a_job_that_does_not_end_is_removed(consult: Callable[[FakeBatch], Consultation]) -> None:
    batch = FakeBatch([job(JobState.QUEUED)], [])
    [finding] = consult(batch).findings(LAUNCH)
    assert finding.found == "it is still queued after 600 s"
    assert batch.removed == ["1"]


def test_a_held_job_is_removed_at_once(consult: Callable[[FakeBatch], Consultation]) -> None:
    batch = FakeBatch([job(JobState.HELD, "no such file")], [])
    consultation = consult(batch)
    [finding] = consultation.findings(LAUNCH)
    assert finding.found == "it is held: no such file"
    assert consultation.clock.monotonic() == 1000.0
    assert batch.removed == ["1"]


@pytest.mark.parametrize(
    ("outcome", "waited_s", "found"),
    [
        (None, 30.5, "it is not known how 1 ended"),
        (Outcome(End.LOST, "its node failed", None, 1.0), 30.5, "there is no report: its node failed."),
        (
            Outcome.of_process(127, 1.0, "not found"),
            0.0,
            "there is no report: exit code 127. It wrote last:\nnot found",
        ),
    ],
)
def test_a_job_without_a_report_is_waited_for_only_if_a_report_may_still_come(
    consult: Callable[[FakeBatch], Consultation], outcome: Outcome | None, waited_s: float, found: str
) -> None:
    consultation = consult(FakeBatch([], [outcome]))
    [finding] = consultation.findings(LAUNCH)
    assert finding.found.startswith(found)
    assert consultation.clock.monotonic() == 1000.0 + waited_s


def test_a_batch_system_that_does_not_answer_is_a_fault(consult: Callable[[FakeBatch], Consultation]) -> None:
    class Down(FakeBatch):
        def submit(self, launch: Launch, count: int) -> list[str]:
            raise BatchUnavailable("it is down")

    [finding] = consult(Down([], [])).findings(LAUNCH)
    assert (finding.about, finding.found) == ("batch system", "it is down")
