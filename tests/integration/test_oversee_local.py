"""`mwpy oversee --with local`, with real overseers, masters and agents on this machine."""

from __future__ import annotations

import json
import os
import re
import signal
import sys
from pathlib import Path

import pytest
from tests.integration.apps.stage import Running, Stage, until

from mwpy._batch import Launch
from mwpy._batch.local import Local
from mwpy._values.jobs import End


def oversee(stage: Stage, *arguments: object, interval_s: float = 0.2) -> Running:
    program = [sys.executable, "-m", "mwpy", "oversee", str(stage.resource), "--with", "local"]
    program += ["--interval", str(interval_s)]
    return stage.start("", *arguments, program=program, variables={"XDG_STATE_HOME": str(stage.folder / "state")})


def once(stage: Stage, *arguments: object) -> str:
    """Return the output of an overseer that runs one round."""
    overseer = oversee(stage, "--once", "--patience", 60, *arguments)
    assert overseer.end() == 0, overseer.out + overseer.err
    assert overseer.err == ""
    return overseer.out


def waves(stage: Stage) -> Running:
    return stage.master("waves.py", stage.folder)


def order(stage: Stage, line: str) -> None:
    with (stage.folder / "orders").open("a") as file:
        file.write(f"{line}\n")


def jobs(stage: Stage) -> dict[str, int]:
    connected: dict[str, int] = json.loads(stage.resource.read_text())["connected-jobs"]
    return connected


def until_jobs(stage: Stage, *busy: int) -> None:
    """Wait until the given number of jobs is connected, each with the given number of busy slaves."""
    until(lambda: sorted(jobs(stage).values()) == sorted(busy), lambda: f"{busy}, not {jobs(stage)}")


def test_an_overseer_adjusts_the_jobs_to_its_master_and_ends_with_it(stage: Stage) -> None:
    """The overseer is killed in the middle, and the next overseer continues with the same jobs."""
    master = waves(stage)
    order(stage, "tasks 5 first")
    until(lambda: '"slaves-needed": 5' in stage.resource.read_text(), "the whole need")
    first = oversee(stage, "--max", 3, "--patience", 0.2)
    until_jobs(stage, 1, 1, 1)
    first.send(signal.SIGKILL)
    first.end()
    assert "submits 3 jobs: 5 slaves missing" in first.out
    assert "2 more jobs would be useful" in first.out

    assert "submits" not in once(stage, "--max", 3)
    second = oversee(stage, "--max", 3, "--patience", 0.2)
    (stage.folder / "first").touch()
    until_jobs(stage)
    assert sum(map(int, re.findall(r"removes (\d+) job.*, idle for", second.out))) == 3, second.out
    order(stage, "tasks 1 second")
    until_jobs(stage, 1)
    (stage.folder / "second").touch()
    order(stage, "return 0")
    assert (master.end(), second.end()) == (0, 0), second.out + second.err
    assert "is finished, and no job of it is left" in second.out
    assert (first.err, second.err) == ("", "")
    stage.no_process_left()


def test_the_first_jobs_do_not_wait_for_the_next_round(stage: Stage) -> None:
    """The interval between two rounds is longer than this test. Files are read more often."""
    overseer = oversee(stage, interval_s=3600)
    until((stage.folder / "computation.rsc.jobs" / "overseer.json").exists, lambda: overseer.out)
    waves(stage)
    order(stage, "tasks 1 never")  # of two, the file may name only the first one when it is read
    until_jobs(stage, 1)


def test_a_file_that_hangs_delays_no_other_computation(stage: Stage) -> None:
    """Reading a pipe without a writer hangs like a file of a dead file server."""
    os.mkfifo(stage.folder / "hanging.rsc")
    waves(stage)
    order(stage, "tasks 1 never")
    program = [sys.executable, "-m", "mwpy", "oversee", str(stage.folder), "--with", "local", "--interval", "0.2"]
    overseer = stage.start("", program=program, variables={"XDG_STATE_HOME": str(stage.folder / "state")})
    until_jobs(stage, 1)
    assert overseer.out.count("hanging.rsc does not answer: does its file system hang?") == 1


def test_one_round_is_a_json_object_for_scripts(stage: Stage) -> None:
    """A dry run has the decisions, and did nothing."""
    waves(stage)
    order(stage, "tasks 2 never")
    until(lambda: '"slaves-needed": 2' in stage.resource.read_text(), "a need")
    planned, done = json.loads(once(stage, "--dry-run", "--json")), json.loads(once(stage, "--json"))
    assert (planned["dry_run"], done["dry_run"], planned["failed"], done["failed"]) == (True, False, False, False)
    assert planned["messages"] == ["computation.rsc: submits 2 jobs: 2 slaves missing, 0 jobs on the way"]
    assert len(done["messages"]) == 2
    [before], [after] = planned["computations"], done["computations"]
    assert {name: before[name] for name in ("file", "readable", "finished", "slaves_needed", "connected_jobs")} == {
        "file": "computation.rsc",
        "readable": True,
        "finished": False,
        "slaves_needed": 2,
        "connected_jobs": 0,
    }
    assert before["jobs"] == {"queued": 0, "running": 0, "held": 0, "leaving": 0}
    assert (before["to_submit"], before["submitted"]) == (2, [])
    assert (after["to_submit"], len(after["submitted"])) == (2, 2)
    until_jobs(stage, 1, 1)
    [idle] = json.loads(once(stage, "--json"))["computations"]
    assert (idle["jobs"]["running"], idle["connected_jobs"], idle["to_submit"], idle["to_remove"]) == (2, 2, 0, [])


def test_a_round_that_failed_says_so_in_its_json_object(stage: Stage) -> None:
    overseer = oversee(stage, "--once", "--json")
    assert overseer.end() == 4
    found = json.loads(overseer.out)
    [computation] = found["computations"]
    assert (found["failed"], computation["readable"], computation["to_submit"]) == (True, False, 0)
    assert "cannot read the resource file" in found["messages"][0]


def test_a_job_of_several_slaves_counts_as_several(stage: Stage) -> None:
    waves(stage)
    order(stage, "tasks 4 never")
    until(lambda: '"slaves-needed": 4' in stage.resource.read_text(), "a need")
    printed = once(stage, "--processes-per-agent", 3)
    assert "submits 2 jobs: 4 slaves missing" in printed
    assert "--mw-slave --mw-slave-processes 3" in printed
    until(lambda: len(jobs(stage)) == 2 and all(jobs(stage).values()), lambda: f"both at work, not {jobs(stage)}")
    until(lambda: stage.audit.read_text().count("<- 1 task") == 4, "four tasks at slaves")


def test_a_dry_run_prints_decisions_and_does_nothing(stage: Stage) -> None:
    waves(stage)
    order(stage, "tasks 2 never")
    until(lambda: '"slaves-needed": 2' in stage.resource.read_text(), "a need")
    printed = once(stage, "--dry-run")
    assert re.fullmatch(
        r"\S+Z \(dry run\) computation.rsc: submits 2 jobs: 2 slaves missing, 0 jobs on the way\n", printed
    )
    assert not (stage.folder / "state").exists()
    assert not list(stage.folder.glob("*.jobs"))


def test_jobs_that_fail_at_their_start_stop_the_submissions_and_their_output_is_shown(stage: Stage) -> None:
    """The overseer prints the reason. When it is stopped, it prints what happens to its jobs."""
    waves(stage)
    order(stage, "tasks 2 never")
    until(lambda: '"slaves-needed": 2' in stage.resource.read_text(), "a need")
    program = f"{sys.executable} -c 'import sky'"
    overseer = oversee(stage, "--command", program, "--max", 2)
    until(lambda: "in a row died" in overseer.out, lambda: overseer.out)
    assert "exit code 1 (its script failed before it called mwpy.main())" in overseer.out
    assert "    | ModuleNotFoundError: No module named 'sky'" in overseer.out
    overseer.send(signal.SIGTERM)
    assert overseer.end() == 130
    assert overseer.out.splitlines()[-1].endswith(
        "its jobs stay with their masters. Start it again, or remove the jobs with --remove"
    )
    assert overseer.err == ""
    assert 3 <= sum(map(int, re.findall(r"submits (\d+) jobs?:", overseer.out))) <= 6, overseer.out


def test_a_second_overseer_of_the_same_computation_is_refused(stage: Stage) -> None:
    """A second overseer would submit everything twice."""
    waves(stage)
    first = oversee(stage)
    until(lambda: bool(list(stage.folder.glob("*.jobs/*.lock"))), "a lock")
    second = oversee(stage)
    assert second.end() == 2
    assert f"another overseer watches {stage.resource} (process {first.pid} on " in second.err
    assert len(second.err.splitlines()) == 1


def test_all_jobs_can_be_removed_including_busy_jobs(stage: Stage) -> None:
    master = waves(stage)
    order(stage, "tasks 2 never")
    until(lambda: '"slaves-needed": 2' in stage.resource.read_text(), "a need")
    once(stage)
    until_jobs(stage, 1, 1)
    removal = oversee(stage, "--remove")
    assert (removal.end(), removal.out) == (0, "removed 2 jobs of computation.rsc\n")
    until_jobs(stage)
    assert master.process.poll() is None
    again = oversee(stage, "--remove")
    assert (again.end(), again.out) == (0, "removed 0 jobs of computation.rsc\n")


def test_a_removed_job_has_not_failed(tmp_path: Path) -> None:
    """Its exit code alone would say that it left by itself."""
    local = Local(tmp_path / "jobs")
    agent = ("/bin/sh", "-c", "trap 'exit 5' TERM; echo; while true; do sleep 0.1; done", "--mw-slave")
    [job] = local.submit(Launch("m", str(tmp_path / "m.rsc"), agent, 1, str(tmp_path)), 1)
    until(lambda: (tmp_path / f"m.{job}.out").read_text() != "", "a job that can be removed")
    local.remove([job])
    until(lambda: not local.jobs(), "its end")
    outcome = local.outcome(job)
    assert outcome is not None
    assert (outcome.end, outcome.exit_code) == (End.REMOVED, None)


@pytest.mark.parametrize(
    ("shown", "reason"),
    [
        (None, "cannot read the resource file"),
        ('{"format": "mwpy-resource-file", "version": 1, "slaves-needed": 3', "the resource file {} is incomplete"),
    ],
    ids=["late", "half"],
)
def test_the_overseer_waits_for_an_incomplete_file(stage: Stage, shown: str | None, reason: str) -> None:
    if shown is not None:
        stage.resource.write_text(shown)
    overseer = oversee(stage)
    until(lambda: f"nothing is decided: {reason.format(stage.resource)}" in overseer.out, lambda: overseer.out)
    stage.resource.unlink(missing_ok=True)
    master = waves(stage)
    order(stage, "return 0")
    assert (master.end(), overseer.end()) == (0, 0)
    assert overseer.out.count("nothing is decided") == 1


def test_an_important_computation_gets_the_places_of_another_one_and_no_task_runs_twice(stage: Stage) -> None:
    """The other one has all places when the important one starts. It gets them back at the end."""

    def master(name: str) -> Running:
        own = ["--mw-master", "--mw-resource-file", f"{name}.rsc", "--mw-master-host", "127.0.0.1"]
        own += ["--mw-audit-file", f"{name}.audit", "--mw-resource-file-update-interval", "2"]
        return stage.start("turns.py", *own, name)

    def places(name: str) -> int:
        return len(json.loads((stage.folder / f"{name}.rsc").read_text())["connected-jobs"])

    def has_ended(name: str, master: Running) -> None:
        (stage.folder / f"{name}.enough").touch()
        assert master.end() == 0, master.err
        ran = [*map(int, (stage.folder / f"{name}.ran").read_text().split())]
        assert master.report == {"tasks": len(ran), "exact": True}
        assert sorted(ran) == [*range(len(ran))]

    first = master("usual")
    until(lambda: (stage.folder / "usual.rsc").exists(), "a resource file")
    program = [sys.executable, "-m", "mwpy", "oversee", "usual.rsc", "urgent.rsc", "--with", "local", "--max", "4"]
    program += ["--priority", "urgent.rsc=5", "--interval", "0.2"]
    overseer = stage.start("", program=program, variables={"XDG_STATE_HOME": str(stage.folder / "state")})
    until(lambda: places("usual") == 4, lambda: overseer.out)
    second = master("urgent")
    until(lambda: (stage.folder / "urgent.rsc").exists(), "a resource file")
    until(lambda: (places("usual"), places("urgent")) == (0, 4), lambda: overseer.out)
    has_ended("urgent", second)
    until(lambda: places("usual") == 4, lambda: overseer.out)
    let_leave = r"usual.rsc: lets (\d) jobs? leave after their tasks, because urgent.rsc needs places"
    assert sum(map(int, re.findall(let_leave, overseer.out))) == 4, overseer.out
    assert "removes" not in overseer.out
    has_ended("usual", first)
    assert overseer.end() == 0
    assert overseer.err == ""
    assert [line for line in second.err.splitlines() if "nothing has progressed for " not in line] == []


def test_new_files_of_a_directory_are_found(stage: Stage) -> None:
    """The overseer watches the directory even when all computations are finished, because new files may appear."""
    program = [sys.executable, "-m", "mwpy", "oversee", str(stage.folder), "--with", "local", "--interval", "0.1"]
    overseer = stage.start("", program=program, variables={"XDG_STATE_HOME": str(stage.folder / "state")})
    master = waves(stage)
    order(stage, "tasks 1 done")
    until_jobs(stage, 1)
    (stage.folder / "done").touch()
    order(stage, "return 0")
    assert master.end() == 0
    until(lambda: "computation.rsc: is finished, and no job of it is left" in overseer.out, lambda: overseer.out)
    stage.resource.unlink()
    overseer.send(signal.SIGTERM)
    assert overseer.end() == 130


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (("--max", "-1"), "-1 is too small: write 0 or more"),
        (("--max", "many"), "'many' is not a whole number"),
        (("--priority", "x"), "'x' is not of the form RESOURCE_FILE=NUMBER"),
        (("--with", "ssh"), "--with ssh needs --hosts FILE"),
        (("--json",), "--json needs --once or --dry-run"),
        (("--with", "fog"), "invalid choice: 'fog'"),
        (("--log-dir", "/dev/null/x"), "give another --log-dir"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_a_bad_option_is_reported_in_one_line(stage: Stage, line: tuple[str, ...], message: str) -> None:
    overseer = oversee(stage, *line)
    assert overseer.end() == 2
    assert message in overseer.err
    assert len(overseer.err.splitlines()) == 1
