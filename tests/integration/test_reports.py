"""Reports of running tasks, with real processes."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import mwpy


@pytest.fixture(scope="module")
def mw() -> Iterator[mwpy.Master]:
    with mwpy.local_master(slaves=2) as mw:
        yield mw


def learn(rate: float, goes_on: str) -> int:
    """Report in a tight loop, until a file exists."""
    step = 0
    while not Path(goes_on).exists():
        step += 1
        mwpy.report(step=step, rate=rate, pid=os.getpid())
        time.sleep(0.01)
    return step


def wait_for(mw: mwpy.Master, wanted: Callable[[mwpy.Report], bool]) -> mwpy.Report:
    """Wait for such a report. No task may end meanwhile."""
    while not any(mw.loop(timeout=0.05)):
        for report in mw.reports():
            if wanted(report):
                return report
    raise AssertionError(f"no such report, but {mw.results()}")


def test_the_master_gets_interim_values_and_cancels_the_task(mw: mwpy.Master, tmp_path: Path) -> None:
    """The other task goes on."""
    done, began = tmp_path / "done", time.monotonic()
    ids = {rate: mw.submit(mwpy.task(learn, rate, str(done)), tag=rate) for rate in (0.1, 10.0)}
    bad = wait_for(mw, lambda report: report.values["rate"] > 1)
    assert (bad.task_id, bad.tag, bad.attempt) == (ids[10.0], 10.0, 1)
    assert bad.sid.startswith("SLAVE-")
    assert bad.host
    assert 0.0 <= bad.seconds <= time.monotonic() - began
    assert mw.cancel([bad.task_id]) == [bad.task_id]
    cancelled: list[mwpy.Result[Any]] = []
    while not cancelled:
        mw.loop()
        cancelled = mw.results()
    good = wait_for(mw, lambda report: True)
    assert good.task_id == ids[0.1], "a cancelled task has reported"
    done.touch()
    mw.loop()
    [finished] = mw.results()
    assert finished.value >= good.values["step"]
    assert [(result.tag, type(result.error)) for result in cancelled] == [(10.0, mwpy.TaskCancelled)]
    assert mw.reports() == [], "a task that has ended has reported"


def test_the_report_of_an_item_of_a_map_has_the_item_as_its_tag(mw: mwpy.Master, tmp_path: Path) -> None:
    """The map goes on meanwhile. A cancelled item is a failed result."""
    done, begun = tmp_path / "done", tmp_path / "begun"
    begun.touch()
    results = mw.map_results(learn, [1.0, 2.0], [str(begun), str(done)])
    assert next(results).value == 0
    found = wait_for(mw, lambda report: True)
    assert found.tag == (2.0, str(done))
    mw.cancel([found.task_id])
    [cancelled] = results
    assert isinstance(cancelled.error, mwpy.TaskCancelled)
    assert mw.reports() == []


def report_wrongly(kind: str) -> None:
    if kind == "large":
        mwpy.report(text="x" * (64 << 10))
    else:
        mwpy.report(loss=1.0, model=lambda: (x for x in "x"), stream=(x for x in "x"))


@pytest.mark.parametrize("slaves", [0, 1])
def test_a_report_that_cannot_be_sent_is_an_error_of_the_task(slaves: int) -> None:
    with mwpy.local_master(slaves=slaves) as mw:
        large, unpicklable = mw.map_results(report_wrongly, ["large", "generator"], ordered=True)
        assert large.error is not None
        assert unpicklable.error is not None
        assert (large.error.type_name, unpicklable.error.type_name) == ("mwpy.UsageError", "mwpy.ArgumentNotPicklable")
        assert "the limit is 65536 bytes: report less, or write the values to a file" in large.error.text
        assert "the value 'stream' of the report, a generator, cannot be pickled" in unpicklable.error.text


def report_all(values: int) -> int:
    for value in range(values):
        mwpy.report(value=value)
    return values


def test_a_task_in_the_process_of_the_master_may_report() -> None:
    """Nobody gets the reports, because the task and the master algorithm have the same thread."""
    with mwpy.local_master(slaves=0) as mw:
        assert [*mw.map(report_all, [3, 1])] == [3, 1]
        mw.submit(mwpy.task(report_all, 2))
        mw.loop()
        assert mw.reports() == []


def test_the_reports_of_an_executor_are_not_for_the_algorithm(mw: mwpy.Master, tmp_path: Path) -> None:
    done = tmp_path / "done"
    with mw.executor() as executor:
        future = executor.submit(learn, 1.0, str(done))
        mw.submit(mwpy.task(learn, 2.0, str(done)))
        for _ in range(2):  # the second report is made a second later, when both tasks have reported
            assert wait_for(mw, lambda report: True).values["rate"] == 2.0
        done.touch()
        assert future.result() > 0
    mw.loop()
    assert len(mw.results()) == 1
