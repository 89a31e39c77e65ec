"""`_batch.slurm` and `_batch.sge` with the real systems: they submit, list and remove jobs, and say how these ended."""

from __future__ import annotations

import re
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from attrs import evolve
from tests.batch.systems import until
from tests.systems.sge import HOST
from tests.systems.slurm import SlurmNode

from mwpy._batch import BatchUnavailable, Launch
from mwpy._batch._queued import Queued
from mwpy._batch.sge import GridEngine
from mwpy._batch.slurm import Slurm
from mwpy._values.jobs import End, Job, JobState, Outcome


class Edge:
    """A class under test, and a folder of a user."""

    def __init__(self, batch: Queued, folder: Path) -> None:
        self.batch: Any = batch
        self.folder = folder
        self.mark = folder.name.replace(".", "-")
        self.logs = folder / "it's 50%j %%a"  # Slurm replaces `%j` in the names of files
        self.logs.mkdir(mode=0o777)
        self.logs.chmod(0o777)

    def launch(self, command: str, *extra: str, **fields: Any) -> Launch:
        words = ("/bin/sh", "-c", command, "--mw-slave")
        return evolve(Launch(self.mark, str(self.folder / "r.rsc"), words, 1, str(self.logs), extra), **fields)

    def submit(self, command: str, *extra: str, count: int = 1, **fields: Any) -> list[str]:
        submitted: list[str] = self.batch.submit(self.launch(command, *extra, **fields), count)
        return submitted

    def jobs(self) -> list[Job]:
        """Return the jobs of this test."""
        return [job for job in self.batch.jobs() if job.mark == self.mark]

    def ended(self, job_id: str) -> Outcome:
        until(lambda: self.batch.outcome(job_id) is not None, f"an outcome of {job_id}")
        found: Outcome = self.batch.outcome(job_id)
        return found

    def written(self, pattern: str) -> list[str]:
        return sorted(path.read_text() for path in self.logs.glob(pattern))


@pytest.fixture
def slurm_edge(slurm: SlurmNode, slurm_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Edge:
    monkeypatch.setenv("PATH", slurm.wrappers(tmp_path)["PATH"])
    return Edge(Slurm(), slurm_dir)


@pytest.fixture
def edge(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Edge:
    """The edge of the batch system that the parameter names. Its commands run as the user who submits."""
    node = request.getfixturevalue(request.param)
    monkeypatch.setenv("PATH", node.wrappers(tmp_path)["PATH"])
    monkeypatch.setenv("LOGNAME", "submit")
    batch = {"slurm": Slurm, "sge": GridEngine}[request.param]()
    return Edge(batch, request.getfixturevalue(f"{request.param}_dir"))


@pytest.mark.parametrize("edge", ["slurm", "sge"], indirect=True)
def test_the_outcome_of_a_job_is_known(edge: Edge) -> None:
    """It has the exit code or the signal, the machine, and the end of standard error. A running job has none."""
    kinds = "*[_.]1) echo no such module >&2; exit 4;; *[_.]2) kill -9 $$;; *[_.]3) kill -9 0;; *) exec sleep 600;;"
    amounts = (("cpus", 2), ("memory", 64 << 20))
    submitted = edge.submit(f"case $MWPY_JOB in {kinds} esac", count=5, amounts=amounts)
    one, two, three = [job for job in submitted if job[-1] in "123"]
    kept = [job for job in submitted if job[-1] not in "123"]
    edge.batch.remove(kept[1:])
    until(lambda: [job.state for job in edge.jobs()] == [JobState.RUNNING], lambda: f"one that runs on: {edge.jobs()}")
    [job] = edge.jobs()
    assert job.job_id == kept[0]
    assert job.host
    assert edge.batch.outcome(job.job_id) is None
    first = edge.ended(one)
    assert (first.exit_code, first.stderr, first.host) == (4, "no such module", job.host)
    for each in (two, three):
        killed = edge.ended(each)
        assert (killed.end, killed.exit_code) == (End.KILLED, None)
        assert killed.description.startswith("killed by signal 9 (SIGKILL)")
    unknown = "999999" + one[len(one) - 2 :]
    assert edge.batch.outcome(unknown) is None
    edge.batch.remove([*submitted, unknown])
    assert {each.state for each in edge.jobs()} <= {JobState.LEAVING}
    until(lambda: edge.jobs() == [], "no job left")


@pytest.mark.parametrize(
    ("edge", "line", "why"),
    [
        ("slurm", "--partition=none-such", "Slurm did not take 1 jobs: sbatch: error: .*partition"),
        ("sge", "-q nosuch.q", 'Grid Engine did not take 1 jobs: .*unknown queue "nosuch.q"'),
        ("sge", "-pe no 2", 'Grid Engine did not take 1 jobs: .*"no" does not exist'),
    ],
    indirect=["edge"],
)
def test_a_refused_submission_is_an_error_of_one_line(edge: Edge, line: str, why: str) -> None:
    """The line contains the message of the batch system."""
    with pytest.raises(BatchUnavailable, match=f"^{why}") as caught:
        edge.submit("true", line)
    assert "\n" not in str(caught.value)
    assert "may be in the queue" not in str(caught.value)


@pytest.mark.parametrize(
    ("edge", "made", "meant"),
    [
        ("slurm", [("--hold", {}), ("", {"slaves": 99})], ["held: JobHeldUser", "queued: PartitionConfig"]),
        (
            "sge",
            [("-wd /no/such", {}), ("-h", {}), ("-l h=*", {"avoided": (HOST, "other")})],
            ["held: .*No such file or directory", r"held: it is on hold \(qhold\)", "queued: "],
        ),
    ],
    indirect=["edge"],
)
def test_a_waiting_job_has_a_reason(edge: Edge, made: list[tuple[str, dict[str, Any]]], meant: list[str]) -> None:
    """A job that a person holds, or that cannot start, is held. A job that no machine can run is queued."""
    for line, fields in made:
        edge.submit("true", *filter(None, [line]), **fields)

    def shown() -> list[str]:
        return sorted(f"{job.state.value}: {job.note}" for job in edge.jobs())

    def is_as_meant() -> bool:
        found = shown()
        return len(found) == len(meant) and all(map(re.fullmatch, meant, found))

    until(is_as_meant, lambda: f"the reason of each, not {shown()}")
    edge.batch.remove([job.job_id for job in edge.jobs()])


def test_removed_jobs_of_slurm_get_sigterm_and_leave_the_list(slurm_edge: Edge) -> None:
    """Jobs have their mark and know their id. A user's options and commands come before the agent."""
    script = 'trap "echo removed; exit 5" TERM; echo $MWPY_JOB $SLURM_CPUS_PER_TASK $PLACE; '
    script += "while :; do sleep 60 & wait; done"
    lines = ("PLACE=here; export PLACE", "--cpus-per-task=2")
    submitted = slurm_edge.submit(script, *lines, count=3)
    until(lambda: len(slurm_edge.written("*.out")) == 3 and all(slurm_edge.written("*.out")), "three that run")
    found = {job.job_id: job for job in slurm_edge.jobs()}
    assert sorted(found) == submitted
    assert {job.state for job in found.values()} == {JobState.RUNNING}
    assert slurm_edge.written("*.out") == [f"{job} 2 here\n" for job in submitted]
    until(lambda: all(job.running_s >= 1 for job in slurm_edge.jobs()), "a time that grows")
    slurm_edge.batch.remove([*found, "999999_1"])
    until(lambda: not slurm_edge.jobs(), "no job left")
    slurm_edge.batch.remove(list(found))
    assert all(text.endswith("removed\n") for text in slurm_edge.written("*.out"))
    outcome = slurm_edge.ended(submitted[0])
    assert (outcome.description, outcome.exit_code) == ("cancelled", None)
    assert outcome.ran_s >= 1
    assert "CANCELLED" in outcome.stderr


@pytest.mark.long
def test_a_job_does_not_start_on_a_node_that_it_avoids(slurm_edge: Edge) -> None:
    """Slurm refuses a job that avoids all nodes. The overseer knows a node by the name that its running jobs have."""
    slurm_edge.submit("sleep 300")
    until(lambda: [job.state for job in slurm_edge.jobs()] == [JobState.RUNNING], "a job that runs")
    [job] = slurm_edge.jobs()
    with pytest.raises(BatchUnavailable, match="Requested node configuration is not available"):
        slurm_edge.submit("sleep 300", avoided=(job.host,))
    slurm_edge.batch.remove([job.job_id])
    assert slurm_edge.ended(job.job_id).host == job.host


@pytest.mark.long
def test_a_removed_job_that_does_not_end_is_leaving(slurm_edge: Edge) -> None:
    """The job stays in this state until Slurm kills it."""
    [job] = slurm_edge.submit('trap "" TERM; echo up; while :; do sleep 0.2; done')
    until(lambda: slurm_edge.written("*.out") == ["up\n"], "a job that ignores SIGTERM")
    slurm_edge.batch.remove([job])
    assert [it.state for it in slurm_edge.jobs()] == [JobState.LEAVING]
    until(lambda: slurm_edge.jobs() == [], "a job that was killed")


@pytest.fixture
def elsewhere(slurm: SlurmNode, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[socket.socket]:
    """Slurm's own commands, which contact a port of this test. At first, nothing listens at the port."""
    configuration = slurm.config.read_text(encoding="utf-8")
    with socket.socket() as port:
        port.bind(("127.0.0.1", 0))
        changed = f"SlurmctldPort={port.getsockname()[1]}\nMessageTimeout=2"
        (tmp_path / "slurm.conf").write_text(re.sub(r"(?m)^SlurmctldPort=.*", changed, configuration))
        monkeypatch.setenv("SLURM_CONF", str(tmp_path / "slurm.conf"))
        yield port


@pytest.mark.long
def test_every_call_reports_a_controller_that_does_not_answer(
    slurm_dir: Path, elsewhere: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    """First it is down. Then it accepts connections and does not answer: Slurm's own commands give up, or are killed. A
    submission may have happened then."""
    launch = Edge(Slurm(), slurm_dir).launch("true")

    def every_call_says(words: str) -> str:
        batch = Slurm()
        calls: list[Callable[[], object]] = [batch.jobs, lambda: batch.remove(["1_1"]), lambda: batch.submit(launch, 1)]
        for call in calls:
            with pytest.raises(BatchUnavailable, match=words) as caught:
                call()
            assert "\n" not in str(caught.value)
        assert batch.outcome("1_1") is None
        return str(caught.value)

    every_call_says(r"Unable to contact slurm controller \(connect failure\)")
    elsewhere.listen()
    assert "in the queue anyway" in every_call_says("Socket timed out on send/recv operation")
    monkeypatch.setattr("mwpy._batch._queued.TIMEOUT_S", 1.0)
    assert "in the queue anyway" in every_call_says("no answer within 1 s")
