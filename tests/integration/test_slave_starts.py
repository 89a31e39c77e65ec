"""Slaves that are forked from a template, and slaves that start as fresh interpreters: real processes."""

from __future__ import annotations

import json
import signal

import pytest
from tests.integration.apps.stage import Stage, children_of, kill, slaves_of, template_of, until


@pytest.mark.parametrize("way", ["fork", "spawn"])
def test_slaves_are_the_same_however_they_start(stage: Stage, way: str) -> None:
    """They differ in what they draw, but not with a seed. What the script left in buffers is written once for each
    process that loads it, and its exit handlers run once in each slave that ends by itself."""
    left = stage.folder / "left"
    own = ("--mw-local", 2, "--mw-slave-start", way, "--mw-audit-file", stage.audit)
    run = stage.start("started.py", left, *own)
    assert run.end() == 0, run.err
    drawn = json.loads(left.with_suffix(".json").read_text())
    pids = {each["pid"] for each in drawn}
    assert len(pids) >= 2, "only one slave drew"
    assert all(each["pid"] == each["session"] == each["made"] for each in drawn)
    numbers = [number for each in drawn for number in each["drawn"]]
    assert len({*numbers}) == len(numbers)
    assert [each["seeded"] for each in drawn[:20]] == [each["seeded"] for each in drawn[20:]]
    died = stage.audited("-> gone while it ran")
    assert len(died) == 2
    assert run.err.count("in crash") >= 2
    assert run.out.count("last words") >= 2
    loaded = run.out.count("loaded") - 2  # by the master and the agent
    assert loaded == 1 if way == "fork" else 3 <= loaded <= 4, run.out
    ended = left.read_text().split()
    assert len({*ended}) == len(ended) <= 4
    assert str(drawn[-1]["pid"]) in ended
    stage.no_process_left()


def test_a_script_that_must_not_be_copied_starts_fresh_slaves_and_says_why(stage: Stage) -> None:
    """The first of them is the template itself."""
    app = stage.folder / "unsafe.py"
    app.write_text(
        "import os, random, sys, time, mwpy\n"
        "RNG = random.Random()\n"
        "@mwpy.task_algorithm\n"
        "def draw(_):\n    time.sleep(0.1)\n    return os.getpid(), RNG.random()\n"
        "@mwpy.master_algorithm\n"
        "def master(mw, argv):\n"
        "    drawn = []\n"
        "    while len({pid for pid, _ in drawn}) < 2: drawn += mw.map(draw, range(4))\n"
        "    print(len(drawn) - len({number for _, number in drawn}))\n    return 0\n"
        "if __name__ == '__main__': sys.exit(mwpy.main())\n"
    )
    run = stage.start(str(app), "--mw-local", 2)
    assert (run.end(), run.out) == (0, "0\n"), run.err
    [line] = run.err.splitlines()
    assert line.startswith("mwpy: the slaves of this agent start as fresh interpreters, because RNG in __main__ is or")
    assert line.endswith("for example from mwpy.task_seed(), or give --mw-slave-start spawn")
    stage.no_process_left()


def test_the_template_and_its_slaves_end_with_a_killed_agent(stage: Stage) -> None:
    """The kernel ends them. A template that is stopped ends, too."""
    stage.master("count.py", "--milliseconds", 5)
    agent = stage.agent("count.py", "--mw-slave-processes", 2)
    until(lambda: bool(stage.audited("SLAVE-1 <- ")), "tasks at two slaves")
    template = template_of(agent.pid)
    assert len(slaves_of(agent.pid)) == 2
    kill(template, signal.SIGSTOP)
    mine = children_of(agent.pid)
    assert len(mine) == 3
    agent.send(signal.SIGKILL)
    agent.end()
    until(lambda: not {*mine} & {*stage.processes()}, "the end of all processes of the agent")
