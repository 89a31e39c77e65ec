"""Batch systems with a queue: what is submitted, and how the answers of their commands are read.

`tests/batch` runs real HTCondor, Slurm and Grid Engine. No test runs a real PBS, because no package has it: its outputs
have the form that OpenPBS 23.06 shows.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from attrs import evolve

from mwpy._batch import BatchUnavailable, Launch, htcondor, pbs, sge, slurm
from mwpy._batch._queued import Language, Queued
from mwpy._values.errors import UsageError
from mwpy._values.jobs import End, Job, JobState, Outcome

ROOT = Path(__file__).parents[2]
POLICY, SLAVES = ROOT / "condor" / "policy.sub", ROOT / "slurm" / "slaves.sbatch"

HELD, LEAVING, QUEUED, RUNNING = JobState.HELD, JobState.LEAVING, JobState.QUEUED, JobState.RUNNING

CONDOR, SLURM, SGE, PBS = htcondor.LANGUAGE, slurm.LANGUAGE, sge.LANGUAGE, pbs.LANGUAGE

SCRIPTS: dict[str, tuple[Callable[[Launch], str], dict[str, str]]] = {
    "slurm": (slurm.script, {"SLURM_ARRAY_JOB_ID": "7", "SLURM_ARRAY_TASK_ID": "3"}),
    "sge": (sge.script, {"JOB_ID": "7", "SGE_TASK_ID": "3", "HOSTNAME": "n1"}),
    "pbs": (pbs.script, {"PBS_JOBID": "7[3].head"}),
}
"""What makes the script of a job, and the variables that a job has in each batch system."""

SUBMITTING: dict[str, tuple[type[Queued], dict[str, str], str]] = {
    "sge": (sge.GridEngine, {"qsub": "echo 7.1-9:1"}, "7.3"),
    "pbs": (pbs.Pbs, {"qsub": "echo '7[].head'"}, "7[3].head"),
}
"""Batch systems whose jobs write how they ended; the answer to a submission, and a job."""


def launch(command: str, folder: Path, *extra: str, slaves: int = 1, **fields: Any) -> Launch:
    words = ("/bin/sh", "-c", command, "--mw-slave", "--", "own")
    return Launch("m", str(folder / "r"), words, slaves, str(folder), extra, **fields)


def run_script(system: str, given: Launch, folder: Path, **variables: str) -> tuple[int, str, str]:
    """Run the script of a job. Return its exit code, and what it or the batch system wrote."""
    script, environment = SCRIPTS[system]
    environment = {"PATH": "/usr/bin:/bin", "PBS_O_WORKDIR": str(folder), **environment, **variables}
    command = ["/bin/sh", "-c", script(given)]
    done = subprocess.run(command, env=environment, cwd=folder, capture_output=True, text=True, check=False)
    if system != "pbs":
        return done.returncode, done.stdout, done.stderr
    out, err = (Path(given.log_dir, f"m.{environment['PBS_JOBID']}.{name}").read_text() for name in ("out", "err"))
    return done.returncode, out, err


@pytest.fixture
def commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """Makes a batch system with these scripts as its commands."""

    def make(kind: type[Queued], **scripts: str) -> Queued:
        for name, text in scripts.items():
            (tmp_path / name).write_text(f"#!/bin/sh\n{text}\n")
            (tmp_path / name).chmod(0o755)
        monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
        monkeypatch.setenv("LOGNAME", "me")
        return kind()

    return make


# ---- what is submitted --------------------------------------------------------------------------------------


LAUNCH = Launch(
    "cubes-0123456789ab",
    "/home/me/cubes.rsc",
    ("/env/bin/python", "/home/me/cubes.py", "--mw-slave", "--mw-slave-processes", "4", "it's", 'a "word"', "", "$(X)"),
    4,
    "/home/me/logs",
    ("request_memory = 3GB", "+Project = x"),
)


def described(launch: Launch, *transfer: Path) -> dict[str, str]:
    """Return the last line of each name, because that line counts."""
    text = htcondor.description(launch, "1GB", "2GB", transfer)
    return dict(line.split(" = ", 1) for line in text.splitlines())


def test_a_job_of_htcondor_gets_a_fresh_resource_file_and_uses_the_other_files_in_place() -> None:
    """Slaves that a user submits have the same settings."""
    found = described(LAUNCH)
    assert (found["executable"], found["transfer_executable"]) == ("/env/bin/python", "false")
    assert found["transfer_input_files"] == "/home/me/cubes.rsc"
    assert found["environment"] == f'"MWPY_JOB=$(CLUSTER).$(PROCESS) {htcondor.END} {htcondor.MEMORY}"'
    assert found["MY.MwpyMark"] == '"cubes-0123456789ab"'
    assert found["error"] == "/home/me/logs/cubes-0123456789ab.$(CLUSTER).$(PROCESS).err"
    assert found["batch_name"] == "cubes"
    assert (found["request_memory"], found["request_disk"], found["+Project"]) == ("3GB", "2GB", "x")
    assert "on_exit_remove" not in found
    policy = POLICY.read_text()
    assert f"END = {htcondor.END}\n" in policy
    assert f"HAS = {htcondor.MEMORY}\n" in policy
    assert f"job_lease_duration = $(LEASE:{found['job_lease_duration']})\n" in policy


def test_every_argument_arrives_in_htcondor_unchanged() -> None:
    """This includes quotes, empty arguments, and text that looks like a variable of HTCondor."""
    assert described(LAUNCH)["arguments"] == (
        "\"'/home/me/cubes.py' '--mw-slave' '--mw-resource-file' 'cubes.rsc' '--mw-slave-processes' '4' "
        "'it''s' 'a \"\"word\"\"' '' '$(DOLLAR)(X)'\""
    )


def test_transferred_files_are_named_as_they_are_named_in_the_job() -> None:
    """HTCondor would read a name with a comma as two names."""
    found = described(LAUNCH, Path("/home/me/cubes.py"), Path("/home/me/data.txt"))
    assert found["transfer_input_files"] == "/home/me/cubes.rsc, /home/me/cubes.py, /home/me/data.txt"
    assert found["arguments"].startswith("\"'cubes.py' '--mw-slave'")
    assert found["transfer_executable"] == "false"
    found = described(LAUNCH, Path("/env/bin/python"))
    assert (found["transfer_input_files"], found["transfer_executable"]) == ("/home/me/cubes.rsc", "true")
    with pytest.raises(BatchUnavailable, match="rename it"):
        described(LAUNCH, Path("/home/me/a,b"))


def test_a_prologue_is_what_htcondor_starts() -> None:
    """A program that is transferred is found in the folder of the job."""
    given = evolve(LAUNCH, prologue="module load gcc", name="mine")
    found = described(given)
    assert (found["executable"], found["batch_name"]) == ("/bin/bash", "mine")
    assert "'module load gcc' '/env/bin/python' '/home/me/cubes.py' '--mw-slave'" in found["arguments"]
    found = described(given, Path("/env/bin/python"))
    assert (found["executable"], found["transfer_executable"]) == ("/bin/bash", "false")
    assert "'module load gcc' './python' '/home/me/cubes.py'" in found["arguments"]
    assert found["transfer_input_files"] == "/home/me/cubes.rsc, /env/bin/python"


AMOUNTS = (("cpus", 2), ("disk", 1 << 30), ("gpus", 1), ("licence", 1), ("memory", 3 << 30))


@pytest.mark.parametrize(
    ("make", "asked"),
    [
        (slurm.script, ["#SBATCH --cpus-per-task=8", "#SBATCH --gres=gpu:4", "#SBATCH --mem=12416M"]),
        (sge.script, ["#$ -pe smp 8", "#$ -l gpu=4", "#$ -l mem_free=1552M", "export SLURM_MEM_PER_NODE=12416"]),
        (pbs.script, ["#PBS -l select=1:ncpus=8:ngpus=4:mem=12416mb", "export SLURM_MEM_PER_NODE=12416"]),
        (
            lambda given: htcondor.description(given, "1GB", "1GB", ()),
            ["request_cpus = 8", "request_gpus = 4", "request_memory = 12416MB", "request_disk = 4224MB"],
        ),
    ],
    ids=["slurm", "sge", "pbs", "htcondor"],
)
def test_a_job_asks_for_what_the_tasks_of_all_its_slaves_require(
    tmp_path: Path, make: Callable[[Launch], str], asked: list[str]
) -> None:
    """Otherwise it asks for one core for each slave."""
    lines = make(launch("x", tmp_path, slaves=4, amounts=AMOUNTS)).splitlines()
    assert [line for line in asked if line not in lines] == []
    plain = make(launch("x", tmp_path))
    assert not [word for word in ("gpu", "12416", "-pe smp") if word in plain]


@pytest.mark.parametrize(
    ("make", "extra", "fields", "word", "found"),
    [
        (slurm.script, ("--exclude=a,b", "-t 5"), {"avoided": ("c", "d")}, "exclude", ["#SBATCH --exclude=a,b,c,d"]),
        (sge.script, (), {"avoided": ("n1", "n2")}, " -l", ["#$ -l hostname=!(n1|n2)"]),
        (
            sge.script,
            ("-l h=a*", "-l h_rt=5,hostname=b*|c*"),
            {"avoided": ("n1", "n2")},
            "&!",
            ["#$ -l hostname=(b*|c*)&!(n1|n2)"],
        ),
        (sge.script, ("-pe threads",), {"slaves": 4}, "-pe", ["#$ -pe threads 4"]),
        (sge.script, ("-pe threads 9",), {"slaves": 4}, "-pe", ["#$ -pe threads 9"]),
        *(
            (pbs.script, (own,), {"slaves": 4, "amounts": AMOUNTS}, " -l", [f"#PBS {own}"])
            for own in ("-l select=1:ncpus=3:mem=9gb", "-l walltime=9,mem=1gb", "-l nodes=1:ppn=4")
        ),
    ],
)
def test_the_options_of_a_user_and_of_the_overseer_are_one_where_only_one_counts(
    tmp_path: Path, make: Callable[[Launch], str], extra: tuple[str, ...], fields: Any, word: str, found: list[str]
) -> None:
    """Machines to avoid, a parallel environment without a number, and what a job of PBS needs."""
    text = make(launch("x", tmp_path, *extra, **fields))
    assert [line for line in text.splitlines() if word in line] == found
    assert "SLURM_MEM" not in text


@pytest.mark.parametrize("system", SCRIPTS)
def test_the_script_of_a_job_sets_its_id_and_runs_the_agent(tmp_path: Path, system: str) -> None:
    """A path with blanks stays one argument. The user's options come first, then the commands, then the agent."""
    folder = tmp_path / "it's a folder"
    folder.mkdir()
    directive = {"slurm": "#SBATCH", "sge": "#$", "pbs": "#PBS"}[system]
    given = launch('echo $MWPY_JOB $PLACE "$0" "$@"; exit 4', folder, "export PLACE=here", "-p 1", f"{directive} -P a")
    lines = SCRIPTS[system][0](given).splitlines()
    options = [line for line in lines if line.startswith("#")]
    assert lines[: len(options)] == options
    assert options[-2:] == [f"{directive} -p 1", f"{directive} -P a"]
    code, out, err = run_script(system, given, tmp_path)
    job = {"slurm": "7_3", "sge": "7.3", "pbs": "7[3].head"}[system]
    assert (code, err) == (4, "")
    assert out == f"{job} here --mw-slave --mw-resource-file {folder}/r -- own\n"


@pytest.mark.parametrize("system", SCRIPTS)
@pytest.mark.parametrize(("prologue", "code"), [("export PLACE='a b'", 0), ("false", 8), ("exit 3", 3)])
def test_a_prologue_runs_before_the_agent_and_its_failure_ends_the_job(
    tmp_path: Path, system: str, prologue: str, code: int
) -> None:
    """What it exports reaches the agent. The error names the line."""
    found, out, err = run_script(system, launch('echo "$PLACE"', tmp_path, prologue=prologue), tmp_path)
    assert (found, out) == (code, "a b\n" if code == 0 else "")
    assert ("mwpy: the prologue failed, exit code 1: false\n" in err) == (code == 8)


@pytest.mark.parametrize(("system", "line"), [("sge", "-l h_rt=90"), ("pbs", "-l walltime=90")])
def test_a_job_knows_its_end(tmp_path: Path, system: str, line: str) -> None:
    given = launch("echo $(($SLURM_JOB_END_TIME - $(date +%s)))", tmp_path, line)
    assert 85 <= int(run_script(system, given, tmp_path)[1]) <= 90


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
def test_a_job_of_slurm_asks_for_the_end_of_its_time_limit(
    tmp_path: Path, squeue: str | None, end: str, printed: str
) -> None:
    """The script asks for its own element of the array if the environment lacks the end. It prints no errors. The
    script for the slaves of a user asks in the same way."""
    if squeue is not None:
        (tmp_path / "squeue").write_text(f"#!/bin/sh\n{squeue}\n")
        (tmp_path / "squeue").chmod(0o755)
    variables = {"PATH": f"{tmp_path}:/usr/bin:/bin", "SLURM_JOB_END_TIME": end}
    given = launch("echo $SLURM_JOB_END_TIME", tmp_path)
    assert run_script("slurm", given, tmp_path, **variables) == (0, printed, "")
    assert f'export SLURM_JOB_END_TIME="${{SLURM_JOB_END_TIME:-$({slurm.ASK_END})}}"\n' in SLAVES.read_text()


# ---- a user's lines -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("language", "lines", "seconds"),
    [
        (SLURM, ["--time=90"], 5340),
        (SLURM, ["#SBATCH --time 1:30"], 30),
        (SLURM, ["-t 2:00:00"], 7140),
        (SLURM, ["-t1-12"], 36 * 3600 - 60),
        (SLURM, ["--time=1-2:03"], 26 * 3600 + 120),
        (SLURM, ["--time=1-2:03:04"], 26 * 3600 + 124),
        (SLURM, ["--time=90", "--time=60"], 3540),
        (SLURM, ["--time=0:30"], 0),
        (SLURM, ["--time=0"], None),
        (SLURM, ["--time=-:"], None),
        (SLURM, ["--time=UNLIMITED", "--time-min=5", "module load x", "echo --time=5"], None),
        (SLURM, [], None),
        (SGE, ["-l h_rt=90"], 90),
        (SGE, ["-l mem_free=1G,h_rt=2:00:00"], 7200),
        (SGE, ["#$ -l s_rt=1:30", "-l h_rt=600"], 90),
        (SGE, ["-l h_rt=90", "-l h_rt=60"], 60),
        (SGE, ["-l h_rt=INFINITY", ": -l h_rt=9", "-q h_rt=5"], None),
        (PBS, ["-l walltime=90"], 90),
        (PBS, ["-l select=1:ncpus=2,walltime=2:00:00"], 7200),
        (PBS, ["#PBS -l walltime=1:30", "-l walltime=10:00"], 600),
        (PBS, ["echo -l walltime=9", "-q walltime=5"], None),
        (CONDOR, ["allowed_execute_duration = 3600"], 3600),
        (CONDOR, ["Allowed_Job_Duration=7200", "allowed_execute_duration = 3600"], 3600),
        (CONDOR, ["+MaxRuntime = 60"], 60),
        (CONDOR, ["MY.MaxRuntime = 60"], 60),
        (CONDOR, ["allowed_job_duration = 2 * HOUR", "requirements = MaxRuntime > 5"], None),
    ],
    ids=str,
)
def test_the_time_limit_of_a_job_is_known_from_the_users_lines(
    language: Language, lines: list[str], seconds: float | None
) -> None:
    """A job of Slurm gets SIGTERM a minute before its limit. An expression of HTCondor is not known."""
    assert language.time_limit_s(lines) == seconds


@pytest.mark.parametrize(
    ("language", "line", "reason"),
    [
        (SLURM, "--job-name=mine", "the overseer finds its jobs by their name"),
        (SLURM, "-J mine", "the overseer finds its jobs by their name"),
        (SLURM, "#SBATCH --array=0-9", "the overseer decides how many jobs are submitted"),
        (SLURM, "-o/tmp/out", "--log-dir chooses their folder"),
        (SLURM, "--error /tmp/err", "--log-dir chooses their folder"),
        (SGE, "-N mine", "the overseer finds its jobs by their name"),
        (SGE, "#$ -t 1-9", "the overseer decides how many jobs are submitted"),
        (SGE, "-o /tmp/out", "--log-dir chooses their folder"),
        (SGE, "-sync y", "does not wait for its jobs"),
        (PBS, "-N mine", "the overseer finds its jobs by their name"),
        (PBS, "#PBS -J 0-9", "the overseer decides how many jobs are submitted"),
        (PBS, "-o /tmp/out", "--log-dir chooses their folder"),
        (CONDOR, '+MwpyMark = "mine"', "the overseer finds its jobs by their mark"),
        (CONDOR, 'my.mwpymark="mine"', "the overseer finds its jobs by their mark"),
        (CONDOR, "queue 5", "the overseer decides how many jobs are submitted"),
        (CONDOR, " Queue", "the overseer decides how many jobs are submitted"),
        (CONDOR, "universe = local", "`container_image` works there, too"),
        (CONDOR, "executable = /bin/true", "--command replaces the program"),
        (CONDOR, "arguments = 1", "--command replaces the program"),
        (CONDOR, 'environment = "A=1"', "`getenv = NAME` adds variables"),
        (CONDOR, "transfer_input_files = data", "--transfer adds others"),
        (CONDOR, "Transfer_Output_Files=results", "HTCondor brings no files back from these jobs"),
        (CONDOR, "log = /tmp/log", "--log-dir chooses their folder"),
    ],
)
def test_a_line_that_replaces_what_a_submission_sets_is_refused(language: Language, line: str, reason: str) -> None:
    with pytest.raises(UsageError) as refused:
        language.check([line])
    assert str(refused.value).startswith(f"--line={line} is refused: ")
    assert reason in str(refused.value)


def test_other_lines_are_accepted() -> None:
    SLURM.check(["--time=5", "-p short", "--export=ALL", "-A ours", "export JOB=--job-name", "--open-mode=append"])
    SGE.check(["-l h_rt=5", "-q short", "-pe smp 4", "-notify", "export NAME=-N", "#", "-"])
    PBS.check(["-l walltime=5", "-q short", "-V", "export NAME=-N"])
    own = ["request_cpus = 8", "requirements = universe == 1", "+Queue2 = 1", "getenv = HOME", "queue_limit = 3"]
    CONDOR.check(own)


# ---- what is listed -----------------------------------------------------------------------------------------


OF_SLURM = """\
1_0|RUNNING|0:01|None|n1|mwpy.a-1
4_0|PENDING|0:00|JobHeldUser||mwpy.b
5_1|PENDING|0:00|PartitionConfig||mwpy.b
6_0|PENDING|0:00|Priority||mwpy.b
7_3|COMPLETING|1:00|None|n1|mwpy.a-1
8_3|REQUEUE_HOLD|0:00|job_requeued_in_held_state||my.own.mwpy.a-1
9|RUNNING|1-02:03:04|None|n1|a|b
10|RUNNING|0:04|None|n1|mwpy
11|RUNNING|0:04|None|n1|xmwpy.a-1
"""

ENTRY = (
    "<job_list><JB_job_number>{}</JB_job_number><JAT_prio>0.5</JAT_prio><JB_name>{}</JB_name><JB_owner>me</JB_owner>"
    "<state>{}</state>{}<queue_name>{}</queue_name><slots>1</slots><tasks>{}</tasks></job_list>"
)
START = "<JAT_start_time>2026-11-29T09:11:24</JAT_start_time>"
WAITS = "<JB_submission_time>2026-11-29T09:11:24</JB_submission_time>"

OF_SGE = "<job_info><queue_info>{}{}</queue_info><job_info>{}{}{}{}{}{}</job_info></job_info>".format(
    ENTRY.format(1, "mwpy.a-1", "r", START, "all.q@n1", 2),
    ENTRY.format(1, "mwpy.a-1", "Rr", START.replace(":24", ":24.500"), "all.q@n1.site", 3),
    ENTRY.format(2, "my.mwpy.b", "qw", WAITS, "", 1),
    ENTRY.format(3, "mwpy.b", "hqw", WAITS, "", 1),
    ENTRY.format(4, "mwpy.b", "dr", START, "all.q@n1", 1),
    ENTRY.format(5, "mwpy.b", "Eqw", WAITS, "", 1),
    ENTRY.format(6, "mwpy", "r", START, "all.q@n1", 1),
    ENTRY.format(7, "other", "r", START, "all.q@n1", "1-5:1"),
)

OF_PBS = """\
Job Id: 12[].head
    Job_Name = mwpy.a-1
    Job_Owner = me@login.site
    job_state = B
    array = True
    array_state_count = Queued:1 Running:1 Exiting:1 Expired:1

Job Id: 12[0].head
    Job_Name = mwpy.a-1
    resources_used.walltime = 00:00:30
    job_state = R
    ctime = Fri Jul  1 14:42:57 2022
    exec_vnode = (n1:ncpus=4:mem=4194304kb)
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
\terminated by me@login

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


@pytest.mark.parametrize(
    ("found", "meant"),
    [
        (
            slurm.queue(OF_SLURM),
            [
                Job("1_0", "a-1", RUNNING, 1.0, host="n1"),
                Job("4_0", "b", HELD, 0.0, "JobHeldUser"),
                Job("5_1", "b", QUEUED, 0.0, "PartitionConfig"),
                Job("6_0", "b", QUEUED),
                Job("7_3", "a-1", LEAVING, host="n1"),
                Job("8_3", "a-1", HELD, 0.0, "job_requeued_in_held_state"),
            ],
        ),
        (
            sge.queue(OF_SGE, datetime(2026, 11, 29, 9, 12, 24).timestamp()),
            [
                Job("1.2", "a-1", RUNNING, 60.0, host="n1"),
                Job("1.3", "a-1", RUNNING, 59.5, host="n1.site"),
                Job("2.1", "b", QUEUED),
                Job("3.1", "b", HELD, 0.0, "it is on hold (qhold)"),
                Job("4.1", "b", LEAVING, host="n1"),
                Job("5.1", "b", HELD, 0.0, "it is in the state of an error"),
            ],
        ),
        (
            pbs.queue(OF_PBS, datetime(2022, 7, 1, 14, 44, 7).timestamp()),
            [
                Job("12[0].head", "a-1", RUNNING, 60.0),
                Job(
                    *("12[1].head", "a-1", QUEUED, 0.0),
                    "Not Running: Insufficient amount of resource: ncpus (R: 4 A: 0 T: 8)",
                ),
                Job("12[2].head", "a-1", LEAVING),
                Job("12[4].head", "a-1", LEAVING),
                Job("12[5].head", "a-1", QUEUED),
                Job("13.head", "b-0123456789ab", HELD, 0.0, "it is on hold (qhold)"),
            ],
        ),
        (slurm.queue("") + sge.queue("<job_info/>", 0.0) + pbs.queue("", 0.0), []),
    ],
    ids=["slurm", "sge", "pbs", "nothing"],
)
def test_only_jobs_of_mwpy_are_read_from_the_queue(found: list[Job], meant: list[Job]) -> None:
    """Each has its mark, its state, the seconds since its start, its machine, and why it waits. An array of PBS as a
    whole is no job, and the environment of a job may mislead."""
    assert found == meant


@pytest.mark.parametrize(
    ("ad", "state", "running_s", "note"),
    [
        (
            {"JobStatus": 1, "LastRejMatchReason": "no match found "},
            *(QUEUED, 0.0, "no match found (`condor_q -better-analyze 17.3` says which machines match)"),
        ),
        ({"JobStatus": 2, "JobCurrentStartDate": 90}, RUNNING, 10.0, ""),
        ({"JobStatus": 2, "JobCurrentStartDate": 101}, RUNNING, 0.0, ""),
        ({"JobStatus": 1, "JobCurrentStartDate": 90}, QUEUED, 0.0, ""),
        ({"JobStatus": 3}, LEAVING, 0.0, ""),
        ({"JobStatus": 4}, LEAVING, 0.0, ""),
        ({"JobStatus": 5, "HoldReason": "no", "HoldReasonCode": 13}, HELD, 0.0, "no (code 13, sub code ?)"),
        (
            {"JobStatus": 5, "HoldReason": "Failed to execute", "HoldReasonCode": 6, "HoldReasonSubCode": 2},
            *(HELD, 0.0, f"Failed to execute (code 6, sub code 2). {htcondor.UNSEEN}"),
        ),
        (
            {"JobStatus": 5, "HoldReason": "'ResidentSetSize > 1024 * RequestMemory'", "HoldReasonCode": 3},
            *(HELD, 0.0, f"'ResidentSetSize > 1024 * RequestMemory' (code 3, sub code ?). {htcondor.MEMORY_SHORT}"),
        ),
        ({"JobStatus": 6, "LastRejMatchReason": "/Expr(MemoryUsage)/"}, RUNNING, 0.0, ""),
        ({"JobStatus": 99}, LEAVING, 0.0, ""),
    ],
)
def test_a_job_in_the_queue_of_htcondor(
    commands: Callable[..., Any], ad: dict[str, Any], state: JobState, running_s: float, note: str
) -> None:
    """What is an expression has no value."""
    shown = {"ClusterId": 17, "ProcId": 3, "MwpyMark": "m", "ServerTime": 100, **ad}
    edge = commands(htcondor.HTCondor, condor_submit="", condor_q=f"cat <<'.'\n{json.dumps([shown])}\n.")
    assert edge.jobs() == [Job("17.3", "m", state, running_s, note)]


REASONS = """\
==============================================================
job_number:                 7
cwd:                        /gone
error reason          1:      11/29/2026 09:11:24 [20001:8246]: error: can't chdir to /gone: No such file or directory
scheduling info:            Job is in error state
==============================================================
job_number:                 8
"""


def test_the_list_of_grid_engine_says_why_a_job_is_in_error(commands: Callable[..., Any], tmp_path: Path) -> None:
    entry = ENTRY.format(7, "mwpy.a", "Eqw", WAITS, "", 1)
    shown = f"case $1 in -xml) echo '<job_info>{entry}</job_info>';; -j) cat {tmp_path}/reasons;; esac"
    (tmp_path / "reasons").write_text(REASONS)
    [job] = commands(sge.GridEngine, qstat=shown).jobs()
    assert job.note == "error: can't chdir to /gone: No such file or directory"


def test_pbs_is_asked_for_the_jobs_of_this_user_only(commands: Callable[..., Any], tmp_path: Path) -> None:
    """A job that has ended in between is no error."""
    (tmp_path / "queue").write_text(OF_PBS)
    select = '[ "$*" = "-u me" ] && printf "12[].head\\n13.head\\n15.head\\n"'
    show = f'[ "$*" = "-f -t 12[].head 13.head 15.head" ] && cat {tmp_path}/queue'
    show += '; echo "qstat: Unknown Job Id 15.head" >&2; exit 153'
    found = commands(pbs.Pbs, qselect=select, qstat=show).jobs()
    assert [job.job_id for job in found] == [*(f"12[{number}].head" for number in (0, 1, 2, 4, 5)), "13.head"]
    assert commands(pbs.Pbs, qselect="true", qstat="exit 1").jobs() == []


@pytest.mark.parametrize(
    ("kind", "scripts", "message"),
    [
        (sge.GridEngine, {"qstat": "echo no"}, "what Grid Engine's qstat shows cannot be read"),
        (pbs.Pbs, {"qselect": "echo refused >&2; exit 1"}, "PBS does not show its queue: refused; is its server run"),
        (htcondor.HTCondor, {"condor_submit": "", "condor_q": "echo '[{'"}, "HTCondor's answer cannot be read: .*; is"),
    ],
)
def test_a_list_that_cannot_be_read_is_an_error(
    commands: Callable[..., Any], kind: type[Queued], scripts: dict[str, str], message: str
) -> None:
    """It is never taken as a shorter list."""
    with pytest.raises(BatchUnavailable, match=message):
        commands(kind, **scripts).jobs()


# ---- how jobs ended -----------------------------------------------------------------------------------------


SHOWN = (
    "JobId=2 ArrayJobId=1 ArrayTaskId=0 JobName=mwpy.a b UserId=submit(20001) GroupId=submit(20001) MCS_label=N/A "
    "Priority=4294901759 Nice=0 Account=(null) QOS=(null) JobState={} Reason=NonZeroExitCode Dependency=(null) "
    "Requeue=1 Restarts=0 BatchFlag=1 Reboot=0 ExitCode={} RunTime=1-00:00:03 TimeLimit=00:05:00 TimeMin=N/A "
    "ReqB:S:C:T=0:0:*:* NodeList=n1 CPUs/Task=1 Command=/w/job.sh 2 4 WorkDir=/w StdErr={} StdIn=/dev/null "
    "StdOut=/w/1_0.out Power= \n"
)

ACCOUNTS = """\
==============================================================
qname        all.q
hostname     {}
jobname      mwpy.a-1
taskid       2
end_time     Sun Nov 29 09:10:43 2026
failed       {}
exit_status  {}
ru_wallclock {}
category     NONE
"""

FIRST = ACCOUNTS.format("n0", "25  : rescheduling", "0", "1s")
"""If a job ran several times, its last end counts."""

HISTORY = """\
Job Id: 12[0].head
    Job_Name = mwpy.a-1
    resources_used.walltime = 00:01:05
    job_state = F
    exec_host = n1/0*4
    Exit_status = {}
    comment = Job run at Fri Jul 01 at 14:43 on (n1:ncpus=4) and failed
"""


def of_slurm(state: str, code: str) -> Outcome | None:
    return slurm.outcome(SHOWN.format(state, code, "/none/such"), "last words")


def of_sge(failed: str, status: str) -> Outcome | None:
    return sge.outcome(FIRST + ACCOUNTS.format("n1", failed, status, "7s"), "last words")


def of_pbs(status: str) -> Outcome | None:
    return pbs.outcome(HISTORY.format(status), "last words")


SIGKILL = "killed by signal 9 (SIGKILL)"


@pytest.mark.parametrize(
    ("found", "end", "text", "exit_code", "ran_s"),
    [
        (of_slurm("COMPLETED", "0:0"), End.EXITED, "exit code 0", 0, 86403.0),
        (of_slurm("FAILED", "4:0"), End.EXITED, "exit code 4", 4, 86403.0),
        (of_slurm("FAILED", "0:10"), End.KILLED, "killed by signal 10 (SIGUSR1)", None, 86403.0),
        (of_slurm("FAILED", "0:53"), End.KILLED, "killed by signal 53", None, 86403.0),
        (of_slurm("TIMEOUT", "0:15"), End.REMOVED, "its time limit was reached", None, 86403.0),
        (of_slurm("NODE_FAIL", "0:0"), End.LOST, "its node failed", None, 86403.0),
        (of_slurm("OUT_OF_MEMORY", "0:125"), End.KILLED, "killed by Slurm: out of memory", None, 86403.0),
        (of_sge("0", "0"), End.EXITED, "exit code 0", 0, 7.0),
        (of_sge("0", "4"), End.EXITED, "exit code 4", 4, 7.0),
        (of_sge("100 : assumedly after job", "137                  (Killed)"), End.KILLED, SIGKILL, None, 7.0),
        (of_sge("37  : qmaster enforced h_rt", "137"), End.REMOVED, "Grid Engine says: qmaster", None, 7.0),
        (of_sge("26  : opening input/output file", "0"), End.LOST, "Grid Engine says: opening input", None, 7.0),
        (of_pbs("0"), End.EXITED, "exit code 0", 0, 65.0),
        (of_pbs("4"), End.EXITED, "exit code 4", 4, 65.0),
        (of_pbs("137"), End.KILLED, SIGKILL, None, 65.0),
        (of_pbs("265"), End.KILLED, SIGKILL, None, 65.0),
        (of_pbs("-29"), End.REMOVED, "its time limit was reached", None, 65.0),
        (of_pbs("-27"), End.KILLED, "killed by PBS: it used more memory than it had asked for", None, 65.0),
        (of_pbs("-3"), End.LOST, "PBS says: Job run at Fri Jul 01", None, 65.0),
    ],
)
def test_the_records_of_a_job_say_how_it_ended(
    found: Outcome | None, end: End, text: str, exit_code: int | None, ran_s: float
) -> None:
    """There is an exit code only if the job exited by itself."""
    assert found is not None
    assert (found.end, found.exit_code, found.ran_s, found.stderr) == (end, exit_code, ran_s, "last words")
    assert found.description.startswith(text)


def test_a_job_in_the_queue_and_one_without_records_have_no_outcome() -> None:
    """A requeued job has no exit code either."""
    assert [of_slurm(state, "0:0") for state in ("PENDING", "RUNNING", "COMPLETING", "REQUEUED")] == [None] * 4
    assert (slurm.outcome("", ""), sge.outcome("", ""), pbs.outcome(OF_PBS, "")) == (None, None, None)
    assert sge.outcome("error: job id 99 not found\n", "") is None


def test_the_end_of_a_long_error_file_is_kept(tmp_path: Path) -> None:
    """The name of the file may contain blanks."""
    path = tmp_path / "job 1_0.err"
    path.write_text("first\n" + "x" * 20_000 + "\nlast\n")
    found = slurm.outcome(SHOWN.format("FAILED", "1:0", path), "")
    assert found is not None
    assert found.stderr.endswith("x\nlast")
    assert len(found.stderr) < 10_000


def test_the_history_of_htcondor_says_how_a_job_ended(commands: Callable[..., Any], tmp_path: Path) -> None:
    def ended(**ad: Any) -> Outcome | None:
        times = {"JobCurrentStartDate": 100, "EnteredCurrentStatus": 104, "JobStatus": 4, "Err": str(tmp_path / "err")}
        shown = f"cat <<'.'\n{json.dumps([{**times, **ad}])}\n."
        edge: Queued = commands(htcondor.HTCondor, condor_submit="", condor_history=shown)
        return edge.outcome("17.3")

    (tmp_path / "err").write_text("last words")
    assert ended(ExitCode=3, LastRemoteHost="slot1@n1") == Outcome.of_process(3, 4.0, "last words", "n1")
    assert ended(ExitBySignal=True, ExitSignal=10, Err="/nowhere") == Outcome.of_process(-10, 4.0, "")
    removed = ended(JobStatus=3, RemoveReason="via condor_rm")
    assert removed == Outcome(End.REMOVED, "removed: via condor_rm", None, 4.0, "")


@pytest.mark.parametrize("system", SUBMITTING)
def test_the_shell_of_a_job_writes_how_the_agent_ended(
    tmp_path: Path, commands: Callable[..., Any], system: str
) -> None:
    """Nothing is left of an earlier run of the job. If the shell was killed, too, the batch system is asked."""
    kind, scripts, job = SUBMITTING[system]
    edge = commands(kind, **scripts)
    given = launch("echo last words >&2; exit 4", tmp_path)
    edge.submit(given, 9)
    _, _, err = run_script(system, given, tmp_path)
    (tmp_path / f"m.{job}.err").write_text(err)
    found = edge.outcome(job)
    assert found is not None
    assert (found.description, found.exit_code, found.stderr) == ("exit code 4", 4, "last words")
    assert found.host == ("n1" if system == "sge" else "")
    run_script(system, launch("kill -9 $$", tmp_path), tmp_path)
    killed = edge.outcome(job)
    assert killed is not None
    assert killed.description.startswith(SIGKILL)
    run_script(system, launch("kill -9 $PPID", tmp_path), tmp_path)
    assert edge.outcome(job) is None


def test_grid_engine_is_asked_where_no_shell_has_written_an_outcome(
    tmp_path: Path, commands: Callable[..., Any]
) -> None:
    (tmp_path / "accounts").write_text(ACCOUNTS.format("n1", "0", "3", "7"))
    edge = commands(sge.GridEngine, qacct=f'[ "$*" = "-j 1 -t 2" ] && cat {tmp_path}/accounts')
    assert edge.outcome("1.2") == Outcome(End.EXITED, "exit code 3", 3, 7.0, "", "n1")
    assert edge.outcome("1.3") is None


@pytest.mark.parametrize("send", [os.killpg, os.kill], ids=["to all processes", "to the shell"])
@pytest.mark.parametrize(
    ("system", "number"),
    [("sge", signal.SIGUSR1), ("sge", signal.SIGUSR2), ("sge", signal.SIGTERM), ("pbs", signal.SIGTERM)],
)
def test_an_agent_gets_sigterm_when_the_end_of_its_job_is_announced(
    tmp_path: Path, system: str, number: signal.Signals, send: Callable[[int, int], None]
) -> None:
    """The batch system sends a signal to all processes of the job. The exit code is that of the agent."""
    agent = f"trap 'trap \"\" TERM; exit 5' TERM; echo up >{tmp_path}/up; while :; do sleep 0.05; done"
    script, variables = SCRIPTS[system]
    os.mkfifo(tmp_path / "up")
    job = subprocess.Popen(
        ["/bin/sh", "-c", script(launch(agent, tmp_path))],
        env={"PATH": "/usr/bin:/bin", "PBS_O_WORKDIR": str(tmp_path), **variables},
        start_new_session=True,
    )
    assert (tmp_path / "up").read_text() == "up\n"
    send(job.pid, number)
    assert job.wait() == 5
    assert (tmp_path / f"m.{SUBMITTING[system][2]}.end").read_text().split()[0] == "5"


# ---- what the commands answer -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "scripts", "count", "job_ids"),
    [
        (sge.GridEngine, {"qsub": "echo 12.1-3:1"}, 3, ["12.1", "12.2", "12.3"]),
        (
            sge.GridEngine,
            {"qsub": "echo 'Your job-array 12.1-3:1 (\"mwpy.m\") has been submitted'"},
            *(3, ["12.1", "12.2", "12.3"]),
        ),
        (pbs.Pbs, {"qsub": '[ "$3" = -J ] && echo "12[].head"'}, 2, ["12[0].head", "12[1].head"]),
        (pbs.Pbs, {"qsub": "echo 13.head.site"}, 1, ["13.head.site"]),
        (slurm.Slurm, {"sbatch": "echo '12;cluster'"}, 2, ["12_0", "12_1"]),
        (htcondor.HTCondor, {"condor_submit": "echo '12.0 - 12.1'"}, 2, ["12.0", "12.1"]),
    ],
)
def test_jobs_are_submitted_all_at_once(
    tmp_path: Path,
    commands: Callable[..., Any],
    kind: type[Queued],
    scripts: dict[str, str],
    count: int,
    job_ids: list[str],
) -> None:
    [(name, answer)] = scripts.items()
    edge = commands(kind, **{name: f'echo "$*" >{tmp_path}/words; cat >>{tmp_path}/words; {answer}'})
    assert edge.submit(launch("x", tmp_path, name="my"), count) == job_ids
    said = (tmp_path / "words").read_text()
    assert ("batch_name = my\n" if kind is htcondor.HTCondor else "my.mwpy.m") in said


def test_grid_engine_cannot_write_into_some_folders(commands: Callable[..., Any]) -> None:
    with pytest.raises(BatchUnavailable, match="cannot write into /a:b, because its path contains ':'"):
        commands(sge.GridEngine).submit(launch("x", Path("/a:b")), 1)


@pytest.mark.parametrize(
    ("said", "perhaps"),
    [("unknown queue", False), ("failed receiving gdi request: got read error", True), ("commlib: timeout", True)],
)
@pytest.mark.parametrize(("kind", "name"), [(sge.GridEngine, "Grid Engine"), (pbs.Pbs, "PBS")])
def test_a_submission_without_an_answer_may_have_happened(
    tmp_path: Path, commands: Callable[..., Any], kind: type[Queued], name: str, said: str, perhaps: bool
) -> None:
    edge = commands(kind, qsub=f"echo '{said}' >&2; exit 1")
    with pytest.raises(BatchUnavailable, match=f"{name} did not take 3 jobs: {said}") as caught:
        edge.submit(launch("x", tmp_path), 3)
    assert ("may be in the queue anyway" in str(caught.value)) == perhaps


GONE_SGE = """\
echo 'job 1 is already in deletion'; echo 'denied: job "9" does not exist'
echo 'me has registered the job-array task 1.2 for deletion'; exit 1"""


@pytest.mark.parametrize(
    ("kind", "gone", "name"),
    [
        (sge.GridEngine, {"qdel": GONE_SGE}, "Grid Engine"),
        (pbs.Pbs, {"qdel": "echo 'qdel: Unknown Job Id 9.head' >&2; exit 153"}, "PBS"),
        (
            htcondor.HTCondor,
            {"condor_rm": "echo 'Job 9.0 not found' >&2; exit 1", "condor_submit": ""},
            "HTCondor",
        ),
    ],
)
def test_a_job_that_has_left_meanwhile_is_removed_without_an_error(
    commands: Callable[..., Any], kind: type[Queued], gone: dict[str, str], name: str
) -> None:
    """Any other answer is an error."""
    edge = commands(kind, **gone)
    edge.remove(["9.0", "1.2"])
    edge.remove([])
    edge = commands(kind, **{next(iter(gone)): "echo 'error: cannot connect to server' >&2; exit 111"})
    with pytest.raises(BatchUnavailable, match=f"{name} did not remove 1 jobs: error: cannot connect to server"):
        edge.remove(["9.0"])


@pytest.mark.parametrize(("kind", "name"), [(slurm.Slurm, "Slurm"), (sge.GridEngine, "Grid Engine"), (pbs.Pbs, "PBS")])
def test_without_the_commands_every_call_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: type[Queued], name: str
) -> None:
    """They are not in PATH. The class for HTCondor cannot be made then."""
    monkeypatch.setenv("PATH", str(tmp_path))
    edge: Any = kind()
    for call in (edge.jobs, lambda: edge.remove(["1.1"]), lambda: edge.submit(launch("x", tmp_path), 1)):
        with pytest.raises(BatchUnavailable, match=f"cannot be run: No such file or directory; run this where {name}'"):
            call()
    assert edge.outcome("1.1") is None
    with pytest.raises(UsageError, match=r"condor_submit is not in PATH: run this on a machine where you submit jobs"):
        htcondor.HTCondor()
