"""Reading what Grid Engine's commands print, and the script that is submitted."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Callable
from datetime import datetime
from pathlib import Path

import pytest

from mwpy._batch import BatchUnavailable, Launch
from mwpy._batch.sge import GridEngine, check_lines, outcome, queue, reasons, script, time_limit_s
from mwpy._values.errors import UsageError
from mwpy._values.jobs import End, Job, JobState, Outcome

ENTRY = (
    "<job_list><JB_job_number>{}</JB_job_number><JAT_prio>0.5</JAT_prio><JB_name>{}</JB_name><JB_owner>me</JB_owner>"
    "<state>{}</state>{}<queue_name>{}</queue_name><slots>1</slots><tasks>{}</tasks></job_list>"
)
START = "<JAT_start_time>2026-11-29T09:11:24</JAT_start_time>"
WAITS = "<JB_submission_time>2026-11-29T09:11:24</JB_submission_time>"
STARTED = datetime(2026, 11, 29, 9, 11, 24).timestamp()

REASONS = """\
==============================================================
job_number:                 7
cwd:                        /gone
error reason          1:      11/29/2026 09:11:24 [20001:8246]: error: can't chdir to /gone: No such file or directory
scheduling info:            Job is in error state
==============================================================
job_number:                 8
"""

ACCOUNTS = """\
==============================================================
qname        all.q
hostname     {host}
jobname      mwpy.a-1
jobnumber    1
taskid       2
end_time     Sun Nov 29 09:10:43 2026
failed       {failed}
exit_status  {status}
ru_wallclock {ran}
category     NONE
"""


def test_only_jobs_of_mwpy_are_read_from_the_queue() -> None:
    """Each job has its mark, its state, the seconds since its start, and its machine."""
    shown = [
        ENTRY.format(1, "mwpy.a-1", "r", START, "all.q@n1", 2),
        ENTRY.format(1, "mwpy.a-1", "Rr", START.replace(":24", ":24.500"), "all.q@n1.site", 3),
        ENTRY.format(2, "my.mwpy.b", "qw", WAITS, "", 1),
        ENTRY.format(3, "mwpy.b", "hqw", WAITS, "", 1),
        ENTRY.format(4, "mwpy.b", "dr", START, "all.q@n1", 1),
        ENTRY.format(5, "mwpy.b", "Eqw", WAITS, "", 1),
        ENTRY.format(6, "mwpy", "r", START, "all.q@n1", 1),
        ENTRY.format(7, "other", "r", START, "all.q@n1", "1-5:1"),
    ]
    text = (
        f"<job_info><queue_info>{''.join(shown[:2])}</queue_info><job_info>{''.join(shown[2:])}</job_info></job_info>"
    )
    assert queue(text, STARTED + 60) == [
        Job("1.2", "a-1", JobState.RUNNING, 60.0, host="n1"),
        Job("1.3", "a-1", JobState.RUNNING, 59.5, host="n1.site"),
        Job("2.1", "b", JobState.QUEUED),
        Job("3.1", "b", JobState.HELD, 0.0, "it is on hold (qhold)"),
        Job("4.1", "b", JobState.LEAVING, host="n1"),
        Job("5.1", "b", JobState.HELD, 0.0, "it is in the state of an error"),
    ]
    assert queue("<job_info/>", 0.0) == []
    with pytest.raises(BatchUnavailable, match="cannot be read"):
        queue("qstat: no", 0.0)


def test_the_reason_of_an_error_is_read() -> None:
    assert reasons(REASONS) == {"7": "error: can't chdir to /gone: No such file or directory"}


@pytest.mark.parametrize(
    ("failed", "status", "end", "text", "exit_code"),
    [
        ("0", "0", End.EXITED, "exit code 0", 0),
        ("0", "4", End.EXITED, "exit code 4", 4),
        (
            "100 : assumedly after job",
            "137                  (Killed)",
            End.KILLED,
            "killed by signal 9 (SIGKILL)",
            None,
        ),
        ("37  : qmaster enforced h_rt, h_cpu, or h_vmem limit", "137", End.REMOVED, "Grid Engine says: qmaster", None),
        ("26  : opening input/output file", "0", End.LOST, "Grid Engine says: opening input", None),
    ],
)
def test_the_records_of_a_job_say_how_it_ended(
    failed: str, status: str, end: End, text: str, exit_code: int | None
) -> None:
    """If it ran several times, the last time counts."""
    first = ACCOUNTS.format(host="n0", failed="25  : rescheduling", status="0", ran="1s")
    found = outcome(first + ACCOUNTS.format(host="n1", failed=failed, status=status, ran="7s"), "last words")
    assert found is not None
    assert (found.end, found.exit_code, found.ran_s, found.host) == (end, exit_code, 7.0, "n1")
    assert found.description.startswith(text)
    assert found.stderr == "last words"


@pytest.mark.parametrize("shown", ["", "error: job id 99 not found\n"])
def test_without_records_there_is_no_outcome(shown: str) -> None:
    assert outcome(shown, "") is None


def launch(command: str, folder: Path, *extra: str, slaves: int = 1, **fields: object) -> Launch:
    words = ("/bin/sh", "-c", command, "--mw-slave")
    return Launch("m", str(folder / "r"), words, slaves, str(folder), extra, **fields)  # type: ignore[arg-type]


def test_a_job_asks_for_what_the_tasks_of_all_its_slaves_require(tmp_path: Path) -> None:
    """Memory is for each slot. A user's options come later, and replace them."""
    amounts = (("cpus", 2), ("gpus", 1), ("memory", 3 << 30))
    lines = script(launch("x", tmp_path, "-l h_rt=9", "#$ -P ours", slaves=4, amounts=amounts)).splitlines()
    found = [line for line in lines if line.startswith("#$")]
    assert found[-5:] == ["#$ -pe smp 8", "#$ -l gpu=4", "#$ -l mem_free=1552M", "#$ -l h_rt=9", "#$ -P ours"]
    assert "export SLURM_MEM_PER_NODE=12416" in lines
    assert "-pe" not in script(launch("x", tmp_path))


def test_a_user_names_the_parallel_environment(tmp_path: Path) -> None:
    """Without a number, the job asks for as many cores as its tasks require."""
    text = script(launch("x", tmp_path, "-pe threads", slaves=4))
    assert [line for line in text.splitlines() if "-pe" in line] == ["#$ -pe threads 4"]
    assert "#$ -pe threads 9\n" in script(launch("x", tmp_path, "-pe threads 9", slaves=4))


@pytest.mark.parametrize(
    ("own", "asked"),
    [
        ((), "#$ -l hostname=!(n1|n2)"),
        (("-l h=a*", "-l h_rt=5,hostname=b*|c*"), "#$ -l hostname=(b*|c*)&!(n1|n2)"),
    ],
)
def test_all_machines_to_avoid_are_in_one_option(tmp_path: Path, own: tuple[str, ...], asked: str) -> None:
    """Grid Engine uses only the last option. The user's own choice of machines stays."""
    text = script(launch("x", tmp_path, *own, avoided=("n1", "n2")))
    assert [line for line in text.splitlines() if line.startswith("#$")][-1] == asked


def run_script(text: str, **variables: str) -> subprocess.CompletedProcess[str]:
    environment = {"JOB_ID": "7", "SGE_TASK_ID": "3", "HOSTNAME": "n1", "PATH": "/usr/bin:/bin", **variables}
    return subprocess.run(["/bin/sh", "-c", text], env=environment, capture_output=True, text=True, check=False)


def test_the_shell_of_a_job_writes_how_the_agent_ended(tmp_path: Path) -> None:
    """The batch system reads it. The user's commands run before the agent."""
    folder = tmp_path / "it's a folder"
    folder.mkdir()
    given = launch('echo $MWPY_JOB $PLACE "$0" "$@"; exit 4', folder, "export PLACE=here", "-l h_rt=9")
    done = run_script(script(given))
    assert (done.returncode, done.stdout) == (4, f"7.3 here --mw-slave --mw-resource-file {folder}/r\n")
    (folder / "m.7.3.err").write_text("last words\n")
    edge = GridEngine()
    edge._ends.submitted(given, "7.1")
    found = edge.outcome("7.3")
    assert found is not None
    assert (found.description, found.exit_code, found.host, found.stderr) == ("exit code 4", 4, "n1", "last words")
    run_script(script(launch("kill -9 $$", folder)), SGE_TASK_ID="4")
    killed = edge.outcome("7.4")
    assert killed is not None
    assert killed.description.startswith("killed by signal 9 (SIGKILL)")
    run_script(script(launch("kill -9 $PPID", folder)))
    assert edge._ends.outcome("7.3") is None, "the second run of a job, whose shell was killed, has left nothing"


@pytest.mark.parametrize("send", [os.killpg, os.kill], ids=["to all processes", "to the shell"])
@pytest.mark.parametrize("number", [signal.SIGUSR1, signal.SIGUSR2, signal.SIGTERM], ids=lambda each: each.name)
def test_an_agent_gets_sigterm_when_the_end_of_its_job_is_announced(
    tmp_path: Path, number: signal.Signals, send: Callable[[int, int], None]
) -> None:
    """Grid Engine sends the signal to all processes of the job. The exit code is that of the agent."""
    agent = "trap 'trap \"\" TERM; echo asked; exit 5' TERM; echo up; while :; do sleep 0.05; done"
    job = subprocess.Popen(
        ["/bin/sh", "-c", script(launch(agent, tmp_path))],
        env={"JOB_ID": "7", "SGE_TASK_ID": "3", "HOSTNAME": "n1", "PATH": "/usr/bin:/bin"},
        stdout=subprocess.PIPE,
        start_new_session=True,
    )
    assert job.stdout is not None
    assert job.stdout.readline() == b"up\n"
    send(job.pid, number)
    assert job.stdout.read() == b"asked\n"
    assert job.wait() == 5
    job.stdout.close()
    assert (tmp_path / "m.7.3.end").read_text().split()[0] == "5"


@pytest.mark.parametrize(("prologue", "code"), [("export PLACE='a b'", 0), ("false", 8), ("exit 3", 3)])
def test_a_prologue_runs_before_the_agent_and_its_failure_ends_the_job(
    tmp_path: Path, prologue: str, code: int
) -> None:
    done = run_script(script(launch('echo "$PLACE"', tmp_path, prologue=prologue)))
    assert (done.returncode, done.stdout) == (code, "a b\n" if code == 0 else "")
    assert ("mwpy: the prologue failed, exit code 1: false\n" in done.stderr) == (code == 8)


@pytest.mark.parametrize(
    ("lines", "seconds"),
    [
        (["-l h_rt=90"], 90),
        (["-l mem_free=1G,h_rt=2:00:00"], 7200),
        (["#$ -l s_rt=1:30", "-l h_rt=600"], 90),
        (["-l h_rt=90", "-l h_rt=60"], 60),
        (["-l h_rt=INFINITY", ": -l h_rt=9", "-q h_rt=5"], None),
        ([], None),
    ],
    ids=str,
)
def test_the_time_limit_of_a_job_is_known_from_the_users_lines(
    tmp_path: Path, lines: list[str], seconds: float | None
) -> None:
    """The job knows its end, too."""
    assert time_limit_s(lines) == seconds
    given = launch(
        "echo $(($SLURM_JOB_END_TIME - $(date +%s)))", tmp_path, *[each for each in lines if each[0] in "-#"]
    )
    left = int(run_script(script(given), SLURM_JOB_END_TIME="0").stdout)
    assert left < 0 if seconds is None else seconds - 5 <= left <= seconds


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("-N mine", "the overseer finds its jobs by their name"),
        ("#$ -t 1-9", "the overseer decides how many jobs are submitted"),
        ("-o /tmp/out", "--log-dir chooses their folder"),
        ("-sync y", "does not wait for its jobs"),
    ],
)
def test_a_line_that_a_submission_overrides_is_refused(line: str, reason: str) -> None:
    with pytest.raises(UsageError, match=rf"--line={line.replace('$', '.')} is refused: .*{reason}"):
        check_lines([line])
    check_lines(["-l h_rt=5", "-q short", "-pe smp 4", "-notify", "export NAME=-N", "#", "-"])


def commands(folder: Path, monkeypatch: pytest.MonkeyPatch, **scripts: str) -> GridEngine:
    """Grid Engine with these scripts as its commands."""
    for name, text in scripts.items():
        (folder / name).write_text(f"#!/bin/sh\n{text}\n")
        (folder / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")
    return GridEngine()


@pytest.mark.parametrize("answer", ["12.1-3:1", 'Your job-array 12.1-3:1 ("mwpy.m") has been submitted'])
def test_jobs_are_submitted_as_one_array(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answer: str) -> None:
    edge = commands(tmp_path, monkeypatch, qsub=f"printf '%s\\n' \"$@\" >{tmp_path}/words; echo '{answer}'")
    assert edge.submit(launch("x", tmp_path, name="my"), 3) == ["12.1", "12.2", "12.3"]
    words = (tmp_path / "words").read_text().split("\n")
    assert words[:5] == ["-terse", "-t", "1-3", "-N", "my.mwpy.m"]
    assert f"{tmp_path}/m.$JOB_ID.$TASK_ID.err" in words
    with pytest.raises(BatchUnavailable, match="cannot write into /a:b, because its path contains ':'"):
        edge.submit(launch("x", Path("/a:b")), 1)


@pytest.mark.parametrize(
    ("said", "perhaps"),
    [("unknown queue", False), ("failed receiving gdi request: got read error", True), ("commlib: timeout", True)],
)
def test_a_submission_without_an_answer_may_have_happened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: str, perhaps: bool
) -> None:
    edge = commands(tmp_path, monkeypatch, qsub=f"echo '{said}' >&2; exit 1")
    with pytest.raises(BatchUnavailable, match=f"did not take 3 jobs: {said}") as caught:
        edge.submit(launch("x", tmp_path), 3)
    assert ("may be in the queue anyway" in str(caught.value)) == perhaps


def test_a_job_that_has_left_meanwhile_is_removed_without_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Any other answer is an error."""
    said = """\
echo 'job 1 is already in deletion'; echo 'denied: job "9" does not exist'
echo 'me has registered the job-array task 1.2 for deletion'; exit 1"""
    edge = commands(tmp_path, monkeypatch, qdel=said)
    edge.remove(["1.1", "9.1", "1.2"])
    edge.remove([])
    edge = commands(tmp_path, monkeypatch, qdel="echo 'error: commlib error: got select error' >&2; exit 1")
    with pytest.raises(BatchUnavailable, match="did not delete 1 jobs: error: commlib error"):
        edge.remove(["1.1"])


def test_the_list_says_why_a_job_is_in_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    entry = ENTRY.format(7, "mwpy.a", "Eqw", WAITS, "", 1)
    shown = f"case $1 in -xml) echo '<job_info>{entry}</job_info>';; -j) cat {tmp_path}/reasons;; esac"
    (tmp_path / "reasons").write_text(REASONS)
    [job] = commands(tmp_path, monkeypatch, qstat=shown).jobs()
    assert job.note == "error: can't chdir to /gone: No such file or directory"


def test_without_grid_engine_every_call_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The commands are not in PATH."""
    monkeypatch.setenv("PATH", str(tmp_path))
    edge = GridEngine()
    for call in (edge.jobs, lambda: edge.remove(["1.1"]), lambda: edge.submit(launch("x", tmp_path), 1)):
        with pytest.raises(BatchUnavailable, match="cannot be run: No such file or directory; run this where Grid Eng"):
            call()
    assert edge.outcome("1.1") is None


def test_an_outcome_is_asked_for_where_no_shell_has_written_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown = ACCOUNTS.format(host="n1", failed="0", status="3", ran="7")
    (tmp_path / "accounts").write_text(shown)
    edge = commands(tmp_path, monkeypatch, qacct=f'[ "$*" = "-j 1 -t 2" ] && cat {tmp_path}/accounts')
    assert edge.outcome("1.2") == Outcome(End.EXITED, "exit code 3", 3, 7.0, "", "n1")
    assert edge.outcome("1.3") is None
