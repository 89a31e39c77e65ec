"""What a slave finds under its name in its own `__main__` travels by name, in functions as in arguments.

Slaves load a script that opens its master inside a guard, as `multiprocessing` does with `spawn`.
"""

from __future__ import annotations

import json
import sys

import pytest
from tests.integration.apps.stage import SOURCES, Stage

WAYS = [
    ("fork",),
    ("spawn",),
    ("executor",),
    ("local_master", "fork"),
    ("local_master", "spawn"),
    ("main", "--mw-local", "0"),
    ("main", "--mw-local", "1"),
    ("main", "--mw-local", "2", "--mw-slave-start", "spawn"),
]

POOLS = ("fork", "spawn")
"""Ways of `concurrent.futures.ProcessPoolExecutor`, which runs no lambdas and closures."""


def answers(stage: Stage, *how: str) -> dict[str, str]:
    """Run all uses in one way. Return the values of each."""
    running = stage.run("uses.py", *how)
    return dict(json.loads(line) for line in running.out.splitlines() if line.startswith("["))


@pytest.mark.parametrize("how", WAYS, ids=" ".join)
def test_a_script_has_the_same_answers_with_any_slaves_and_without_mwpy(stage: Stage, how: tuple[str, ...]) -> None:
    """Locks, registries, enums, exceptions and data classes are those of the slave's own script, never copies."""
    plain, found = answers(stage, "plain"), answers(stage, *how)
    missing = plain.keys() - found.keys()
    assert missing <= {"lambda", "partial_of_lambda", "closure", "closure_of_class"} if how[0] in POOLS else not missing
    assert found == {name: plain[name] for name in found}


def written(stage: Stage, text: str, name: str = "script.py") -> str:
    """Write a file into the folder of the stage. Return its path."""
    path = stage.folder / name
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)
    return str(path)


def printed(stage: Stage, *command: str) -> list[str]:
    """Run an interpreter with these options and arguments. Return the lines that it has printed."""
    running = stage.run("", program=[sys.executable, *command])
    return running.out.splitlines()


GUARDED = """
import mwpy, threading

LOCK = threading.Lock()
RATE = 1

def scale(x):
    with LOCK:
        return RATE * x

def scaled(x):
    return factor * scale(x)

def ended(mw, number):
    values = []
    while len(values) < number:
        mw.loop()
        values += [each.value for each in mw.results()]
    return sorted(values)

def main(slaves):
    global factor
    with mwpy.local_master(slaves) as mw:
        for factor in (2, 3):
            print(list(mw.map(scaled, range(3))))
        mw.submit(mwpy.task(lambda x: scaled(x), 5))
        first, factor = factor, 4
        mw.submit(mwpy.task(lambda x: scaled(x), 5))
        mw.submit(mwpy.task(lambda x: scaled(x) + first, 5))
        print(ended(mw, 3))

if __name__ == "__main__":
    class Own:
        def __init__(self, x):
            self.x = x

        def __eq__(self, other):
            return isinstance(other, Own) and other.x == self.x

    def own(x):
        return Own(scale(x))

    RATE = 10
    for slaves in (0, 2):
        with mwpy.local_master(slaves) as mw:
            print(list(mw.map(own, range(2))) == [Own(0), Own(10)], list(mw.map(lambda each: each == Own(1), [Own(1)])))
            for k in (1, 2):
                mw.submit(mwpy.task(lambda x: k * RATE * x, 7))
            print(ended(mw, 2))
        main(slaves)
"""


def test_what_only_the_guard_or_the_master_binds_travels_by_value(stage: Stage) -> None:
    """Slaves do not find it in their own script. Each function has the values of the moment when it was submitted."""
    once = ["True [True]", "[70, 140]", "[0, 20, 40]", "[0, 30, 60]", "[150, 200, 203]"]
    assert printed(stage, written(stage, GUARDED)) == 2 * once


ASSIGNED = """
import mwpy, os, sqlite3

OPTIONS = CONNECTION = MODEL = None
COUNT = 0

def begin():
    global CONNECTION
    CONNECTION = sqlite3.connect(":memory:")
    CONNECTION.execute("create table t (x)")

def query(x):
    return CONNECTION.execute("select count(x) from t").fetchone()[0] + x

def scale(x):
    return OPTIONS["rate"] * x

def count(x):
    global COUNT
    COUNT += 1
    return COUNT > 0

def model():
    global MODEL
    if MODEL is None:
        MODEL = os.getpid()
    return MODEL

def is_own(_):
    return model() == os.getpid()

def main():
    global OPTIONS
    model()
    OPTIONS = {"rate": 3}
    begin()
    with mwpy.Executor(2, initializer=begin) as executor:
        print(list(executor.map(query, range(3))))
        print(list(executor.map(scale, range(3))))
        print(list(executor.map(count, range(3))))
        print(list(executor.map(is_own, range(3))))

if __name__ == "__main__":
    main()
"""


def test_a_global_that_the_script_assigns_in_a_function_has_its_value_unless_it_cannot_be_pickled(stage: Stage) -> None:
    """An initializer gives each slave a connection of its own. What a task assigns itself is its slave's own, too."""
    assert printed(stage, written(stage, ASSIGNED)) == ["[0, 1, 2]", "[0, 3, 6]", *2 * ["[True, True, True]"]]


PACKAGED = """
import sys, threading
from . import opening

LOCK = threading.Lock()
print("loaded", file=sys.stderr)

def work(x):
    from . import opening as again
    with LOCK:
        return x, again is opening, __package__, sys.flags.optimize, sys.warnoptions, sys._xoptions["mine"], __debug__

if "__main__" == __name__ and len(sys.argv) == 2:
    print(opening.mapped(work))
"""

OPENING = """
import mwpy

def mapped(work):
    with mwpy.local_master(slaves=1) as mw:
        return list(mw.map(work, [1]))
"""


FOLDER = """
import sys, mwpy, beside

def work(x):
    return x, beside.NAME, sys.argv, __package__ or ""

if __name__ == "__main__":
    with mwpy.local_master(slaves=1, slave_start=sys.argv[1]) as mw:
        [found] = mw.map(work, [1])
        print(found == work(1), found)
"""


def test_a_folder_that_is_run_is_loaded_with_its_arguments(stage: Stage) -> None:
    written(stage, 'NAME = "beside"', "folder/beside.py")
    written(stage, FOLDER, "folder/__main__.py")
    for start in ("fork", "spawn"):
        arguments = ["folder", start, "--help"]
        assert printed(stage, *arguments) == [f"True (1, 'beside', {arguments}, '')"]


@pytest.mark.parametrize("name", ["app", "__main__"])
def test_a_module_of_a_package_is_loaded_with_the_options_of_the_interpreter(stage: Stage, name: str) -> None:
    """The master may be opened in another module: the line of the script that leads there counts."""
    written(stage, "", "pack/__init__.py")
    written(stage, OPENING, "pack/opening.py")
    written(stage, PACKAGED, f"pack/{name}.py")
    module = "pack.app" if name == "app" else "pack"
    options = ("-O", "-X", "mine=3", "-W", "error::UserWarning")
    running = stage.run("", program=[sys.executable, *options, "-m", module, "argument"])
    assert running.out == "[(1, True, 'pack', 1, ['error::UserWarning'], '3', False)]\n"
    assert running.err.count("loaded") == 2, "once in the master, and once in the template of its slaves"


ISOLATED = """
import sys
sys.path.insert(0, SOURCES)
import mwpy

def work(_):
    return sys.flags.isolated, sys.path[0] == SOURCES

if __name__ == "__main__":
    for start in ("fork", "spawn"):
        with mwpy.local_master(slaves=1, slave_start=start) as mw:
            print(list(mw.map(work, [1])))
"""


def test_an_isolated_interpreter_has_isolated_slaves_with_its_module_path(stage: Stage) -> None:
    path = written(stage, f"SOURCES = {str(SOURCES)!r}\n" + ISOLATED)
    assert printed(stage, "-I", path) == ["[(1, True)]", "[(1, True)]"]


LOCKED = """
import threading, mwpy

LOCK = threading.Lock()

def inner(x):
    with LOCK:
        return 1 / x

def outer(x):
    return inner(x)

class Holder:
    def __init__(self, x):
        self.x = x

    def method(self):
        return inner(self.x)

if {}:
    with mwpy.local_master(slaves=1) as mw:
        for function, item in [(outer, 0), (Holder.method, Holder(0)), (abs, Holder(0))]:
            try:
                list(mw.map(function, [item]))
            except mwpy.MwpyError as error:
                print(error)
"""


def test_without_a_guard_the_error_names_the_variable_and_the_function_and_says_to_add_it(stage: Stage) -> None:
    lines = printed(stage, written(stage, LOCKED.format("True")))
    for line, start in zip(
        lines, ("outer must", "Holder.method must", "argument 1 of abs, a Holder, cannot"), strict=True
    ):
        assert line.startswith(start)
        assert "inner uses LOCK, a lock that cannot be pickled" in line
        assert 'or open the master inside `if __name__ == "__main__":`' in line


GUARD = '__name__ == "__main__"'

WITH_SLAVE_ALGORITHM = """
import mwpy, sys

K = 1

@mwpy.slave_algorithm
def slave(mw, argv):
    global K
    K = int(argv[0])
    return mw.loop_simple()

def scaled(x):
    return K * x

if {guard}:
    for start in (mwpy.open, mwpy.Executor):
        with start(**{options}) as slaves:
            print(*slaves.map(scaled, [1, 2]))
"""


def test_a_slave_algorithm_runs_in_slaves_that_load_the_script(stage: Stage) -> None:
    for way in ("fork", "spawn"):
        text = WITH_SLAVE_ALGORITHM.format(guard=GUARD, options={"slaves": 1, "slave_start": way})
        assert printed(stage, written(stage, text), "7") == ["7 14"] * 2


@pytest.mark.parametrize(
    ("guard", "options"),
    [(GUARD, {"slaves": 0}), (GUARD, {"slaves": 1, "resource_file": "x.rsc"}), ("True", {"slaves": 1})],
)
def test_a_slave_algorithm_that_would_not_run_is_an_error(stage: Stage, guard: str, options: dict[str, object]) -> None:
    text = WITH_SLAVE_ALGORITHM.format(guard=guard, options=options)
    running = stage.start("", program=[sys.executable, written(stage, text), "7"])
    assert running.end() == 1
    assert "UsageError: the slave algorithm slave would not run: it needs mwpy.main(), or slaves that" in running.err


TWICE = """
import mwpy

def work(x):
    return x

mw = mwpy.open(slaves=1)
print(list(mw.map(work, [1])))

if __name__ == "__main__":
    with mwpy.Executor(1) as executor:
        print(list(executor.map(work, [2])))
    mw.close()
"""


def test_a_script_that_also_opens_a_master_outside_its_guard_is_not_loaded(stage: Stage) -> None:
    """Its slaves would open another master."""
    assert printed(stage, written(stage, TWICE)) == ["[1]", "[2]"]


def test_a_traceback_of_a_script_with_a_guard_shows_its_lines(stage: Stage) -> None:
    path = written(stage, LOCKED.format('__name__ == "__main__"'))
    out = "\n".join(printed(stage, path))
    assert f'File "{path}", line 8, in inner\n    return 1 / x\n' in out, out
