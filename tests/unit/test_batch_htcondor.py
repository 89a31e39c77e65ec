"""What is submitted to HTCondor, and how its answers are read. See tests/batch for tests with a real pool."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from attrs import evolve

from mwpy._batch import BatchUnavailable, Launch, htcondor
from mwpy._batch.htcondor import END, MEMORY, HTCondor, check_lines, description, time_limit_s
from mwpy._values.errors import UsageError
from mwpy._values.jobs import End, Job, JobState, Outcome

POLICY = Path(__file__).parent.parent.parent / "condor" / "policy.sub"

LAUNCH = Launch(
    "cubes-0123456789ab",
    "/home/me/cubes.rsc",
    ("/env/bin/python", "/home/me/cubes.py", "--mw-slave", "--mw-slave-processes", "4", "it's", 'a "word"', "", "$(X)"),
    4,
    "/home/me/logs",
    ("request_memory = 3GB", "+Project = x"),
)


def lines(launch: Launch, *transfer: Path) -> dict[str, str]:
    """Return the last line of each name, because that line counts."""
    text = description(launch, "1GB", "2GB", transfer)
    return dict(line.split(" = ", 1) for line in text.splitlines())


def test_a_job_gets_a_fresh_resource_file_and_uses_the_other_files_in_place() -> None:
    found = lines(LAUNCH)
    assert found["executable"] == "/env/bin/python"
    assert found["transfer_executable"] == "false"
    assert found["transfer_input_files"] == "/home/me/cubes.rsc"
    assert found["environment"] == f'"MWPY_JOB=$(CLUSTER).$(PROCESS) {END} {MEMORY}"'
    assert f"END = {END}\n" in POLICY.read_text()
    assert f"HAS = {MEMORY}\n" in POLICY.read_text()
    assert found["MY.MwpyMark"] == '"cubes-0123456789ab"'
    assert found["error"] == "/home/me/logs/cubes-0123456789ab.$(CLUSTER).$(PROCESS).err"
    assert found["batch_name"] == "cubes"
    assert found["request_cpus"] == "4"
    assert (found["request_memory"], found["request_disk"], found["+Project"]) == ("3GB", "2GB", "x")
    assert f"job_lease_duration = $(LEASE:{found['job_lease_duration']})\n" in POLICY.read_text()
    assert "on_exit_remove" not in found


def test_a_job_asks_for_what_the_tasks_of_all_its_slaves_require() -> None:
    amounts = (("cpus", 2), ("disk", 1 << 30), ("gpus", 1), ("licence", 1), ("memory", 3 << 30))
    found = lines(evolve(LAUNCH, extra=(), amounts=amounts))
    assert (found["request_cpus"], found["request_gpus"]) == ("8", "4")
    assert (found["request_memory"], found["request_disk"]) == ("12416MB", "4224MB")
    assert "request_gpus" not in lines(LAUNCH)


def test_every_argument_arrives_unchanged() -> None:
    """This includes quotes, empty arguments, and text that looks like a variable of HTCondor."""
    assert lines(LAUNCH)["arguments"] == (
        "\"'/home/me/cubes.py' '--mw-slave' '--mw-resource-file' 'cubes.rsc' '--mw-slave-processes' '4' "
        "'it''s' 'a \"\"word\"\"' '' '$(DOLLAR)(X)'\""
    )


def test_transferred_files_are_named_as_they_are_named_in_the_job() -> None:
    found = lines(LAUNCH, Path("/home/me/cubes.py"), Path("/home/me/data.txt"))
    assert found["transfer_input_files"] == "/home/me/cubes.rsc, /home/me/cubes.py, /home/me/data.txt"
    assert found["arguments"].startswith("\"'cubes.py' '--mw-slave'")
    assert found["transfer_executable"] == "false"
    found = lines(LAUNCH, Path("/env/bin/python"))
    assert (found["transfer_input_files"], found["transfer_executable"]) == ("/home/me/cubes.rsc", "true")


def test_a_comma_in_a_name_is_an_error() -> None:
    """HTCondor would read the name as two names."""
    with pytest.raises(BatchUnavailable, match="rename it"):
        lines(LAUNCH, Path("/home/me/a,b"))


@pytest.mark.parametrize(
    ("ad", "state", "running_s", "note"),
    [
        (
            {"JobStatus": 1, "LastRejMatchReason": "no match found "},
            JobState.QUEUED,
            0.0,
            "no match found (`condor_q -better-analyze 17.3` says which machines match)",
        ),
        ({"JobStatus": 2, "JobCurrentStartDate": 90}, JobState.RUNNING, 10.0, ""),
        ({"JobStatus": 2, "JobCurrentStartDate": 101}, JobState.RUNNING, 0.0, ""),
        ({"JobStatus": 1, "JobCurrentStartDate": 90}, JobState.QUEUED, 0.0, ""),
        ({"JobStatus": 3}, JobState.LEAVING, 0.0, ""),
        ({"JobStatus": 4}, JobState.LEAVING, 0.0, ""),
        ({"JobStatus": 5, "HoldReason": "no", "HoldReasonCode": 13}, JobState.HELD, 0.0, "no (code 13, sub code ?)"),
        (
            {"JobStatus": 5, "HoldReason": "Failed to execute", "HoldReasonCode": 6, "HoldReasonSubCode": 2},
            JobState.HELD,
            0.0,
            f"Failed to execute (code 6, sub code 2). {htcondor.UNSEEN}",
        ),
        ({"JobStatus": 6}, JobState.RUNNING, 0.0, ""),
        ({"JobStatus": 99}, JobState.LEAVING, 0.0, ""),
    ],
)
def test_a_job_in_the_queue(ad: dict[str, Any], state: JobState, running_s: float, note: str) -> None:
    ad = {"ClusterId": 17, "ProcId": 3, "MwpyMark": "m", "ServerTime": 100, **ad}
    assert htcondor._job(ad) == Job("17.3", "m", state, running_s, note)


@pytest.mark.parametrize(
    ("code", "reason", "used_kib", "memory"),
    [
        (34, "Job has gone over cgroup memory limit of 128 megabytes", 125 << 10, (125 << 20, 128 << 20)),
        (34, "Disk usage exceeded", 125 << 10, None),
        (
            26,
            "SYSTEM_PERIODIC_HOLD expression 'MemoryUsage > RequestMemory' is TRUE",
            150 << 10,
            (150 << 20, 128 << 20),
        ),
        (3, "'ResidentSetSize > 1024 * RequestMemory'", 150 << 10, (150 << 20, 128 << 20)),
        (3, "MemoryUsage > 1000 || NumJobStarts > 9", 125 << 10, None),
        (3, "NumJobStarts > 9", 150 << 10, None),
        (1, "via condor_hold: it needs too much memory", 150 << 10, None),
    ],
)
def test_a_job_that_is_held_because_of_its_memory_says_how_much_it_used(
    code: int, reason: str, used_kib: int, memory: tuple[int, int] | None
) -> None:
    ad = {"ClusterId": 17, "ProcId": 3, "MwpyMark": "m", "ServerTime": 100, "JobStatus": 5, "RequestMemory": 128}
    ad |= {"HoldReasonCode": code, "HoldReason": reason, "ResidentSetSize": used_kib}
    assert htcondor._job(ad).memory == memory


def test_how_a_job_ended(tmp_path: Path) -> None:
    err = tmp_path / "err"
    err.write_text("x" * 10_000 + "the end")
    times = {"JobCurrentStartDate": 100, "EnteredCurrentStatus": 104, "JobStatus": 4, "Err": str(err)}
    exited = htcondor._outcome({**times, "ExitCode": 3})
    assert (exited.description, exited.exit_code, exited.ran_s) == ("exit code 3", 3, 4.0)
    assert exited.stderr.endswith("x" * 100 + "the end")
    killed = htcondor._outcome({**times, "ExitBySignal": True, "ExitSignal": 10, "Err": "/nowhere"})
    assert killed == Outcome(End.KILLED, "killed by signal 10 (SIGUSR1)", None, 4.0, "")
    removed = htcondor._outcome(
        {"JobStatus": 3, "EnteredCurrentStatus": 104, "RemoveReason": "via condor_rm", "Err": ""}
    )
    assert removed == Outcome(End.REMOVED, "removed: via condor_rm", None, 0.0, "")


def test_without_the_commands_it_says_where_to_run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UsageError, match=r"condor_submit is not in PATH: run this on a machine where you submit jobs"):
        HTCondor()


def test_answers_about_jobs() -> None:
    """Without jobs, `condor_q` prints nothing. What is an expression has no value here."""
    assert htcondor._ads("") == []
    shown = r'[{"ClusterId": 1, "RequestMemory": "\/Expr(ifThenElse(MemoryUsage =?= undefined, 1, 2))\/"}]'
    assert htcondor._ads(shown) == [{"ClusterId": 1}]
    with pytest.raises(BatchUnavailable, match=r"HTCondor's answer cannot be read: .*; is its schedd overloaded"):
        htcondor._ads(shown[:-3])


@pytest.mark.parametrize(
    ("lines", "seconds"),
    [
        (["allowed_execute_duration = 3600"], 3600.0),
        (["Allowed_Job_Duration=7200", "allowed_execute_duration = 3600"], 3600.0),
        (["+MaxRuntime = 60"], 60.0),
        (["MY.MaxRuntime = 60"], 60.0),
        (["allowed_job_duration = 2 * HOUR", "requirements = MaxRuntime > 5"], None),
    ],
    ids=str,
)
def test_the_time_limit_of_a_job_is_known_from_the_users_lines(lines: list[str], seconds: float | None) -> None:
    """An expression is not known."""
    assert time_limit_s(lines) == seconds


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ('+MwpyMark = "mine"', "the overseer finds its jobs by their mark"),
        ('my.mwpymark="mine"', "the overseer finds its jobs by their mark"),
        ("queue 5", "the overseer decides how many jobs are submitted"),
        (" Queue", "the overseer decides how many jobs are submitted"),
        ("universe = local", "`container_image` works there, too"),
        ("executable = /bin/true", "--command replaces the program"),
        ("arguments = 1", "--command replaces the program"),
        ('environment = "A=1"', "`getenv = NAME` adds variables"),
        ("transfer_input_files = data", "--transfer adds others"),
        ("Transfer_Output_Files=results", "HTCondor brings no files back from these jobs"),
        ("log = /tmp/log", "--log-dir chooses their folder"),
    ],
)
def test_a_line_that_replaces_what_the_overseer_relies_on_is_refused(line: str, reason: str) -> None:
    with pytest.raises(UsageError) as refused:
        check_lines([line])
    assert str(refused.value).startswith(f"--line={line} is refused: ")
    assert reason in str(refused.value)


def test_lines_that_ask_for_more_are_accepted() -> None:
    check_lines(["request_cpus = 8", "requirements = universe == 1", "+Queue2 = 1", "getenv = HOME", "queue_limit = 3"])


def test_a_prologue_is_what_htcondor_starts() -> None:
    """A program that is transferred is found in the folder of the job."""
    launch = evolve(LAUNCH, prologue="module load gcc", name="mine")
    found = lines(launch)
    assert (found["executable"], found["batch_name"]) == ("/bin/bash", "mine")
    assert "'module load gcc' '/env/bin/python' '/home/me/cubes.py'" in found["arguments"]
    found = lines(launch, Path("/env/bin/python"))
    assert (found["executable"], found["transfer_executable"]) == ("/bin/bash", "false")
    assert found["transfer_input_files"] == "/home/me/cubes.rsc, /env/bin/python"
    assert "'module load gcc' './python' '/home/me/cubes.py'" in found["arguments"]
