"""The benches run, with few tasks: the comparison with other libraries, and the costs of mwpy's own parts."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from bench import size

ROOT = Path(__file__).parent.parent.parent

PATIENCE_S = 120.0


def run_bench(name: str, *arguments: str) -> str:
    """Run a bench with few tasks, and return what it prints."""
    run = subprocess.run(
        [sys.executable, "-m", f"bench.{name}", *arguments],
        cwd=ROOT,
        env=os.environ | {"BENCH_QUICK": "1"},
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    return run.stdout


def test_a_table_compares_mwpy_with_each_library_and_names_the_missing_ones(tmp_path: Path) -> None:
    """A library that is not installed has the reason in its column. Rounds of two runs can be combined."""
    files = [str(tmp_path / f"{number}.json") for number in range(2)]
    for file in files:
        table = run_bench(
            "peers", "--rounds", "1", "--workloads", "W6a", "--peers", "concurrent.futures,parsl", "--output", file
        )
        assert table.count("\n|W6a") == 1
    combined = tmp_path / "combined.json"
    page = tmp_path / "page.md"
    page.write_text("before\n\n<!-- table -->\n\n| an | old |\n|---|---|\n\nafter\n")
    lines = run_bench("peers", "--combine", *files, "--output", str(combined), "--page", str(page)).splitlines()
    assert page.read_text().splitlines() == ["before", "", "<!-- table -->", "", *lines[:3], "", "after"]
    assert lines[0] == "|workload|mwpy|concurrent.futures|parsl|"
    assert lines[2].startswith("|W6a: launch to first result, s (less is better)|")
    assert lines[2].endswith("|parsl is not installed|")
    found = json.loads(combined.read_text())
    own, other, missing = found["figures"]
    assert [own["reached"]["rounds"], other["mwpy_to_library"]["rounds"]] == [2, 2]
    assert missing["reason"] == "parsl is not installed"
    assert len(found["measurements"]) == 6


def test_the_size_counts_lines_of_code_without_comments_and_docstrings(tmp_path: Path) -> None:
    source = b'''"""A docstring."""\n\n# a comment\ndef f():\n    """Another one."""\n    return """two\nlines"""\n'''
    (tmp_path / "module.py").write_bytes(source)
    assert size.code_lines([tmp_path / "module.py"]) == 3


def test_the_costs_of_a_task_are_those_of_all_parts_of_mwpy() -> None:
    workloads = ("singly", "unordered", "round_trips", "idle")
    lines = run_bench("costs", *workloads).splitlines()
    names = [line.partition(":")[0] for line in lines]
    assert names == [name for name in workloads for _ in range(3)]
    for line in lines[:9]:
        parts = line.rpartition(": ")[2].split(", ")
        used = {part.split()[0] for part in parts} - {"template"}  # on a busy machine, it may still finish a fork
        assert used == {"I/O", "agent", "algorithm", "slaves"}
