"""What is taken from the outputs of a run, and written into the tables of a sweep."""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from mwpy import UsageError
from mwpy.sweep.command import STDOUT, Outcome
from mwpy.sweep.files import File


class NotFound(Exception):
    """An output does not have a result."""


class Result(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Where a result of a run is found."""

    name: str = ""
    pattern: str = ""
    """A pattern as of `re`. Its first group is the result, or all of it if there is no group."""
    file: str = STDOUT
    """The output that has it."""
    json: str = ""
    """Names and numbers with dots between them: where it is in a JSON file."""
    column: str = ""
    """The column of a CSV file. The last row counts."""

    @classmethod
    def of(cls, name: str, source: str | Result) -> Result:
        """Return the result of a setting, which may only be a pattern.

        Raises:
            UsageError: the pattern is wrong; the caller's fault.
        """
        result = cls(name, source) if isinstance(source, str) else replace(source, name=name)
        try:
            re.compile(result.pattern)
        except re.error as error:
            raise UsageError(f"the pattern {result.pattern!r} of {name} is wrong: {error}") from error
        return result

    def found_in(self, outcome: Outcome) -> int | float | str:
        """Return the result of a run: a number, if it is written as one.

        Raises:
            NotFound: the outputs do not have it.
        """
        text = outcome.stdout if self.file == STDOUT else _output(outcome, self.file).read_text(errors="replace")
        if self.json:
            return self._of_json(text)
        if self.column:
            rows = [*csv.DictReader(io.StringIO(text, newline=""))]
            if not rows or self.column not in rows[-1]:
                raise NotFound(f"{self.file} has no column {self.column} for {self.name}")
            return typed(rows[-1][self.column] or "")
        if not self.pattern:
            return typed(text.strip())
        found = re.search(self.pattern, text, re.MULTILINE)
        if found is None:
            raise NotFound(f"{_shown(self.file)} has no match of the pattern {self.pattern!r} of {self.name}")
        return typed((found[1] if found.re.groups else found[0]) or "")

    def _of_json(self, text: str) -> int | float | str:
        try:
            value = json.loads(text)
            for part in self.json.split("."):
                value = value[int(part) if isinstance(value, list) else part]
        except (ValueError, LookupError, TypeError) as error:
            raise NotFound(f"{_shown(self.file)} has no {self.json} for {self.name}: {error}") from error
        return value if isinstance(value, int | float | str) else json.dumps(value)


def _shown(file: str) -> str:
    return "its standard output" if file == STDOUT else file


def _output(outcome: Outcome, name: str) -> File:
    found = outcome.outputs.get(name)
    if isinstance(found, list):
        found = found[-1] if found else None
    if found is None:
        raise NotFound(f"there is no output {name}")
    return found


def typed(text: str) -> int | float | str:
    """Return the number that a text is, or the text.

    Examples:
        >>> typed("3"), typed(" 1e-3 "), typed("007"), typed("a b")
        (3, 0.001, 7, 'a b')
    """
    for kind in (int, float) if "_" not in text else ():
        try:
            return kind(text)
        except ValueError:
            pass
    return text.strip()


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Write a file, whose folder is made.

    Raises:
        UsageError: it cannot be written.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        yield
    except OSError as error:
        raise UsageError(
            f"{path} cannot be written ({error.strerror}): correct this, and give the same command again, but without "
            f"--again; then no run that has succeeded is made again"
        ) from error


def write_table(path: Path, names: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    """Write a table as a whole: `.csv`, `.tsv`, `.jsonl` or `.parquet`.

    Raises:
        UsageError: a package is missing, or it cannot be written.
    """
    new = path.with_name(f".{path.name}.new")
    with writing(path):
        if path.suffix == ".parquet":
            _write_parquet(new, names, rows)
        else:
            with new.open("w", encoding="utf-8", newline="") as file:
                if path.suffix == ".jsonl":
                    file.writelines(f"{json.dumps(dict(zip(names, row, strict=True)))}\n" for row in rows)
                else:
                    writer = csv.writer(file, delimiter="\t" if path.suffix == ".tsv" else ",", lineterminator="\n")
                    writer.writerow(names)
                    writer.writerows(rows)
        new.replace(path)


def _write_parquet(path: Path, names: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    try:
        import pandas as pd

        cells = [[typed(value) if isinstance(value, str) else value for value in row] for row in rows]
        pd.DataFrame(cells, columns=[*names]).to_parquet(path)
    except ImportError as error:
        advice = "pip install pandas pyarrow, or write .csv"
        raise UsageError(f"a table in .parquet needs pandas and pyarrow ({error}): {advice}") from error
