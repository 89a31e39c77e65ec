"""Results that are compared between hosts: real processes, each of which says that it is on a host of its own."""

from __future__ import annotations

import re

from tests.integration.apps.stage import Running, Stage, until


def begin(stage: Stage, percent: int, tasks: int, hosts: list[str], *more: object) -> Running:
    """Run tasks on agents of different hosts. They begin when all slaves are ready."""
    ready = stage.folder / "ready"
    master = stage.master("verified.py", "--mw-verify", percent, tasks, ready, *more)
    for host in hosts:
        stage.start("verified.py", "--mw-slave", "--mw-resource-file", stage.resource, variables={"SAYS_HOST": host})
    until(lambda: len(stage.audited("-> idle")) >= len(hosts), "all slaves")
    ready.touch()
    return master


def run(stage: Stage, percent: int, tasks: int, hosts: list[str]) -> Running:
    """Run tasks to their end."""
    master = begin(stage, percent, tasks, hosts)
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


def named_in(lines: list[str], before: str) -> list[int]:
    """Return the ids of tasks that stand in lines of the audit file behind a text."""
    texts = ",".join(line.partition(before)[2] for line in lines)
    ranges = [(int(first), int(last or first)) for first, last in re.findall(r"(\d+)(?:-(\d+))?", texts)]
    return [number for first, last in ranges for number in range(first, last + 1)]


def test_wrong_results_that_were_given_out_before_are_named(stage: Stage) -> None:
    """Nothing is computed again, because the algorithm does not ask."""
    master = run(stage, 10, 200, ["right-1", "wrong", "right-2"])
    named = named_in(stage.audited("DOUBTED results that only wrong"), "computed: tasks ")
    assert named, master.err
    assert {*master.report["wrong"]} == {*named}
    assert not stage.audited("CORRECTED")


def test_wrong_results_that_were_given_out_before_are_computed_again(stage: Stage) -> None:
    """When the algorithm asks: all of them, each once, on another host, with the ids and the items of the map."""
    outvoted = stage.folder / "outvoted"
    master = begin(stage, 10, 30, ["right-1", "wrong", "right-2"], outvoted)
    stage.until_audited("outvoted: wrong")
    outvoted.touch()
    assert master.end() == 0, master.err
    report, corrected = master.report, master.report["corrected"]
    assert report["wrong"], master.err
    assert {*report["wrong"]} <= {*corrected}
    assert len({*corrected}) == len(corrected)
    assert (report["wrong again"], report["misnamed"], report["later"]) == ([], [], 0)
    assert sorted(named_in(stage.audited("CORRECTED results"), "for tasks ")) == sorted(corrected)
    assert "mw.corrections() computes them again" in master.err


def test_a_restart_computes_results_in_doubt_again(stage: Stage) -> None:
    """The algorithm has not asked for it, and has got wrong results. After a restart, it gets right ones."""
    options = "--mw-run-database", stage.folder / "run.db"
    first = begin(stage, 10, 100, ["right-1", "wrong", "right-2"], *options)
    assert first.end() == 0, first.err
    assert first.report["wrong"], first.err
    for left in (stage.resource, stage.audit, stage.folder / "ready"):
        left.unlink()
    again = begin(stage, 10, 100, ["right-1", "right-2"], *options)
    assert again.end() == 0, again.err
    assert again.report["wrong"] == []
    assert "are in doubt, because other hosts outvoted the host that computed them" in again.err
    assert stage.audited("REUSED"), again.err


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
