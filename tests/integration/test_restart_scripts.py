"""Real scripts that are killed in the middle and started again, unchanged, with the same run database.

Each of them is careless in one way that makes two runs differ. What the master algorithm has got must not run again.
"""

from __future__ import annotations

import signal
from collections import Counter

import pytest
from nbclient.exceptions import DeadKernelError
from tests.integration.apps.notebook import Notebook
from tests.integration.apps.stage import Running, Stage, until

TASKS = 60
"""How many tasks a script has."""

SEEN = 15
"""How many results the master algorithm has got when it is killed."""

PARTS = """
import random, sys, time
from pathlib import Path
import mwpy

def note(name, line):
    with Path(name).open("a") as file:
        file.write(f"{line}\\n")
"""

MAIN = """
@mwpy.master_algorithm
def master(mw, argv):
    total = 0
    for result in mw.map_results(simulate, items()):
        total += result.value
        note("seen", named(result.tag))
    print(total)
    return 0

if __name__ == "__main__":
    sys.exit(mwpy.main())
"""

RANDOM_ORDER = """
def simulate(number):
    note("ran", number)
    time.sleep(0.01)
    return number * number

@mwpy.master_algorithm
def master(mw, argv):
    numbers = list(range(60))
    random.shuffle(numbers)
    for number in numbers:
        mw.submit(mwpy.task(simulate, number), tag=number)
    total, left = 0, len(numbers)
    while left:
        mw.loop()
        for result in mw.results():
            total += result.value
            left -= 1
            note("seen", result.tag)
    print(total)
    return 0

if __name__ == "__main__":
    sys.exit(mwpy.main())
"""

SETS_AND_DICTS = """
def simulate(names, setup):
    note("ran", setup["number"])
    time.sleep(0.01)
    return len(names) + sum(map(len, setup["groups"]))

def items():
    for number in range(60):
        setup = [("number", number), ("groups", {frozenset({"a", str(number)}), frozenset({"b"})}), ("scale", 0.5)]
        random.shuffle(setup)
        yield {f"name {each}" for each in range(5)}, dict(setup)

def named(item):
    return item[1]["number"]
""" + MAIN.replace("mw.map_results(simulate, items())", "mw.map_results(simulate, *zip(*items()))")

CLOSURE = (
    """
def with_table(factor):
    table = {name: factor * len(name) for name in {"a", "bb", "ccc"}}
    def simulate(number):
        note("ran", number)
        time.sleep(0.01)
        return number * sum(table.values())
    return simulate

simulate = with_table(3)

def items():
    return range(60)

named = str
"""
    + MAIN
)

MODULE = (
    PARTS
    + """
import enum

class Kind(enum.Enum):
    SLOW = 0.01
    FAST = 0.005

class Model:
    def __init__(self, number, kind):
        self.number, self.kind = number, kind

    def run(self):
        time.sleep(self.kind.value)
        return self.number + 1

def simulate(model):
    note("ran", model.number)
    return model.run()
"""
)

OF_MODULE = (
    """
from models import Kind, Model, simulate

def items():
    return [Model(number, Kind.FAST if number % 2 else Kind.SLOW) for number in range(60)]

def named(item):
    return item.number
"""
    + MAIN
)


def _start(stage: Stage, script: str, name: str = "script.py") -> Running:
    return stage.script("--mw-local", "2", "--mw-run-database", "run.db", text=PARTS + script, name=name)


def _seen_when_killed(stage: Stage, running: Running) -> set[str]:
    """Kill the master in the middle. Return what the master algorithm has got by then."""
    until(lambda: len(stage.lines("seen")) >= SEEN or running.process.poll() is not None, f"{SEEN} results")
    running.send(signal.SIGKILL)
    assert running.end() == -signal.SIGKILL, running.err
    stage.no_process_left()
    return {*stage.lines("seen")}


def _check_end(stage: Stage, running: Running, seen: set[str], expected: int) -> None:
    """Nothing ran again that the master algorithm had got, and the result is exact."""
    running.finish()
    assert running.out.split() == [str(expected)], running.err
    again = {each for each, count in Counter(stage.lines("ran")).items() if count > 1}
    assert not again & seen, running.err
    assert {*stage.lines("ran")} == {str(number) for number in range(TASKS)}


@pytest.mark.parametrize(
    ("script", "expected"),
    [
        pytest.param(RANDOM_ORDER, sum(number**2 for number in range(TASKS)), id="random order"),
        pytest.param(SETS_AND_DICTS, TASKS * 8, id="sets and dicts"),
        pytest.param(CLOSURE, 18 * sum(range(TASKS)), id="closure"),
    ],
)
def test_a_script_continues_where_it_was_killed(stage: Stage, script: str, expected: int) -> None:
    """Each process has another hash seed, so the order of sets differs, too."""
    seen = _seen_when_killed(stage, _start(stage, script))
    _check_end(stage, _start(stage, script), seen, expected)


def test_a_script_continues_although_it_and_its_module_were_renamed(stage: Stage) -> None:
    """The task algorithm is in the module, and so is the class of its arguments."""
    (stage.folder / "models.py").write_text(MODULE)
    seen = _seen_when_killed(stage, _start(stage, OF_MODULE))
    (stage.folder / "models.py").rename(stage.folder / "physics.py")
    (stage.folder / "script.py").unlink()
    running = _start(stage, OF_MODULE.replace("from models", "from physics"), name="study.py")
    _check_end(stage, running, seen, sum(range(TASKS)) + TASKS)


TIMES = """
def simulate(number, started):
    return number

@mwpy.master_algorithm
def master(mw, argv):
    print(sum(mw.map(simulate, range(300), [time.time()] * 300)))
    return 0

if __name__ == "__main__":
    sys.exit(mwpy.main())
"""


def test_mwpy_says_that_all_arguments_of_a_script_are_different(stage: Stage) -> None:
    for _ in range(2):
        running = _start(stage, TIMES).finish()
        assert running.out.split() == ["44850"]
    assert "none of the first 20 tasks of simulate has an answer in the run database" in running.err
    assert "300 tasks of simulate with the same code: their arguments are different. If they contain" in running.err


CELLS = (
    PARTS,
    """
FACTOR = 3
class Item:
    def __init__(self, number): self.number = number
    def scaled(self): return FACTOR * self.number
def simulate(item):
    note("ran", item.number)
    time.sleep(0.01)
    return item.scaled()
""",
    "mw = mwpy.local_master(slaves=2, run_database='run.db')",
    """
total = 0
for result in mw.map_results(simulate, [Item(number) for number in range(60)]):
    total += result.value
    note("seen", result.tag.number)
    if len(Path("seen").read_text().split()) >= 15:
        Path("enough").touch()
        time.sleep(WAIT)
total
""",
)


def _run_all(notebook: Notebook, first: str) -> str:
    """Run all cells. Return what the last one shows."""
    *_, shown = [notebook.run(cell) for cell in (first, *CELLS)]
    return shown


def test_a_notebook_continues_where_its_kernel_was_killed(stage: Stage) -> None:
    """Its functions and classes are defined in cells, which are executed again in a new kernel."""
    with Notebook(stage) as notebook:
        notebook.send(signal.SIGKILL, when=stage.folder / "enough")
        with pytest.raises(DeadKernelError):
            _run_all(notebook, "WAIT = 1000")
        stage.no_process_left()
    seen = {*stage.lines("seen")}
    with Notebook(stage) as notebook:
        shown = _run_all(notebook, "WAIT = 0")
    assert shown == str(3 * sum(range(TASKS)))
    again = {each for each, count in Counter(stage.lines("ran")).items() if count > 1}
    assert len(seen) == SEEN
    assert not again & seen


def test_a_helper_that_is_defined_after_its_first_use_leads_to_no_old_result(stage: Stage) -> None:
    """The first call fails, because the helper does not exist yet. The kernel is started again with another helper."""
    shown = []
    for factor in (1, 2):
        with Notebook(stage) as notebook:
            notebook.run("import mwpy\nmw = mwpy.local_master(slaves=1, run_database='run.db')")
            notebook.run("def f(x): return helper(x)\n[failed] = mw.map_results(f, [10])")
            notebook.run(f"assert not failed.ok\ndef helper(x): return {factor} * x")
            shown += notebook.run("print(*mw.map(f, [10]))\nmw.close()").splitlines()
    assert (shown[0], shown[-1]) == ("10", "20")
    assert "function __main__.helper changed" in shown[1]
