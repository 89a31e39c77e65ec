"""What each slave does, what failed and what was logged, for a page that somebody looks at."""

from __future__ import annotations

import pytest
from tests.unit.test_inquiries import Asked

from mwpy._core.master import answers
from mwpy._values import messages
from mwpy._values.messages import LogRow, Overview
from mwpy._values.requires import requires_of


@pytest.fixture
def asked() -> Asked:
    return Asked(task_group=1)


def detailed(asked: Asked) -> Overview:
    answer = asked.ask(messages.Ask("m", "g", detailed=True))
    assert isinstance(answer, Overview)
    return answer


def test_the_overview_has_the_status(asked: Asked) -> None:
    asked.connect()
    asked.put(1, 3)
    now = detailed(asked).status
    assert now.tasks["pending"] + now.tasks["at_slaves"] == 3
    assert now.hosts == asked.status.hosts


def test_each_slave_is_named_with_its_task_and_how_long_this_has_run(asked: Asked) -> None:
    asked.connect(slaves=2, job="4711.0")
    asked.receive(messages.SlaveReady(2), peer=b"a")
    asked.put(1)
    asked.pass_time(9.0)
    busy, idle = sorted(detailed(asked).slaves, key=lambda row: row.task == 0)
    assert (busy.host, busy.job, busy.state, busy.task, busy.algorithm) == ("node1", "4711.0", "busy", 1, "max")
    assert (busy.running_s, busy.up_s, busy.finished) == (10.0, 10.0, 0)
    assert (idle.state, idle.task, idle.running_s) == ("idle", 0, 0.0)


def test_the_work_of_a_slave_is_counted(asked: Asked) -> None:
    asked.connect()
    asked.put(1, 2)
    asked.finish(1, seconds=2.0)
    asked.finish(2, seconds=3.0)
    [row] = detailed(asked).slaves
    assert (row.finished, row.busy_s) == (2, 5.0)


def test_only_so_many_slaves_are_named(asked: Asked, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(answers, "SLAVES_SHOWN", 2)
    for name in (b"a", b"b", b"c"):
        asked.connect(name)
    found = detailed(asked)
    assert ([row.sid for row in found.slaves], found.slaves_left_out) == (["SLAVE-0", "SLAVE-1"], 1)


def test_the_reason_why_nothing_moves_is_given_only_if_nothing_moves(asked: Asked) -> None:
    assert detailed(asked).stuck == ""
    asked.put(1)
    assert "no slave is connected" in detailed(asked).stuck
    asked.connect()
    assert detailed(asked).stuck == ""
    asked.finish(1)
    asked.put(2, requires=requires_of({"gpus": 1, "cpus": 0}))
    assert "gpus" in detailed(asked).stuck


def test_each_kind_of_failure_has_its_newest_example_with_the_traceback(asked: Asked) -> None:
    asked.core.answers.arguments = lambda task: (str(task), "13")
    asked.connect()
    asked.put(1, 3)
    for task, error in ((1, ValueError("one")), (2, OSError("two")), (3, ValueError("three"))):
        asked.finish(task, error=error)
    values, system = detailed(asked).examples
    assert (values.kind, values.count, values.task, values.text) == ("ValueError", 2, 3, "ValueError: three")
    assert (values.host, values.arguments, values.age_s) == ("node1", "3, 13", 1.0)
    assert "ValueError: three" in values.traceback
    assert (system.kind, system.count) == ("OSError", 1)


def test_what_the_arguments_of_failures_have_in_common_is_named(asked: Asked) -> None:
    asked.core.answers.arguments = lambda task: (str(task), "13", "'even'" if task % 2 == 0 else "'odd'")
    asked.connect()
    asked.put(1, 6)
    common = []
    for task in range(1, 7):
        asked.finish(task, error=ValueError("no"))
        common.append(detailed(asked).examples[0].common)
    assert common[:3] == ["", "", "argument 2 is 13"]
    assert common[-1] == "argument 2 is 13, argument 3 is 'odd' or 'even'"


def test_the_newest_records_of_logging_are_kept(asked: Asked, monkeypatch: pytest.MonkeyPatch) -> None:
    asked.connect()
    asked.put(1)
    row = LogRow(1, "max", 5.5, 30, "app", "a\nb", "/app.py", 12, "work", "")
    for _ in range(answers.LINES_KEPT + 5):
        asked.receive(messages.Logged(1, [row]), peer=b"a")
    lines = detailed(asked).log
    assert len(lines) == answers.LINES_KEPT
    assert (lines[-1].sid, lines[-1].host, lines[-1].task, lines[-1].text) == ("SLAVE-0", "node1", 1, "a b")


def test_work_is_counted_for_each_algorithm_at_each_host(asked: Asked) -> None:
    asked.connect()
    asked.put(1, 2)
    asked.finish(1, seconds=2.0)
    asked.finish(2, seconds=3.0)
    [row] = detailed(asked).rows
    assert (row.algorithm, row.host, row.tasks, row.seconds, row.longest_s) == ("max", "node1", 2, 5.0, 3.0)
