"""The rows of a sweep: which parameters there are, and which values they have in each run.

Values stay the texts that the user wrote, so `0.10` reaches the program as `0.10`. A range is counted in decimals, so
`0..1..0.1` has no 0.30000000000000004. Rows are made when they are needed, because a grid can have millions of them.
"""

from __future__ import annotations

import csv
import io
import json
import random
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from decimal import Decimal, InvalidOperation
from math import prod
from pathlib import Path
from typing import Any

from mwpy import UsageError

MAX_VALUES = 10_000_000
"""The most values in a range: a mistyped step would otherwise fill the memory."""

SEED = "seed"
"""The parameter that gives each run a random number of its own."""


class Rows(ABC):
    """Rows of values.

    Args:
        names: the names of the parameters.
    """

    def __init__(self, names: Sequence[str]) -> None:
        self.names = tuple(names)
        for name in self.names:
            if self.names.count(name) > 1:
                raise UsageError(f"the parameter {name} is given twice")

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def __getitem__(self, number: int) -> tuple[Any, ...]:
        """Return the values of a row, counted from 0."""

    def row(self, number: int) -> dict[str, Any]:
        """Return the values of a row by name."""
        return dict(zip(self.names, self[number], strict=True))


class Table(Rows):
    """Rows that are listed."""

    def __init__(self, names: Sequence[str], rows: Sequence[tuple[Any, ...]]) -> None:
        super().__init__(names)
        self._rows = rows

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, number: int) -> tuple[Any, ...]:
        return self._rows[number]


class Grid(Rows):
    """All combinations of other rows. The last ones change fastest."""

    def __init__(self, parts: Sequence[Rows]) -> None:
        super().__init__([name for part in parts for name in part.names])
        self._parts = parts
        self._count = prod(map(len, parts))

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, number: int) -> tuple[Any, ...]:
        return tuple(value for part, place in self._places(number) for value in part[place])

    def row(self, number: int) -> dict[str, Any]:
        """Return the values of a row by name."""
        return {name: value for part, place in self._places(number) for name, value in part.row(place).items()}

    def _places(self, number: int) -> list[tuple[Rows, int]]:
        """Return which row of each part belongs to a row."""
        if not 0 <= number < self._count:
            raise IndexError(number)
        places = []
        for part in reversed(self._parts):
            number, place = divmod(number, len(part))
            places.append((part, place))
        return places[::-1]


class Zipped(Rows):
    """Other rows side by side, all with the same number of rows."""

    def __init__(self, parts: Sequence[Rows]) -> None:
        super().__init__([name for part in parts for name in part.names])
        lengths = {", ".join(part.names): len(part) for part in parts}
        if len({*lengths.values()}) > 1:
            counts = ", ".join(f"{name} has {count}" for name, count in lengths.items())
            raise UsageError(f"zipped parameters need equally many values: {counts}")
        self._parts = parts

    def __len__(self) -> int:
        return len(self._parts[0]) if self._parts else 0

    def __getitem__(self, number: int) -> tuple[Any, ...]:
        return tuple(value for part in self._parts for value in part[number])


class Samples(Rows):
    """Random values: the same ones for the same seed.

    Args:
        kinds: for each parameter `uniform(0, 1)`, `loguniform(1e-3, 1)`, `normal(0, 1)` or `integer(1, 6)`.
    """

    def __init__(self, kinds: Mapping[str, str], count: int, seed: int) -> None:
        super().__init__([*kinds])
        self._kinds = {name: _distribution(name, text) for name, text in kinds.items()}
        self._count = count
        self._seed = seed

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, number: int) -> tuple[Any, ...]:
        if not 0 <= number < self._count:
            raise IndexError(number)
        return tuple(_drawn(kind, random.Random(f"{self._seed} {name} {number}")) for name, kind in self._kinds.items())


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
    from math import exp, log

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
        >>> [row for row in values_of("x", "0..0.2..0.1,5")]
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
    text = _text_of(path)
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


def _text_of(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise UsageError(f"the table {path} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        line = path.read_bytes()[: error.start].count(b"\n") + 1
        raise UsageError(
            f"the table {path} is not text in UTF-8 (line {line}): convert it, as with iconv -f latin1 -t utf-8"
        ) from error


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
