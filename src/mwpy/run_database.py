"""The run database: what a master has stored of its run, in a SQLite file.

A master with `--mw-run-database FILE` writes it. After a crash, the same command reads it and continues. This module is
for people: it reads the file, also while the master runs. The file has views for the shell of SQLite, too:

    sqlite3 run.db "SELECT task, message FROM tasks WHERE state = 'failed'"
"""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, Any, Literal, Self, get_args

from mwpy._database.opening import open_for_reading
from mwpy._database.reading import Pruned, prune, summarize
from mwpy._values.errors import UsageError

__all__ = ["Pruned", "RunDatabase"]

Format = Literal["csv", "jsonl"]


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
        return summarize(self._connection)

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

        Args:
            statement: one statement. The guide has examples, and the names of all views.
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
        return prune(Path(path))

    def close(self) -> None:
        """Close the file."""
        self._connection.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _rows(self, view: str, generation: int | None, state: str | None) -> Iterator[dict[str, Any]]:
        if generation is None:
            [(generation,)] = self._connection.rows("SELECT coalesce(max(generation), 0) FROM generations")
        condition, parameters = "generation = ?", [generation]
        if state is not None:
            condition, parameters = f"{condition} AND state = ?", [generation, state]
        query = f"SELECT * FROM {view} WHERE {condition} ORDER BY task"
        return map(dict, self._connection.each_row(query, parameters))
