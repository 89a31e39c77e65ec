"""Tasks that do not run again at a restart: with `retry=False`, or with no attempt left."""

from __future__ import annotations

import sqlite3
from collections import Counter
from contextlib import closing
from typing import Any

import pytest
from tests.integration.apps.stage import Running, Stage, until

SCRIPT = """
import json, sys, time
from pathlib import Path
import mwpy
from tests.integration.apps.restarted import append
def pay(number):
    append("ran", number)
    while number % 2 and not Path("go").exists():
        time.sleep(0.01)
    return number
@mwpy.master_algorithm
def master(mw, argv):
    found = {}
    for number in range(6):
        mw.submit(mwpy.task(pay, number), tag=number, retry=False)
    while len(found) < 6:
        mw.loop()
        for result in mw.results():
            append("seen", result.tag)
            found[result.tag] = str(result.error) if result.error else result.value
    print(json.dumps(found))
    return 0
sys.exit(mwpy.main())
"""


def _start(stage: Stage, *options: str) -> Running:
    """Start the script, which is the usual one if the test has written none."""
    text = "" if (stage.folder / "script.py").exists() else SCRIPT
    options = ("--mw-slave-task-group", "1", "--mw-run-database", "run.db", *options)
    return stage.script("--mw-local", "2", *options, text=text)


def _asked(stage: Stage, query: str) -> list[tuple[Any, ...]]:
    with closing(sqlite3.connect(f"file:{stage.folder / 'run.db'}?mode=ro", uri=True)) as reading:
        return reading.execute(query).fetchall()


def test_a_task_that_must_not_run_twice_does_not_run_again_after_a_crash(stage: Stage) -> None:
    """Those that ran when the master was killed are unrunnable, and the others run. The user can let them run again."""
    first = _start(stage)
    until(lambda: sum(int(tag) % 2 for tag in stage.lines("ran")) == 2, "two tasks that wait")
    first.kill()
    stage.no_process_left()
    may_have_run = {
        str(task - 1)
        for (task,) in _asked(stage, "SELECT task FROM tasks t JOIN once o ON task = first WHERE state = 'not ended'")
    }
    ran_before = {*stage.lines("ran")}
    assert len(ran_before & may_have_run) >= 2
    (stage.folder / "go").touch()
    for _ in range(2):
        second = _start(stage).finish()
        report = second.report
        assert max(Counter(stage.lines("ran")).values()) == 1, "a task with retry=False ran twice"
        refused = {tag for tag, end in report.items() if isinstance(end, str)}
        assert refused == may_have_run
        assert all("its policy says retry=False" in report[tag] for tag in refused)
        assert {report[tag] for tag in report.keys() - refused} == {int(tag) for tag in report.keys() - refused}
    last = _start(stage, "--mw-rerun", "failed").finish()
    assert last.report == {str(number): number for number in range(6)}


def _published(stage: Stage, *options: str) -> Running:
    """Start a master for agents that are not its children."""
    stage.resource.unlink(missing_ok=True)
    where = ("--mw-master", "--mw-master-host", "127.0.0.1", "--mw-resource-file", stage.resource)
    once = "--mw-slave-task-group", "1", "--mw-run-database", "run.db"
    started = stage.script(*where, *once, *options, text=SCRIPT)
    until(lambda: stage.resource.exists() or started.process.poll() is not None, "a resource file")
    return started


def test_a_task_that_a_slave_has_not_started_runs_after_a_restart_although_it_must_not_run_twice(stage: Stage) -> None:
    """Its agent is the only one, so no other task waits when it is back."""
    group = "--mw-slave-task-group", "6"
    first = _published(stage, *group)
    agent = stage.script("--mw-slave", "--mw-resource-file", stage.resource, "--mw-slave-processes", "1")
    until(lambda: "1" in stage.lines("ran"), "a task that waits")
    assert stage.lines("ran") == ["0", "1"]
    until(lambda: _asked(stage, "SELECT sum(count) FROM once") == [(6,)], "all tasks at the slave")
    first.kill()
    second = _published(stage, *group)
    until(lambda: "back at the master" in agent.err, "the agent at the second master")
    (stage.folder / "go").touch()
    assert (second.end(), agent.end()) == (0, 0), second.err + agent.err
    assert second.report == {str(number): number for number in range(6)}
    assert sorted(stage.lines("ran")) == [str(number) for number in range(6)]


def test_a_master_whose_agents_died_with_it_says_soon_which_tasks_wait_and_how_they_run(stage: Stage) -> None:
    first = _published(stage)
    agent = stage.script("--mw-slave", "--mw-resource-file", stage.resource, "--mw-slave-processes", "2")
    until(lambda: sum(int(tag) % 2 for tag in stage.lines("ran")) == 2, "two tasks that wait")
    for process in (first, agent):
        process.kill()
    ran = {int(tag) + 1 for tag in stage.lines("ran") if int(tag) % 2}
    (stage.folder / "go").touch()
    second = _published(stage)
    until(lambda: "with retry=False may have run before" in second.err, "a message")
    until(lambda: all(f"task {task} (pay)" in second.err for task in ran), "the names, in one message or in two")
    assert f"agent (process {agent.process.pid} on " in second.err
    assert "--mw-rerun failed: then they run at once" in second.err
    second.kill()
    last = _published(stage, "--mw-rerun", "failed")
    agent = stage.script("--mw-slave", "--mw-resource-file", stage.resource)
    assert (last.end(), agent.end()) == (0, 0), last.err
    assert last.report == {str(number): number for number in range(6)}


HANGING = """
import json, sys, time
import mwpy
from tests.integration.apps.restarted import append
def simulate(row):
    append("ran", row)
    while row == 1:
        time.sleep(0.01)
    return row
@mwpy.master_algorithm
def master(mw, argv):
    policy = {"seconds_max": 0.5, "attempts_max": 1} | json.loads(argv[0])
    results = mw.map_results(simulate, range(3), **policy)
    print(json.dumps(sorted((str(result.error) if result.error else result.value for result in results), key=str)))
    return 0
sys.exit(mwpy.main())
"""


@pytest.mark.parametrize("more", ["{}", '{"retry": false, "attempts_max": 3}'])
def test_a_task_that_ran_into_its_time_limit_does_not_hang_again_at_a_restart(stage: Stage, more: str) -> None:
    """It has failed with the former reason, as often as the script is started. The user can let it run again."""
    (stage.folder / "script.py").write_text(HANGING)
    first = _start(stage, more).finish()
    *values, error = first.report
    assert values == [0, 2]
    assert "0.5 s" in error, error
    for _ in range(2):
        second = _start(stage, more).finish()
        assert second.report[:2] == [0, 2]
        assert "before the master was started again, " in second.report[2]
        assert "0.5 s" in second.report[2]
        assert "--mw-rerun failed runs it again" in second.report[2]
        assert sorted(stage.lines("ran")) == ["0", "1", "2"], "a task runs again"
    last = _start(stage, "--mw-rerun", "failed", more).finish()
    assert last.report[:2] == [0, 2]
    assert "before the master was started again" not in last.report[2]
    assert sorted(stage.lines("ran")) == ["0", "1", "1", "2"]
