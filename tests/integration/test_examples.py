"""Each example runs as its docstring shows, and prints the expected output.

Examples without Python have a README.md, whose commands test_docs.py runs.
"""

from __future__ import annotations

import ast
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
EXAMPLES = sorted(folder.name for folder in (ROOT / "examples").iterdir() if folder.is_dir())
ENVIRONMENT = os.environ | {"PYTHONPATH": str(ROOT / "src")}
PATIENCE_S = 120
"""The longest time that an example may take on a busy machine."""

PINGS = re.compile(r"(\d+) pings: (\d+) good, (\d+) bad, in [\d.]+ s: \d+ tasks per second")

GOT = "Got result from slave: "
EXPECTED = {
    "hello_world": {f"{GOT}Hello World: Task {number}" for number in range(10)},
    "higher_order": {f"{GOT}{number} times {number} is {number * number}" for number in range(10)},
    "with_task_policy": {
        *(f"{GOT}{number * 10} (a times10 task)" for number in range(1, 101)),
        "The 100 tasks add up to 50500.",
    },
    "argument_processing": {
        f"{GOT}required: 1 2 3",
        f"{GOT}with defaults: 4 5 6 None 42",
        f"{GOT}with defaults: 4 5 6 7 42",
        f"{GOT}with keywords: 10 d=100 e=40 f=50",
        f"{GOT}with rest: 100 (101, 102, 103)",
        f"{GOT}with any keywords: 200 {{'x': 1, 'y': 2}}",
    },
}


def command(name: str, *arguments: str | Path) -> list[str]:
    return [sys.executable, str(ROOT / "examples" / name / f"{name}.py"), *map(str, arguments)]


@contextmanager
def started(*arguments: str | Path, folder: Path) -> Iterator[subprocess.Popen[str]]:
    """Run ping in a role, and kill it at the end of the test."""
    process = subprocess.Popen(
        command("ping", *arguments),
        cwd=folder,
        env=ENVIRONMENT,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def lines_of(name: str, *arguments: str | Path, folder: Path) -> list[str]:
    """Run an example and return the lines of its output. It must succeed without a traceback."""
    run = subprocess.run(
        command(name, *arguments),
        cwd=folder,
        env=ENVIRONMENT,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert run.returncode == 0, f"{name} exited {run.returncode}:\n{run.stdout}\n{run.stderr}"
    assert "Traceback" not in run.stderr
    return run.stdout.splitlines()


def end_of(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    """Wait until a process ends. Return its exit code and its output."""
    out, err = process.communicate(timeout=PATIENCE_S)
    return process.returncode, out, err


def wait_for(path: Path, writer: subprocess.Popen[str]) -> None:
    """Wait until a file exists. Fail if the process that writes it ends."""
    deadline = time.monotonic() + PATIENCE_S
    while not path.exists():
        assert writer.poll() is None, f"the master ended without {path.name}: {writer.communicate()}"
        assert time.monotonic() < deadline, f"the master wrote no {path.name}"
        time.sleep(0.02)


def test_every_example_is_tested_here() -> None:
    """A new example needs a test."""
    elsewhere = {"optuna_search"}  # tests/ecosystem/test_libraries.py
    elsewhere |= {path.parent.name for path in (ROOT / "examples").glob("*/README.md")}  # test_docs.py
    tested = {*EXPECTED, "ping", "monte_carlo_pi", "ordered_slaves", "parameter_scan", *elsewhere}
    assert tested == {*EXAMPLES}


@pytest.mark.parametrize("name", sorted(EXPECTED))
def test_example_prints_all_results(name: str, tmp_path: Path) -> None:
    """An example without a role prints each line of results, in any order."""
    missing = EXPECTED[name] - {*lines_of(name, folder=tmp_path)}
    assert not missing


def test_ping_answers_every_ping(tmp_path: Path) -> None:
    """The last line shows the number of pings and their rate."""
    found = PINGS.fullmatch(lines_of("ping", "--pings", "3000", folder=tmp_path)[-1])
    assert found
    assert found.groups() == ("3000", "3000", "0")


def test_monte_carlo_pi_does_not_depend_on_the_slaves(tmp_path: Path) -> None:
    """Each trial set has its own seed, so one slave and three slaves compute the same pi."""
    pi = "Pi[1571174/2000000]: 3.142348"
    for slaves in ("1", "3"):
        assert lines_of("monte_carlo_pi", "--trial-sets", "20", "--mw-local", slaves, folder=tmp_path)[-1] == pi


def test_a_parameter_scan_needs_few_lines(tmp_path: Path) -> None:
    """2,000 parameter sets, a table, failures and progress take at most 12 lines of code besides the function."""
    source = (ROOT / "examples" / "parameter_scan" / "parameter_scan.py").read_text()
    docstring, function = (
        ast.parse(source).body[0],
        next(each for each in ast.parse(source).body if isinstance(each, ast.FunctionDef) and each.name == "pendulum"),
    )
    apart = {at for each in (docstring, function) for at in range(each.lineno, (each.end_lineno or each.lineno) + 1)}
    lines = [line for number, line in enumerate(source.splitlines(), 1) if number not in apart]
    assert len([line for line in lines if line.strip() and not line.strip().startswith("#")]) <= 12
    pytest.importorskip("pandas")
    run = subprocess.run(
        command("parameter_scan", "--mw-local", "2", "--mw-progress", "--mw-summary"),
        cwd=tmp_path,
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=True,
    )
    assert "math domain error      0       NaN  184.0  200.0\nok                  1800" in run.stdout
    assert len((tmp_path / "scan.csv").read_text().splitlines()) == 2001
    first, *summary = run.stderr.splitlines()
    assert first == "mwpy: summary", "a pipe gets no progress"
    [failures] = [line for line in summary if line.startswith("failures of pendulum on ")]
    assert failures.endswith(": 200 ValueError")


def test_ordered_slaves_get_the_tasks_for_their_tables(tmp_path: Path) -> None:
    """All primes are counted, and most questions go to a slave that has the right table."""
    last = lines_of("ordered_slaves", "--mw-local", "3", folder=tmp_path)[-1]
    found = re.fullmatch(r"(\d+) primes in (\d+) questions, (\d+) of them to a slave that had the table\.", last)
    assert found
    primes, asked, ready = map(int, found.groups())
    assert (primes, asked) == (14683, 40)
    assert ready > asked // 2


def test_ping_runs_as_master_and_slaves(tmp_path: Path) -> None:
    """A master and slaves in separate processes use the resource file and exit with 0, even a late slave."""
    resource, audit = tmp_path / "ping.rsc", tmp_path / "ping.audit"
    master_line = ("--mw-master", "--mw-resource-file", resource, "--mw-audit-file", audit, "--pings", "3000")
    slave_line = ("--mw-slave", "--mw-resource-file", resource, "--mw-slave-processes", "2")
    with started(*master_line, folder=tmp_path) as master:
        wait_for(resource, master)
        with started(*slave_line, folder=tmp_path) as slaves:
            code, out, err = end_of(master)
            assert code == 0, err
            found = PINGS.fullmatch(out.splitlines()[-1])
            assert found
            assert found.groups() == ("3000", "3000", "0")
            code, _, err = end_of(slaves)
            assert code == 0, err
    assert json.loads(resource.read_text())["computation-status"] == "finished"
    assert " [A] SLAVE-0 " in audit.read_text()
    with started(*slave_line, folder=tmp_path) as late:
        code, _, err = end_of(late)
        assert code == 0, err


def test_help_of_an_example_explains_the_options(tmp_path: Path) -> None:
    """`--mw-help` prints the options of mwpy, and the algorithm does not run."""
    text = "\n".join(lines_of("ping", "--mw-help", folder=tmp_path))
    assert "--mw-resource-file" in text
    assert "tasks per second" not in text
