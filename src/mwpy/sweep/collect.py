"""Collects what the runs of a sweep gave: tables, the outputs of all runs in one file, or a file for each run.

Everything is read from the run database in the order of the rows, one row after the other. So the order in which runs
ended has no effect, and a sweep can have more outputs than the memory holds.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO, Any

from mwpy import UsageError
from mwpy.sweep.files import files_in
from mwpy.sweep.job import stored
from mwpy.sweep.placeholders import Template, refuse_unknown
from mwpy.sweep.results import write_table, writing
from mwpy.sweep.settings import NUMBER, Collection, Sweep, function_in
from mwpy.sweep.stages import Row
from mwpy.sweep.study import STATE, Known, Selection, damaged, each_row, known_of, looking, remove_archives, shown

ALL = "*"
"""Stands for all outputs but those that only serve other programs, if each run has its own files."""


def folder_of(path: Path) -> Path:
    """Return the folder of a sweep, which may be named by its study."""
    return path.with_suffix(".sweep") if path.suffix == ".toml" else path


def opened(path: Path) -> Sweep:
    """Return the sweep that a folder is of.

    Raises:
        UsageError: it is no folder of a sweep.
    """
    folder = folder_of(path)
    known = stored(folder / STATE, Known, damaged(folder))
    if known is None:
        raise UsageError(f"{folder} is no folder of a sweep: give the study, or the folder with its run.db")
    return Sweep.of(known.settings, Path(known.base), folder)


def rows_of(sweep: Sweep, numbers: Sequence[int] | None = None) -> Iterator[Row]:
    """Yield the rows of a sweep that have ended, in their order; or those with these numbers, ended or not."""
    known = known_of(sweep, Selection(accept=True, again="failed"))[0]  # as they are, also after ':::'
    for row in each_row(sweep, known, range(len(sweep.rows)) if numbers is None else numbers):
        if numbers is not None or row.failure or not row.is_cancelled:
            yield row


def failure_of(sweep: Sweep, row: Row) -> dict[str, Any]:
    """Return a row that failed, ready for JSON."""
    named = {name or "value": value for name, value in sweep.rows.row(row.number).items()}
    return {"row": row.number + 1, "parameters": named, "error": row.failure, "host": row.place[0]}


def print_failures(sweep: Sweep) -> list[dict[str, Any]]:
    """Print which rows failed and why, with the commands that repeat them. Return the same, ready for JSON."""
    failed = []
    for row in rows_of(sweep):
        if row.failure:
            failed.append(failure_of(sweep, row))
            print(f"row {row.number + 1}: {shown(sweep.rows.row(row.number))}\n  " + row.failure.replace("\n", "\n  "))
    return failed


def refuse_wrong(sweep: Sweep, collections: Sequence[Collection]) -> None:
    """Find mistakes in collections before anything runs.

    Raises:
        UsageError: there is one.
    """
    outputs = [name for stage in sweep.stages for name in stage.command.options.outputs]
    for each in collections:
        if each.function:
            function_in(each.function, sweep.base)
        elif not each.to:
            raise UsageError("a collection has neither a file (to) nor a function")
        names = {**sweep.rows.row(0), NUMBER: 1, "file": ""}
        refuse_unknown(Template.of(each.to).names, names, f"the collection {each.to}")
        if each.form not in ("plain", "blocks"):
            raise UsageError(f"the collection {each.to} has form={each.form!r}: write plain or blocks")
        if each.taken and each.taken not in outputs and not (each.taken == ALL and _has_names(each)):
            known = ", ".join(outputs) or "none"
            raise UsageError(
                f"the collection {each.to} needs the output {each.taken}, and the outputs of the sweep are: {known}. "
                f"Name it in outputs (--output); then the runs are made again"
            )


def collect(sweep: Sweep, collections: Sequence[Collection]) -> int:
    """Make all collections in one pass over the rows. Return how many rows succeeded.

    Raises:
        UsageError: a setting is wrong, a file cannot be written, or a package is missing.
    """
    refuse_wrong(sweep, collections)
    with ExitStack() as stack:
        takers = [stack.enter_context(_taker(sweep, each)) for each in collections]
        count = 0
        for row in rows_of(sweep) if takers else ():
            count += not row.failure
            for taker in takers if not row.failure else ():
                taker(row)
    return count


Take = Callable[[Row], object]
"""Takes over a row that succeeded."""


@contextmanager
def _taker(sweep: Sweep, collection: Collection) -> Iterator[Take]:
    """Give what takes over the rows that succeeded, in their order, until the end of the block."""
    path = sweep.base / collection.to
    if collection.function:
        function = function_in(collection.function, sweep.base)
        yield lambda row: function(sweep.rows.row(row.number), row.results, row.outputs)
    elif not collection.taken:
        table: list[tuple[Any, ...]] = []
        yield lambda row: table.append((*sweep.rows[row.number], *row.in_columns(sweep.results)))
        write_table(path, [*sweep.columns, *sweep.results], table)
    elif _has_names(collection):
        written = set[Path]()
        yield lambda row: _save(sweep, collection, row, written)
    else:
        with writing(path):
            file = path.open("wb")
        with file:
            yield lambda row: _append(sweep, collection, row, file)


def _has_names(collection: Collection) -> bool:
    """Whether each run has files of its own."""
    return bool(Template.of(collection.to).names)


def _append(sweep: Sweep, collection: Collection, row: Row, file: IO[bytes]) -> None:
    """Write an output of a run into the file of all runs."""
    if collection.taken not in row.outputs and not _is_optional(sweep, collection.taken):
        where = shown(sweep.rows.row(row.number))
        raise UsageError(
            f"the output {collection.taken} of {where} was not kept: make the run again (without --accept)"
        )
    with writing(sweep.base / collection.to):
        if collection.form == "blocks":
            file.write(f"# {shown(sweep.rows.row(row.number))}\n".encode())
        for each in files_in(row.outputs.get(collection.taken)):
            file.write(each.content)
        file.flush()


def _is_optional(sweep: Sweep, output: str) -> bool:
    return any(output in stage.command.options.optional for stage in sweep.stages)


def _save(sweep: Sweep, collection: Collection, row: Row, written: set[Path]) -> None:
    """Write an output of a run, or all that count, into files of its own, whose names have its parameters."""
    values = {**sweep.rows.row(row.number), NUMBER: row.number + 1}
    taken = [collection.taken]
    if taken == [ALL] and ALL not in row.outputs:
        inner = {name for stage in sweep.stages for name in stage.command.options.intermediate}
        taken = [name for name in row.outputs if name not in inner]
    found = (file for name in taken for file in files_in(row.outputs.get(name)))
    for each in dict.fromkeys(found):  # the patterns of two outputs may match the same file
        path = sweep.base / Template.of(collection.to).filled({**values, "file": each.name})
        if path in written:
            raise UsageError(
                f"the collection {collection.to} has two files for {path}: distinguish rows by {{#}}, and files of one "
                f"row by {{file}}; collect outputs with the same file name apart, by output"
            )
        written.add(path)
        with writing(path):
            each.save(path)


OWN_FILES = (
    *("sweep.json*", "job.json*", "job.log", "job.sh", "results.csv", "failed.csv", "runs.csv"),
    *(".*.csv.new", "run.db", "run.db-*", "run.db.*", ".run.db*"),
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
