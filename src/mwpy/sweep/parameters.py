"""The rows of a sweep: which parameters there are, and which values they have in each run.

Values stay the texts that the user wrote, so `0.10` reaches the program as `0.10`. A range is counted in decimals, so
`0..1..0.1` has no 0.30000000000000004. Rows are made when they are needed, because a grid can have millions of them.
"""

from __future__ import annotations

import csv
import io
import json
import random
from collections.abc import Iterator, Mapping, Sequence
from decimal import Decimal, InvalidOperation
from math import exp, log, prod
from pathlib import Path
from typing import Any

from msgspec import Struct

from mwpy import UsageError
from mwpy.sweep.files import text_of
from mwpy.sweep.placeholders import is_unnamed, numbered, refuse_twice

MAX_VALUES = 10_000_000
"""The most values in a range: a mistyped step would otherwise fill the memory."""


class Table(Struct, frozen=True):
    """Rows that are listed."""

    names: Sequence[str]
    """The names of the parameters."""
    rows: Sequence[tuple[Any, ...]]


class Grid:
    """All combinations of the rows of tables. Those of the last table change fastest.

    Values without names of their own have numbers as their names, or no name if there is one list of them only.

    Raises:
        UsageError: two parameters have the same name.
    """

    def __init__(self, tables: Sequence[Table]) -> None:
        self.names = tuple(name for table in tables for name in table.names)
        self._tables = tables
        self._count = prod(len(table.rows) for table in tables)
        refuse_twice(self.names, "the parameter {} is given twice")

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, number: int) -> tuple[Any, ...]:
        """Return the values of a row, counted from 0."""
        if not 0 <= number < self._count:
            raise IndexError(number)
        values: tuple[Any, ...] = ()
        for table in reversed(self._tables):
            number, place = divmod(number, len(table.rows))
            values = table.rows[place] + values
        return values

    def row(self, number: int) -> dict[str, Any]:
        """Return the values of a row by name; the empty name has all values without names, and `1` the first."""
        named = dict(zip(self.names, self[number], strict=True))
        unnamed = [value for name, value in named.items() if is_unnamed(name)]
        return named | numbered(unnamed) if unnamed else named


def zipped(tables: Sequence[Table]) -> Table:
    """Return tables side by side.

    Raises:
        UsageError: they have different numbers of rows.
    """
    lengths = {", ".join(table.names): len(table.rows) for table in tables}
    if len({*lengths.values()}) > 1:
        counts = ", ".join(f"{name} has {count}" for name, count in lengths.items())
        raise UsageError(f"zipped parameters need equally many values: {counts}")
    names = [name for table in tables for name in table.names]
    return Table(names, [sum(rows, ()) for rows in zip(*(table.rows for table in tables), strict=True)])


def samples(kinds: Mapping[str, str], count: int, seed: int) -> Table:
    """Return random values: the same ones for the same seed.

    Args:
        kinds: for each parameter `uniform(0, 1)`, `loguniform(1e-3, 1)`, `normal(0, 1)` or `integer(1, 6)`.

    Raises:
        UsageError: one is none of these.
    """
    read = {name: _distribution(name, text) for name, text in kinds.items()}
    return Table(
        [*kinds],
        [
            tuple(_drawn(kind, random.Random(f"{seed} {name} {number}")) for name, kind in read.items())
            for number in range(count)
        ],
    )


_DISTRIBUTIONS = ("uniform", "loguniform", "normal", "integer")


def _distribution(name: str, text: str) -> tuple[str, float, float]:
    kind, _, rest = text.replace(" ", "").partition("(")
    try:
        first, second = map(float, rest.removesuffix(")").split(","))
        if kind not in _DISTRIBUTIONS or not rest.endswith(")") or (kind == "loguniform" and min(first, second) <= 0):
            raise ValueError
    except ValueError:
        raise UsageError(
            f"{name}={text!r} is no distribution: give uniform(0, 1), loguniform(1e-3, 1), normal(0, 1) or "
            f"integer(1, 6)"
        ) from None
    return kind, first, second


def _drawn(kind: tuple[str, float, float], generator: random.Random) -> Any:
    match kind:
        case "integer", first, second:
            return str(generator.randint(int(first), int(second)))
        case "normal", first, second:
            return repr(generator.gauss(first, second))
        case "loguniform", first, second:
            return repr(exp(generator.uniform(log(first), log(second))))
        case _, first, second:
            return repr(generator.uniform(first, second))


def values_of(name: str, text: str) -> Table:
    """Read the values of a parameter: `0.1,0.2,0.5`, or a range `first..last` or `first..last..step`.

    Raises:
        UsageError: it is empty, or no such range; the caller's fault.

    Examples:
        >>> values_of("x", "0..0.2..0.1,5").rows
        [('0.0',), ('0.1',), ('0.2',), ('5',)]
    """
    found: list[str] = []
    for cell in next(csv.reader(io.StringIO(text), skipinitialspace=True), []):
        found += _range(name, cell) if ".." in cell else [cell]
    if not found:
        raise UsageError(f"the parameter {name} has no values: write {name}=0.1,0.2 or {name}=0..1..0.1")
    return Table([name], [(value,) for value in found])


def _range(name: str, text: str) -> Iterator[str]:
    """Yield the numbers of a range. A text that only contains `..`, such as a path, is itself."""
    try:
        first, last, *rest = map(Decimal, text.split(".."))
    except (InvalidOperation, ValueError):
        return iter([text])
    step = rest[0] if rest else Decimal(1 if last >= first else -1)
    if len(rest) > 1 or not all(number.is_finite() for number in (first, last, step)):
        return iter([text])
    if step == 0 or (last - first) * step < 0:
        raise UsageError(f"{name}={text}: the step leads away from the end; write first..last..step")
    count = int((last - first) / step) + 1
    if count > MAX_VALUES:
        raise UsageError(f"{name}={text} has {count} values, more than {MAX_VALUES}: give a larger step")
    return (str(first + number * step) for number in range(count))


# Tables in files.


def table_in(path: Path) -> Table:
    """Read a table: `.csv`, `.tsv`, `.jsonl`, or cells with `|` between them below a line of names.

    Raises:
        UsageError: it cannot be read, or a row is not as long as the first line; the message names the row.
    """
    text = text_of(path, "the table")
    lines = text.splitlines()
    if not any(line.strip() for line in lines):
        raise UsageError(f"the table {path} is empty: its first line has the names of the parameters")
    if path.suffix.lower() in (".jsonl", ".ndjson"):
        return _of_json(path, lines)
    delimiter = "\t" if path.suffix.lower() == ".tsv" else "|" if "|" in lines[0] else ","
    if delimiter == "|":
        cells = [
            [cell.strip() for cell in line.strip().strip("|").split("|")] if line.strip() else [] for line in lines
        ]
    else:
        cells = [*csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True)]
    return _checked(path, cells)


def _checked(path: Path, cells: Sequence[Sequence[str]]) -> Table:
    numbered = [(number, row) for number, row in enumerate(cells, 1) if row]
    (_, names), *rows = numbered
    for number, row in rows:
        if len(row) != len(names):
            raise UsageError(f"row {number} of {path} has {len(row)} cells, and the first line has {len(names)} names")
    return Table([name.strip() for name in names], [tuple(row) for _, row in rows])


def _of_json(path: Path, lines: Sequence[str]) -> Table:
    rows: list[tuple[Any, ...]] = []
    names: list[str] = []
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            found = json.loads(line, parse_float=str, parse_int=str)
        except ValueError as error:
            raise UsageError(f"row {number} of {path} is not JSON: {error}") from error
        if not isinstance(found, dict) or (names and {*found} != {*names}):
            raise UsageError(f"row {number} of {path} does not have the names of the first row: {', '.join(names)}")
        names = names or [*found]
        rows.append(tuple(found[name] for name in names))
    return Table(names, rows)
