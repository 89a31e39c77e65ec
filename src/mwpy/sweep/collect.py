"""Collects what the runs of a sweep gave: tables, the outputs of all runs in one file, or a file for each run.

Everything is read from the run database in the order of the rows, one row after the other. So the order in which runs
ended has no effect, and a sweep can have more outputs than the memory holds.
"""

from __future__ import annotations

import csv
import json
import shutil
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import IO, Any, Self

from mwpy import UsageError
from mwpy.sweep.command import STDOUT
from mwpy.sweep.files import files_in
from mwpy.sweep.placeholders import Template
from mwpy.sweep.rows import Row
from mwpy.sweep.settings import Collection, Sweep, function_in
from mwpy.sweep.study import Known, Selection, each_row, known_of, looking, remove_archives, shown

ALL = "*"
"""Stands for all outputs but those that only serve other programs, if each run has its own files."""

TABLES = (".csv", ".tsv", ".parquet", ".jsonl")


def folder_of(path: Path) -> Path:
    """Return the folder of a sweep, which may be named by its study."""
    return path.with_suffix(".sweep") if path.suffix == ".toml" else path


def opened(path: Path) -> Sweep:
    """Return the sweep that a folder is of.

    Raises:
        UsageError: it is no folder of a sweep.
    """
    folder = folder_of(path)
    known = Known.read(folder)
    if known is None:
        raise UsageError(f"{folder} is no folder of a sweep: give the study, or the folder with its run.db")
    return Sweep.of(known.settings, Path(known.base), folder)


def rows_of(sweep: Sweep, numbers: Sequence[int] | None = None) -> Iterator[Row]:
    """Yield the rows of a sweep that have ended, in their order; or those with these numbers, ended or not."""
    known = known_of(sweep, Selection(accept=True, again="failed"))[0]  # as they are, also after ':::'
    for row in each_row(sweep, known, range(len(sweep.rows)) if numbers is None else numbers):
        if numbers is not None or row.failure or not row.is_cancelled:
            yield row


def failure_of(sweep: Sweep, number: int, why: str) -> dict[str, Any]:
    """Return a row that failed, ready for JSON."""
    named = {name or "value": value for name, value in sweep.rows.row(number).items()}
    return {"row": number + 1, "parameters": named, "error": why}


def print_failures(sweep: Sweep) -> list[dict[str, Any]]:
    """Print which rows failed and why, with the commands that repeat them. Return the same, ready for JSON."""
    failed = []
    for row in rows_of(sweep):
        if row.failure:
            failed.append({**failure_of(sweep, row.number, row.failure), "host": row.place[0]})
            print(f"row {row.number + 1}: {shown(sweep.rows.row(row.number))}\n  " + row.failure.replace("\n", "\n  "))
    return failed


def collect(sweep: Sweep, collections: Sequence[Collection]) -> int:
    """Make all collections in one pass over the rows. Return how many rows succeeded.

    Raises:
        UsageError: a setting is wrong, or a package is missing.
        OSError: a file cannot be written.
    """
    with ExitStack() as stack:
        takers = [stack.enter_context(_taker(sweep, each)) for each in collections]
        count = 0
        for row in rows_of(sweep) if takers else ():
            count += not row.failure
            for taker in takers if not row.failure else ():
                taker.take(row)
    return count


class _Taker:
    """Takes over the rows that succeeded, in their order."""

    def __init__(self, sweep: Sweep, collection: Collection) -> None:
        self.sweep = sweep
        self.collection = collection

    def take(self, row: Row) -> None:
        """Take over one row."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """All rows were taken, or an error was raised."""

    @property
    def path(self) -> Path:
        """Where the collection is written."""
        return self.sweep.base / self.collection.to


class _ToFunction(_Taker):
    """Calls a function of the user."""

    def __init__(self, sweep: Sweep, collection: Collection) -> None:
        super().__init__(sweep, collection)
        self.function: Callable[..., Any] = function_in(collection.function, sweep.base)

    def take(self, row: Row) -> None:
        self.function(self.sweep.rows.row(row.number), row.results, row.outputs)


class _ToOneFile(_Taker):
    """Writes an output of all runs into one file."""

    def __enter__(self) -> Self:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.file: IO[bytes] = self.path.open("wb")
        return self

    def __exit__(self, *_: object) -> None:
        self.file.close()

    def take(self, row: Row) -> None:
        if self.collection.form == "blocks":
            self.file.write(f"# {shown(self.sweep.rows.row(row.number))}\n".encode())
        for each in files_in(row.outputs.get(self.collection.output or STDOUT)):
            self.file.write(each.content)


class _ToFiles(_Taker):
    """Writes an output of each run, or all that count, into files of its own, whose names have its parameters."""

    def __init__(self, sweep: Sweep, collection: Collection) -> None:
        super().__init__(sweep, collection)
        self.intermediate = {name for stage in sweep.stages for name in stage.command.options.intermediate}
        self.written: set[Path] = set()

    def take(self, row: Row) -> None:
        values = {**self.sweep.rows.row(row.number), "#": row.number + 1}
        output = self.collection.output or STDOUT
        taken = (
            [output]
            if output in row.outputs or output != ALL
            else [name for name in row.outputs if name not in self.intermediate]
        )
        found = (file for name in taken for file in files_in(row.outputs.get(name)))
        for each in dict.fromkeys(found):  # the patterns of two outputs may match the same file
            path = self.sweep.base / Template.of(self.collection.to).filled({**values, "file": each.name})
            if path in self.written:
                raise UsageError(
                    f"the collection {self.collection.to} has two files for {path}: distinguish rows by {{#}}, and "
                    f"files of one row by {{file}}; collect outputs with the same file name apart, by output"
                )
            self.written.add(path)
            path.parent.mkdir(parents=True, exist_ok=True)
            each.save(path)


class _ToTable(_Taker):
    """Writes a table of parameters and results."""

    def __init__(self, sweep: Sweep, collection: Collection) -> None:
        super().__init__(sweep, collection)
        self.names = [*(name or "value" for name in sweep.rows.names), *sweep.results]
        self.rows: list[tuple[Any, ...]] = []

    def take(self, row: Row) -> None:
        self.rows.append((*self.sweep.rows[row.number], *(row.results.get(name, "") for name in self.sweep.results)))

    def __exit__(self, *failure: object) -> None:
        if any(failure):
            return
        self.path.parent.mkdir(parents=True, exist_ok=True)
        if self.path.suffix == ".parquet":
            _write_parquet(self.path, self.names, self.rows)
            return
        with self.path.open("w", encoding="utf-8", newline="") as file:
            if self.path.suffix == ".jsonl":
                file.writelines(json.dumps(dict(zip(self.names, row, strict=True))) + "\n" for row in self.rows)
                return
            writer = csv.writer(file, delimiter="\t" if self.path.suffix == ".tsv" else ",", lineterminator="\n")
            writer.writerow(self.names)
            writer.writerows(self.rows)


def _write_parquet(path: Path, names: Sequence[str], rows: Sequence[tuple[Any, ...]]) -> None:
    from mwpy.sweep.results import typed

    try:
        import pandas as pd

        typed_rows = [[typed(value) if isinstance(value, str) else value for value in row] for row in rows]
        pd.DataFrame(typed_rows, columns=[*names]).to_parquet(path)
    except ImportError as error:
        raise UsageError(
            f"{path} needs pandas and pyarrow ({error}): pip install pandas pyarrow, or write .csv"
        ) from error


def _taker(sweep: Sweep, collection: Collection) -> _Taker:
    if collection.function:
        return _ToFunction(sweep, collection)
    if not collection.output and Path(collection.to).suffix in TABLES:
        return _ToTable(sweep, collection)
    output = collection.output or STDOUT
    outputs = [name for stage in sweep.stages for name in stage.command.options.outputs]
    names = Template.of(collection.to).names
    if output not in outputs and not (output == ALL and names):
        known = ", ".join(outputs) or "none"
        raise UsageError(
            f"the collection {collection.to} needs the output {output}, and the outputs of the sweep are: {known}. "
            f"Name it in outputs, and run the sweep again with --again all"
        )
    if collection.form not in ("plain", "blocks"):
        raise UsageError(f"the collection {collection.to} has form={collection.form!r}: write plain or blocks")
    return _ToFiles(sweep, collection) if names else _ToOneFile(sweep, collection)


OWN_FILES = (
    *("sweep.json*", "job.json*", "job.log", "job.sh", "results.csv", "failed.csv", "runs.csv"),
    *("results.new", "failed.new", "runs.new", "run.db", "run.db-*", "run.db.*", ".run.db*"),
    *("sweep.rsc*", ".sweep.rsc*", "look.rsc*", ".look.rsc*"),
)
"""What a sweep writes into its folder, beside the folders of runs."""


def clean(sweep: Sweep) -> None:
    """Remove what a sweep has written, and its folder if there is nothing else in it."""
    with looking(sweep):
        pass  # so nobody else uses it
    remove_archives(sweep.folder)
    for path in {path for pattern in OWN_FILES for path in sweep.folder.glob(pattern)}:
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    left = sorted(path.name for path in sweep.folder.iterdir())
    if left:
        print(
            f"removed the sweep in {sweep.folder}; what it has not written is still there: {left[0]}", file=sys.stderr
        )
    else:
        sweep.folder.rmdir()
        print(f"removed {sweep.folder}", file=sys.stderr)
