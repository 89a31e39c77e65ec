"""Writes the tasks of a run database for other programs: as CSV, JSON lines or Parquet."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import IO, Any

from mwpy._values.errors import UsageError

__all__ = ["FORMATS", "export"]

Rows = Iterator[tuple[Any, ...]]

ROWS_AT_ONCE = 50_000
"""How many rows a group of a Parquet file has."""

PARQUET_TYPES = {"generation": "int64", "task": "int64", "attempt": "int64", "seconds": "float64", "ended": "float64"}
"""The types of columns that are not texts."""


def export(names: Sequence[str], rows: Rows, kind: str, file: IO[str] | Path) -> None:
    """Write rows.

    Args:
        names: the names of the columns.
        kind: one of `FORMATS`.
        file: where to; Parquet needs a path.

    Raises:
        UsageError: pyarrow is missing, or Parquet has no path.
    """
    write = FORMATS[kind]
    if isinstance(file, Path) and kind != "parquet":
        with file.open("w", encoding="utf-8", newline="") as opened:
            write(names, rows, opened)
    else:
        write(names, rows, file)


def _csv(names: Sequence[str], rows: Rows, file: Any) -> None:
    writer = csv.writer(file)
    writer.writerow(names)
    writer.writerows(rows)


def _json_lines(names: Sequence[str], rows: Rows, file: Any) -> None:
    for row in rows:
        file.write(json.dumps(dict(zip(names, row, strict=True))) + "\n")


def _parquet(names: Sequence[str], rows: Rows, file: Any) -> None:
    if not isinstance(file, Path):
        raise UsageError("Parquet is not text: name a file with --output")
    try:
        import pyarrow as pa
        from pyarrow import parquet
    except ImportError:
        raise UsageError(
            "Parquet needs pyarrow, which is not installed here: pip install 'mwpy-cluster[parquet]', or export CSV"
        ) from None
    schema = pa.schema([(name, getattr(pa, PARQUET_TYPES.get(name, "string"))()) for name in names])
    with parquet.ParquetWriter(file, schema) as writer:
        while some := list(islice(rows, ROWS_AT_ONCE)):
            columns = [
                pa.array(column, field.type) for column, field in zip(zip(*some, strict=True), schema, strict=True)
            ]
            writer.write_table(pa.Table.from_arrays(columns, schema=schema))


FORMATS: dict[str, Callable[[Sequence[str], Rows, Any], None]] = {
    "csv": _csv,
    "jsonl": _json_lines,
    "parquet": _parquet,
}
"""The function that writes each format."""
