"""The last output of slaves that end by their tasks: at the master, in the audit file, and in the agent's streams."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path

import pytest
from tests.integration.apps.stage import SOURCES, Stage, kill, slaves_of, until

from mwpy import cli
from mwpy._values.last_words import LAST_WORDS_BYTES
from mwpy.audit import read_ends

MIB = 1 << 20


def logs(*arguments: object) -> str:
    """Return the output of `mwpy logs`."""
    with redirect_stdout(StringIO()) as output:
        assert cli.main(["logs", *map(str, arguments)]) == 0
    return output.getvalue()


PARTS = """
import os, mwpy

def put(_):
    print("a line", end=" ")
    os.write(1, b"of another process\\n")
    print("in parts")

with mwpy.local_master(slaves=1) as mw:
    list(mw.map(put, [1]))
"""
"""Another process writes while a task prints a line."""


@pytest.mark.parametrize("variables", [{}, {"PYTHONUNBUFFERED": "1"}])
def test_a_line_of_a_task_is_not_mixed_with_other_lines(stage: Stage, variables: dict[str, str]) -> None:
    """A slave writes whole lines, also if Python shall not buffer its output."""
    run = stage.start("", program=[sys.executable, "-c", PARTS], variables={"PYTHONUNBUFFERED": "", **variables})
    assert run.end() == 0, run.err
    assert run.out == "of another process\na line in parts\n"


@pytest.mark.parametrize(
    ("how", "cause", "fault"),
    [
        ("segfault", "SIGSEGV", "Fatal Python error: Segmentation fault"),
        ("abort", "SIGABRT", "Fatal Python error: Aborted"),
        ("closed", "SIGSEGV", "Fatal Python error: Segmentation fault"),
        ("exit", "exit code 3", ""),
    ],
)
def test_the_output_of_a_task_that_kills_its_slave_is_returned(stage: Stage, how: str, cause: str, fault: str) -> None:
    """The master gets both streams and the traceback of a crash, even if the task closed its standard error."""
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
    stage.no_process_left()


def test_a_failed_result_of_a_map_shows_the_last_output(stage: Stage) -> None:
    run = stage.start("words.py", "segfault", "map", "--mw-local", 1)
    assert run.end() == 0, run.err
    assert "Fatal Python error: Segmentation fault" in run.report["text"]
    assert "stdout:\nthe task's last line" in run.report["text"]
    assert len(run.report["deaths"]) == 1


def test_a_memory_limit_that_python_notices_is_an_ordinary_failure(stage: Stage) -> None:
    run = stage.start("words.py", "limited", "--mw-local", 1, "--mw-audit-file", stage.audit)
    assert run.end() == 0, run.err
    [error] = run.report["error"]
    assert "MemoryError" in error
    assert logs(stage.audit) == ""


def test_an_agent_stays_small_when_its_slave_writes_100_megabytes(stage: Stage) -> None:
    """All 100 MB of standard output arrive in order, and the agent keeps only the end."""
    run = stage.start("words.py", "flood", "--mw-local", 1)
    assert run.end() == 0, run.err
    line = "x" * 99 + "\n"
    report = run.report
    assert report["stdout"] == (line * 1000 + "after the flood\n")[-LAST_WORDS_BYTES:]
    end = report["stdout"][-216:]
    assert run.out.rpartition("{")[0].endswith(end)
    assert run.out.count(line) == 1_000_000


def test_a_slow_reader_gets_all_output(stage: Stage) -> None:
    """The slave waits for the reader. The agent does not wait, and stores little."""
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
    """Return whether a writing process has written nothing more in the last twenty checks."""
    seen.append(int(Path(f"/proc/{pid}/io").read_text().split()[3]))
    return seen[-1] == seen[-20] > MIB


def peak_of(pid: int) -> int:
    """Return the peak memory of a process in bytes, or 0 if it is gone."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM")), 0)


def test_a_process_that_a_task_left_behind_delays_nothing(stage: Stage) -> None:
    """A process in its own session keeps the slave's streams open. The end of the slave is reported anyway."""
    run = stage.start("words.py", "grandchild", "--mw-local", 1)
    assert run.end() == 0, run.err
    assert run.report["stdout"] == "the task's last line\n"
    assert any("sleep 1000" in command for command in stage.commands())


def test_the_output_of_the_slaves_of_a_killed_agent_is_lost(stage: Stage) -> None:
    """The audit file says so."""
    master = stage.master("words.py", "linger", "retry")
    killed = stage.agent("words.py", "--mw-client-timeout", 2)
    until((stage.folder / "lingers").exists, "a task that runs")
    kill(killed.pid, signal.SIGKILL)
    until(lambda: len(list(read_ends(stage.audit))) == 1, "the end of its slave")
    [end] = read_ends(stage.audit)
    assert end.reason.endswith("its last output is lost too")
    master.send(signal.SIGINT)
    assert master.end() == 130, master.err


@pytest.mark.parametrize(
    ("number", "options", "cause", "reason"),
    [
        (signal.SIGTERM, ("--mw-lifetime", 100), "walltime", "its time limit is near: evicted (SIGTERM)"),
        (signal.SIGTERM, ("--mw-lifetime", 1000), "evicted", "evicted (SIGTERM)"),
        (signal.SIGINT, (), "scaled down", "removed (SIGINT)"),
    ],
)
def test_the_cause_of_a_loss_says_why_the_agent_left(
    stage: Stage, number: signal.Signals, options: tuple[object, ...], cause: str, reason: str
) -> None:
    """None of them counts against the task. The last output of its slaves arrives."""
    master = stage.master("words.py", "linger", "retry")
    mark = stage.folder / "lingers"
    agent = stage.agent("words.py", "--mw-grace-period", 0.1, *options)
    until(mark.exists, "a task that runs")
    agent.send(number)
    assert agent.end() == 5, agent.err
    stage.until_audited("1 task back")
    [end] = read_ends(stage.audit)
    assert (end.sid, end.task, end.cause) == ("SLAVE-0", 1, cause)
    assert (end.words.stdout, end.words.stderr) == ("the task's last line\n", "a complaint\n")
    assert end.reason == f"killed by its agent after the grace period: {reason}"
    assert f"1 task back (task 1 (run)), {cause}: AGENT-0 is leaving" in stage.audit.read_text()
    master.send(signal.SIGINT)
    assert master.end() == 130, master.err


@pytest.fixture
def small_group() -> Iterator[Path]:
    """A control group with a memory limit of 400 MB. Only root can create it."""
    root = Path("/sys/fs/cgroup")
    old = root / "memory"
    group = (old if old.is_dir() else root) / f"mwpy-test-{os.getpid()}"
    if os.geteuid() != 0 or not os.access(group.parent, os.W_OK):
        pytest.skip(
            "only root can create a control group with a memory limit, and only where control groups are mounted"
        )
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


def test_a_slave_that_the_kernel_kills_for_lack_of_memory_is_reported(stage: Stage, small_group: Path) -> None:
    """The kernel counts kills in a control group. Batch systems limit the memory of a job in this way."""
    script = f'echo $$ > {small_group}/cgroup.procs; exec "$0" "$@"'
    app = str(Path(__file__).parent / "apps" / "words.py")
    run = stage.start("", "hog", "--mw-local", 1, program=["sh", "-c", script, sys.executable, app])
    assert run.end() == 0, run.err
    cause = "out of memory: the kernel's out-of-memory killer killed a process of this job's control group"
    assert cause in run.report["reason"]
    assert 250 * MIB < run.report["peak"] < 500 * MIB
    stage.no_process_left()


def test_an_agent_sleeps_while_its_slaves_are_silent(stage: Stage) -> None:
    """The agent wakes up only for events. It does not poll streams, not even those of a running task."""
    stage.master("words.py", "linger")
    agent = stage.agent("words.py")
    until((stage.folder / "lingers").exists, "a task that runs")
    until(lambda: wakes_within(2.0, agent.pid) <= 2, "two seconds in which the agent sleeps")


def wakes_within(seconds: float, pid: int) -> int:
    """Return how often the main thread of a process waits during some seconds."""
    before = wakes_of(pid)
    time.sleep(seconds)
    return wakes_of(pid) - before


def wakes_of(pid: int) -> int:
    """Return how often the main thread of a process has waited."""
    lines = Path(f"/proc/{pid}/task/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("voluntary"))
