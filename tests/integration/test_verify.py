"""Results that are compared between hosts: real processes, each of which says that it is on a host of its own."""

from __future__ import annotations

import re

from tests.integration.apps.stage import Running, Stage, until


def run(stage: Stage, percent: int, tasks: int, hosts: list[str]) -> Running:
    """Run tasks on agents of different hosts. They begin when all slaves are ready."""
    ready = stage.folder / "ready"
    master = stage.master("verified.py", "--mw-verify", percent, tasks, ready)
    for host in hosts:
        stage.start("verified.py", "--mw-slave", "--mw-resource-file", stage.resource, variables={"SAYS_HOST": host})
    until(lambda: len(stage.audited("-> idle")) >= len(hosts), "all slaves")
    ready.touch()
    assert master.end() == 0, master.err
    assert master.report["tasks"] == tasks
    return master


def test_no_wrong_result_is_given_out_if_every_task_is_verified(stage: Stage) -> None:
    """The host that computes wrongly is named, and gets no more work."""
    master = run(stage, 100, 60, ["right-1", "wrong", "right-2"])
    assert master.report["wrong"] == []
    assert "host wrong computed another result of task" in master.err
    assert "host wrong gets no more work" in master.err
    assert "host right" not in master.err, master.err
    for line in stage.audited("DIFFERENT results"):
        assert line.endswith("outvoted: wrong")
    assert stage.audited("computed the same")


def test_wrong_results_that_were_given_out_before_are_named(stage: Stage) -> None:
    master = run(stage, 10, 200, ["right-1", "wrong", "right-2"])
    doubted = [line.partition("computed: tasks ")[2] for line in stage.audited("DOUBTED results that only wrong")]
    named = {
        number
        for first, last in re.findall(r"(\d+)(?:-(\d+))?", ",".join(doubted))
        for number in range(int(first), int(last or first) + 1)
    }
    assert named, master.err
    assert {*master.report["wrong"]} == named


def test_two_hosts_that_differ_are_both_named(stage: Stage) -> None:
    """Nobody knows which one is right, so the algorithm gets the first answers."""
    master = run(stage, 100, 20, ["right-1", "wrong"])
    assert "computed different results of task" in master.err
    assert "right-1" in master.err
    assert stage.audited("outvoted: nobody")


def test_one_host_cannot_be_verified(stage: Stage) -> None:
    master = run(stage, 100, 20, ["right-1"])
    assert master.err.count("are not verified: no slave on another host than right-1 can run it") == 1
    assert master.report["wrong"] == []
