"""The last words of slaves that real tasks end: at the master, in the audit file, and in the agent's own streams."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.integration.apps.stage import SOURCES, Stage, kill, slaves_of, until

from mwpy._values.last_words import LAST_WORDS_BYTES
from mwpy.audit import read_ends

MIB = 1 << 20


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    with Stage(tmp_path) as stage:
        yield stage


def logs(*arguments: object) -> str:
    """What `mwpy logs` tells."""
    return subprocess.run(
        [sys.executable, "-m", "mwpy", "logs", *map(str, arguments)],
        env={**os.environ, "PYTHONPATH": str(SOURCES)},
        check=True,
        capture_output=True,
        text=True,
    ).stdout


@pytest.mark.parametrize(
    ("how", "cause", "fault"),
    [
        ("segfault", "SIGSEGV", "Fatal Python error: Segmentation fault"),
        ("abort", "SIGABRT", "Fatal Python error: Aborted"),
        ("closed", "SIGSEGV", "Fatal Python error: Segmentation fault"),
        ("exit", "exit code 3", ""),
    ],
)
def test_what_a_task_wrote_before_it_killed_its_slave_is_handed_back(
    stage: Stage, how: str, cause: str, fault: str
) -> None:
    """Both streams apart, and where the crash struck, even if the task closed its standard error."""
    run = stage.start("words.py", how, "--mw-local", 1, "--mw-audit-file", stage.audit)
    assert run.end() == 0, run.err
    report = run.report
    assert cause in report["reason"]
    assert (report["stdout"], report["stderr"]) == ("the task's last line\n", "a complaint\n")
    assert report["fault"].startswith(fault)
    assert ("in run\n" in report["fault"]) == bool(fault)
    assert 10 * MIB < report["peak"] < 300 * MIB
    for shown in (report["text"], logs(stage.audit, "SLAVE-0"), logs(stage.audit, 1)):
        assert fault in shown
        assert "stderr:\na complaint\nstdout:\nthe task's last line\n" in f"{shown}\n"
    assert f"{cause}" in logs(stage.audit)
    assert run.out.startswith("the task's last line\n")
    assert f"a complaint\n{fault}" in run.err
    stage.nobody_left()


def test_a_failed_result_of_a_map_shows_the_last_words_too(stage: Stage) -> None:
    run = stage.start("words.py", "segfault", "map", "--mw-local", 1)
    assert run.end() == 0, run.err
    assert "Fatal Python error: Segmentation fault" in run.report["text"]
    assert "stdout:\nthe task's last line" in run.report["text"]
    assert len(run.report["deaths"]) == 1


def test_the_peak_memory_of_a_slave_that_was_killed_is_told(stage: Stage) -> None:
    run = stage.start("words.py", "memory", "--mw-local", 1, "--mw-audit-file", stage.audit)
    assert run.end() == 0, run.err
    assert 300 * MIB < run.report["peak"] < 400 * MIB
    assert "SIGKILL" in run.report["reason"]
    [line, *_] = logs(stage.audit).splitlines()
    assert " MiB  killed by signal 9" in line


def test_a_limit_of_memory_that_python_hears_of_is_an_ordinary_failure(stage: Stage) -> None:
    run = stage.start("words.py", "limited", "--mw-local", 1, "--mw-audit-file", stage.audit)
    assert run.end() == 0, run.err
    [error] = run.report["error"]
    assert "MemoryError" in error
    assert logs(stage.audit) == ""


def test_a_flood_leaves_its_end_and_the_agent_small(stage: Stage) -> None:
    """100 MB on standard output all arrive, in order; the agent keeps no more than the end of it."""
    run = stage.start("words.py", "flood", "--mw-local", 1)
    assert run.end() == 0, run.err
    line = "x" * 99 + "\n"
    report = run.report
    assert report["stdout"] == (line * 1000 + "after the flood\n")[-LAST_WORDS_BYTES:]
    end = report["stdout"][-216:]
    assert run.out.rpartition("{")[0].endswith(end)
    assert run.out.count(line) == 1_000_000


def test_a_reader_that_is_slow_gets_all_of_a_flood(stage: Stage) -> None:
    """The slave waits for it, the agent does not, and keeps little."""
    command = [sys.executable, str(Path(__file__).parent / "apps" / "words.py"), "--mw-slave", "--mw-resource-file"]
    master = stage.master("words.py", "flood")
    reading, writing = os.pipe()
    agent = subprocess.Popen(
        [*command, str(stage.resource), "--mw-audit-file", os.devnull],
        stdout=writing,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "PYTHONPATH": str(SOURCES)},
    )
    os.close(writing)
    came, peak = [os.read(reading, 100)], 0
    [slave] = slaves_of(agent.pid)
    seen = [0] * 20
    until(lambda: waits(slave, seen), "a slave that waits")
    while chunk := os.read(reading, 1 << 20):
        came.append(chunk)
        peak = peak_of(agent.pid) or peak
    os.close(reading)
    output = b"".join(came)
    assert output.count(b"\n") == 1_000_002
    assert output.endswith(b"x\nafter the flood\n")
    assert peak < 100 * MIB
    assert master.end() == 0, master.err
    assert agent.wait() == 0


def waits(pid: int, seen: list[int]) -> bool:
    """Whether a process that writes has written nothing more for some twenty looks."""
    seen.append(int(Path(f"/proc/{pid}/io").read_text().split()[3]))
    return seen[-1] == seen[-20] > MIB


def peak_of(pid: int) -> int:
    """The most memory that a process has held, in bytes; 0 if it is gone."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM")), 0)


def test_what_a_task_left_behind_does_not_delay_the_news(stage: Stage) -> None:
    """A process in a session of its own holds the slave's streams open; the slave is buried all the same."""
    run = stage.start("words.py", "grandchild", "--mw-local", 1)
    assert run.end() == 0, run.err
    assert run.report["stdout"] == "the task's last line\n"
    assert any("sleep 1000" in command for command in stage.commands())


def test_an_evicted_agent_tells_what_its_slaves_wrote(stage: Stage) -> None:
    """The end is charged to no task, and of an agent that was killed itself it is said that nothing is known."""
    master = stage.master("words.py", "linger", "retry")
    mark = stage.folder / "lingers"
    evicted = stage.agent("words.py", "--mw-grace-period", 0.1)
    until(mark.exists, "a task that lingers")
    evicted.send(signal.SIGTERM)
    assert evicted.end() == 5, evicted.err
    mark.unlink()
    killed = stage.agent("words.py", "--mw-client-timeout", 2)
    until(mark.exists, "a task that lingers again")
    kill(killed.pid, signal.SIGKILL)
    until(lambda: len(list(read_ends(stage.audit))) == 2, "two ends")
    first, second = read_ends(stage.audit)
    assert (first.sid, first.task, first.cause) == (
        "SLAVE-0",
        1,
        "killed by its agent after its grace: evicted (SIGTERM)",
    )
    assert (first.words.stdout, first.words.stderr) == ("the task's last line\n", "a complaint\n")
    assert second.cause.endswith("its last output is lost too")
    master.send(signal.SIGINT)
    assert master.end() == 130, master.err


@pytest.fixture
def small_group() -> Iterator[Path]:
    """A control group whose memory is limited to 400 MB; only root can make one."""
    root = Path("/sys/fs/cgroup")
    old = root / "memory"
    group = (old if old.is_dir() else root) / f"mwpy-test-{os.getpid()}"
    if os.geteuid() != 0 or not os.access(group.parent, os.W_OK):
        pytest.skip("a control group with a limit of memory can be made by root only, where control groups are mounted")
    group.mkdir()
    try:
        limits = ("memory.limit_in_bytes", "memory.max")
        limit = next((group / name for name in limits if (group / name).exists()), None)
        if limit is None:
            pytest.skip("the control groups of this machine do not limit memory")
        limit.write_text(str(400 * MIB))
        yield group
    finally:
        group.rmdir()


def test_a_slave_that_runs_out_of_the_jobs_memory_is_told_of_as_such(stage: Stage, small_group: Path) -> None:
    """The kernel counts whom it kills in a control group, and that is how a batch system limits a job."""
    script = f'echo $$ > {small_group}/cgroup.procs; exec "$0" "$@"'
    app = str(Path(__file__).parent / "apps" / "words.py")
    run = stage.start("", "hog", "--mw-local", 1, program=["sh", "-c", script, sys.executable, app])
    assert run.end() == 0, run.err
    cause = "out of memory: the kernel's out-of-memory killer killed a process of this job's control group"
    assert cause in run.report["reason"]
    assert 250 * MIB < run.report["peak"] < 500 * MIB
    stage.nobody_left()


def test_an_agent_rests_while_its_slaves_say_nothing(stage: Stage) -> None:
    """It wakes up for what happens, and looks at no stream in between, not at those of a running task either."""
    stage.master("words.py", "linger")
    agent = stage.agent("words.py")
    until((stage.folder / "lingers").exists, "a task that lingers")
    time.sleep(1.0)
    before = wakes_of(agent.pid)
    time.sleep(2.0)
    assert wakes_of(agent.pid) - before <= 2


def wakes_of(pid: int) -> int:
    """How often the main thread of a process has waited for something."""
    lines = Path(f"/proc/{pid}/task/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("voluntary"))
