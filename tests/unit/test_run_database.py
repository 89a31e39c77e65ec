"""What people read of a run database: summary, views, the queries of the guide, exports; and what pruning removes."""

from __future__ import annotations

import csv
import io
import json
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from tests.stored import (
    NOON,
    algorithm,
    allocated,
    answers,
    brought,
    keys,
    named,
    opened,
    received,
    run,
    sample,
    slave,
    submitted,
    write,
)

from mwpy._database.rows import LARGE_BYTES
from mwpy._values import records
from mwpy._values.errors import RunDatabaseError, UsageError
from mwpy._values.records import ReusedTasks
from mwpy.cli import runs
from mwpy.run_database import RunDatabase


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "run.db"


def table(path: Path, view: str, *columns: str) -> list[Any]:
    with closing(sqlite3.connect(path)) as connection:
        return connection.execute(f"SELECT {', '.join(columns)} FROM {view} ORDER BY generation, task").fetchall()


def test_the_view_of_tasks_has_a_row_for_each_task(path: Path) -> None:
    sample(path)
    assert table(path, "tasks", "task", "algorithm", "state", "attempt", "sid", "host", "seconds") == [
        (1, "square", "finished", 1, "SLAVE-0", "node1", 0.25),
        (2, "square", "finished", 1, "SLAVE-0", "node1", 2.5),
        (3, "square", "finished", 1, "SLAVE-0", "node1", 1.0),
        (4, "square", "finished", 1, "SLAVE-0", "node1", 1.0),
        (5, "square", "failed", 1, "SLAVE-1", "node2", 1.0),
        (6, "square", "finished", 2, "SLAVE-0", "node1", 1.0),
        *((task, "square", "not ended", None, None, None, None) for task in (7, 8)),
        (9, "square", "cancelled", 1, None, None, None),
        (10, "square", "unrunnable", 1, "SLAVE-0", "node1", None),
        *((task, "square", "not ended", None, None, None, None) for task in (11, 12)),
    ]


def test_the_view_of_attempts_has_a_row_for_each_attempt(path: Path) -> None:
    sample(path)
    assert table(path, "attempts", "task", "attempt", "sid", "sent", "ended", "outcome") == [
        *((task, 1, "SLAVE-0", NOON, NOON + 10, "finished") for task in (1, 2)),
        *((task, 1, "SLAVE-0", NOON, NOON + 100, "finished") for task in (3, 4)),
        (5, 1, "SLAVE-1", NOON, NOON + 20, "failed"),
        (6, 1, "SLAVE-1", NOON, NOON + 90, "crash"),
        (6, 2, "SLAVE-0", NOON + 100, NOON + 100, "finished"),
        (7, 1, "SLAVE-1", NOON, NOON + 90, "crash"),
        (7, 2, "SLAVE-0", NOON + 100, None, "no end is known"),
        (8, 1, "SLAVE-1", NOON, NOON + 90, "crash"),
        (8, 2, "SLAVE-0", NOON + 100, None, "no end is known"),
    ]


def test_a_task_that_was_answered_before_has_the_time_and_the_failure_of_its_former_attempt(path: Path) -> None:
    """Its result came with those of tasks that are not consecutive. Then the row of the results names no first task."""
    failed = (
        received({1: ValueError("not squarable")}),
        received({3: 9, 5: ValueError("no square")}, seconds=[1.0, 2.0]),
    )
    run(path, algorithm(), *slave(), submitted(1, 5), *failed)
    row = answers(path)[1].row
    reused = ReusedTasks(1, 2, 1, "square", keys(1, 2), [row] * 2, [0, 1], [1])
    run(path, algorithm(), records.ResultsReused([reused]))
    with RunDatabase(path) as database:
        found = [(each["state"], each["seconds"], each["host"], each["message"]) for each in database.tasks()]
    assert found == [("finished", 1.0, "node1", None), ("failed", 2.0, "node1", "no square")]


def test_a_task_that_must_not_run_again_is_shown_as_unrunnable(path: Path) -> None:
    run(path, algorithm(), records.TasksForbidden(named(1, 2, 0), keys(1, 2), "why"))
    assert table(path, "tasks", "task", "state", "message") == [(1, "unrunnable", "why"), (2, "unrunnable", "why")]


def test_the_summary_says_what_happened(path: Path) -> None:
    sample(path)
    with RunDatabase(path) as database:
        summary = database.summary()
    assert summary["member_id"] == "squares"
    assert summary["tasks"] == {
        "submitted": 12,
        "reused": 0,
        "finished": 5,
        "failed": 1,
        "unrunnable": 1,
        "cancelled": 1,
        "not ended": 4,
    }
    assert summary["algorithms"] == {"square": 12}
    assert summary["failures"] == [
        {"error": "ValueError", "count": 1, "task": 5, "message": "no square of this", "arguments": "5, 'cm'"}
    ]
    assert summary["lost"] == [{"cause": "crash", "attempts": 3, "seconds": 70.0}]
    assert [(each["host"], each["slaves"], each["tasks"]) for each in summary["hosts"]] == [
        ("node1", 1, 5),
        ("node2", 1, 1),
    ]
    [generation] = summary["generations"]
    assert (generation["generation"], generation["why"], generation["ended"]) == (1, "SHUTDOWN", NOON + 110)


QUERIES: list[tuple[str, list[Any]]] = [
    (
        "SELECT task, arguments, error, message FROM tasks WHERE state = 'failed'",
        [(5, "5, 'cm'", "ValueError", "no square of this")],
    ),
    (
        "SELECT task, algorithm, host, seconds FROM tasks ORDER BY seconds DESC LIMIT 1",
        [(2, "square", "node1", 2.5)],
    ),
    (
        "SELECT host, sid, count(*) AS tasks, sum(seconds) AS seconds FROM tasks WHERE sid IS NOT NULL "
        "GROUP BY host, sid",
        [("node1", "SLAVE-0", 6, 5.75), ("node2", "SLAVE-1", 1, 1.0)],
    ),
    (
        "SELECT cause, sum(count) AS attempts, sum(lost_s) AS seconds FROM losses GROUP BY cause ORDER BY seconds DESC",
        [("crash", 3, 70.0)],
    ),
    (
        "SELECT task, count(*) AS attempts, group_concat(outcome, ', ') AS outcomes FROM attempts "
        "GROUP BY generation, task HAVING count(*) > 1",
        [(6, 2, "crash, finished"), (7, 2, "crash, no end is known"), (8, 2, "crash, no end is known")],
    ),
    (
        "SELECT sid, running, cause, reason, peak_bytes FROM slaves WHERE running <> ''",
        [("SLAVE-1", "tasks 6 to 8 (square)", "crash", "signal 11", 0)],
    ),
    (
        "SELECT strftime('%Y-%m-%d %H:%M', at, 'unixepoch') AS minute, sum(count) AS results FROM results "
        "GROUP BY minute",
        [("2027-01-15 08:00", 3), ("2027-01-15 08:01", 3)],
    ),
    (
        "SELECT datetime(at, 'unixepoch') AS time, text FROM notices",
        [("2027-01-15 08:01:30", "SLAVE-1 died")],
    ),
]
"""Questions to a run database: failures, slow tasks, who did what, lost time, deaths, results a minute, messages."""


@pytest.mark.parametrize(("query", "rows"), QUERIES)
def test_the_views_answer_what_users_ask(path: Path, query: str, rows: list[Any]) -> None:
    sample(path)
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute(query).fetchall() == rows


def test_a_query_cannot_change_the_file(path: Path) -> None:
    sample(path)
    with RunDatabase(path) as database:
        assert database.query("SELECT count(*) AS n FROM failures WHERE task = ?", [5]) == [{"n": 1}]
        with pytest.raises(RunDatabaseError, match="readonly database"):
            database.query("DELETE FROM records")
        with pytest.raises(RunDatabaseError, match="no such table: nonsense"):
            database.query("SELECT * FROM nonsense")


def test_it_can_be_read_while_a_master_writes(path: Path) -> None:
    with closing(opened(path)) as writer:
        write(writer, algorithm(), submitted(1, 3))
        with RunDatabase(path) as database:
            assert database.summary()["tasks"]["not ended"] == 3
            write(writer, submitted(4, 1))
            assert database.summary()["tasks"]["not ended"] == 4


def test_a_missing_file_is_named(path: Path) -> None:
    with pytest.raises(RunDatabaseError, match=f"there is no run database {path}"):
        RunDatabase(path)
    with pytest.raises(RunDatabaseError, match=f"there is no run database {path}"):
        RunDatabase.prune(path)


def test_tasks_are_exported_as_csv_and_json_lines(path: Path, tmp_path: Path) -> None:
    sample(path)
    lines, table = io.StringIO(), tmp_path / "tasks.csv"
    with RunDatabase(path) as database:
        database.export(lines, "jsonl")
        database.export(str(table))
        expected = list(database.tasks())
    assert [json.loads(line) for line in lines.getvalue().splitlines()] == expected
    with table.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    assert rows == [{name: "" if value is None else str(value) for name, value in row.items()} for row in expected]


def test_an_unknown_format_is_refused(path: Path) -> None:
    sample(path)
    with RunDatabase(path) as database, pytest.raises(UsageError, match="give csv, jsonl"):
        database.export("tasks.parquet", "parquet")  # type: ignore[arg-type]


def test_pruning_keeps_what_a_restart_needs(path: Path) -> None:
    large, other = "x" * LARGE_BYTES, "y" * LARGE_BYTES
    sent = submitted(1, 2), allocated(named(1, 2))
    run(path, algorithm(), *slave(), *sent, received({1: large}), received({2: other}))
    reused = records.ResultsReused([ReusedTasks(1, 1, 1, "square", keys(1, 1), [answers(path)[0].row], [0])])
    run(path, algorithm(), reused, records.Ended("SHUTDOWN", "squares"))
    pruned = RunDatabase.prune(path)
    assert (pruned.attempts, pruned.results, pruned.files) == (2, 1, 1)
    assert pruned.bytes >= LARGE_BYTES
    [left] = answers(path)
    assert left.results.tasks == [1]
    with closing(opened(path)) as writer:
        assert len(bytes(writer.stored.frames(left.row)[1][0])) > LARGE_BYTES


def test_pruning_keeps_what_agents_brought_to_the_last_run(path: Path) -> None:
    run(path, algorithm(), *slave(), submitted(1, 2), allocated(named(1, 2)), received({1: 1}))
    run(path, algorithm(), *slave(), brought({2: 4}), records.Ended("SHUTDOWN", "squares"))
    assert RunDatabase.prune(path).results == 1
    assert [each.results.tasks for each in answers(path)] == [[2]]


def test_pruning_removes_no_result_if_the_last_run_was_not_complete(path: Path) -> None:
    sample(path)
    opened(path).close()
    assert (RunDatabase.prune(path).attempts, RunDatabase.prune(path).results) == (11, 0)


def test_pruning_is_refused_while_a_master_runs(path: Path) -> None:
    with closing(opened(path)), pytest.raises(RunDatabaseError, match="used by another master"):
        RunDatabase.prune(path)


def test_the_command_prints_a_summary(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sample(path)
    assert runs.main([str(path)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "squares: 1 generation of the master"
    assert lines[2:] == [
        "tasks: 12 submitted; 5 finished, 1 failed, 1 unrunnable, 1 cancelled, 4 not ended",
        "  square: 12 tasks",
        "failures:",
        "  1 ValueError, such as task 5(5, 'cm'): no square of this",
        "slaves:",
        "  node1: 1 slave, 5 results, 5.8 s of compute time",
        "  node2: 1 slave, 1 result, 1.0 s of compute time",
        "lost attempts:",
        "  3 crash, 70.0 s",
    ]


def test_the_command_offers_the_same_as_the_class(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sample(path)
    with RunDatabase(path) as database:
        summary, tasks = database.summary(), list(database.tasks())
    assert runs.main([str(path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == summary
    assert runs.main([str(path), "--export", "jsonl", "--generation", "1"]) == 0
    assert [json.loads(line) for line in capsys.readouterr().out.splitlines()] == tasks
    assert runs.main([str(path), "--prune"]) == 0
    assert capsys.readouterr().out.startswith("removed 0 old attempts, 0 unused results and 0 large values;")


def test_an_output_without_a_format_is_refused(path: Path) -> None:
    with pytest.raises(UsageError, match="--output and --generation are for --export"):
        runs.main([str(path), "--output", "tasks.csv"])
