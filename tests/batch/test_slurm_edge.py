"""`_batch.slurm` with a real Slurm: it submits, lists and removes jobs, and reports how they ended."""

from __future__ import annotations

import re
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from attrs import evolve
from tests.batch.systems import until
from tests.systems.slurm import SlurmNode

from mwpy._batch import BatchUnavailable, Launch
from mwpy._batch.slurm import Slurm
from mwpy._values.jobs import Job, JobState, Outcome


@pytest.fixture
def edge(slurm: SlurmNode, slurm_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Slurm:
    """The class under test, with the node's commands in PATH."""
    monkeypatch.setenv("PATH", slurm.wrappers(tmp_path)["PATH"])
    return Slurm()


@pytest.fixture
def launch(slurm_dir: Path) -> Callable[..., Launch]:
    """Return a function that makes a launch of a shell command."""

    mark = slurm_dir.name.replace(".", "-")

    def make(command: str, *extra: str, slaves: int = 1) -> Launch:
        words = ("/bin/sh", "-c", command, "--mw-slave")
        return Launch(mark, str(slurm_dir / "r.rsc"), words, slaves, str(slurm_dir), extra)

    return make


def mine(edge: Slurm, launch: Callable[..., Launch]) -> list[Job]:
    """Return the jobs of this test."""
    mark = launch("").mark
    return [job for job in edge.jobs() if job.mark == mark]


def ended(edge: Slurm, job_id: str) -> Outcome:
    until(lambda: edge.outcome(job_id) is not None, f"an outcome of {job_id}")
    found = edge.outcome(job_id)
    assert found is not None
    return found


def written(folder: Path, pattern: str) -> list[str]:
    return sorted(path.read_text() for path in folder.glob(pattern))


def test_jobs_are_submitted_listed_and_removed(edge: Slurm, slurm_dir: Path, launch: Callable[..., Launch]) -> None:
    """Jobs have their mark and know their id. When they are removed, they get SIGTERM and leave the list."""
    script = 'trap "echo removed; exit 5" TERM; echo $MWPY_JOB "$@"; while :; do sleep 60 & wait; done'
    submitted = edge.submit(launch(script), 3)
    until(lambda: len(written(slurm_dir, "*.out")) == 3 and all(written(slurm_dir, "*.out")), "three that run")
    found = {job.job_id: job for job in mine(edge, launch)}
    assert sorted(found) == submitted
    assert {job.state for job in found.values()} == {JobState.RUNNING}
    assert {text.split()[0] for text in written(slurm_dir, "*.out")} == {*found}
    until(lambda: all(job.running_s >= 1 for job in mine(edge, launch)), "a time that grows")
    edge.remove([*found, "999999_1"])
    until(lambda: not [job for job in edge.jobs() if job.job_id in found], "no job left")
    edge.remove(list(found))
    edge.remove([])
    assert all(text.endswith("removed\n") for text in written(slurm_dir, "*.out"))
    outcome = ended(edge, next(iter(found)))
    assert (outcome.description, outcome.exit_code) == ("cancelled", None)
    assert outcome.ran_s >= 1
    assert "CANCELLED" in outcome.stderr


@pytest.mark.long
def test_a_job_does_not_start_on_a_node_that_it_avoids(edge: Slurm, launch: Callable[..., Launch]) -> None:
    """Slurm refuses a job that avoids all nodes. The overseer knows a node by the name that its running jobs have."""
    edge.submit(launch("sleep 300"), 1)
    until(lambda: [job.state for job in mine(edge, launch)] == [JobState.RUNNING], "a job that runs")
    [job] = mine(edge, launch)
    with pytest.raises(BatchUnavailable, match="Requested node configuration is not available"):
        edge.submit(evolve(launch("sleep 300"), avoided=(job.host,)), 1)
    edge.remove([job.job_id])
    assert ended(edge, job.job_id).host == job.host


@pytest.mark.long
def test_a_removed_job_that_does_not_end_is_leaving(
    edge: Slurm, slurm_dir: Path, launch: Callable[..., Launch]
) -> None:
    """The job stays in this state until Slurm kills it."""
    edge.submit(launch('trap "" TERM; echo up; while :; do sleep 0.2; done'), 1)
    until(lambda: written(slurm_dir, "*.out") == ["up\n"], "a job that ignores SIGTERM")
    [job] = [job for job in mine(edge, launch) if job.state is JobState.RUNNING]
    edge.remove([job.job_id])
    assert [it.state for it in edge.jobs() if it.job_id == job.job_id] == [JobState.LEAVING]
    until(lambda: job.job_id not in [it.job_id for it in edge.jobs()], "a job that was killed")


def test_the_folder_of_the_output_may_have_any_name(
    edge: Slurm, slurm_dir: Path, launch: Callable[..., Launch]
) -> None:
    """Slurm replaces `%j` and the like in the names of files, but not `%%`."""
    folder = slurm_dir / "50%j %%a"
    folder.mkdir(mode=0o777)
    folder.chmod(0o777)
    [job] = edge.submit(evolve(launch("echo mine >&2; exit 4"), log_dir=str(folder)), 1)
    assert ended(edge, job).exit_code == 4
    assert written(folder, "*.err") == ["mine\n"]
    assert ended(edge, job).stderr == "mine"


def test_the_outcome_of_a_job_has_the_end_of_its_output(
    edge: Slurm, slurm_dir: Path, launch: Callable[..., Launch]
) -> None:
    """The outcome has the exit code or the signal, and the end of standard error. A running job has no outcome."""
    kinds = "0) echo no such module >&2; exit 4;; 1) kill -9 $$;; 2) exit 0;; *) sleep 600;; esac"
    edge.submit(launch(f"case ${{MWPY_JOB#*_}} in {kinds}"), 4)
    until(lambda: len(mine(edge, launch)) == 1, "one that runs on")
    [job] = mine(edge, launch)
    array = job.job_id.split("_")[0]
    assert edge.outcome(job.job_id) is None
    assert (ended(edge, f"{array}_0").description, ended(edge, f"{array}_0").exit_code) == ("exit code 4", 4)
    assert ended(edge, f"{array}_0").stderr == "no such module"
    assert ended(edge, f"{array}_1").description.startswith("killed by signal 9 (SIGKILL)")
    assert ended(edge, f"{array}_1").exit_code is None
    assert (ended(edge, f"{array}_2").description, ended(edge, f"{array}_2").exit_code) == ("exit code 0", 0)
    assert edge.outcome("999999_0") is None
    edge.remove([job.job_id])


def test_a_waiting_job_has_a_reason(
    edge: Slurm, slurm: SlurmNode, slurm_dir: Path, launch: Callable[..., Launch]
) -> None:
    """A held job is held. A job that no node can run is queued."""
    edge.submit(launch("true", "--hold"), 1)
    edge.submit(launch("true", slaves=99), 1)

    def shown() -> list[tuple[str, str]]:
        return sorted((job.state.value, job.note) for job in mine(edge, launch))

    reasons = [("held", "JobHeldUser"), ("queued", "PartitionConfig")]
    until(lambda: shown() == reasons, lambda: f"the reason of each, not {shown()}")
    edge.remove([job.job_id for job in mine(edge, launch)])


def test_a_user_can_add_options_and_commands_to_the_script(
    edge: Slurm, slurm_dir: Path, launch: Callable[..., Launch]
) -> None:
    """Options are put before the first command, in any order, and replace the defaults."""
    edge.submit(launch("echo $PLACE $SLURM_CPUS_PER_TASK", "PLACE=here; export PLACE", "--cpus-per-task=3"), 1)
    until(lambda: written(slurm_dir, "*.out") == ["here 3\n"], lambda: f"its words: {written(slurm_dir, '*')}")


def test_a_refused_submission_is_an_error_of_one_line(edge: Slurm, launch: Callable[..., Launch]) -> None:
    """The line contains Slurm's own message."""
    with pytest.raises(BatchUnavailable, match=r"^Slurm did not take 1 jobs: sbatch: error: .*partition") as caught:
        edge.submit(launch("true", "--partition=none-such"), 1)
    assert "\n" not in str(caught.value)
    assert not re.search("may be in the queue", str(caught.value))


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


def every_call_says(words: str, launch: Launch) -> None:
    edge = Slurm()
    for call in (edge.jobs, lambda: edge.remove(["1_1"]), lambda: edge.submit(launch, 1)):
        with pytest.raises(BatchUnavailable, match=words) as caught:
            call()
        assert "\n" not in str(caught.value)
    assert edge.outcome("1_1") is None


@pytest.mark.long
def test_every_call_reports_a_controller_that_is_down(elsewhere: socket.socket, launch: Callable[..., Launch]) -> None:
    """The error is one line with Slurm's own message."""
    every_call_says(r"Unable to contact slurm controller \(connect failure\)", launch("true"))


@pytest.mark.long
def test_a_submission_without_an_answer_may_have_happened(
    elsewhere: socket.socket, launch: Callable[..., Launch], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The controller accepts connections and does not answer. Slurm's own commands give up, or are killed."""
    elsewhere.listen()
    every_call_says("Socket timed out on send/recv operation", launch("true"))
    with pytest.raises(BatchUnavailable, match=r"in the queue anyway: list them before submitting again$"):
        Slurm().submit(launch("true"), 1)
    monkeypatch.setattr("mwpy._batch._queued.TIMEOUT_S", 1.0)
    every_call_says("no answer within 1 s", launch("true"))
    with pytest.raises(BatchUnavailable, match="may be in the queue anyway"):
        Slurm().submit(launch("true"), 1)
