"""What HTCondor is told, and what is made of what it tells; with a real pool see tests/batch."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from mwpy._batch import BatchUnavailable, Job, JobState, Launch, Outcome, htcondor
from mwpy._batch.htcondor import END, HTCondor, description
from mwpy._values.errors import UsageError

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
    """The last line of each name, as that one counts."""
    text = description(launch, "1GB", "2GB", transfer)
    return dict(line.split(" = ", 1) for line in text.splitlines())


def test_a_job_gets_a_fresh_resource_file_and_finds_the_rest_where_it_is() -> None:
    told = lines(LAUNCH)
    assert told["executable"] == "/env/bin/python"
    assert told["transfer_executable"] == "false"
    assert told["transfer_input_files"] == "/home/me/cubes.rsc"
    assert told["environment"] == f'"MWPY_JOB=$(CLUSTER).$(PROCESS) {END}"'
    assert f"END = {END}\n" in POLICY.read_text()
    assert told["MY.MwpyMark"] == '"cubes-0123456789ab"'
    assert told["error"] == "/home/me/logs/cubes-0123456789ab.$(CLUSTER).$(PROCESS).err"
    assert told["request_cpus"] == "4"
    assert (told["request_memory"], told["request_disk"], told["+Project"]) == ("3GB", "2GB", "x")
    assert "on_exit_remove" not in told


def test_every_argument_arrives_as_it_is() -> None:
    """Quotes, empty ones, and what HTCondor would take for its own variables."""
    assert lines(LAUNCH)["arguments"] == (
        "\"'/home/me/cubes.py' '--mw-slave' '--mw-resource-file' 'cubes.rsc' '--mw-slave-processes' '4' "
        "'it''s' 'a \"\"word\"\"' '' '$(DOLLAR)(X)'\""
    )


def test_files_that_are_carried_are_named_as_they_are_there() -> None:
    told = lines(LAUNCH, Path("/home/me/cubes.py"), Path("/home/me/data.txt"))
    assert told["transfer_input_files"] == "/home/me/cubes.rsc, /home/me/cubes.py, /home/me/data.txt"
    assert told["arguments"].startswith("\"'cubes.py' '--mw-slave'")
    assert told["transfer_executable"] == "false"
    told = lines(LAUNCH, Path("/env/bin/python"))
    assert (told["transfer_input_files"], told["transfer_executable"]) == ("/home/me/cubes.rsc", "true")


def test_a_comma_in_a_name_is_told_of() -> None:
    """HTCondor would take the name for two."""
    with pytest.raises(BatchUnavailable, match="rename it"):
        lines(LAUNCH, Path("/home/me/a,b"))


@pytest.mark.parametrize(
    ("ad", "state", "running_s", "note"),
    [
        ({"JobStatus": 1, "LastRejMatchReason": "no match found "}, JobState.QUEUED, 0.0, "no match found"),
        ({"JobStatus": 2, "JobCurrentStartDate": 90}, JobState.RUNNING, 10.0, ""),
        ({"JobStatus": 2, "JobCurrentStartDate": 101}, JobState.RUNNING, 0.0, ""),
        ({"JobStatus": 1, "JobCurrentStartDate": 90}, JobState.QUEUED, 0.0, ""),
        ({"JobStatus": 3}, JobState.LEAVING, 0.0, ""),
        ({"JobStatus": 4}, JobState.LEAVING, 0.0, ""),
        ({"JobStatus": 5, "HoldReason": "no", "HoldReasonCode": 13}, JobState.HELD, 0.0, "no (code 13, sub code ?)"),
        ({"JobStatus": 6}, JobState.RUNNING, 0.0, ""),
        ({"JobStatus": 99}, JobState.LEAVING, 0.0, ""),
    ],
)
def test_a_job_in_the_queue(ad: dict[str, Any], state: JobState, running_s: float, note: str) -> None:
    ad = {"ClusterId": 17, "ProcId": 3, "MwpyMark": "m", "ServerTime": 100, **ad}
    assert htcondor._job(ad) == Job("17.3", "m", state, running_s, note)


def test_what_became_of_a_job(tmp_path: Path) -> None:
    err = tmp_path / "err"
    err.write_text("x" * 10_000 + "the end")
    times = {"JobCurrentStartDate": 100, "EnteredCurrentStatus": 104, "JobStatus": 4, "Err": str(err)}
    told = htcondor._outcome({**times, "ExitCode": 3})
    assert (told.ended, told.exit_code, told.ran_s) == ("exit code 3", 3, 4.0)
    assert told.stderr.endswith("x" * 100 + "the end")
    killed = htcondor._outcome({**times, "ExitBySignal": True, "ExitSignal": 9, "Err": "/nowhere"})
    assert killed == Outcome("killed by SIGKILL (9)", None, 4.0, "")
    assert htcondor._outcome({**times, "ExitBySignal": True, "ExitSignal": 44}).ended == "killed by signal 44"
    removed = htcondor._outcome(
        {"JobStatus": 3, "EnteredCurrentStatus": 104, "RemoveReason": "via condor_rm", "Err": ""}
    )
    assert removed == Outcome("removed: via condor_rm", None, 0.0, "")


def test_bindings_that_do_not_answer_or_end_are_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """They hold the interpreter while they wait, so they run in a process that can be killed."""

    def ask(program: str) -> bytes:
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        with subprocess.Popen([sys.executable, "-c", program], bufsize=0, **pipes) as process:  # type: ignore[call-overload]
            try:
                return htcondor._exchange(process, b"x\n")
            finally:
                process.kill()

    monkeypatch.setattr(htcondor, "CALL_S", 5.0)
    assert ask("print(input() * 100_000)") == b"x" * 100_000 + b"\n"
    with pytest.raises(BatchUnavailable, match="ended with exit code 7"):
        ask("raise SystemExit(7)")
    monkeypatch.setattr(htcondor, "CALL_S", 0.1)
    with pytest.raises(BatchUnavailable, match="did not answer within"):
        ask("import time; time.sleep(60)")


def test_without_the_bindings_it_says_how_to_install_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "htcondor2", None)
    with pytest.raises(UsageError, match=r"pip install 'mwpy-cluster\[htcondor\]'"):
        HTCondor()
