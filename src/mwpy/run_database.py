"""The run database: what a master has stored of its run, in a SQLite file.

A master with `--mw-run-database FILE` writes it. After a crash, the same command reads it and continues. This module is
for people: it reads the file, also while the master runs. The file has views for the shell of SQLite, too:

    sqlite3 run.db "SELECT task, message FROM tasks WHERE state = 'failed'"
"""

from __future__ import annotations

import csv
import json
import shlex
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import IO, Any, Literal, Self, get_args

from msgspec import Struct

from mwpy._database.opening import Connection, open_for_reading, open_for_writing
from mwpy._database.reading import states_of
from mwpy._database.rows import ValueFiles
from mwpy._system import process
from mwpy._system.locks import real_path
from mwpy._values.errors import RunDatabaseError, UsageError

__all__ = ["Pruned", "RunDatabase", "run_at_end"]

Format = Literal["csv", "jsonl"]

KINDS_SHOWN = 20
"""How many kinds of failures, hosts and causes are named, the most frequent first."""

AT_END_S = 60.0
"""How long the command at the end of a computation may take, in seconds. The help of `--mw-on-end` names it."""

HISTORY = ("allocations", "losses", "ends", "peaks", "events")
"""The kinds of rows that only people read."""


class Pruned(Struct, frozen=True):
    """What was removed from a run database."""

    attempts: int
    """How many attempts of former generations."""
    results: int
    """How many results of former generations."""
    files: int
    """How many files with large values."""
    bytes: int
    """How much space is free now, in bytes."""


class RunDatabase:
    """A run database, open for reading. It is a context manager.

    Args:
        path: the file.

    Raises:
        RunDatabaseError: it is missing, damaged, not a run database, or of another version; or it is on a network file
            system, and its master runs.

    Examples:
        >>> with RunDatabase("run.db") as run:                     # doctest: +SKIP
        ...     for task in run.tasks(state="failed"):
        ...         print(task["task"], task["arguments"], task["message"])
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self._connection = open_for_reading(self.path)

    def summary(self) -> dict[str, Any]:
        """Return what the file says in short, ready for JSON.

        Returns:
            `member_id`; `generations`, each with its number, host, process, command, start, end and reason of the end
            (an end of None: it was killed, or runs); `tasks` of the last generation by state, and how many of them were
            `reused`, which means answered from former generations; `algorithms` with the number of their tasks; its
            `failures`, by error, each with an example; `hosts` with their slaves, results and compute time in seconds;
            and `lost`, the attempts and the seconds that were lost for each cause.

        Examples:
            >>> RunDatabase("run.db").summary()["tasks"]["failed"]     # doctest: +SKIP
            3
        """
        asked = self._connection.rows
        generations = self.query(
            "SELECT generation, host, pid, command, started, ended, why FROM generations ORDER BY generation"
        )
        for each in generations:
            each["command"] = json.loads(each["command"])
        last = self._last()
        algorithms = (
            "SELECT a.name, sum(t.count) FROM algorithms a JOIN submissions t "
            "ON t.generation = a.generation AND t.algorithm = a.number WHERE a.generation = ? GROUP BY a.name"
        )
        failures = (
            "SELECT error, count(*) AS count, task, message, arguments FROM tasks WHERE error IS NOT NULL "
            f"AND generation = ? GROUP BY error ORDER BY count(*) DESC LIMIT {KINDS_SHOWN}"
        )
        hosts = (
            "SELECT g.host, count(*) AS slaves, coalesce(sum(r.count), 0) AS tasks, "
            "coalesce(sum(r.total_s), 0.0) AS seconds FROM slaves s JOIN agents g USING (generation, agent) LEFT JOIN "
            "(SELECT generation, sid, sum(count) AS count, sum(total_s) AS total_s FROM results GROUP BY 1, 2) r "
            f"USING (generation, sid) GROUP BY g.host ORDER BY seconds DESC LIMIT {KINDS_SHOWN}"
        )
        lost = "SELECT cause, sum(count) AS attempts, sum(lost_s) AS seconds FROM losses GROUP BY cause ORDER BY 3 DESC"
        member_ids = asked("SELECT member_id FROM generations WHERE generation = ?", (last,))
        return {
            "member_id": member_ids[0][0] if member_ids else "",
            "generations": generations,
            "tasks": states_of(self._connection, "tasks", last),
            "algorithms": dict(asked(algorithms, (last,))),
            "failures": self.query(failures, (last,)),
            "hosts": self.query(hosts),
            "lost": self.query(lost),
        }

    def tasks(self, *, generation: int | None = None, state: str | None = None) -> Iterator[dict[str, Any]]:
        """Yield the tasks, in the order of their ids.

        Args:
            generation: which life of the master; None for the last one.
            state: only tasks in this state: `finished`, `failed`, `unrunnable`, `cancelled` or `not ended`.

        Returns:
            For each task: `generation`, `task` (its id), `algorithm`, `state`, `attempt`, `sid` and `host` of its last
            attempt, `seconds` (its compute time), `ended` (in seconds since 1970), and `error`, `message` and
            `arguments` if it failed. What is unknown is None.

        Examples:
            >>> slowest = max(run.tasks(), key=lambda task: task["seconds"] or 0)  # doctest: +SKIP
        """
        return self._rows("tasks", generation, state)

    def attempts(self, *, generation: int | None = None) -> Iterator[dict[str, Any]]:
        """Yield all attempts of the tasks.

        Args:
            generation: which life of the master; None for the last one.

        Returns:
            For each attempt: `generation`, `task`, `attempt` (its number), `sid`, `host`, `sent` and `ended` (in
            seconds since 1970), `outcome` (`finished`, `failed`, or the cause of its loss) and `seconds` (its compute
            time).

        Examples:
            >>> lost = [each for each in run.attempts() if each["outcome"] == "crash"]     # doctest: +SKIP
        """
        return self._rows("attempts", generation, None)

    def query(self, statement: str, parameters: Sequence[Any] = ()) -> list[dict[str, Any]]:
        """Return the rows of a query in SQL. The file cannot be changed by it.

        The views are `tasks` and `attempts`; `generations`, the lives of the master; `algorithms`; `submissions`,
        `allocations` and `results`, for tasks that were submitted, sent or answered together; `failures`; `ends`, for
        tasks that are unrunnable or cancelled; `losses`; `agents` and `slaves`; `peaks`, the most memory on a host; and
        `events` and `notices`, what the master said. `seq` numbers their rows in the order of what happened.

        Args:
            statement: one statement.
            parameters: a value for each `?` in it.

        Raises:
            RunDatabaseError: the statement is wrong; the caller's fault.

        Examples:
            >>> run.query("SELECT cause, sum(lost_s) AS s FROM losses GROUP BY cause")     # doctest: +SKIP
            [{'cause': 'evicted', 's': 512.3}]
        """
        return [dict(row) for row in self._connection.rows(statement, parameters)]

    def export(self, file: str | Path | IO[str], kind: Format = "csv", *, generation: int | None = None) -> None:
        """Write the tasks for another program, in the columns of `tasks`.

        Args:
            file: the path, or an open text file.
            kind: CSV with a line of names, or one JSON object a line.
            generation: which life of the master; None for the last one.

        Raises:
            UsageError: the format is unknown.

        Examples:
            >>> run.export("tasks.csv")     # doctest: +SKIP
        """
        if kind not in get_args(Format):
            raise UsageError(f"unknown format {kind!r}: give {', '.join(get_args(Format))}")
        if isinstance(file, str | Path):
            with Path(file).open("w", encoding="utf-8", newline="") as opened:
                self.export(opened, kind, generation=generation)
            return
        rows = self.tasks(generation=generation)
        if kind == "csv":
            writer = csv.DictWriter(file, [name for _, name, *_ in self._connection.rows("PRAGMA table_info(tasks)")])
            writer.writeheader()
            writer.writerows(rows)
        else:
            file.writelines(json.dumps(row) + "\n" for row in rows)

    def report(self, file: str | Path) -> None:
        """Write a report: an HTML page with tables and charts, which opens anywhere. The computation may still run.

        The time of a slave begins with its connection. Work is what its results say; lost is the time since its last
        sign when an attempt was lost; all else is waiting. The times are those of all lives of the master, and the
        tasks those of the last one. What slaves do since their last results is not known.

        Args:
            file: the path of the page.

        Raises:
            RunDatabaseError: the run database is damaged.
            UsageError: the page cannot be written.

        Examples:
            >>> run.report("report.html")     # doctest: +SKIP
        """
        from mwpy._database import report  # only here, because few processes write a report

        connection = open_for_reading(self.path)
        try:
            page = report.page_of(connection, self._last(), str(self.path))
        except (ArithmeticError, LookupError, TypeError, ValueError) as error:  # SQLite does not notice such damage
            raise RunDatabaseError(
                f"the run database {self.path} is damaged: a value in it is none that a master writes ({error}). "
                f"`mwpy runs {self.path} --export jsonl` shows what can be read of its tasks"
            ) from error
        finally:
            connection.close()
        try:
            Path(file).write_text(page, encoding="utf-8", errors="backslashreplace")
        except OSError as error:
            raise UsageError(f"{file} cannot be written ({error.strerror}): give another file") from error

    @staticmethod
    def prune(path: str | Path) -> Pruned:
        """Remove from a run database what no restart needs, and make the file smaller.

        Attempts, losses and notices of all generations but the last are removed. If the last generation has ended well,
        results of former generations that it did not use are removed, too. So run the script with all its tasks before.

        Args:
            path: the file.

        Returns:
            What was removed.

        Raises:
            RunDatabaseError: a master uses the file, or it is damaged.

        Examples:
            >>> RunDatabase.prune("run.db").bytes     # doctest: +SKIP
            73400320
        """
        path = real_path(path)
        if not path.exists():
            raise RunDatabaseError(f"there is no run database {path}: give the file that a master has written")
        with ExitStack() as ends:
            connection, _ = open_for_writing(path, ends, full=True)
            before = path.stat().st_size
            with connection.transaction():
                attempts, results = _remove_rows(connection)
            connection.run("VACUUM")
            connection.run("PRAGMA wal_checkpoint(TRUNCATE)")
            named = {name for (name,) in connection.rows("SELECT file FROM results WHERE file IS NOT NULL")}
            files = ValueFiles(path)
            unused = {name: size for name, size in files.sizes().items() if name not in named}
            for name in unused:
                (files.folder / name).unlink()
            freed = max(0, before - path.stat().st_size) + sum(unused.values())
            return Pruned(attempts, results, len(unused), freed)

    def close(self) -> None:
        """Close the file."""
        self._connection.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _last(self) -> int:
        """The number of the last generation; 0 if there is none."""
        return _first(self._connection, "SELECT coalesce(max(generation), 0) FROM generations")

    def _rows(self, view: str, generation: int | None, state: str | None) -> Iterator[dict[str, Any]]:
        condition, parameters = "generation = ?", list[int | str]([self._last() if generation is None else generation])
        if state is not None:
            condition, parameters = f"{condition} AND state = ?", [*parameters, state]
        query = f"SELECT * FROM {view} WHERE {condition} ORDER BY task"
        return map(dict, self._connection.each_row(query, parameters))


def _remove_rows(connection: Connection) -> tuple[int, int]:
    """Remove the rows that no restart needs. Return how many attempts and results they had."""
    last = _first(connection, "SELECT coalesce(max(generation), 0) FROM generations")
    attempts = _first(connection, "SELECT coalesce(sum(count), 0) FROM allocations WHERE generation < ?", last)
    connection.run(f"DELETE FROM records WHERE kind IN {HISTORY} AND generation < ?", (last,))
    if not _first(connection, "SELECT count(*) FROM generations WHERE generation = ? AND why = 'SHUTDOWN'", last):
        return attempts, 0
    # agents brought the later ones to the last generation
    brought = _first(connection, "SELECT coalesce(min(seq), 1 << 62) FROM agents WHERE generation = ?", last)
    unused = (
        "kind = 'results' AND generation < ? AND seq < ? AND seq NOT IN (SELECT json_extract(j.value, '$[0]') "
        "FROM submissions u, json_each(u.answers) j WHERE u.generation = ?)"
    )
    results = _first(connection, f"SELECT coalesce(sum(count), 0) FROM records WHERE {unused}", last, brought, last)
    connection.run(f"DELETE FROM records WHERE {unused}", (last, brought, last))
    return attempts, results


def _first(connection: Connection, query: str, *parameters: int) -> int:
    """Return the number that a query asks for."""
    [(found,)] = connection.rows(query, parameters)
    return int(found)


def run_at_end(command: str, summary: str, database: str | Path | None = None, folder: str | Path | None = None) -> str:
    """Run a command of a shell at the end of a computation, as `--mw-on-end` does, and show what it writes.

    A command that fails, or is killed after 60 seconds, is a message on standard error, and nothing else.

    Args:
        command: in it, `{report}` stands for the path of a report and `{summary}` for that of the summary. These files
            are removed after it. It also reads the summary from standard input.
        summary: the text of the summary.
        database: the run database of the computation. Without one, the report is the summary.
        folder: where the command runs; None for the folder of this process.

    Returns:
        That message; empty if the command has succeeded.

    Examples:
        >>> run_at_end("mail -s done me < {report}", mw.summary(), "run.db")     # doctest: +SKIP
    """
    with TemporaryDirectory(prefix="mwpy-end-") as temporary:
        text, page = Path(temporary, "summary.txt"), Path(temporary, "report.html")
        try:
            text.write_text(summary, encoding="utf-8", errors="backslashreplace")
            try:
                if database is not None and "{report}" in command:
                    with RunDatabase(database) as run:
                        run.report(page)
            except RunDatabaseError as error:
                print(f"mwpy: no report at the end, only the summary: {error}", file=sys.stderr)
            report = page if page.exists() else text
            line = command.replace("{report}", shlex.quote(str(report))).replace("{summary}", shlex.quote(str(text)))
            given = summary.encode(errors="backslashreplace")
            shell = ["/bin/sh", "-c", line]
            ended = process.run(shell, timeout_s=AT_END_S, standard_input=given, folder=folder)
        except (OSError, UsageError) as error:  # a timeout is an OSError
            fault = f"the command at the end: {error}"
        else:
            print(ended.out + ended.err, end="", file=sys.stderr)
            fault = f"the command at the end failed ({ended.end}): {command}" if ended.returncode else ""
    if fault:
        print(f"mwpy: {fault}", file=sys.stderr)
    return fault
