"""The rows of a sweep: ranges, grids, zipped values, samples, and tables in files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from mwpy import UsageError
from mwpy.sweep.parameters import Grid, samples, table_in, values_of, zipped
from mwpy.sweep.settings import Settings, Sweep


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("0.10,2,abc", ["0.10", "2", "abc"]),
        ("0..1..0.25", ["0.00", "0.25", "0.50", "0.75", "1.00"]),
        ("3..1", ["3", "2", "1"]),
        ("1..2,7", ["1", "2", "7"]),
        ('"a,b", c', ["a,b", "c"]),
        ("../x,a..b", ["../x", "a..b"]),
        ("1e3..1.1e3..5e1", ["1.00E+3", "1.05E+3", "1.10E+3"]),
    ],
)
def test_values_stay_as_they_are_written_and_ranges_are_decimal(text: str, values: list[str]) -> None:
    assert [value for (value,) in values_of("x", text).rows] == values


@pytest.mark.parametrize(
    ("text", "said"),
    [("", "no values"), ("1..2..0", "away"), ("1..5..-1", "away"), ("0..1..1e-9", "more than")],
)
def test_a_wrong_range_is_refused(text: str, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        values_of("x", text)


def test_a_grid_has_all_combinations_and_the_last_changes_fastest() -> None:
    grid = Grid([values_of("a", "1,2"), zipped([values_of("b", "x,y"), values_of("c", "u,v")])])
    assert grid.names == ("a", "b", "c")
    rows = [("1", "x", "u"), ("1", "y", "v"), ("2", "x", "u"), ("2", "y", "v")]
    assert [grid[number] for number in range(len(grid))] == rows
    assert grid.row(3) == {"a": "2", "b": "y", "c": "v"}


def test_a_grid_of_millions_takes_no_memory() -> None:
    grid = Grid([values_of(name, "1..1000") for name in "abc"])
    assert len(grid) == 10**9
    assert grid[10**9 - 1] == ("1000", "1000", "1000")


def test_zipped_values_must_be_equally_many() -> None:
    with pytest.raises(UsageError, match="a has 2, b has 3"):
        zipped([values_of("a", "1,2"), values_of("b", "1,2,3")])
    with pytest.raises(UsageError, match="the parameter a is given twice"):
        Grid([values_of("a", "1"), values_of("a", "2")])


def test_samples_depend_on_the_seed_alone() -> None:
    kinds = {"u": "uniform(0, 1)", "l": "loguniform(1e-3, 1)", "n": "normal(0, 1)", "i": "integer(1, 6)"}
    first, same, other = samples(kinds, 50, 1).rows, samples(kinds, 60, 1).rows, samples(kinds, 50, 2).rows
    assert first == same[:50] != other
    for uniform, logarithmic, _, whole in first:
        assert 0 <= float(uniform) <= 1
        assert 1e-3 <= float(logarithmic) <= 1
        assert int(whole) in range(1, 7)
    for wrong in "uniform(1)", "gauss(0, 1)", "loguniform(0, 1)", "uniform(0, 1":
        with pytest.raises(UsageError, match="no distribution"):
            samples({"x": wrong}, 1, 0)


@pytest.mark.parametrize(
    ("name", "content", "rows"),
    [
        ("a.csv", b'\xef\xbb\xbfx,y\r\n1,"a,b"\r\n\r\n2,c\r\n', [("1", "a,b"), ("2", "c")]),
        ("a.tsv", b"x\ty\n1\ta b\n", [("1", "a b")]),
        ("a.txt", "x | y\n1 | é\n 2|3 \n".encode(), [("1", "é"), ("2", "3")]),
        ("a.jsonl", b'{"x": 0.10, "y": "a"}\n\n{"y": "b", "x": 2}\n', [("0.10", "a"), ("2", "b")]),
    ],
)
def test_tables_of_all_forms(name: str, content: bytes, rows: list[tuple[Any, ...]], tmp_path: Path) -> None:
    """Also with a byte order mark, Windows line ends, and empty lines."""
    (tmp_path / name).write_bytes(content)
    table = table_in(tmp_path / name)
    assert (table.names, table.rows) == (["x", "y"], rows)


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("a.csv", b"x,y\n1,2\n3\n", "row 3 of .*a.csv has 1 cells, and the first line has 2 names"),
        ("a.txt", b"x|y\n1|2|3\n", "row 2 of .* has 3 cells"),
        ("a.csv", b"x,y\n\xff,1\n", r"not text in UTF-8 \(line 2\): convert it"),
        ("a.csv", b"\n", "is empty"),
        ("a.jsonl", b'{"x": 1}\n{"y": 1}\n', "row 2 of .* does not have the names of the first row: x"),
        ("a.jsonl", b"{\n", "row 1 of .* is not JSON"),
    ],
)
def test_a_wrong_table_is_refused_by_row(name: str, content: bytes, said: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(UsageError, match=said):
        table_in(tmp_path / name)
    with pytest.raises(UsageError, match="cannot be read: No such file"):
        table_in(tmp_path / "missing.csv")


# Settings


def sweep_of(folder: Path, **settings: Any) -> Sweep:
    return Sweep.of(
        Settings.of({name.replace("_", "-"): value for name, value in settings.items()}, "the study"), folder
    )


def test_a_sweep_combines_all_kinds_of_parameters(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("a,b\n1,2\n3,4\n")
    sweep = sweep_of(
        tmp_path,
        command="run {a} {b} {c} {d} {e} {repeat} {#} {seed}",
        table="t.csv",
        values={"c": "1..2"},
        zip={"d": ["x", "y"], "e": [0.5, 1]},
        repeat=2,
    )
    assert len(sweep.rows) == 16
    first, last = sweep.values(0, sweep.stages[0]), sweep.values(15, sweep.stages[0])
    assert sweep.stages[0].command.shown(**first) == f"run 1 2 1 x 0.5 1 1 {first['seed']}"
    assert sweep.stages[0].command.shown(**last) == f"run 3 4 2 y 1 2 16 {last['seed']}"
    assert first["seed"] != last["seed"]


def test_unnamed_values_are_combined_or_side_by_side(tmp_path: Path) -> None:
    (tmp_path / "lines").write_text("p\nq\n")
    lists = [(":::", ["a", "b"]), (":::+", ["1", "2"]), ("::::", ["lines"])]
    sweep = sweep_of(tmp_path, command="run {1}-{2}-{3} {}", unnamed=lists)
    [stage] = sweep.stages
    shown = [stage.command.shown(**sweep.values(number, stage)) for number in range(len(sweep.rows))]
    assert shown == ["run a-1-p a 1 p", "run a-1-q a 1 q", "run b-2-p b 2 p", "run b-2-q b 2 q"]


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"comand": "x"}, "unknown setting comand; do you mean command?"),
        ({"command": 3}, "wrong setting: Expected `str | array`"),
        ({}, "either a command, or tasks with a command each"),
        ({"command": "run {a}"}, "no rows: give values"),
        ({"command": "run {a}", "values": {"b": "1"}}, "the placeholder {a}, and there is no value for it"),
        ({"command": "run {a}", "values": {"a": 3}}, "the values of a are 3"),
        ({"command": "run {a}", "values": {"a": "1"}, "table": "no.csv"}, "cannot be read"),
        ({"command": "run", "order": "random"}, "write given or shuffled"),
        ({"command": "run", "bounds": {"e": [0, 1]}}, "bounds has e, which is not in results"),
        ({"command": "run", "results": {"e": "("}}, "the pattern '\\(' of e is wrong"),
        ({"command": "run", "results": {"e": {"patern": "x"}}}, "unknown field `patern`"),
        ({"command": "run", "validate": "no.py:f"}, "write FILE.py:FUNCTION"),
        ({"command": "run", "samples": {"x": "uniform(0, 1)"}}, "samples has count=None"),
        ({"command": "run", "exit-codes": "all"}, "a list of numbers, or any"),
        ({"command": "run", "templates": {"x": "no"}}, "the template .*no cannot be read"),
    ],
)
def test_a_wrong_setting_is_refused_by_name(settings: dict[str, Any], said: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=said):
        sweep_of(tmp_path, **settings)


def test_a_table_may_have_more_columns_than_the_command_uses(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("a,remark\n1,some\n")
    sweep = sweep_of(tmp_path, command="run {a}", table="t.csv")
    assert sweep.values(0, sweep.stages[0]) == {"a": "1"}
    assert sweep.rows.row(0) == {"a": "1", "remark": "some"}
