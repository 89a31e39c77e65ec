"""Each example runs as its docstring shows, and prints the expected output.

Examples without Python have a README.md, whose commands test_docs.py runs.
"""

from __future__ import annotations

import ast
import json
import re
import sys
from pathlib import Path

import pytest
from tests.integration.apps.stage import Running, Stage, until

ROOT = Path(__file__).parent.parent.parent
EXAMPLES = sorted(folder.name for folder in (ROOT / "examples").iterdir() if folder.is_dir())
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


def start(stage: Stage, name: str, *arguments: object) -> Running:
    return stage.start("", *arguments, program=[sys.executable, str(ROOT / "examples" / name / f"{name}.py")])


def ended(run: Running) -> list[str]:
    """Return the lines of the output of an example. It must succeed without a traceback."""
    assert run.end() == 0, f"{run.out}\n{run.err}"
    assert "Traceback" not in run.err
    return run.out.splitlines()


def pings(run: Running) -> tuple[str, ...]:
    found = PINGS.fullmatch(ended(run)[-1])
    assert found
    return found.groups()


def test_every_example_is_tested_here() -> None:
    """A new example needs a test."""
    elsewhere = {"optuna_search"}  # tests/ecosystem/test_libraries.py
    elsewhere |= {path.parent.name for path in (ROOT / "examples").glob("*/README.md")}  # test_docs.py
    tested = {*EXPECTED, "ping", "monte_carlo_pi", "ordered_slaves", "parameter_scan", *elsewhere}
    assert tested == {*EXAMPLES}


@pytest.mark.parametrize("name", sorted(EXPECTED))
def test_example_prints_all_results(name: str, stage: Stage) -> None:
    """An example without a role prints each line of results, in any order."""
    assert not EXPECTED[name] - {*ended(start(stage, name))}


def test_ping_answers_every_ping(stage: Stage) -> None:
    """The last line shows the number of pings and their rate."""
    assert pings(start(stage, "ping", "--pings", 3000)) == ("3000", "3000", "0")


def test_monte_carlo_pi_does_not_depend_on_the_slaves(stage: Stage) -> None:
    """Each trial set has its own seed, so one slave and three slaves compute the same pi."""
    pi = "Pi[1571174/2000000]: 3.142348"
    for slaves in ("1", "3"):
        assert ended(start(stage, "monte_carlo_pi", "--trial-sets", "20", "--mw-local", slaves))[-1] == pi


def test_a_parameter_scan_needs_few_lines(stage: Stage) -> None:
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
    run = start(stage, "parameter_scan", "--mw-local", 2, "--mw-progress", "--mw-summary")
    assert "math domain error      0       NaN  184.0  200.0\nok                  1800" in "\n".join(ended(run))
    assert len((stage.folder / "scan.csv").read_text().splitlines()) == 2001
    lines = run.err.splitlines()
    assert "mwpy: summary" in lines
    assert "\r" not in run.err, "a pipe gets no live line"
    [failures] = [line for line in lines if line.startswith("failures of pendulum on ")]
    assert failures.endswith(": 200 ValueError")


def test_ordered_slaves_get_the_tasks_for_their_tables(stage: Stage) -> None:
    """All primes are counted, and most questions go to a slave that has the right table."""
    last = ended(start(stage, "ordered_slaves", "--mw-local", 3))[-1]
    found = re.fullmatch(r"(\d+) primes in (\d+) questions, (\d+) of them to a slave that had the table\.", last)
    assert found
    primes, asked, ready = map(int, found.groups())
    assert (primes, asked) == (14683, 40)
    assert ready > asked // 2


def test_ping_runs_as_master_and_slaves(stage: Stage) -> None:
    """A master and slaves in separate processes use the resource file and exit with 0, even a late slave."""
    file = "--mw-resource-file", stage.resource
    master = start(stage, "ping", "--mw-master", *file, "--mw-audit-file", stage.audit, "--pings", 3000)
    until(lambda: stage.resource.exists() or master.process.poll() is not None, "a resource file")
    slaves = start(stage, "ping", "--mw-slave", *file, "--mw-slave-processes", 2)
    assert pings(master) == ("3000", "3000", "0")
    assert slaves.end() == 0, slaves.err
    assert json.loads(stage.resource.read_text())["computation-status"] == "finished"
    assert stage.audited(" [A] SLAVE-0 ")
    late = start(stage, "ping", "--mw-slave", *file)
    assert late.end() == 0, late.err
