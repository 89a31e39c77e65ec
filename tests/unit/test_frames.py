"""Results as dicts and as a table of pandas."""

from __future__ import annotations

import sys
from typing import Any, NamedTuple

import pytest

import mwpy
from mwpy._values.bounds import SlaveId, TaskId
from mwpy._values.errors import TaskFailed, UsageError
from mwpy._values.task import Origin, Result, UnrunnableTask


def result(number: int, tag: object = None, value: object = None, error: TaskFailed | None = None) -> Result[Any]:
    origin = Origin("fall", SlaveId("SLAVE-1"), "node1", 2, 100.0)
    return Result(TaskId(number), origin, tag, 1.5, error is not None, value if error is None else error)


def failed(number: int, tag: object = None) -> Result[Any]:
    return result(number, tag, error=TaskFailed("fall", "SLAVE-1", "ZeroDivisionError", "division by zero"))


def test_a_dict_has_everything_about_a_result() -> None:
    origin = {"slave": "SLAVE-1", "host": "node1", "attempts": 2, "started": 98.5, "finished": 100.0}
    expected = {"task_id": 7, "algorithm": "fall", "tag": "a", "value": 3, "error_type": None, "error": None}
    assert result(7, "a", 3).to_dict() == {**expected, **origin, "compute_seconds": 1.5}
    row = failed(8).to_dict()
    assert (row["value"], row["error_type"], row["error"]) == (None, "ZeroDivisionError", "division by zero")


def test_a_table_has_a_row_for_each_result() -> None:
    pytest.importorskip("pandas")
    table = mwpy.to_frame(iter([result(1, "a", 10), failed(2, "b")]))
    assert sorted(table.columns) == sorted(result(1).to_dict())
    assert list(table.columns)[:4] == ["tag", "value", "error_type", "error"]
    assert table.task_id.tolist() == [1, 2]
    assert table.tag.tolist() == ["a", "b"]
    assert table.error_type.tolist()[1] == "ZeroDivisionError"
    assert list(mwpy.to_frame([]).columns) == list(table.columns)


def test_the_keys_of_dicts_become_columns() -> None:
    """A task that failed has no value. What a dict lacks is missing in its row."""
    pytest.importorskip("pandas")
    rows = [result(1, {"x": 1, "y": 2}, {"z": 3}), failed(2, {"x": 5}), result(3, {"x": 6, "y": 7}, {"z": 8})]
    table = mwpy.to_frame(rows)
    assert list(table.columns)[:6] == ["x", "y", "z", "error_type", "error", "task_id"]
    assert table.x.tolist() == [1, 5, 6]
    assert table.y.isna().tolist() == [False, True, False]
    assert table.z.dropna().tolist() == [3, 8]


class Point(NamedTuple):
    x: int
    host: str


def test_the_fields_of_named_tuples_become_columns() -> None:
    pytest.importorskip("pandas")
    table = mwpy.to_frame([result(1, Point(1, "a"), Point(2, "b")), result(2, (3, "c"), 5)])
    assert list(table.columns)[:6] == ["tag", "x", "tag.host", "value", "value.x", "value.host"]
    assert table["tag.host"].tolist()[0] == "a"
    assert table["tag"].tolist()[1] == (3, "c")


def test_a_key_that_is_the_name_of_another_column_gets_a_prefix() -> None:
    pytest.importorskip("pandas")
    rows = [result(1, {"host": 1, "x": 2, 3: 4}, {"x": 5, "value": 6, "3": 7}), result(2, "plain", 8)]
    table = mwpy.to_frame(rows)
    expected = ["tag", "tag.host", "x", "3", "value", "value.x", "value.value", "value.3"]
    assert list(table.columns)[:8] == expected
    assert table["tag"].tolist()[1] == "plain"
    assert table["value"].tolist()[1] == 8


def test_results_that_were_read_before_are_no_empty_table() -> None:
    pytest.importorskip("pandas")
    results = (each for each in [result(1, "a", 10)])
    assert len(mwpy.to_frame(results)) == 1
    with pytest.raises(UsageError, match="these results were read before"):
        mwpy.to_frame(results)


def test_the_remedy_of_a_failure_is_in_its_row() -> None:
    row = failed(8)
    assert row.error is not None
    row.error.remedy = "divide by something else"
    assert row.to_dict()["error"] == "division by zero (divide by something else)"


def test_an_unrunnable_task_has_a_row_too() -> None:
    pytest.importorskip("pandas")
    task = UnrunnableTask(TaskId(1), "fall", None, "a", "no reason", (), b"", (), Origin("fall", None, None, 0, 1.0))
    table = mwpy.to_frame([task])
    assert table.error_type.tolist() == ["TaskUnrunnable"]
    assert table.error.tolist() == ["no reason"]


def test_what_is_no_result_is_refused() -> None:
    pytest.importorskip("pandas")
    with pytest.raises(UsageError, match="needs results, not a int"):
        mwpy.to_frame([3])  # type: ignore[list-item]


def test_without_pandas_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(UsageError, match="pip install pandas"):
        mwpy.to_frame([])
