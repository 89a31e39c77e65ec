"""`_batch.sge` with a real Grid Engine: it submits, lists and removes jobs, and reports how they ended."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from attrs import evolve
from tests.batch.systems import until
from tests.systems.sge import HOST, SgeNode

from mwpy._batch import BatchUnavailable, Launch
from mwpy._batch.sge import GridEngine
from mwpy._values.jobs import End, Job, JobState, Outcome


@pytest.fixture
def edge(sge: SgeNode, sge_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> GridEngine:
    """The class under test, with the node's commands in PATH. They run as the user who submits."""
    monkeypatch.setenv("PATH", sge.wrappers(tmp_path)["PATH"])
    monkeypatch.setenv("LOGNAME", "submit")
    return GridEngine()


@pytest.fixture
def launch(sge_dir: Path) -> Callable[..., Launch]:
    """Return a function that makes a launch of a shell command, whose output is in a folder with an unusual name."""
    mark = sge_dir.name.replace(".", "-")
    folder = sge_dir / "it's 50% a"
    folder.mkdir(mode=0o777)
    folder.chmod(0o777)

    def make(command: str, *extra: str) -> Launch:
        words = ("/bin/sh", "-c", command, "--mw-slave")
        return Launch(mark, str(sge_dir / "r.rsc"), words, 1, str(folder), extra)

    return make


def mine(edge: GridEngine, launch: Callable[..., Launch]) -> list[Job]:
    """Return the jobs of this test."""
    mark = launch("").mark
    return [job for job in edge.jobs() if job.mark == mark]


def ended(edge: GridEngine, job_id: str) -> Outcome:
    until(lambda: edge.outcome(job_id) is not None, f"an outcome of {job_id}")
    found = edge.outcome(job_id)
    assert found is not None
    return found


def test_the_outcome_of_a_job_in_grid_engine_is_known(edge: GridEngine, launch: Callable[..., Launch]) -> None:
    """It comes from the shell of the job; or from the accounts, if the shell was killed. A running job has none."""
    kinds = "1) echo no such module >&2; exit 4;; 2) kill -9 $$;; 3) kill -9 0;; *) exec sleep 600;;"
    amounts = (("cpus", 2), ("memory", 64 << 20))
    submitted = edge.submit(evolve(launch(f"case ${{MWPY_JOB#*.}} in {kinds} esac"), amounts=amounts), 4)
    until(lambda: [job.state for job in mine(edge, launch)] == [JobState.RUNNING], "one that runs on")
    [job] = mine(edge, launch)
    assert job.job_id == submitted[3]
    assert job.host
    assert edge.outcome(job.job_id) is None
    first = ended(edge, submitted[0])
    assert (first.exit_code, first.stderr, first.host) == (4, "no such module", job.host)
    for each in submitted[1:3]:
        killed = ended(edge, each)
        assert (killed.end, killed.exit_code) == (End.KILLED, None)
        assert killed.description.startswith("killed by signal 9 (SIGKILL)")
    assert edge.outcome("999999.1") is None
    edge.remove([*submitted, "999999.1"])
    assert [each.state for each in mine(edge, launch)] in ([JobState.LEAVING], [])
    until(lambda: mine(edge, launch) == [], "no job left")


def test_grid_engine_refuses_or_holds_a_job(edge: GridEngine, launch: Callable[..., Launch]) -> None:
    """A refusal has Grid Engine's own message. A job whose folder is missing is held, with the reason."""
    for line, why in (("-q nosuch.q", 'unknown queue "nosuch.q"'), ("-pe no 2", '"no" does not exist')):
        with pytest.raises(BatchUnavailable, match=f"^Grid Engine did not take 1 jobs: .*{why}"):
            edge.submit(launch("true", line), 1)
    edge.submit(launch("true", "-wd /no/such"), 1)
    edge.submit(launch("true", "-h"), 1)
    edge.submit(evolve(launch("true", "-l h=*"), avoided=(HOST, "other")), 1)

    def shown() -> list[tuple[str, bool]]:
        return sorted((job.state.value, "No such file or directory" in job.note) for job in mine(edge, launch))

    until(
        lambda: shown() == [("held", False), ("held", True), ("queued", False)],
        lambda: f"three jobs, not {shown()}",
        30,
    )
