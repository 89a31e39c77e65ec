"""What people read of a run database: summary, views, exports and the report; and what pruning removes."""

from __future__ import annotations

import csv
import io
import json
import sqlite3
from contextlib import closing
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from tests.stored import (
    NOON,
    SLAVE,
    algorithm,
    allocated,
    answers,
    brought,
    died,
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

import mwpy
from mwpy._database.rows import LARGE_BYTES
from mwpy._values import records
from mwpy._values.causes import Cause
from mwpy._values.errors import RunDatabaseError, UsageError
from mwpy._values.last_words import LastWords
from mwpy._values.phrases import duration
from mwpy._values.policy import TaskPolicy
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
"""Questions to a run database: failures, deaths, results a minute, messages."""


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


def test_an_unknown_format_and_an_output_without_a_format_are_refused(path: Path) -> None:
    sample(path)
    with RunDatabase(path) as database, pytest.raises(UsageError, match="give csv, jsonl"):
        database.export("tasks.parquet", "parquet")  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="--output and --generation are for --export"):
        runs.main([str(path), "--output", "tasks.csv"])


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


HOSTILE = "<script>alert('x')</script>"


class Page(HTMLParser):
    """What a page shows: its tags, its texts, the descriptions of its pictures, and the rows of its tables."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.attributes: set[str] = set()
        self.pictures: list[str] = []
        self.rows: dict[str, list[list[str]]] = {}
        self.text = ""
        self._heading, self._places = "", list[str]()
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes.update(name for name, _ in attrs)
        self.pictures += [value for name, value in attrs if name == "aria-label" and value]
        self._places.append(tag)
        if tag == "h2":
            self._heading = ""
        elif tag == "tr":
            self.rows.setdefault(self._heading, []).append([])
        elif tag in ("td", "th"):
            self.rows[self._heading][-1].append("")

    def handle_endtag(self, tag: str) -> None:
        while self._places and self._places.pop() != tag:
            pass

    def handle_data(self, data: str) -> None:
        if "style" in self._places:
            return
        self.text += data
        if "h2" in self._places:
            self._heading += data
        elif {"td", "th"} & {*self._places}:
            self.rows[self._heading][-1][-1] += data

    def row(self, heading: str, name: str) -> list[str]:
        """The cells of a row below a heading, without its name."""
        [(_, *cells)] = [row for row in self.rows[heading] if row[0].removeprefix("\N{BLACK SQUARE} ") == name]
        return cells


def report(path: Path) -> Page:
    page = path.with_suffix(".html")
    assert runs.main([str(path), "--html", str(page)]) == 0
    return Page(page)


def test_the_figures_are_those_of_the_summary(path: Path) -> None:
    sample(path)
    page = report(path)
    with RunDatabase(path) as database:
        summary = database.summary()
        [longest] = database.query("SELECT task, host, max(seconds) AS seconds FROM tasks")
    tasks, lost = summary["tasks"], summary["lost"][0]
    finished, failed, others, *_, slowest, where, _ = page.row("Tasks by algorithm", "square")[1:]
    assert [int(finished), int(failed), int(others)] == [tasks["finished"], tasks["failed"], 6]
    assert (slowest, where) == (f"{longest['seconds']:g} s", f"task {longest['task']} on {longest['host']}")
    for host in summary["hosts"]:
        slaves, count, _, seconds, *_ = page.row("Hosts", host["host"])
        assert [int(slaves), int(count)] == [host["slaves"], host["tasks"]]
        assert seconds == f"{host['seconds']:.3g} s"
    row = page.row("Lost attempts", lost["cause"])
    assert row[:3] == ["square", str(lost["attempts"]), f"{lost['seconds']:g} s"]
    assert "5 finished, 1 failed, 1 unrunnable, 1 cancelled, 4 not ended" in page.text


def test_the_time_of_slaves_is_divided_into_work_losses_and_waiting(path: Path) -> None:
    """A slave starts for 10 s, waits for 20 s, works for 40 s, waits for 5 s, loses 15 s, and waits for 10 s."""
    writer = opened(path)
    agent, connected = slave()
    write(writer, algorithm(), agent, submitted(1, 2), at=NOON)
    write(writer, connected, at=NOON + 10)
    write(writer, allocated(named(1)), at=NOON + 30)
    write(writer, received({1: 1}, seconds=[40.0]), at=NOON + 70)
    charge = records.Charge(SLAVE, Cause.EVICTED, "it left", lost_s=15.0)
    write(writer, records.TasksReturned(SLAVE, [named(2)], "it left", (charge,)), at=NOON + 90)
    write(writer, records.Ended("SHUTDOWN", "squares"), at=NOON + 100)
    writer.close()
    page = report(path)
    times = {row[0][2:]: row[1] for row in page.rows["Where the time went"][1:]}
    assert times == {
        "work": "40 s",
        "lost attempts": "15 s",
        "slaves that start": "10 s",
        "waiting for the first task": "20 s",
        "waiting between tasks": "5 s",
        "waiting at the end": "10 s",
    }
    assert (
        "40.0 % of the time of the slaves was work. The largest other part is waiting for the first task" in page.text
    )


def test_a_slow_host_is_named(path: Path) -> None:
    writer = opened(path)
    write(writer, algorithm(), *slave(), *slave("SLAVE-1", "AGENT-1", "node2"), submitted(1, 20))
    write(writer, received(dict.fromkeys(range(1, 11), 0), seconds=[1.0] * 10), at=NOON + 10)
    write(writer, received(dict.fromkeys(range(11, 21), 0), sid="SLAVE-1", seconds=[3.1] * 10), at=NOON + 40)
    writer.close()
    page = report(path)
    assert page.row("Hosts", "node2")[4] == "3.1 times slower than the others"
    assert page.row("Hosts", "node1")[4] == "3.1 times faster"
    assert "node2 is 3.1 times slower than the others." in page.text


def test_a_request_that_would_have_done_is_derived_from_what_was_used(path: Path) -> None:
    writer = opened(path)
    policy = TaskPolicy(seconds_max=600.0, memory_max=8 << 30)
    write(
        writer, algorithm(), algorithm(2, "cube"), *slave(), submitted(1, 2, policy=policy), submitted(3, 1, 2, policy)
    )
    write(writer, received({1: 1, 2: 4, 3: 9}, seconds=[10.0, 20.0, 30.0]), at=NOON + 60)
    killed = died(Cause.TIME_LIMIT, tasks=[named(2)])
    write(writer, records.Total("square", "node1", memory_used=1_000_000_000), *killed, at=NOON + 90)
    writer.close()
    page = report(path)
    asked = "at most 10 min, memory at most 8.0 GiB"
    assert page.row("Asked for and used", "cube") == [asked, "longest 30 s", "seconds_max=36"]
    more = 'more than seconds_max=600, memory="1150 MB"'
    assert page.row("Asked for and used", "square") == [asked, "longest 20 s, peak 953.7 MiB", more]


def test_versions_last_outputs_and_messages_are_shown(path: Path) -> None:
    compared = records.PackagesCompared("AGENT-0", ["numpy 2.1"], ["scipy 1.11, and 1.12 on the master"])
    words = LastWords(stderr="it fell over")
    ended = records.SlaveEnded(SLAVE, Cause.CRASH, "signal 11", "task 1 (square), attempt 1", words)
    run(path, algorithm(), *slave(), compared, submitted(1, 1), records.Notice("a message"), ended)
    page = report(path)
    assert page.row("Lives of the master, and versions", "scipy 1.11, and 1.12 on the master") == ["1"]
    assert page.row("Lives of the master, and versions", "3.11") == ["1", "1"]
    assert "Last output of SLAVE-0, which ended while it ran task 1 (square), attempt 1: crash" in page.text
    assert "it fell over" in page.text
    assert page.rows["Last messages of the master"][1][1] == "a message"


def test_names_messages_and_tracebacks_are_escaped(path: Path) -> None:
    with closing(opened(path)) as writer:
        write(writer, algorithm(name=HOSTILE), *slave(HOSTILE, "AGENT-0", HOSTILE), submitted(1, 3))
        failed = received({1: ValueError(HOSTILE + "\x1b[2J\u202e")}, sid=HOSTILE)
        write(writer, failed, calls={1: b"\x91\xa4<b>x"})
        lost = records.TaskRange(2, 1, 1, 1, HOSTILE)
        given_up = records.TasksGivenUp(SLAVE, False, [named(3)], HOSTILE)
        write(writer, *died(tasks=[lost], sid=HOSTILE), records.Notice(HOSTILE), given_up)
    page = report(path)
    assert not page.tags & {"script", "b", "link", "img", "iframe"}
    assert page.text.count(HOSTILE) >= 6
    assert r"\x1b[2J\u202e" in page.text
    assert not {"\x1b", "\u202e"} & {*page.text}


def test_the_page_loads_nothing_and_describes_its_pictures(path: Path) -> None:
    sample(path)
    page = report(path)
    assert not page.attributes & {"src", "href", "onload", "onclick"}
    assert not page.tags & {"script", "link", "img"}
    assert "url(" not in path.with_suffix(".html").read_text(encoding="utf-8")
    assert [picture.partition(" ")[0] for picture in page.pictures] == ["work", "2", "square:"]


def test_a_report_is_made_while_the_master_writes(path: Path) -> None:
    with closing(opened(path)) as writer:
        assert "was given 0 tasks" in report(path).text
        write(writer, algorithm(), *slave(), submitted(1, 3), received({1: 1}))
        assert "The master runs, or was killed" in report(path).text
        write(writer, received({2: 4}))
        assert "2 finished, 1 not ended" in report(path).text


def test_the_time_between_two_lives_of_the_master_is_left_out(path: Path) -> None:
    sample(path)
    with RunDatabase(path) as database:
        [life] = database.summary()["generations"]
    opened(path).close()
    page = report(path)
    assert "in 2 lives of its master" in page.text
    assert page.row("Lives of the master, and versions", "life 1")[1] == duration(life["ended"] - life["started"])


def test_a_real_computation_has_a_report(path: Path) -> None:
    def work(number: int) -> int:
        if number == 3:
            raise ValueError(HOSTILE)
        return number

    with mwpy.local_master(slaves=2, run_database=path) as mw:
        results = [*mw.map_results(work, range(8), memory="2 GB")]
    [failed] = [result for result in results if not result.ok]
    page, name = report(path), failed.algorithm
    assert page.row("Tasks by algorithm", name)[:3] == ["8", "7", "1"]
    assert f"ValueError: 1 task, such as task {failed.task_id}" in page.text
    assert "It ran to its end. Of its tasks, 7 finished, 1 failed." in page.text
    asked, used, request = page.row("Asked for and used", name)
    assert asked == "memory at most 2.0 GiB, cpus 1, memory 2.0 GiB"
    assert ("peak" in used) == ("memory=" in request)


def test_a_damaged_or_foreign_file_has_no_report(path: Path, tmp_path: Path) -> None:
    sample(path)
    damaged, foreign, text = (tmp_path / name for name in ("damaged.db", "foreign.db", "text.db"))
    content = bytearray(path.read_bytes())
    content[4096:] = b"\xff" * (len(content) - 4096)
    damaged.write_bytes(content)
    with closing(sqlite3.connect(foreign)) as connection:
        connection.execute("CREATE TABLE t (x)")
    text.write_text("no database " * 100)
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("UPDATE records SET body = json_set(body, '$.command', 7) WHERE kind = 'generations'")
        connection.commit()
    for file, reason in (
        (damaged, "is damaged"),
        (path, "a value in it is none"),
        (foreign, "no run database of mwpy"),
        (text, "nor any SQLite file"),
    ):
        with pytest.raises(RunDatabaseError, match=reason):
            runs.main([str(file), "--html", str(tmp_path / "report.html")])
    assert not (tmp_path / "report.html").exists()


def test_a_page_that_cannot_be_written_is_named(path: Path, tmp_path: Path) -> None:
    sample(path)
    page = tmp_path / "none" / "report.html"
    with pytest.raises(UsageError, match=r"report\.html cannot be written \(No such file or directory\)"):
        runs.main([str(path), "--html", str(page)])
