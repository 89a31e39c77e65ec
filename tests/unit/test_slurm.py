"""Reading what Slurm's commands print, and the batch script that is submitted."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from mwpy._batch import BatchUnavailable, Launch
from mwpy._batch.slurm import ASK_END, WARNED_S, Slurm, check_lines, outcome, queue, script, seconds, time_limit_s
from mwpy._values.errors import UsageError
from mwpy._values.jobs import End, Job, JobState, Outcome

SLAVES = Path(__file__).parent.parent.parent / "slurm" / "slaves.sbatch"

QUEUE = """\
1_0|RUNNING|0:01|None|n1|mwpy.a-1
4_0|PENDING|0:00|JobHeldUser||mwpy.b
5_1|PENDING|0:00|PartitionConfig||mwpy.b
6_0|PENDING|0:00|Priority||mwpy.b
7_3|COMPLETING|1:00|None|n1|mwpy.a-1
8_3|REQUEUE_HOLD|0:00|job_requeued_in_held_state||mwpy.a-1
9|RUNNING|1-02:03:04|None|n1|a|b
10|RUNNING|0:04|None|n1|mwpy
"""

SHOWN = (
    "JobId=2 ArrayJobId=1 ArrayTaskId=0 JobName=mwpy.a b UserId=submit(20001) GroupId=submit(20001) MCS_label=N/A "
    "Priority=4294901759 Nice=0 Account=(null) QOS=(null) JobState={state} Reason=NonZeroExitCode Dependency=(null) "
    "Requeue=1 Restarts=0 BatchFlag=1 Reboot=0 ExitCode={code} RunTime=1-00:00:03 TimeLimit=00:05:00 TimeMin=N/A "
    "ReqB:S:C:T=0:0:*:* NodeList=n1 CPUs/Task=1 Command=/w/job.sh 2 4 WorkDir=/w StdErr={stderr} StdIn=/dev/null "
    "StdOut=/w/1_0.out Power= \n"
)


def test_only_jobs_of_mwpy_are_read_from_the_queue() -> None:
    """Each job has its mark, its state, and the reason why it waits."""
    assert queue(QUEUE) == [
        Job("1_0", "a-1", JobState.RUNNING, 1.0, host="n1"),
        Job("4_0", "b", JobState.HELD, 0.0, "JobHeldUser"),
        Job("5_1", "b", JobState.QUEUED, 0.0, "PartitionConfig"),
        Job("6_0", "b", JobState.QUEUED),
        Job("7_3", "a-1", JobState.LEAVING, host="n1"),
        Job("8_3", "a-1", JobState.HELD, 0.0, "job_requeued_in_held_state"),
    ]
    assert queue("") == []


def test_all_nodes_to_avoid_are_in_one_option() -> None:
    """Slurm uses only the last option. The user's own nodes stay."""
    launch = Launch("m", "/r", ("x", "--mw-slave"), 1, "/logs", ("--exclude=a,b", "--time=5"), ("c", "d"))
    assert [line for line in script(launch).splitlines() if "exclude" in line] == ["#SBATCH --exclude=a,b,c,d"]
    assert "#SBATCH --time=5" in script(launch)


@pytest.mark.parametrize(
    ("shown", "meant"),
    [("0:01", 1), ("59:59", 3599), ("2:00:01", 7201), ("1-02:03:04", 93784), ("INVALID", 0), ("", 0)],
)
def test_times_are_seconds(shown: str, meant: float) -> None:
    """`squeue` and `scontrol` write times in the same way."""
    assert seconds(shown) == meant


@pytest.mark.parametrize(
    ("state", "code", "end", "text", "exit_code"),
    [
        ("COMPLETED", "0:0", End.EXITED, "exit code 0", 0),
        ("FAILED", "4:0", End.EXITED, "exit code 4", 4),
        ("FAILED", "0:10", End.KILLED, "killed by signal 10 (SIGUSR1)", None),
        ("FAILED", "0:53", End.KILLED, "killed by signal 53", None),
        ("TIMEOUT", "0:15", End.REMOVED, "its time limit was reached", None),
        ("NODE_FAIL", "0:0", End.LOST, "its node failed", None),
        ("OUT_OF_MEMORY", "0:125", End.KILLED, "killed by Slurm: out of memory", None),
    ],
)
def test_the_end_of_a_job_is_read(state: str, code: str, end: End, text: str, exit_code: int | None) -> None:
    """There is an exit code only if the job exited by itself."""
    shown = SHOWN.format(state=state, code=code, stderr="/none/such")
    assert outcome(shown, {}) == Outcome(end, text, exit_code, 86403.0, "", "n1")


@pytest.mark.parametrize("state", ["PENDING", "RUNNING", "COMPLETING", "REQUEUED"])
def test_a_job_in_the_queue_has_no_outcome(state: str) -> None:
    """A requeued job has no exit code either."""
    assert outcome(SHOWN.format(state=state, code="0:0", stderr=""), {}) is None
    assert outcome("", {}) is None


def test_the_end_of_a_long_error_file_is_kept(tmp_path: Path) -> None:
    """The name of the file may contain blanks."""
    path = tmp_path / "job 1_0.err"
    path.write_text("first\n" + "x" * 20_000 + "\nlast\n")
    found = outcome(SHOWN.format(state="FAILED", code="1:0", stderr=path), {})
    assert found is not None
    assert found.stderr.endswith("x\nlast")
    assert len(found.stderr) < 10_000


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("--job-name=mine", "the overseer finds its jobs by their name"),
        ("-J mine", "the overseer finds its jobs by their name"),
        ("#SBATCH --array=0-9", "the overseer decides how many jobs are submitted"),
        ("-o/tmp/out", "--log-dir chooses their folder"),
        ("--error /tmp/err", "--log-dir chooses their folder"),
    ],
)
def test_a_line_that_a_submission_overrides_is_refused(line: str, reason: str) -> None:
    with pytest.raises(UsageError, match=rf"--line={line} is refused: .*{reason}"):
        check_lines([line])


def test_other_lines_are_accepted() -> None:
    check_lines(["--time=5", "-p short", "--export=ALL", "-A ours", "export JOB=--job-name", "--open-mode=append"])


def test_the_script_of_a_job_sets_its_id_and_becomes_the_agent(tmp_path: Path) -> None:
    """A path with blanks stays one argument. The user's options come before the first command."""
    words = ("/bin/sh", "-c", 'echo $MWPY_JOB $PLACE "$0" "$@"', "--mw-slave", "--", "own")
    launch = Launch(
        "m", str(tmp_path / "a b"), words, 4, "/logs", ("export PLACE=here", "--time=5", "#SBATCH -p short")
    )
    text = script(launch)
    options = [line for line in text.splitlines() if line.startswith("#")]
    assert options == [
        "#!/bin/sh",
        "#SBATCH --cpus-per-task=4",
        "#SBATCH --signal=B:TERM@60",
        "#SBATCH --time=5",
        "#SBATCH -p short",
    ]
    assert text.splitlines()[: len(options)] == options
    variables = {"SLURM_ARRAY_JOB_ID": "7", "SLURM_ARRAY_TASK_ID": "3", "PATH": "/usr/bin:/bin"}
    done = subprocess.run(["/bin/sh", "-c", text], env=variables, capture_output=True, text=True, check=True)
    assert done.stdout == f"7_3 here --mw-slave --mw-resource-file {tmp_path / 'a b'} -- own\n"


def test_a_job_asks_for_what_the_tasks_of_all_its_slaves_require() -> None:
    amounts = (("cpus", 2), ("gpus", 1), ("memory", 3 << 30))
    text = script(Launch("m", "/a", ("agent", "--mw-slave"), 4, "/logs", amounts=amounts))
    for option in ("--cpus-per-task=8", "--gres=gpu:4", "--mem=12416M"):
        assert f"#SBATCH {option}\n" in text


@pytest.mark.parametrize(
    ("squeue", "end", "printed"),
    [
        ("echo $SLURM_TIME_FORMAT of $3", "", "%s of 7_3\n"),
        ("echo $SLURM_TIME_FORMAT of $3", "1795283446", "1795283446\n"),
        ("echo not now >&2; exit 1", "", "\n"),
        (None, "", "\n"),
    ],
    ids=["asked", "given", "squeue fails", "no squeue"],
)
def test_a_job_asks_for_the_end_of_its_time_limit(tmp_path: Path, squeue: str | None, end: str, printed: str) -> None:
    """The script asks for its own element of the array if the environment lacks the end. It prints no errors."""
    if squeue is not None:
        (tmp_path / "squeue").write_text(f"#!/bin/sh\n{squeue}\n")
        (tmp_path / "squeue").chmod(0o755)
    text = script(Launch("m", "/r", ("/bin/sh", "-c", "echo $SLURM_JOB_END_TIME", "--mw-slave"), 1, "/logs"))
    variables = {"SLURM_ARRAY_JOB_ID": "7", "SLURM_ARRAY_TASK_ID": "3", "PATH": f"{tmp_path}:/usr/bin:/bin"}
    variables["SLURM_JOB_END_TIME"] = end
    done = subprocess.run(["/bin/sh", "-c", text], env=variables, capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == (printed, "")


def test_the_script_for_slaves_asks_in_the_same_way() -> None:
    """The file in `slurm/` and the overseer's script have the same line."""
    assert f'export SLURM_JOB_END_TIME="${{SLURM_JOB_END_TIME:-$({ASK_END})}}"\n' in SLAVES.read_text()


@pytest.mark.parametrize(
    ("lines", "seconds"),
    [
        (["--time=90"], 5400),
        (["#SBATCH --time 1:30"], 90),
        (["-t 2:00:00"], 7200),
        (["-t1-12"], 36 * 3600),
        (["--time=1-2:03"], 26 * 3600 + 180),
        (["--time=1-2:03:04"], 26 * 3600 + 184),
        (["--time=90", "--time=60"], 3600),
        (["--time=0"], None),
        (["--time=-:"], None),
        (["--time=UNLIMITED", "--time-min=5", "module load x", "echo --time=5"], None),
        ([], None),
    ],
    ids=str,
)
def test_the_time_limit_of_a_job_is_known_from_the_users_lines(lines: list[str], seconds: float | None) -> None:
    """Slurm uses the last option. 0 means that there is no limit. A job gets SIGTERM a minute before its limit."""
    assert time_limit_s(lines) == (None if seconds is None else seconds - WARNED_S)


def test_the_time_limit_of_a_short_job_leaves_no_time() -> None:
    assert time_limit_s(["--time=0:30"]) == 0.0


def test_without_slurm_every_call_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The commands are not in PATH."""
    monkeypatch.setenv("PATH", str(tmp_path))
    edge = Slurm()
    launch = Launch("m", "/r.rsc", ("true", "--mw-slave"), 1, "/logs")
    for call in (edge.jobs, lambda: edge.remove(["1_1"]), lambda: edge.submit(launch, 1)):
        with pytest.raises(BatchUnavailable, match="cannot be run: No such file or directory; run this where Slurm's"):
            call()
    assert edge.outcome("1_1") is None


@pytest.mark.parametrize(("prologue", "code"), [("export PLACE='a b'", 0), ("false", 8), ("exit 3", 3)])
def test_a_prologue_runs_before_the_agent_and_its_failure_ends_the_job(prologue: str, code: int) -> None:
    """What it exports reaches the agent. The error names the line."""
    launch = Launch("m", "/r", ("/bin/sh", "-c", 'echo "$PLACE$1"', "-", "--mw-slave"), 1, "/logs", prologue=prologue)
    done = subprocess.run(["/bin/sh", "-c", script(launch)], env={}, capture_output=True, text=True, check=False)
    assert done.returncode == code
    assert done.stdout == ("a b--mw-slave\n" if code == 0 else "")
    assert (f"mwpy: the prologue failed, exit code 1: {prologue}\n" in done.stderr) == (code == 8)


def test_the_mark_is_the_end_of_the_name_of_a_job() -> None:
    launch = Launch("a-1", "/r", ("x", "--mw-slave"), 1, "/logs", name="my.own")
    assert launch.job_name == "my.own.mwpy.a-1"
    [job] = queue(f"1_0|RUNNING|0:01|None|n1|{launch.job_name}\n2|RUNNING|0:01|None|n1|xmwpy.a-1\n")
    assert job.mark == "a-1"
