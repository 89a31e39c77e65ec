"""Reading what PBS's commands print, and the script that is submitted.

No test runs a real PBS, because no package has it. The outputs have the form that OpenPBS 23.06 shows.
"""

from __future__ import annotations

import os
import signal
import subprocess
from datetime import datetime
from pathlib import Path

import pytest

from mwpy._batch import BatchUnavailable, Launch
from mwpy._batch.pbs import Pbs, check_lines, outcome, queue, script, time_limit_s
from mwpy._values.errors import UsageError
from mwpy._values.jobs import End, Job, JobState

QUEUE = """\
Job Id: 12[].head
    Job_Name = mwpy.a-1
    Job_Owner = me@login.site
    job_state = B
    queue = workq
    array = True
    array_state_count = Queued:1 Running:1 Exiting:1 Expired:1
    array_indices_submitted = 0-3

Job Id: 12[0].head
    Job_Name = mwpy.a-1
    Job_Owner = me@login.site
    resources_used.walltime = 00:00:30
    job_state = R
    queue = workq
    server = head
    ctime = Fri Jul  1 14:42:57 2022
    exec_host = n1/0*4
    exec_vnode = (n1:ncpus=4:mem=4194304kb)
    Resource_List.select = 1:ncpus=4:mem=4096mb
    stime = Fri Jul  1 14:43:07 2022
    Variable_List = PBS_O_HOME=/home/me,PBS_O_LANG=en_US.UTF-8,PBS_O_LOGNAME=me,
\tPBS_O_PATH=/usr/local/bin:/usr/bin,BASH_FUNC_module()=() {  eval "x = y"
 job_state = H
},PBS_O_QUEUE=workq
    comment = Job run at Fri Jul 01 at 14:43 on (n1:ncpus=4:mem=4194304kb)

Job Id: 12[1].head
    Job_Name = mwpy.a-1
    job_state = Q
    comment = Not Running: Insufficient amount of resource: ncpus (R: 4 A: 0 T: 8
\t)

Job Id: 12[2].head
    Job_Name = mwpy.a-1
    job_state = E
    stime = Fri Jul  1 14:43:07 2022

Job Id: 12[3].head
    Job_Name = mwpy.a-1
    job_state = X
    Exit_status = 0
    comment = Subjob finished

Job Id: 12[4].head
    Job_Name = mwpy.a-1
    job_state = R
    stime = Fri Jul  1 14:43:07 2022
    comment = Job run at Fri Jul 01 at 14:43 on (n1:ncpus=4:mem=4194304kb) and t
	erminated by me@login

Job Id: 12[5].head
    Job_Name = mwpy.a-1
    job_state = Q
    comment = Job Array Began at Fri Jul 01 at 14:43

Job Id: 13.head
    Job_Name = a-long-name-that-a-person-has-given-and-pbs-puts-on-two-lines.mwpy.b-
        0123456789ab
    job_state = H
    Hold_Types = u

Job Id: 14.head
    Job_Name = STDIN
    job_state = R
    stime = Fri Jul  1 14:43:07 2022
"""

STARTED = datetime(2022, 7, 1, 14, 43, 7).timestamp()


def test_only_jobs_of_mwpy_are_read_from_the_queue() -> None:
    """An array as a whole is no job. A long value continues on the next line; the environment of a job may mislead."""
    assert queue(QUEUE, STARTED + 60) == [
        Job("12[0].head", "a-1", JobState.RUNNING, 60.0),
        Job(
            "12[1].head",
            "a-1",
            JobState.QUEUED,
            0.0,
            "Not Running: Insufficient amount of resource: ncpus (R: 4 A: 0 T: 8)",
        ),
        Job("12[2].head", "a-1", JobState.LEAVING),
        Job("12[4].head", "a-1", JobState.LEAVING),
        Job("12[5].head", "a-1", JobState.QUEUED),
        Job("13.head", "b-0123456789ab", JobState.HELD, 0.0, "it is on hold (qhold)"),
    ]
    assert queue("", 0.0) == []


HISTORY = """\
Job Id: 12[0].head
    Job_Name = mwpy.a-1
    resources_used.walltime = 00:01:05
    job_state = F
    exec_host = n1/0*4
    Exit_status = {}
    comment = Job run at Fri Jul 01 at 14:43 on (n1:ncpus=4) and failed
"""


@pytest.mark.parametrize(
    ("status", "end", "text", "exit_code"),
    [
        ("0", End.EXITED, "exit code 0", 0),
        ("4", End.EXITED, "exit code 4", 4),
        ("137", End.KILLED, "killed by signal 9 (SIGKILL)", None),
        ("265", End.KILLED, "killed by signal 9 (SIGKILL)", None),
        ("-29", End.REMOVED, "its time limit was reached", None),
        ("-27", End.KILLED, "killed by PBS: it used more memory than it had asked for", None),
        ("-3", End.LOST, "PBS says: Job run at Fri Jul 01", None),
    ],
)
def test_the_history_of_a_job_says_how_it_ended(status: str, end: End, text: str, exit_code: int | None) -> None:
    found = outcome(HISTORY.format(status), "last words")
    assert found is not None
    assert (found.end, found.exit_code, found.ran_s, found.stderr) == (end, exit_code, 65.0, "last words")
    assert found.description.startswith(text)
    assert outcome(QUEUE, "") is None


def launch(command: str, folder: Path, *extra: str, slaves: int = 1, **fields: object) -> Launch:
    words = ("/bin/sh", "-c", command, "--mw-slave")
    return Launch("m", str(folder / "r"), words, slaves, str(folder), extra, **fields)  # type: ignore[arg-type]


AMOUNTS = (("cpus", 2), ("gpus", 1), ("memory", 3 << 30))


def test_a_job_asks_for_what_the_tasks_of_all_its_slaves_require(tmp_path: Path) -> None:
    text = script(launch("x", tmp_path, "-l walltime=1:00:00", "#PBS -P ours", slaves=4, amounts=AMOUNTS))
    found = [line for line in text.splitlines() if line.startswith("#PBS")]
    assert found[-3:] == [
        "#PBS -l select=1:ncpus=8:ngpus=4:mem=12416mb",
        "#PBS -l walltime=1:00:00",
        "#PBS -P ours",
    ]
    assert "export SLURM_MEM_PER_NODE=12416" in text
    assert "#PBS -l select=1:ncpus=1\n" in script(launch("x", tmp_path))


@pytest.mark.parametrize("own", ["-l select=1:ncpus=3:mem=9gb", "-l walltime=9,mem=1gb", "-l nodes=1:ppn=4"])
def test_a_user_says_what_a_job_needs(tmp_path: Path, own: str) -> None:
    """PBS refuses a job that says it in two ways."""
    text = script(launch("x", tmp_path, own, slaves=4, amounts=AMOUNTS))
    assert [line for line in text.splitlines() if " -l" in line] == [f"#PBS {own}"]
    assert "SLURM_MEM" not in text


def run_script(text: str, folder: Path, job: str = "7[3].head") -> subprocess.CompletedProcess[str]:
    environment = {"PBS_JOBID": job, "PBS_O_WORKDIR": str(folder), "PATH": "/usr/bin:/bin"}
    return subprocess.run(["/bin/sh", "-c", text], env=environment, capture_output=True, text=True, check=False)


def test_a_job_writes_its_output_and_how_the_agent_ended(tmp_path: Path) -> None:
    """It runs in the folder of the submission, after the user's commands."""
    folder = tmp_path / "it's a folder"
    folder.mkdir()
    given = launch('pwd; echo $MWPY_JOB $PLACE "$0" "$@"; echo last words >&2; exit 4', folder, "export PLACE=here")
    done = run_script(script(given), tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (4, "", "")
    written = (folder / "m.7[3].head.out").read_text()
    assert written == f"{tmp_path}\n7[3].head here --mw-slave --mw-resource-file {folder}/r\n"
    edge = Pbs()
    edge._ends.submitted(given, "7[0].head")
    found = edge.outcome("7[3].head")
    assert found is not None
    assert (found.description, found.exit_code, found.host, found.stderr) == ("exit code 4", 4, "", "last words")


def test_a_prologue_that_fails_ends_the_job(tmp_path: Path) -> None:
    assert run_script(script(launch("echo never", tmp_path, prologue="false")), tmp_path).returncode == 8
    assert (tmp_path / "m.7[3].head.out").read_text() == ""
    assert "mwpy: the prologue failed, exit code 1: false" in (tmp_path / "m.7[3].head.err").read_text()


def test_an_agent_that_gets_sigterm_with_its_shell_ends_in_its_own_way(tmp_path: Path) -> None:
    """PBS sends it to all processes of the job. The exit code is that of the agent."""
    agent = f"trap 'exit 5' TERM; echo up >{tmp_path}/up; while :; do sleep 0.05; done"
    os.mkfifo(tmp_path / "up")
    job = subprocess.Popen(
        ["/bin/sh", "-c", script(launch(agent, tmp_path))],
        env={"PBS_JOBID": "7.head", "PBS_O_WORKDIR": str(tmp_path), "PATH": "/usr/bin:/bin"},
        start_new_session=True,
    )
    assert (tmp_path / "up").read_text() == "up\n"
    os.killpg(job.pid, signal.SIGTERM)
    assert job.wait() == 5
    assert (tmp_path / "m.7.head.end").read_text().split()[0] == "5"


@pytest.mark.parametrize(
    ("lines", "seconds"),
    [
        (["-l walltime=90"], 90),
        (["-l select=1:ncpus=2,walltime=2:00:00"], 7200),
        (["#PBS -l walltime=1:30", "-l walltime=10:00"], 600),
        (["echo -l walltime=9", "-q walltime=5"], None),
    ],
    ids=str,
)
def test_the_time_limit_of_a_job_is_known_from_the_users_lines(lines: list[str], seconds: float | None) -> None:
    assert time_limit_s(lines) == seconds


def test_a_job_knows_its_end(tmp_path: Path) -> None:
    given = launch("echo $(($SLURM_JOB_END_TIME - $(date +%s)))", tmp_path, "-l walltime=90")
    run_script(script(given), tmp_path)
    assert 85 <= int((tmp_path / "m.7[3].head.out").read_text()) <= 90


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("-N mine", "the overseer finds its jobs by their name"),
        ("#PBS -J 0-9", "the overseer decides how many jobs are submitted"),
        ("-o /tmp/out", "--log-dir chooses their folder"),
    ],
)
def test_a_line_that_a_submission_overrides_is_refused(line: str, reason: str) -> None:
    with pytest.raises(UsageError, match=f"--line={line} is refused: .*{reason}"):
        check_lines([line])
    check_lines(["-l walltime=5", "-q short", "-V", "export NAME=-N"])


def commands(folder: Path, monkeypatch: pytest.MonkeyPatch, **scripts: str) -> Pbs:
    """PBS with these scripts as its commands."""
    for name, text in scripts.items():
        (folder / name).write_text(f"#!/bin/sh\n{text}\n")
        (folder / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")
    return Pbs()


def test_several_jobs_are_submitted_as_one_array(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    edge = commands(tmp_path, monkeypatch, qsub='case "$*" in *-J*) echo "12[].head";; *) echo 13.head.site;; esac')
    assert edge.submit(launch("x", tmp_path, name="my"), 3) == ["12[0].head", "12[1].head", "12[2].head"]
    assert edge.submit(launch("x", tmp_path), 1) == ["13.head.site"]
    edge = commands(tmp_path, monkeypatch, qsub="echo 'qsub: Unknown queue' >&2; exit 170")
    with pytest.raises(BatchUnavailable, match="PBS did not take 2 jobs: qsub: Unknown queue"):
        edge.submit(launch("x", tmp_path), 2)


def test_only_jobs_of_this_user_are_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A job that has ended in between is no error."""
    monkeypatch.setenv("LOGNAME", "me")
    (tmp_path / "queue").write_text(QUEUE)
    select = '[ "$*" = "-u me" ] && printf "12[].head\\n13.head\\n15.head\\n"'
    show = f'[ "$*" = "-f -t 12[].head 13.head 15.head" ] && cat {tmp_path}/queue'
    show += '; echo "qstat: Unknown Job Id 15.head" >&2; exit 153'
    edge = commands(tmp_path, monkeypatch, qselect=select, qstat=show)
    assert [job.job_id for job in edge.jobs()] == [
        "12[0].head",
        "12[1].head",
        "12[2].head",
        "12[4].head",
        "12[5].head",
        "13.head",
    ]
    assert commands(tmp_path, monkeypatch, qselect="true", qstat="exit 1").jobs() == []
    down = "echo 'Connection refused' >&2; exit 111"
    with pytest.raises(BatchUnavailable, match="PBS does not show its queue: Connection refused; is its server"):
        commands(tmp_path, monkeypatch, qselect=down).jobs()


def test_a_job_that_has_left_meanwhile_is_removed_without_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Any other answer is an error."""
    edge = commands(tmp_path, monkeypatch, qdel="echo 'qdel: Unknown Job Id 9.head' >&2; exit 153")
    edge.remove(["9.head", "12[0].head"])
    edge.remove([])
    edge = commands(tmp_path, monkeypatch, qdel="echo 'qdel: cannot connect to server head (errno=111)' >&2; exit 111")
    with pytest.raises(BatchUnavailable, match="PBS did not delete 1 jobs: qdel: cannot connect to server head"):
        edge.remove(["9.head"])


def test_without_pbs_every_call_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The commands are not in PATH."""
    monkeypatch.setenv("PATH", str(tmp_path))
    edge = Pbs()
    for call in (edge.jobs, lambda: edge.remove(["1.head"]), lambda: edge.submit(launch("x", tmp_path), 1)):
        with pytest.raises(BatchUnavailable, match="cannot be run: No such file or directory; run this where PBS's"):
            call()
    assert edge.outcome("1.head") is None
