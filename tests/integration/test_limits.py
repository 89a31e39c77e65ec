"""Tasks over their limits, with real slaves: what is killed, who is charged, and what happens to the other tasks."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from collections import Counter
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from tests.integration.apps.over import NEIGHBOURS
from tests.integration.apps.stage import APPS, Stage, fetched
from tests.memory_group import own_group

import mwpy
from mwpy import cli
from mwpy._values.phrases import duration


def run_over(
    stage: Stage, how: str, *options: object, program: list[str] | None = None, **policies: object
) -> dict[str, Any]:
    """Run one task that is over a limit among its neighbours. Check the neighbours; return the end of the task."""
    log = stage.folder / "log"
    arguments = how, log, json.dumps(policies), "--mw-local", 2, *options
    running = stage.run("over.py", *arguments, program=program)
    [ended] = running.report["unrunnable"]
    assert ended["tag"] == NEIGHBOURS
    others = [number for number in range(2 * NEIGHBOURS + 1) if number != NEIGHBOURS]
    assert running.report["came"] == others
    ran = Counter(map(int, log.read_text().split()))
    assert ran == {**dict.fromkeys(others, 1), NEIGHBOURS: len(ended["deaths"])}
    stage.no_process_left()
    found: dict[str, Any] = ended
    return found


@pytest.mark.parametrize(("way", "attempts"), [("fork", 1), ("fork", 2), ("spawn", 1)])
def test_a_task_over_its_time_is_killed_with_its_children(stage: Stage, way: str, attempts: int) -> None:
    """It is in C code that holds the interpreter, and it ignores SIGTERM, as its children do.

    It runs exactly `attempts_max` times. The other tasks run once each, and no process is left.
    """
    ended = run_over(stage, "time", "--mw-slave-start", way, seconds_max=0.5, attempts_max=attempts)
    assert [death["cause"] for death in ended["deaths"]] == ["TIME_LIMIT"] * attempts
    for death in ended["deaths"]:
        assert (
            f"time limit: killed by its agent because it ran task {NEIGHBOURS + 1} for more than 0.5 s" in death["text"]
        )


def test_an_option_limits_all_tasks(stage: Stage) -> None:
    ended = run_over(stage, "time", "--mw-seconds-max", 3, attempts_max=1)
    assert "for more than 3 s, its seconds_max: raise this limit" in ended["reason"]


def sleep_once(folder: str) -> float:
    """Sleep for a long time in the first attempt. Return how long this attempt took."""
    began = time.monotonic()
    try:
        (Path(folder) / "first").touch(exist_ok=False)
    except FileExistsError:
        return time.monotonic() - began
    time.sleep(1000)
    return 0.0


def test_a_task_over_its_time_is_tried_again(tmp_path: Path) -> None:
    """Its result in another slave counts."""
    with mwpy.local_master(slaves=1) as mw:
        mw.submit(mwpy.task(sleep_once, str(tmp_path)), seconds_max=1.0)
        [result] = fetched(mw, 1)
    assert (result.ok, result.attempts, result.sid) == (True, 2, "SLAVE-1")


def slave_of(seconds: float) -> int:
    time.sleep(seconds)
    return os.getpid()


def test_the_time_begins_when_the_task_starts() -> None:
    """Tasks that wait in the slave for longer than they may run are not killed."""
    with mwpy.local_master(slaves=1) as mw:
        [*pids] = mw.map(slave_of, [0.1] * 30, seconds_max=1.5, attempts_max=1)
    assert len({*pids}) == 1


def without_groups() -> list[str] | None:
    """The beginning of a command that hides the control groups from a program; None if that is not needed."""
    if own_group() is None:
        return None
    hide = 'mount -t tmpfs none /sys/fs/cgroup && exec "$@"'
    return ["unshare", "--mount", "sh", "-c", hide, "sh", sys.executable, str(APPS / "over.py")]


@pytest.mark.parametrize(("way", "how"), [("fork", "memory"), ("fork", "child"), ("spawn", "memory")])
def test_a_task_over_its_memory_is_killed_without_a_control_group(stage: Stage, way: str, how: str) -> None:
    """The memory of the slave counts, and that of the processes that the task started."""
    options = ("--mw-slave-start", way)
    ended = run_over(stage, how, *options, program=without_groups(), memory_max="200 MiB", attempts_max=2)
    assert [death["cause"] for death in ended["deaths"]] == ["OUT_OF_MEMORY"] * 2
    for death in ended["deaths"]:
        used = f"because task {NEIGHBOURS + 1} and its processes used [23].* MiB of memory, more than 200.0 MiB, its"
        assert re.search(rf"\(peak memory [23].*{used} memory_max: raise this limit", death["text"])


@pytest.mark.skipif(own_group() is None, reason="this process may not make control groups")
@pytest.mark.parametrize("how", ["memory", "child"])
def test_a_task_over_its_memory_is_killed_in_a_control_group(stage: Stage, how: str) -> None:
    """The kernel kills the process that uses most. If that is not the slave, the agent kills the slave."""
    ended = run_over(stage, how, "--mw-memory-max", "200 MiB", attempts_max=2)
    assert [death["cause"] for death in ended["deaths"]] == ["OUT_OF_MEMORY"] * 2
    assert all("its memory_max" in death["text"] for death in ended["deaths"])


def hold(size: int, folder: str) -> int:
    """Use memory for as long as it takes until it was measured several times."""
    kept = b"x" * size
    time.sleep(2.0)
    return len(kept) + len(folder)


def test_a_killed_task_has_run_as_long_as_its_limit() -> None:
    with mwpy.local_master(slaves=1) as mw:
        [result] = mw.map_results(time.sleep, [60], seconds_max=0.5, attempts_max=1)
        [longest] = re.findall(r"sleep .* 500 ms +- +(\S+ \S+)", mw.summary())
    assert 0.5 <= result.compute_seconds < 60
    assert longest == duration(result.compute_seconds)


def fill(mebibytes: int) -> int:
    return len(bytearray(mebibytes << 20)) >> 20


def run_program(mebibytes: int) -> int:
    program = f"bytearray({mebibytes} << 20)"
    return subprocess.run([sys.executable, "-c", program], check=True).returncode


@pytest.mark.parametrize("way", ["fork", "spawn"])
def test_the_summary_says_how_much_memory_each_algorithm_used_at_most(way: str) -> None:
    """Also if a task used it for an instant, without `memory_max`, and if a program used it that a task started."""
    with mwpy.local_master(slaves=1, slave_start=way) as mw:
        for _ in range(2):
            assert sum(mw.map(abs, range(100))) == 4950
            assert [*mw.map(fill, [55, 1])] == [55, 1]
        assert [*mw.map(run_program, [300])] == [0]
        assert sum(mw.map(abs, range(100))) == 4950
        rows = [line.split() for line in mw.summary().splitlines()]
    peaks = {words[0]: float(words[-2]) for words in rows if words[-1] == "MiB"}
    assert 50 < peaks["fill"] - peaks["abs"] < 60
    assert peaks["run_program"] > 300
    assert " ".join(next(words for words in rows if words[0] == "a")).endswith(
        "for each slave, and 50 MiB for its agent"
    )


def test_tasks_within_their_memory_are_not_disturbed() -> None:
    """This also holds for tasks with different limits in one slave."""
    limits = [None, "600 MiB", "400 MiB", None, "600 MiB"]
    with mwpy.local_master(slaves=1) as mw:
        for limit in limits:
            mw.submit(mwpy.task(hold, 100 << 20, ""), memory_max=limit, attempts_max=1)
        found = fetched(mw, len(limits))
    assert [result.value for result in found] == [100 << 20] * len(limits)
    assert {result.sid for result in found} == {"SLAVE-0"}


JOB_MIB = 560
"""The memory of a job: enough for two large tasks of the program `uneven` at a time, and too little for three."""


def test_a_task_that_ran_out_of_memory_is_tried_again_with_more(stage: Stage) -> None:
    """The job is short of memory while several large tasks run. All of them finish, and none is charged.

    The first amount is twice an equal share of the memory of the job. It is doubled up to `memory_max`.
    """
    trail = stage.folder / "uneven.audit"
    options = "--mw-local", 4, "--mw-audit-file", trail
    running = stage.run("several.py", "uneven", *options, variables={"SLURM_MEM_PER_NODE": str(JOB_MIB)})
    report = running.report
    assert (report["small"], report["large"]) == ([5] * 40, [150] * 6)
    text = trail.read_text()
    lost = re.findall(r"back \(task (\d+) \(hold\)\), out of memory, may use ([\d.]+) MiB now", text)
    assert len(lost) == text.count("killed by its agent because its job was short of memory: the slaves used") / 2
    assert sum(report["attempts"]) >= 6 + len(lost) > 6
    by_task: dict[str, list[float]] = {}
    for task, more in lost:
        by_task.setdefault(task, []).append(float(more))
    for amounts in by_task.values():
        assert amounts[0] <= 2 * JOB_MIB / 4
        for before, after in pairwise(amounts):
            assert after == pytest.approx(min(2 * before, 400), abs=1)
    stage.no_process_left()
    assert cli.main(["logs", str(trail), "--stats"]) == 0
