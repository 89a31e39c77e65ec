"""The report of a run database: its figures, what it does with hostile texts, and files that have no report."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from html.parser import HTMLParser
from pathlib import Path

import pytest
from tests.stored import (
    NOON,
    SLAVE,
    algorithm,
    allocated,
    died,
    named,
    opened,
    received,
    sample,
    slave,
    submitted,
    write,
)

import mwpy
from mwpy._values import records
from mwpy._values.causes import Cause
from mwpy._values.errors import RunDatabaseError, UsageError
from mwpy._values.last_words import LastWords
from mwpy._values.phrases import duration
from mwpy._values.policy import TaskPolicy
from mwpy.cli import runs
from mwpy.run_database import RunDatabase

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


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "run.db"


def report(path: Path) -> Page:
    page = path.with_suffix(".html")
    assert runs.main([str(path), "--html", str(page)]) == 0
    return Page(page)


def test_the_figures_are_those_of_the_summary(path: Path) -> None:
    sample(path)
    page = report(path)
    with RunDatabase(path) as run:
        summary = run.summary()
        [longest] = run.query("SELECT task, host, max(seconds) AS seconds FROM tasks")
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
    writer = opened(path)
    compared = records.PackagesCompared("AGENT-0", ["numpy 2.1"], ["scipy 1.11, and 1.12 on the master"])
    write(writer, algorithm(), *slave(), compared, submitted(1, 1), records.Notice("a message"))
    words = LastWords(stderr="it fell over")
    write(writer, records.SlaveEnded(SLAVE, Cause.CRASH, "signal 11", "task 1 (square), attempt 1", words))
    writer.close()
    page = report(path)
    assert page.row("Lives of the master, and versions", "scipy 1.11, and 1.12 on the master") == ["1"]
    assert page.row("Lives of the master, and versions", "3.11") == ["1", "1"]
    assert "Last output of SLAVE-0, which ended while it ran task 1 (square), attempt 1: crash" in page.text
    assert "it fell over" in page.text
    assert page.rows["Last messages of the master"][1][1] == "a message"


def test_names_messages_and_tracebacks_are_escaped(path: Path) -> None:
    writer = opened(path)
    write(writer, algorithm(name=HOSTILE), *slave(HOSTILE, "AGENT-0", HOSTILE), submitted(1, 3))
    write(writer, received({1: ValueError(HOSTILE + "\x1b[2J\u202e")}, sid=HOSTILE), calls={1: b"\x91\xa4<b>x"})
    lost = records.TaskRange(2, 1, 1, 1, HOSTILE)
    write(writer, *died(tasks=[lost], sid=HOSTILE), records.Notice(HOSTILE))
    write(writer, records.TasksGivenUp(SLAVE, False, [named(3)], HOSTILE))
    writer.close()
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
    writer = opened(path)
    write(writer, algorithm(), *slave(), submitted(1, 3), received({1: 1}))
    assert "The master runs, or was killed" in report(path).text
    write(writer, received({2: 4}))
    assert "2 finished, 1 not ended" in report(path).text
    writer.close()


def test_the_time_between_two_lives_of_the_master_is_left_out(path: Path) -> None:
    sample(path)
    with RunDatabase(path) as run:
        [life] = run.summary()["generations"]
    opened(path).close()
    page = report(path)
    assert "in 2 lives of its master" in page.text
    assert page.row("Lives of the master, and versions", "life 1")[1] == duration(life["ended"] - life["started"])


def test_a_database_without_tasks_has_a_report(path: Path) -> None:
    opened(path).close()
    assert "was given 0 tasks" in report(path).text


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
