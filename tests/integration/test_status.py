"""`mwpy status` and `mwpy explain` ask a running master, as `mwpy.status` and `mwpy.explain` do."""

from __future__ import annotations

import itertools
import json
import os
import pty
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.integration.apps.stage import OTHER_VERSION, Running, Stage, until

import mwpy

MWPY = [sys.executable, "-m", "mwpy"]


@pytest.fixture
def master(stage: Stage) -> Iterator[Running]:
    """A master with an agent. A task has failed, and another one runs. All tasks end when the test has ended."""
    started = stage.master("several.py", "asked")
    stage.agent("several.py")
    until(lambda: _asked(stage)["tasks"]["failed"] == 1, "a failed task")
    until(lambda: _asked(stage)["tasks"]["at_slaves"] >= 1, "a task at a slave")
    yield started
    if started.process.poll() is None:
        _go(stage, started)


def _mwpy(stage: Stage, *words: object, code: int = 0) -> Running:
    """Run a command to its end."""
    run = stage.start("", *words, program=MWPY)
    assert run.end() == code, run.err
    return run


def _asked(stage: Stage) -> dict[str, Any]:
    return mwpy.status(stage.resource)


def _go(stage: Stage, master: Running) -> None:
    """Let all tasks end, and wait for the end of the computation."""
    (stage.folder / "go").touch()
    assert master.end() == 0, master.err


def test_the_command_shows_what_a_master_does(stage: Stage, master: Running) -> None:
    """It shows tasks, slaves and the last failure. No text of a task changes the terminal. The audit file has no trace,
    and afterwards the computation is said to be finished."""
    (jobs := stage.resource.with_name(f"{stage.resource.name}.jobs")).mkdir()
    (jobs / "overseer.json").write_text('{"messages": ["12:00 submits 1 job", "12:01 1 job still waits"]}')
    shown = _mwpy(stage, "status", stage.resource)
    lines = shown.out.splitlines()
    assert "overseer: 12:01 1 job still waits" in lines
    assert lines[0].startswith("default-member-id (generation ")
    assert lines[3].startswith("slaves: 1 connected")
    [failure] = [line for line in lines if line.startswith("last failure")]
    assert "task 1 (fail) on " in failure
    assert failure.endswith("ValueError: no such [31m setting")
    assert sum("AGENT" in line for line in stage.audited("CONNECTED")) <= 1
    _go(stage, master)
    ended = _mwpy(stage, "status", stage.resource)
    assert ended.out.endswith(": the computation is finished\n")
    assert _asked(stage)["state"] == "finished"


def test_scripts_read_json(stage: Stage, master: Running) -> None:
    """It is the value of `mwpy.status`. An inquirer is no agent."""
    shown = _mwpy(stage, "status", "--json", stage.resource)
    status, own = json.loads(shown.out), _asked(stage)
    assert status.keys() == own.keys()
    assert (status["state"], status["failures"]) == ("running", {"ValueError": 1})
    assert [each["agents"] for each in own["hosts"].values()] == [1]


def test_the_display_is_live_until_the_end_of_the_computation(stage: Stage, master: Running) -> None:
    """In a pipe or a file, one answer follows the other. The end of the master ends the command with 0."""
    watch = stage.start("", "status", "--watch", "--interval", 0.1, "--json", stage.resource, program=MWPY)
    until(lambda: len(watch.out.splitlines()) >= 2, "two answers")
    _go(stage, master)
    assert watch.end() == 0, watch.err
    states = [json.loads(line)["state"] for line in watch.out.splitlines()]
    assert [*dict.fromkeys(states)] == ["running", "finished"]


def test_a_terminal_is_redrawn_in_place(stage: Stage, master: Running) -> None:
    """Each display goes back to the first line of the one before. Ctrl-C ends the command with 130."""
    pid, terminal = pty.fork()
    if not pid:
        os.execv(sys.executable, [*MWPY, "status", "--watch", "--interval", "0.1", str(stage.resource)])
    seen = b""
    while seen.count(b"\x1b[J") < 2:
        seen += os.read(terminal, 1 << 16)
    os.kill(pid, signal.SIGINT)
    _, ended = os.waitpid(pid, 0)
    os.close(terminal)
    assert os.waitstatus_to_exitcode(ended) == 130
    first = seen.partition(b"\x1b[J")[0]
    assert first.endswith(b"\x1b[%dF" % first.count(b"\n"))


def test_without_a_file_or_a_master_the_reason_is_shown(stage: Stage, master: Running, tmp_path: Path) -> None:
    """A missing file: 2. A master that was killed: 4. Another generation of the master: 3."""
    missing = _mwpy(stage, "status", tmp_path / "none.rsc", code=2)
    assert "start the master first, with --mw-resource-file" in missing.err
    stale = json.loads(stage.resource.read_text()) | {"generation": "old"}
    (tmp_path / "old.rsc").write_text(json.dumps(stale))
    refused = _mwpy(stage, "status", tmp_path / "old.rsc", code=3)
    assert "refused to answer: the resource file is of generation old" in refused.err
    with pytest.raises(mwpy.Refused, match="generation old"):
        mwpy.status(tmp_path / "old.rsc")
    master.send(signal.SIGKILL)
    master.end()
    gone = _mwpy(stage, "status", stage.resource, code=4)
    assert "no master at any of its addresses" in gone.err
    with pytest.raises(mwpy.MasterUnreachable, match="is it running"):
        mwpy.status(stage.resource)


def test_a_failure_from_the_run_database_is_as_old_as_it_is(tmp_path: Path) -> None:
    """The next life of the master answers the task at once, but the failure is of the first life."""
    stored = tmp_path / "run.db"
    with mwpy.open(slaves=1, run_database=stored) as mw:
        list(mw.map_results(int, ["one"]))
    ended = time.time()
    with mwpy.open(slaves=1, run_database=stored) as mw:
        list(mw.map_results(int, ["one"]))
        asked = time.time()
        status = mw.status()
    assert status["reused"] == 1
    assert status["last_failure_age_s"] >= asked - ended


def test_a_status_counts_a_whole_map() -> None:
    """A map reads few of its items in advance, and others cannot know how many there are."""
    with mwpy.open(slaves=0) as mw:
        squares = mw.map(abs, range(1_000_000))
        next(squares)
        status = mw.status()
        assert status["maps"][0]["total"] == 1_000_000
        tasks = sum(status["tasks"].values())
        assert tasks < 1_000_000 == tasks + status["unsubmitted"]
        given = mw.map(abs, iter(range(1_000_000)), total=1_000_000)
        next(given)
        assert [each["total"] for each in mw.status()["maps"]] == [1_000_000, 1_000_000]
        unknown = mw.imap_unordered(abs, itertools.count())
        next(unknown)
        status = mw.status()
        assert status["unsubmitted"] is None
        assert None in [each["total"] for each in status["maps"]]
        for each in squares, given, unknown:
            each.close()
        mw.progress(False, total=2_000_000)
        status = mw.status()
        assert sum(status["tasks"].values()) + status["unsubmitted"] == 2_000_000


def test_a_master_of_another_version_is_not_asked(stage: Stage, master: Running) -> None:
    """Both versions are named, with the remedy."""
    shown = stage.run("", stage.resource, program=[sys.executable, "-c", OTHER_VERSION, "status"], code=3)
    assert "77 here: install the same version of mwpy" in shown.err


def test_the_command_explains_tasks(stage: Stage, master: Running) -> None:
    """Why one waits, which slave has one, how one failed. An unknown task and a finished computation give 2."""
    failed = _mwpy(stage, "explain", stage.resource, 1)
    assert failed.out.startswith("task 1 (fail) failed on ")
    assert failed.out.endswith(": ValueError: no such [31m setting\n")
    held = _mwpy(stage, "explain", stage.resource, 2, "--json")
    assert json.loads(held.out)["reasons"][0].startswith("attempt 1 is on SLAVE-0 of AGENT-0")
    assert mwpy.explain(stage.resource, 4).startswith("task 4 (wait) ")
    unknown = _mwpy(stage, "explain", stage.resource, 99, code=2)
    assert unknown.out.startswith("task 99 is unknown: 4 tasks were submitted")
    _go(stage, master)
    late = _mwpy(stage, "explain", stage.resource, 1, code=2)
    assert "is finished, so no task waits" in late.err
