"""`mwpy sweep`: runs, tables, continuing, choosing rows, and what a careless user does."""

from __future__ import annotations

import csv
import hashlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
import tarfile
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from tests.integration.apps.stage import until

import mwpy
from mwpy.cli import compare
from mwpy.cli import sweep as command_line
from mwpy.run_database import RunDatabase
from mwpy.sweep.job import Job, store

Sweep = Callable[..., int]


@pytest.fixture
def sweep(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Sweep:
    """Runs `mwpy sweep` in an empty folder, with two slaves."""
    monkeypatch.chdir(tmp_path)

    def run(*arguments: str) -> int:
        before = next((place for place, word in enumerate(arguments) if word in command_line.SIGNS), len(arguments))
        return command_line.main([*arguments[:before], "--slaves", "2", *arguments[before:]])

    return run


def rows_of(path: Path) -> list[list[str]]:
    with path.open(newline="") as opened:
        return list(csv.reader(opened))


def write_study(folder: Path, more: str = "") -> None:
    """A study that notes each run in the file `ran`, and whose run of alpha=3 fails."""
    (folder / "conf.in").write_text("E = {alpha}.{beta}\n")
    (folder / "study.toml").write_text(
        f"""command = "sh -c 'echo {{alpha}}{{beta}} >> {folder}/ran; cat conf; test {{alpha}} != 3'"
templates = {{ conf = "conf.in" }}
values = {{ alpha = "1..4", beta = [5, 6] }}
results = {{ energy = "E = (.*)" }}
{more}"""
    )


def ran(folder: Path) -> list[str]:
    """The runs since the last call."""
    path = folder / "ran"
    lines = sorted(path.read_text().split()) if path.exists() else []
    path.unlink(missing_ok=True)
    return lines


def start(folder: Path, *arguments: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "mwpy", "sweep", *arguments]
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen(command, cwd=folder, start_new_session=True, **streams)  # type: ignore[call-overload, no-any-return]


def test_a_study_gives_tables_and_the_same_command_continues(
    sweep: Sweep, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    write_study(tmp_path)
    assert sweep("study.toml") == 1
    folder = tmp_path / "study.sweep"
    expected = [["alpha", "beta", "energy"], *([a, b, f"{a}.{b}"] for a in "124" for b in "56")]
    assert rows_of(folder / "results.csv") == expected
    failed = rows_of(folder / "failed.csv")
    assert [row[:2] for row in failed] == [["alpha", "beta"], ["3", "5"], ["3", "6"]]
    assert "it ended with exit code 1 (on " in failed[1][2]
    assert "E = 3.5\nto repeat it: sh -c " in failed[1][2]
    assert rows_of(folder / "runs.csv")[0] == ["alpha", "beta", "host", "slave", "seconds", "attempts"]
    assert "6 of 8 runs succeeded, 2 failed" in capfd.readouterr().err
    assert len(ran(tmp_path)) == 8
    with tarfile.open(folder / "runs" / "5.tar.gz") as archive:
        assert "conf" in archive.getnames()

    assert sweep("study.toml") == 1
    assert ran(tmp_path) == []
    assert rows_of(folder / "results.csv") == expected
    assert sweep("study.toml", "--again", "failed") == 1
    assert ran(tmp_path) == ["35", "36"]
    assert sweep("study.toml", "--again", "alpha > 2 and beta == 5") == 1
    assert ran(tmp_path) == ["35", "45"]
    assert sweep("study.toml", "--again", "all") == 1
    assert len(ran(tmp_path)) == 8
    assert sweep("study.toml", "--values", "alpha=1..5", "--values", "beta=5,6") == 1
    assert ran(tmp_path) == ["55", "56"]
    capfd.readouterr()

    (tmp_path / "conf.in").write_text("E = {alpha}.{beta}0\n")
    assert sweep("study.toml", "--dry-run") == 0
    said = capfd.readouterr().out
    assert "8 new, 0 done, 0 failed\nthe template conf has changed: the runs are made again\n" in said
    assert "echo 15 >>" in said
    assert "and 3 more" in said
    assert sweep("study.toml", "--accept", "--dry-run") == 0
    assert "0 new, 6 done, 2 failed\nthe template conf has changed: the results are kept\n" in capfd.readouterr().out
    assert ran(tmp_path) == []
    assert sweep("study.toml", "--first", "2") == 0
    assert ran(tmp_path) == ["15", "16"]
    assert "the template conf has changed, so its runs are made again" in capfd.readouterr().err


def test_a_dry_run_shows_values_that_are_not_in_the_command_line(
    sweep: Sweep, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "in").write_text("{height}\n")
    assert sweep("cat conf", "--template", "conf=in", "--values", "height=2..3", "--dry-run") == 0
    assert capfd.readouterr().out == "height=2: cat conf\nheight=3: cat conf\n2 new, 0 done, 0 failed\n"


def test_the_end_says_where_runs_were_made_and_which_failed(
    sweep: Sweep, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    write_study(tmp_path, 'on-end = "cat > end.json"')
    assert sweep("study.toml") == 1
    places = rows_of(tmp_path / "study.sweep" / "runs.csv")[1:]
    host = socket.gethostname()
    assert [row[:3] for row in places] == [[a, b, host] for a in "1234" for b in "56"]
    assert {row[3] for row in places} <= {"SLAVE-0", "SLAVE-1"}
    assert all(float(row[4]) > 0 and int(row[5]) >= 1 for row in places)  # an idle slave may get runs of the other one
    said = capfd.readouterr().err
    assert f"\n  {host}: 8 runs, " in said
    assert "\n  failed: alpha=3, beta=5; alpha=3, beta=6: it ended with exit code 1 (E = 3.5)\n" in said
    end = json.loads((tmp_path / "end.json").read_text())
    assert {name: entry["runs"] for name, entry in end["hosts"].items()} == {host: 8}


def test_an_agent_from_elsewhere_helps_a_sweep_that_runs(tmp_path: Path) -> None:
    """It needs only the resource file. So does somebody who looks."""
    started = start(
        tmp_path, "echo E={x}", "--values", "x=1..3", "--slaves", "0", "--result", "e=E=(.*)", "--folder", "f"
    )
    resource = tmp_path / "f" / "sweep.rsc"
    until(lambda: resource.exists() and "in-progress" in resource.read_text(), "a resource file")
    assert mwpy.status(resource)["state"] == "running"
    agent = [sys.executable, "-m", "mwpy", "slave", "--mw-resource-file", str(resource)]
    assert subprocess.run(agent, cwd=tmp_path, check=False, capture_output=True).returncode == 0
    _, err = started.communicate()
    assert started.returncode == 0, err
    assert rows_of(tmp_path / "f" / "results.csv")[1:] == [["1", "1"], ["2", "2"], ["3", "3"]]


def test_only_added_rows_run(sweep: Sweep, tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("x,note\n1,a\n2,b\n")
    command = (f"echo {{x}} >> {tmp_path}/ran", "--shell", "--table", "t.csv")
    assert sweep(*command) == 0
    assert ran(tmp_path) == ["1", "2"]
    (tmp_path / "t.csv").write_text("x,note\n0,c\n1,a\n2,b\n")
    assert sweep(*command) == 0
    assert ran(tmp_path) == ["0"]
    [results] = (tmp_path / ".mwpy-sweep").glob("*/results.csv")
    assert rows_of(results) == [["x", "note"], ["0", "c"], ["1", "a"], ["2", "b"]]


def test_results_are_checked_on_the_master(sweep: Sweep, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What is not valid is a failure at the end, and also for commands that look at the sweep later."""
    (tmp_path / "checks.py").write_text(
        "def valid(row, results):\n    assert results['e'] != 4\n    return results['e'] != 3 or 'three is odd'\n"
    )
    write_study(tmp_path)
    (tmp_path / "study.toml").write_text(
        """command = "echo E={x}"
values = { x = "1..5" }
results = { e = "E=(.*)" }
bounds = { e = [2, 10] }
validate = "checks.py:valid"
on-end = "cat > end.json"
"""
    )
    assert sweep("study.toml") == 1
    failed = rows_of(tmp_path / "study.sweep" / "failed.csv")[1:]
    assert failed == [
        ["1", "e is 1, and not from 2.0 to 10.0"],
        ["3", "three is odd"],
        ["4", "checks.py:valid raised AssertionError: "],
    ]
    end = json.loads((tmp_path / "end.json").read_text())
    assert (end["runs"], end["succeeded"], end["failed"]) == (5, 2, 3)
    assert command_line.main(["collect", "study.sweep", "--to", "again.csv"]) == 0
    assert rows_of(tmp_path / "again.csv") == [["x", "e"], ["2", "2"], ["5", "5"]]
    capsys.readouterr()
    assert command_line.main(["failed", "study.toml", "--json"]) == 1
    again = [[str(row["parameters"]["x"]), row["error"]] for row in json.loads(capsys.readouterr().out)]
    assert again == failed


def test_results_of_all_kinds(sweep: Sweep, tmp_path: Path) -> None:
    (tmp_path / "j").write_text('{"a": [1.5, {"b": {x}}]}')
    (tmp_path / "study.toml").write_text(
        """command = ["sh", "-c", "echo n={x}; cp j o.json; printf 'u,v\\n1,2\\n3,{x}\\n' > t.csv"]
templates = { j = "j" }
outputs = ["o.json", "t.csv"]
[values]
x = [7, 8]
[results]
n = "n=(.*)"
all = { file = "STDOUT" }
first = { file = "o.json", json = "a.0" }
inner = { file = "o.json", json = "a.1.b" }
last = { file = "t.csv", column = "v" }
"""
    )
    assert sweep("study.toml") == 0
    table = rows_of(tmp_path / "study.sweep" / "results.csv")
    assert table == [
        ["x", "n", "all", "first", "inner", "last"],
        ["7", "7", "n=7", "1.5", "7", "7"],
        ["8", "8", "n=8", "1.5", "8", "8"],
    ]


@pytest.mark.parametrize(
    ("result", "said"),
    [
        ("'m=(.*)'", "its standard output has no match of the pattern 'm=(.*)' of r"),
        ("{ file = 'no' }", "there is no output no"),
        ("{ json = 'a' }", "its standard output has no a for r"),
        ("{ column = 'a' }", "STDOUT has no column a for r"),
    ],
)
def test_a_result_that_is_missing_fails_the_run(result: str, said: str, sweep: Sweep, tmp_path: Path) -> None:
    (tmp_path / "study.toml").write_text(
        f"command = 'echo n={{x}}'\nvalues = {{ x = '1' }}\nresults = {{ r = {result} }}\n"
    )
    assert sweep("study.toml") == 1
    assert said in rows_of(tmp_path / "study.sweep" / "failed.csv")[1][1]


def test_unnamed_values_run_in_the_current_folder_and_print_in_order(
    sweep: Sweep, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    for name in "b c", "a":
        (tmp_path / f"{name}.txt").write_text(name)
    assert sweep("sleep 0.$(({#} % 2)); cat {}; echo {#}:{.} >&2", "--shell", ":::", "b c.txt", "a.txt", "b c.txt") == 0
    said = capfd.readouterr()
    assert said.out == "b cab c"
    assert said.err == "1:b c\n2:a\n3:b c\n"
    assert sweep("exit {}", "--shell", ":::", "0", "1") == 1
    assert "failed: 1: it ended with exit code 1" in capfd.readouterr().err


def test_the_output_of_running_programs_is_shown_and_the_rest_at_their_end(tmp_path: Path) -> None:
    """Also if the program fails."""
    line = "echo began {x}; while ! test -e {gate}; do sleep 0.02; done; echo E={x}; false"
    options = ("--shell", "--values", "x=5", "--values", f"gate={tmp_path}/gate", "--slaves", "1")
    started = start(tmp_path, line, *options, "--follow", "STDOUT", "--result", "e=E=(.*)", "--folder", "f")
    assert started.stdout is not None
    assert started.stdout.readline() == f"x=5, gate={tmp_path}/gate: began 5\n"
    (tmp_path / "gate").touch()
    assert started.communicate()[0] == f"x=5, gate={tmp_path}/gate: E=5\n"
    assert started.returncode == 1


def test_files_of_the_user_in_the_folder_of_a_sweep_stay(
    sweep: Sweep, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Also in a folder with the name of that for the folders of runs."""
    kept = [tmp_path / name for name in ("thesis.tex", "runs/measured.csv", "old.tar.gz")]
    (tmp_path / "runs").mkdir()
    for path in kept:
        path.write_text("mine")
    for _ in range(2):
        assert sweep("head -c {n} /dev/zero", "--values", "n=1,400000,x", "--output", "STDOUT", "--folder", ".") == 1
    assert (tmp_path / "runs" / "3.tar.gz").exists()
    assert command_line.main(["clean", "."]) == 0
    assert "what it has not written is still there: old.tar.gz" in capfd.readouterr().err
    assert sorted(path for path in tmp_path.rglob("*") if path.is_file()) == sorted(kept)


def test_the_folder_of_a_failed_run_is_removed_when_the_row_is(sweep: Sweep, tmp_path: Path) -> None:
    assert sweep("test {n} -gt 0", "--values", "n=0..1", "--folder", "f") == 1
    assert (tmp_path / "f" / "runs" / "1.tar.gz").exists()
    assert sweep("test {n} -gt 0", "--values", "n=1..2", "--folder", "f") == 0
    assert not (tmp_path / "f" / "runs").exists()


def test_two_sweeps_are_compared_row_by_row(sweep: Sweep, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    line = "sh -c 'echo E=0.{{a}}1{0}; echo {{a}} > o; test {{a}} != {1}'"
    for folder, values, digits, failing in ("old", "1..3", "", 9), ("new", "2..4", "000001", 3):
        options = ("--result", "e=E=(.*)", "--output", "o", "--folder", folder)
        assert sweep(line.format(digits, failing), "--values", f"a={values}", *options) == (failing == 3)
    capfd.readouterr()
    assert compare.main(["old", "new"]) == 1
    said = capfd.readouterr()
    assert said.err == ""
    assert said.out == (
        "a=2: e: 0.21 -> 0.21000001\n"
        "a=3: the run: succeeded -> it ended with exit code 1\n"
        "0 rows are the same, 2 differ, 1 are only in the old sweep, 1 only in the new\n"
    )
    assert compare.main(["old", "new", "--tolerance", "1e-3", "--json"]) == 1
    said = json.loads(capfd.readouterr().out)
    assert (said["same"], said["changed"], said["only_old"], said["only_new"]) == (1, 1, 1, 1)
    assert compare.main(["old", "old"]) == 0


def test_outputs_are_compared_by_their_digests(sweep: Sweep, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Also those of several programs: a file that one makes, and what the next one makes of it."""
    for version, text in ("old", "one"), ("new", "two"):
        (tmp_path / f"{version}.toml").write_text(
            f"""values = {{ a = [1, 2] }}
[[task]]
name = "write"
command = "echo {text} > page"
shell = true
outputs = ["page"]
[[task]]
name = "render"
command = "wc -l < page > image; test {{a}} = 1 || cat page >> image"
shell = true
inputs = ["page"]
outputs = ["image"]
"""
        )
        assert sweep(f"{version}.toml") == 0
    capfd.readouterr()
    assert compare.main(["old.toml", "new.toml"]) == 1
    pages = [hashlib.sha256(text).hexdigest()[:12] for text in (b"one\n", b"two\n")]
    images = [hashlib.sha256(b"1\n" + text).hexdigest()[:12] for text in (b"one\n", b"two\n")]
    page = "output page: page {} -> page {}".format(*pages)
    image = "output image: image {} -> image {}".format(*images)
    assert capfd.readouterr().out.splitlines()[:3] == [f"a=1: {page}", f"a=2: {page}", f"a=2: {image}"]


def test_files_that_the_command_line_names_travel_and_count(
    sweep: Sweep, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """A script and a relative program need no --input. If they change, or if other results are asked for, runs are made
    again."""
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "tool").write_text("#!/bin/sh\nsh ./sim.sh $1\n")
    (tmp_path / "bin" / "tool").chmod(0o755)
    (tmp_path / "sim.sh").write_text("echo a=$1; echo b=$1$1\n")
    (tmp_path / "out.dat").write_text("old")
    line = ("bin/tool {x} sim.sh out.dat", "--values", "x=1,2", "--output", "STDOUT", "--folder", "f", "--result")
    assert sweep(*line, "a=a=(.*)") == 0
    assert rows_of(tmp_path / "f" / "results.csv") == [["x", "a"], ["1", "1"], ["2", "2"]]
    assert sweep(*line, "b=b=(.*)") == 0
    assert "what is taken from a run has changed" in capfd.readouterr().err
    assert rows_of(tmp_path / "f" / "results.csv") == [["x", "b"], ["1", "11"], ["2", "22"]]
    (tmp_path / "sim.sh").write_text("echo b=$1$1$1\n")
    assert sweep(*line, "b=b=(.*)") == 0
    assert "the input sim.sh has changed" in capfd.readouterr().err
    assert rows_of(tmp_path / "f" / "results.csv") == [["x", "b"], ["1", "111"], ["2", "222"]]


def test_after_its_end_a_command_in_the_current_folder_runs_again(
    sweep: Sweep, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Its files may have changed since. A sweep that was stopped continues."""
    (tmp_path / "a").write_text("one\n")
    assert sweep("cat", ":::", "a") == 0
    (tmp_path / "a").write_text("two\n")
    assert sweep("cat", ":::", "a") == 0
    assert capfd.readouterr().out == "one\ntwo\n"


EXAMPLES = [
    ("echo", ["A", "B"], "A\nB\n"),
    ("echo {.} {/} {//} {/.}", ["A/B.C"], "A/B B.C A B\n"),
    ("echo {#}", ["A", "B"], "1\n2\n"),
    ("echo", ["A", "B", ":::", "D", "E"], "A D\nA E\nB D\nB E\n"),
    ("echo {2} and {1}", ["A", "B", ":::", "C"], "C and A\nC and B\n"),
    ("echo {1} {2}", ["A", "B", ":::+", "D", "E"], "A D\nB E\n"),
    ("echo {1/} {2.}", ["x/y", ":::", "p.q"], "y p\n"),
    ("seq {} | wc -l", ["3", "4"], "3\n4\n"),
    ("echo {} | tr a-z A-Z", ["abc", "d e"], "ABC\nD E\n"),
    ("echo {} > {.}.lst; cat {.}.lst", ["a.jpg"], "a.jpg\n"),
    ("cat", ["::::", "lines"], "one\ntwo\n"),
]
"""Examples of the manual of GNU parallel (`parallel -k COMMAND ::: VALUES`), and what it prints."""


@pytest.mark.parametrize(("command", "values", "printed"), EXAMPLES, ids=[command for command, *_ in EXAMPLES])
def test_examples_of_gnu_parallel_print_the_same(
    command: str, values: list[str], printed: str, sweep: Sweep, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    for name in "one", "two":
        (tmp_path / name).write_text(f"{name}\n")
    (tmp_path / "lines").write_text("one\ntwo\n")
    shell = ["--shell"] if {*"|>"} & {*command} else []
    assert sweep(command, *shell, *([] if values[0] == "::::" else [":::"]), *values) == 0
    assert capfd.readouterr().out == printed


def test_all_outputs_are_printed_although_some_rows_do_not_run(sweep: Sweep, capfd: pytest.CaptureFixture[str]) -> None:
    """In the order of the values, also if the runs start in another one."""
    assert sweep("echo", "--sample", "50%", "--order", "shuffled", ":::", *map(str, range(20))) == 0
    printed = [int(line) for line in capfd.readouterr().out.split()]
    assert len(printed) == 10
    assert printed == sorted(printed)


def test_a_long_run_fails_at_its_limit_and_stays_failed(
    sweep: Sweep, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    command = (f"echo {{x}} >> {tmp_path}/ran; sleep {{x}}", "--shell", "--seconds-max", "1", "--values", "x=0,1000")
    assert sweep(*command) == 1
    assert ran(tmp_path) == ["0", "1000", "1000", "1000"]
    assert "failed: x=1000: it lost 3 attempts" in capfd.readouterr().err
    assert sweep(*command) == 1
    assert ran(tmp_path) == []


def test_outputs_and_tables_are_collected_in_the_order_of_the_rows(
    sweep: Sweep, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "post.py").write_text(
        "def keep(row, results, outputs):\n"
        "    with open('called', 'a') as file:\n"
        "        print(row['x'], results['e'], outputs['o'].read_text(), file=file)\n"
    )
    study = """command = "sh -c 'sleep 0.$((3 - {x})); echo E={x}; echo {x}{x} > o{x}.txt; test {x} != 2'"
outputs = { o = "o{x}.txt", STDOUT = "STDOUT" }
intermediate = ["STDOUT"]
values = { x = "1..3" }
results = { e = "E=(.*)" }
collect = [
    { to = "final/{x}/{file}", output = "*" },
    { to = "all.txt" },
    { to = "blocks.txt", output = "o", form = "blocks" },
    { to = "each/{x}-{file}", output = "o" },
    { to = "table.tsv" },
    { function = "post.py:keep" },
]
"""
    (tmp_path / "study.toml").write_text(study)
    assert sweep("study.toml") == 1
    texts = {path.name: path.read_text() for path in tmp_path.rglob("*") if path.suffix in (".txt", ".tsv")}
    assert texts == {
        "all.txt": "E=1\nE=3\n",
        "blocks.txt": "# x=1\n11\n# x=3\n33\n",
        "1-o1.txt": "11\n",
        "3-o3.txt": "33\n",
        "o1.txt": "11\n",
        "o3.txt": "33\n",
        "table.tsv": "x\te\n1\t1\n3\t3\n",
    }
    assert (tmp_path / "called").read_text() == "1 1 11\n\n3 3 33\n\n"
    for name, content in ("t.jsonl", '{"x": "1", "e": 1}\n{"x": "3", "e": 3}\n'), ("t.csv", "x,e\n1,1\n3,3\n"):
        assert command_line.main(["collect", "study.toml", "--to", name]) == 0
        assert (tmp_path / name).read_text() == content
    with pytest.raises(mwpy.UsageError, match="needs the output p, and the outputs of the sweep are: o, STDOUT"):
        command_line.main(["collect", "study.sweep", "--to", "x", "--output", "p"])
    capfd.readouterr()

    assert command_line.main(["failed", "study.sweep"]) == 1
    assert capfd.readouterr().out.startswith("row 2: x=2\n  it ended with exit code 1 (on ")
    assert command_line.main(["failed", "study.toml", "--json"]) == 1
    [said] = json.loads(capfd.readouterr().out)
    assert (said["row"], said["parameters"]) == (2, {"x": "2"})
    assert command_line.main(["collect", "study.toml", "--to", "t.csv", "--json"]) == 0
    assert json.loads(capfd.readouterr().out) == {"to": str(tmp_path / "t.csv"), "rows": 2}
    assert sweep("study.toml", "--dry-run", "--json") == 0
    said = json.loads(capfd.readouterr().out)
    assert [said[name] for name in ("new", "done", "failed", "changed")] == [0, 2, 1, []]
    assert command_line.main(["clean", "study.toml", "--json"]) == 0
    assert json.loads(capfd.readouterr().out) == {"removed": "study.sweep"}
    assert not (tmp_path / "study.sweep").exists()
    with pytest.raises(mwpy.UsageError, match="is no folder of a sweep"):
        command_line.main(["failed", "study.toml"])


def test_a_collection_needs_no_name_of_the_standard_output(sweep: Sweep, tmp_path: Path) -> None:
    assert sweep("seq {n}", "--values", "n=1..2", "--collect", "all.txt", "--folder", "s") == 0
    assert (tmp_path / "all.txt").read_text() == "1\n1\n2\n"


@pytest.mark.parametrize(
    ("collection", "said"),
    [
        ("{ to = 'x', output = 'nope' }", "needs the output nope, and the outputs of the sweep are: none"),
        ("{ to = 'x', form = 'block' }", "write plain or blocks"),
        ("{ function = 'post.py:nofunc' }", "cannot be loaded"),
        ("{ output = 'x' }", "neither a file"),
    ],
)
@pytest.mark.parametrize("options", [(), ("--dry-run",)], ids=["run", "dry run"])
def test_a_wrong_collection_is_refused_before_anything_runs(
    collection: str, said: str, options: Sequence[str], sweep: Sweep, tmp_path: Path
) -> None:
    (tmp_path / "post.py").touch()
    (tmp_path / "study.toml").write_text(f"command = 'touch {tmp_path}/ran'\ncollect = [{collection}]\n")
    with pytest.raises(mwpy.UsageError, match=said):
        sweep("study.toml", *options)
    assert not (tmp_path / "ran").exists()


def test_a_table_that_cannot_be_written_is_written_by_the_same_command(sweep: Sweep, tmp_path: Path) -> None:
    command = (f"echo {{a}}; echo ran >> {tmp_path}/log", "--shell", "--values", "a=1,2", "--folder", "s")
    for name, options in ("s/results.csv", ()), ("own.csv", ("--collect", "own.csv")), ("t", ("--collect", "t")):
        (tmp_path / name).mkdir(parents=True)
        with pytest.raises(mwpy.UsageError, match=f"{name} cannot be written .*same command again"):
            sweep(*command, *options)
        (tmp_path / name).rmdir()
        assert sweep(*command, *options) == 0
        assert (tmp_path / name).is_file()
    assert (tmp_path / "log").read_text() == 4 * "ran\n", "the standard output was not kept at first"


def test_a_collection_that_would_overwrite_its_own_files_is_refused(sweep: Sweep, tmp_path: Path) -> None:
    """A file that two outputs have is one file."""
    program = "sh -c 'mkdir a b; echo {x} > a/o; echo {x}{x} > b/o; echo {x} > c'"
    outputs = ("--output", "a/o", "--output", "b/o", "--output", "c")
    assert sweep(program, "--values", "x=1..2", *outputs, "--folder", "s") == 0
    for to, output in ("all/{x}/{file}", "*"), ("all/{file}", "c"):
        with pytest.raises(mwpy.UsageError, match=f"has two files for {tmp_path}/all/"):
            command_line.main(["collect", "s", "--to", to, "--output", output])
    assert command_line.main(["collect", "s", "--to", "all/{x}/{file}", "--output", "c"]) == 0

    assert sweep("touch a.dat b.dat", "--output", "*.dat", "--output", "a.dat", "--folder", "t") == 0
    assert command_line.main(["collect", "t", "--to", "t/{#}/{file}", "--output", "*"]) == 0
    assert sorted(each.name for each in (tmp_path / "t" / "1").iterdir()) == ["a.dat", "b.dat"]


def test_a_sweep_says_as_json_how_it_ended(sweep: Sweep, capfd: pytest.CaptureFixture[str]) -> None:
    """What the runs print is on standard error then."""
    assert sweep("echo printed {}; test {} != 2", "--shell", "--json", ":::", "1", "2") == 1
    captured = capfd.readouterr()
    said = json.loads(captured.out)
    assert [said[name] for name in ("runs", "succeeded", "failed", "exit code")] == [2, 1, 1, 1]
    [failure] = said["failures"]
    assert (failure["row"], failure["parameters"]["1"]) == (2, "2")
    assert "it ended with exit code 1" in failure["error"]
    assert "printed 1\nprinted 2\n" in captured.err


def test_a_rate_limits_how_many_runs_start(sweep: Sweep, tmp_path: Path) -> None:
    """Runs that were made before do not count."""
    command = (f"echo {{x}} >> {tmp_path}/ran", "--shell", "--folder", "study")
    assert sweep(*command, "--values", "x=1..3") == 0
    assert ran(tmp_path) == ["1", "2", "3"]
    limited = start(tmp_path, *command, "--slaves", "2", "--values", "x=1..5", "--rate", "1/h")
    until((tmp_path / "ran").exists, "a run")
    with RunDatabase(tmp_path / "study" / "run.db") as database:
        until(lambda: database.summary()["tasks"]["finished"] == 4, "its result in the run database")
    assert command_line.main(["stop", "study"]) == 0
    assert "4 of 5 runs succeeded, 3 of them before, 0 failed; the tables are in study\n" in limited.communicate()[1]
    assert ran(tmp_path) == ["4"]


# Sweeps without a terminal


def test_a_detached_sweep_outlives_its_shell_and_is_watched_and_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "study.toml").write_text(
        """command = "touch $OLD/began{x}; while ! test -e $OLD/gate; do sleep 0.02; done; echo E={x}; test {x} != 2"
shell = true
slaves = 2
values = { x = "1..4" }
env = { OLD = "FOLDER" }
seconds-max = 60
""".replace("FOLDER", str(tmp_path))
    )
    line = f"{sys.executable} -m mwpy sweep study.toml --detach; kill -9 $$"
    assert subprocess.run(["sh", "-c", line], start_new_session=True, check=False).returncode == -signal.SIGKILL
    assert "study.sweep` shows it\n" in capfd.readouterr().err
    until(lambda: (tmp_path / "began1").exists() and (tmp_path / "began2").exists(), "two runs")
    assert command_line.main(["status", "study.toml", "--json"]) == 0
    said = json.loads(capfd.readouterr().out)
    assert (said["state"], said["runs"], [*said["master"]["algorithms"]]) == ("runs", 4, ["touch"])
    with pytest.raises(mwpy.UsageError, match=r"runs in process \d+ on .*: `mwpy sweep attach .* shows it"):
        command_line.main(["study.toml", "--detach"])

    watching = start(tmp_path, "attach", "study.toml")
    assert watching.stderr is not None
    assert "runs in process" in watching.stderr.readline()
    os.kill(watching.pid, signal.SIGINT)
    assert "goes on; `mwpy sweep attach study.sweep` shows it again" in watching.communicate()[0]
    assert watching.returncode == mwpy.ExitCode.INTERRUPTED

    assert command_line.main(["stop", "study.sweep"]) == 0
    assert capfd.readouterr().out == "the sweep in study.sweep finishes what runs, and ends\n"
    until(lambda: "stops; what runs may finish" in (tmp_path / "study.sweep" / "job.log").read_text(), "the stop")
    (tmp_path / "gate").touch()
    assert command_line.main(["attach", "study.sweep"]) == mwpy.ExitCode.INTERRUPTED
    said = capfd.readouterr().out
    assert "1 of 4 runs succeeded, 1 failed; the tables are in " in said
    assert f"the same command continues it: cd {tmp_path} && mwpy sweep --detach study.toml" in said
    assert not (tmp_path / "began3").exists()

    (tmp_path / "gate").unlink()
    assert command_line.main(["study.toml", "--detach", "--json"]) == 0
    until(lambda: (tmp_path / "began3").exists() and (tmp_path / "began4").exists(), "the other runs")
    os.kill(json.loads(capfd.readouterr().out)["pid"], signal.SIGKILL)
    until(lambda: command_line.main(["status", "study.toml"]) == mwpy.ExitCode.UNREACHABLE, "the end of the process")
    assert re.search("is gone and has not said how it ended .*; the same command continues it", capfd.readouterr().out)
    with pytest.raises(mwpy.UsageError, match="cannot be stopped: it was started in process"):
        command_line.main(["stop", "study.toml"])
    (tmp_path / "gate").touch()
    assert command_line.main(["study.toml"]) == 1
    assert command_line.main(["attach", "study.toml"]) == 1
    assert "has ended with exit code 1: 3 of 4 runs succeeded" in capfd.readouterr().out


def test_a_second_start_that_is_refused_changes_nothing(sweep: Sweep, tmp_path: Path) -> None:
    line = "test {x} != 1; code=$?; test $code = 1 || while ! test -e {gate}; do sleep 0.02; done; exit $code"
    words = (line, "--shell", "--values", "x=1,2", "--values", f"gate={tmp_path}/gate", "--folder", "s")
    first = start(tmp_path, *words, "--slaves", "2")
    archive, state = tmp_path / "s" / "runs" / "1.tar.gz", tmp_path / "s" / "sweep.json"
    until(archive.exists, "the folder of the run that failed")
    before = state.read_bytes()
    with pytest.raises(mwpy.RunDatabaseError, match="is used by another master"):
        sweep(*words, "--again", "all")
    assert archive.exists()
    assert state.read_bytes() == before
    (tmp_path / "gate").touch()
    first.communicate()
    assert first.returncode == 1


def test_a_detached_sweep_that_cannot_start_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(mwpy.UsageError, match=r"no sweep was started in study.sweep: give the folder of a sweep"):
        command_line.main(["status", "study.toml"])
    monkeypatch.setenv("PATH", str(tmp_path))
    for system, program in ("slurm", "sbatch"), ("htcondor", "condor_submit"):
        with pytest.raises(mwpy.UsageError, match=f"{program} cannot be run: .*No such file"):
            command_line.main(["/bin/true", "--folder", system, "--detach", "--with", system])
        with pytest.raises(mwpy.UsageError, match="no sweep was started in"):
            command_line.main(["status", system])


def test_an_evicted_sweep_that_is_still_queued_has_not_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """HTCondor starts it again. Its queue says the id of the job, its state and a reason."""
    evicted = Job(["true"], str(tmp_path), "mark", "htcondor", 1, "", "node1", code=mwpy.ExitCode.INTERRUPTED)
    store(tmp_path / "job.json", evicted)
    queue = tmp_path / "condor_q"
    queue.touch(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    for queued, text in {
        "7 1 undefined": "waits as job 7 of htcondor\n",
        "7 2 undefined": "runs as job 7 of htcondor\n",
        "7 3 undefined": "has ended with exit code 130; the same command continues it: ",
        "": "has ended with exit code 130; the same command continues it: ",
    }.items():
        queue.write_text(f"#!/bin/sh\necho {queued}\n")
        assert command_line.main(["status", str(tmp_path)]) == 0
        assert f"the sweep in {tmp_path} {text}" in capsys.readouterr().out


# Ctrl-C and the end of the machine


def test_after_ctrl_c_the_outputs_of_all_finished_runs_are_printed(tmp_path: Path) -> None:
    """Also of a run behind one that was not made."""
    line = (
        "touch began{}; while test {} != 1 && ! test -e gate; do sleep 0.02; done; test {} != 1 || sleep 1000; echo {}"
    )
    started = start(tmp_path, line, "--shell", "--slaves", "2", "--seconds-max", "3", ":::", "1", "2")
    until(lambda: (tmp_path / "began1").exists() and (tmp_path / "began2").exists(), "two runs")
    os.kill(started.pid, signal.SIGINT)
    assert started.stderr is not None
    while "stops" not in started.stderr.readline():
        assert started.poll() is None
    (tmp_path / "gate").touch()
    out, err = started.communicate()
    assert (out, started.returncode) == ("2\n", mwpy.ExitCode.INTERRUPTED), err


def test_ctrl_c_lets_runs_finish_and_a_second_one_ends_them(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """So does SIGTERM. The end is said."""
    line = "touch began{}; while ! test -e gate; do sleep 0.02; done; echo {}"
    started = start(tmp_path, line, "--shell", "--slaves", "1", ":::", "1", "2")
    until((tmp_path / "began1").exists, "the first run")
    os.kill(started.pid, signal.SIGINT)
    assert started.stderr is not None
    assert started.stderr.readline() == "mwpy sweep: stops; what runs may finish (Ctrl-C again ends it)\n"
    (tmp_path / "gate").touch()
    out, err = started.communicate()
    assert (out, started.returncode) == ("1\n", mwpy.ExitCode.INTERRUPTED), err
    assert not (tmp_path / "began2").exists()

    (tmp_path / "gate").unlink()
    started = start(tmp_path, line, "--shell", "--slaves", "1", ":::", "1", "2")
    until((tmp_path / "began2").exists, "the second run")
    os.kill(started.pid, signal.SIGINT)
    assert started.stderr is not None
    while "stops" not in started.stderr.readline():
        assert started.poll() is None
    os.kill(started.pid, signal.SIGINT)
    said = started.communicate()[1].splitlines()[-1]
    assert (said, started.returncode) == ("mwpy sweep: ended by Ctrl-C; the same command continues it", 130)

    (tmp_path / "began2").unlink()
    started = start(tmp_path, line, "--shell", "--slaves", "1", ":::", "1", "2")
    until((tmp_path / "began2").exists, "the second run")
    os.kill(started.pid, signal.SIGTERM)
    said = started.communicate()[1].splitlines()[-1]
    assert (said, started.returncode) == ("mwpy sweep: ended by SIGTERM; the same command continues it", 130)
    [folder] = tmp_path.glob(".mwpy-sweep/*")
    assert command_line.main(["status", str(folder)]) == 0
    ended = "has ended with exit code 130; the same command continues it: cd"
    assert f"the sweep in {folder} {ended} {tmp_path} && mwpy sweep" in capsys.readouterr().out


def num_stored(folder: Path) -> int:
    """How many results are in the run database of the only sweep."""
    [path] = folder.glob(".mwpy-sweep/*/run.db")
    with RunDatabase(path) as database:
        return int(database.summary()["tasks"]["finished"])


def test_a_sweep_that_was_killed_makes_each_run_once_more_at_most(tmp_path: Path) -> None:
    """All of its processes are killed. What is in the run database, after a second at most, is not made again."""
    line = f"echo {{}} >> {tmp_path}/ran; test {{}} -lt 30 || test -e {tmp_path}/gate || sleep 1000; echo {{}}"
    values = [str(number) for number in range(60)]
    started = start(tmp_path, line, "--shell", "--slaves", "2", ":::", *values)

    def waiting() -> int:
        lines = (tmp_path / "ran").read_text().split() if (tmp_path / "ran").exists() else []
        return sum(int(line) >= 30 for line in lines)

    until(lambda: waiting() == 2, "two runs that wait")
    until(lambda: num_stored(tmp_path) == 30, "the results of all others in the run database")
    os.killpg(started.pid, signal.SIGKILL)
    started.communicate()
    (tmp_path / "gate").touch()
    first = ran(tmp_path)
    started = start(tmp_path, line, "--shell", "--slaves", "2", ":::", *values)
    out, err = started.communicate()
    assert (out, started.returncode) == ("".join(f"{value}\n" for value in values), 0), err
    second = ran(tmp_path)
    assert sorted(first, key=int)[:30] == values[:30]
    assert sorted(second, key=int) == values[30:]


def test_a_mistake_is_one_line(sweep: Sweep, tmp_path: Path) -> None:
    write_study(tmp_path)
    (tmp_path / "broken.toml").write_text("command = \n")
    wrong: list[tuple[list[str], str]] = [
        (["no.toml"], "the study .*no.toml cannot be read: No such file"),
        (["broken.toml"], "the study .*broken.toml is no TOML"),
        (["run {a}", "--values", "a"], "argument --values: 'a': write NAME=VALUE"),
        (["run {a}", "--values", "a=1", "--values", "a=2"], "of values, a is given twice"),
        (["run {a}", "--values", "a=1", "--sample", "2"], "'2' is no part: write 1% or 0.01"),
        (["run {a}", "--values", "a=1", "--exit-codes", "x"], "write exit codes, as 0,1, or any"),
    ]
    for arguments, said in wrong:
        with pytest.raises(mwpy.UsageError, match=said):
            sweep(*arguments)
    assert sweep("study.toml") == 1
    with pytest.raises(mwpy.UsageError, match="cannot be evaluated for the row alpha=1, beta=5"):
        sweep("study.toml", "--again", "gamma > 1")
    (tmp_path / "study.sweep" / "sweep.json").write_text("{")
    with pytest.raises(mwpy.UsageError, match=r"sweep.json cannot be read .*: without it, old results could count"):
        sweep("study.toml")


# Several programs


PIPELINE = """
values = { size = "1..3", speed = [7, 8] }
results = { lines = "lines=(.*)", first = { file = "mesh", pattern = "^(.*)" } }

[[task]]
name = "solve"
command = "sh -c 'echo solve {size} {speed} >> %(ran)s; cat m.dat limits > solution.dat; test {size}{speed} != 27'"
inputs = { "m.dat" = "mesh-{size}.dat" }
templates = { limits = "limits.in" }
outputs = ["solution.dat"]

[[task]]
name = "plot"
command = "sh -c 'echo plot {size} {speed} >> %(ran)s; echo lines=$(cat solution.dat parts/* | wc -l)'"
inputs = { "solution.dat" = "solution.dat", parts = "part-*" }

[[task]]
name = "make-mesh"
command = "sh -c 'echo mesh {size} >> %(ran)s; seq {size} > mesh-{size}.dat; touch part-a; echo b > part-b'"
outputs = { mesh = "mesh-{size}.dat", parts = "part-*" }
"""


def test_programs_wait_for_each_others_files(sweep: Sweep, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "limits.in").write_text("{speed}\n")
    (tmp_path / "study.toml").write_text(PIPELINE % {"ran": tmp_path / "ran"})
    assert sweep("study.toml") == 1
    folder = tmp_path / "study.sweep"
    assert rows_of(folder / "results.csv") == [
        ["size", "speed", "lines", "first"],
        *(
            [str(size), str(speed), str(size + 2), "1"]
            for size in (1, 2, 3)
            for speed in (7, 8)
            if (size, speed) != (2, 7)
        ),
    ]
    [[size, speed, why]] = rows_of(folder / "failed.csv")[1:]
    assert (size, speed) == ("2", "7")
    assert why.startswith("task solve: it ended with exit code 1 (on ")
    assert [path.name for path in (folder / "runs").iterdir()] == ["3-solve.tar.gz"]
    first = (tmp_path / "ran").read_text().splitlines()
    (tmp_path / "ran").unlink()
    counts = {name: sum(line.startswith(name) for line in first) for name in ("mesh", "solve", "plot")}
    assert counts == {"mesh": 6, "solve": 6, "plot": 5}

    assert sweep("study.toml") == 1
    assert not (tmp_path / "ran").exists()
    (tmp_path / "limits.in").write_text("{speed}\n{speed}\n")
    capfd.readouterr()
    assert sweep("study.toml") == 1
    assert "the template limits of the task solve has changed, so its runs are made again" in capfd.readouterr().err
    second = (tmp_path / "ran").read_text().splitlines()
    counts = {name: sum(line.startswith(name) for line in second) for name in ("mesh", "solve", "plot")}
    assert counts == {"mesh": 0, "solve": 6, "plot": 5}
    assert [row[2] for row in rows_of(folder / "results.csv")[1:]] == ["4", "4", "5", "6", "6"]
    assert sweep("study.toml", "--dry-run") == 0
    said = capfd.readouterr().out
    assert "0 new, 5 done, 1 failed" in said
    assert said.index("seq 1 > mesh-1.dat") < said.index("echo solve 1 7 ") < said.index("echo plot 1 7 ")


@pytest.mark.parametrize(
    ("tasks", "said"),
    [
        ("[a]\ncommand = 'x'\ninputs = ['q']\noutputs = ['p']", "the tasks .*, .* need files of each other"),
        ("[b]\ncommand = 'x'\noutputs = ['q']", "the tasks b and b2 have an output q: rename one"),
        ("[b2]\ncommand = 'x'", "two tasks have the name b2: give each a name of its own"),
        ("[c]\ncommand = 'x'\ninputs = ['y', 'z/y']", "two inputs have the name y: give other names"),
        ("[c]\ncommand = 'x'\ninput = ['y']", "wrong setting: Object contains unknown field `input`"),
    ],
)
def test_tasks_that_do_not_fit_together_are_refused(tasks: str, said: str, sweep: Sweep, tmp_path: Path) -> None:
    name, _, rest = tasks.partition("]\n")
    other = "[[task]]\nname = 'b2'\ncommand = 'x'\ninputs = ['p']\noutputs = ['q']\n"
    (tmp_path / "p").touch()
    (tmp_path / "study.toml").write_text(f"[[task]]\nname = '{name[1:]}'\n{rest}\n{other}")
    with pytest.raises(mwpy.UsageError, match=said):
        sweep("study.toml")


def test_runs_see_the_processors_that_they_require(sweep: Sweep, tmp_path: Path) -> None:
    line = "sh -c 'echo threads=$OMP_NUM_THREADS'"
    needs = "--cpus", "1", "--memory", "100MB", "--requires", "sh", "--requires", "python=>=3.8"
    assert sweep(line, "--values", "a=1,2", *needs, "--result", "n=threads=(.*)", "--folder", "out") == 0
    assert rows_of(tmp_path / "out" / "results.csv") == [["a", "n"], ["1", "1"], ["2", "1"]]
