"""Functions by value and edited modules in real processes: tasks run what the user sees, and memory stays bounded."""

from __future__ import annotations

import functools
import importlib
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.integration.apps.stage import PATIENCE_S

import mwpy


@pytest.fixture(scope="module")
def mw() -> Iterator[mwpy.Master]:
    with mwpy.local_master(slaves=2) as mw:
        yield mw


def _value(mw: mwpy.Master, function: Callable[..., Any]) -> Any:
    [value] = mw.map(function, [1])
    return value


def _closure(state: list[int]) -> Callable[[int], int]:
    return lambda x: x + state[0]


def _with_global(state: list[int]) -> Callable[[int], int]:
    """A function whose global is what `state` has, as after `K = 7` in a notebook."""
    scope: dict[str, Any] = {"__name__": "__main__", "STATE": state}
    exec("def add(x): return x + helper(x)\ndef helper(x): return STATE[0]", scope)
    add: Callable[[int], int] = scope["add"]
    return add


class _Summing:
    def __init__(self, state: list[int]) -> None:
        self.state = state

    def add(self, x: int) -> int:
        return x + sum(self.state)


@pytest.mark.parametrize(
    "make",
    [
        _closure,
        _with_global,
        lambda state: _Summing(state).add,
        lambda state: functools.partial(_Summing.add, _Summing(state)),
    ],
    ids=["closure", "helper and global", "bound method", "partial"],
)
def test_a_function_by_value_runs_with_the_state_that_it_has_when_it_is_used(
    mw: mwpy.Master, make: Callable[[list[int]], Callable[[int], int]]
) -> None:
    """A map and a function with a policy fix it when they are made, and a call when it is submitted."""
    state = [5]
    function = make(state)
    assert _value(mw, function) == 6
    call, submit = mwpy.task(function, 1), mw.with_task_policy(function)
    first = mw.map(function, [1])
    state[0] = 7
    assert _value(mw, function) == 8
    ids = [mw.submit(call), submit(1)]
    assert list(first) == [6]
    found: dict[int, Any] = {}
    while len(found) < 2:
        mw.loop()
        found |= {result.task_id: result.value for result in mw.results()}
    assert [found[number] for number in ids] == [8, 6]


def test_a_function_by_value_is_sent_once(mw: mwpy.Master, tmp_path: Path) -> None:
    """Each slave unpickles it once, even if all its tasks have ended and other functions are used in between."""
    loaded = tmp_path / "loaded"

    class Noting:
        def __init__(self) -> None:
            self.path = str(loaded)

        def __setstate__(self, state: dict[str, str]) -> None:
            with open(state["path"], "a") as file:  # noqa: PTH123
                file.write("x")

        def __call__(self, x: int) -> int:
            return x

    noting = Noting()
    for _ in range(10):
        assert _value(mw, noting) == 1
        assert _value(mw, lambda x: x + 1) == 2
    assert len(loaded.read_text()) <= 2


def test_functions_that_are_not_used_any_more_do_not_stay_in_memory() -> None:
    """The master, the agent and the slaves keep 64 MiB of them. Before, each kept all."""
    program = """
import os, mwpy

def resident(pid):
    with open(f"/proc/{pid}/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") >> 20

def using(data):
    return lambda x: (os.getpid(), os.getppid(), len(data))

with mwpy.local_master(slaves=1) as mw:
    for _ in range(30):
        [(slave, agent, _)] = mw.map(using(bytearray(os.urandom(8 << 20))), [0])
    print(*map(resident, (os.getpid(), agent, slave)))
"""
    run = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=PATIENCE_S, check=True
    )
    sizes = [int(word) for word in run.stdout.split()]
    assert len(sizes) == 3
    assert max(sizes) < 64 + 100, sizes  # the interpreter and messages on their way need some memory, too; 30 need 240


NOTEBOOK = """
import importlib, os, sys
sys.path.insert(0, os.getcwd())
import mwpy, users_helper, users_module

context = mwpy.local_master(slaves=2)
mw = context.__enter__()

def show(function):
    try:
        print("value", *mw.map(function, [1]))
    except mwpy.UsageError as error:
        print("error", error)

def edit(name, text):
    with open(name + ".py", "w") as file:
        _ = file.write(text)

"""
"""What is typed first. The interpreter reads a pipe, so a blank line ends each definition."""


def _type(folder: Path, *lines: str) -> list[str]:
    """Type lines into an interpreter that has two modules of the user. Return what it shows."""
    (folder / "users_helper.py").write_text("def g(x): return x + 1\n")
    (folder / "users_module.py").write_text("import users_helper\nK = 5\ndef f(x): return K * users_helper.g(x)\n")
    typed = NOTEBOOK + "\n".join([*lines, "context.__exit__(None, None, None)", ""])
    run = subprocess.run(
        [sys.executable, "-i", "-q"],
        input=typed,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
        cwd=folder,
        env=os.environ | {"PYTHONDONTWRITEBYTECODE": "1"},  # else Python takes a file with the same size as unchanged
    )
    assert "Traceback" not in run.stderr, run.stderr
    assert "ended before" not in run.stderr, run.stderr
    return [line.removeprefix(">>> ") for line in run.stdout.splitlines() if line.startswith(("value", "error"))]


@pytest.mark.parametrize("function", ["users_module.f", "lambda x: users_module.f(x)"])
def test_an_edited_module_is_used_as_soon_as_it_was_loaded_again(tmp_path: Path, function: str) -> None:
    """A constant, a function, and the helper module are edited. Before it was loaded again, an edit is an error."""
    shown = _type(
        tmp_path,
        f"show({function})",
        'edit("users_module", "import users_helper\\nK = 7\\ndef f(x): return K * users_helper.g(x)\\n")',
        f"show({function})",
        "show(lambda x: -x)",
        "_ = importlib.reload(users_module)",
        f"show({function})",
        'edit("users_helper", "def g(x): return x + 100\\n")',
        f"show({function})",
        "_ = importlib.reload(users_helper)",
        f"show({function})",
        'edit("users_module", "def f(x):\\n    return -x\\n")',
        "_ = importlib.reload(users_module)",
        f"show({function})",
    )
    error = "error {0} was edited after it was imported here"
    expected = ["value 10", error.format("users_module"), "value -1", "value 14", error.format("users_helper")]
    assert [line[: len(start)] for line, start in zip(shown, expected, strict=False)] == expected
    assert shown[5:] == ["value 707", "value -1"]


def test_a_function_from_before_its_module_was_loaded_again_stays_as_it_was(tmp_path: Path) -> None:
    """The notebook still runs the old function under this name, and so do the slaves."""
    shown = _type(
        tmp_path,
        "old = users_module.f",
        "show(old)",
        'edit("users_module", "import users_helper\\ndef f(x):\\n    return 99\\n")',
        "_ = importlib.reload(users_module)",
        "show(old)",
        "show(users_module.f)",
    )
    assert shown == ["value 10", "value 10", "value 99"]


@pytest.mark.parametrize(
    ("by_value", "copy", "reason"),
    [(False, "def f(x): return 99\n", "users_copy.py differs"), (True, "", "install the module 'users_copy' there")],
    ids=["by name", "by value"],
)
def test_a_function_that_slaves_refused_is_not_refused_for_ever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, by_value: bool, copy: str, reason: str
) -> None:
    """The slave's machine has an old copy of a module, or none. When there is the right copy, the next map works."""
    here, there = tmp_path / "here", tmp_path / "there"
    for folder, text in ((here, "def f(x): return x + 1\n"), (there, copy)):
        folder.mkdir()
        if text:
            (folder / "users_copy.py").write_text(text)
    monkeypatch.setattr("mwpy._roles.submission.is_interactive", lambda: True)
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    monkeypatch.delitem(sys.modules, "users_copy", raising=False)
    monkeypatch.syspath_prepend(str(there))
    with mwpy.local_master(slaves=1) as mw:
        with monkeypatch.context() as own:
            own.syspath_prepend(str(here))
            by_name = importlib.import_module("users_copy").f
        function = (lambda x: by_name(x)) if by_value else by_name
        with pytest.raises(mwpy.TaskUnrunnable, match=reason):
            _value(mw, function)
        (there / "users_copy.py").write_text((here / "users_copy.py").read_text())
        assert _value(mw, function) == 2


def test_slaves_find_modules_in_folders_that_a_notebook_has_added_to_its_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Slaves are replaced when the path was changed, once. An executor of the master does the same."""
    monkeypatch.setattr("mwpy._roles.submission.is_interactive", lambda: True)
    with mwpy.local_master(slaves=1) as mw, mw.executor() as executor:
        first = _value(mw, _pid)
        assert _value(mw, _new_module(tmp_path, "users_late1", monkeypatch)) == 2
        second = _value(mw, _pid)
        later = _new_module(tmp_path, "users_late2", monkeypatch)
        assert executor.submit(later, 1).result(PATIENCE_S) == 2
        third = _value(mw, _pid)
        assert _value(mw, _pid) == third
    assert len({first, second, third}) == 3


def _pid(_: object) -> int:
    return os.getpid()


def _new_module(parent: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> Callable[[int], int]:
    """Import a module from a folder that was not in the path before. Return its function."""
    folder = parent / f"folder of {name}"
    folder.mkdir()
    (folder / f"{name}.py").write_text("def f(x): return x + 1\n")
    monkeypatch.syspath_prepend(str(folder))
    function: Callable[[int], int] = importlib.import_module(name).f
    return function


OWN = """
import functools, threading

class Kind: pass

SETTING = 1
LIMIT = 10
COUNT = 0
KIND, SEEN, LOCK = Kind(), [], threading.Lock()

def see(x):
    global COUNT
    COUNT += 1
    SEEN.append(x)
    return SEEN, COUNT, KIND

def look(x):
    with LOCK:
        seen, count, kind = see(x)
        return seen is SEEN, count == COUNT, kind is KIND, isinstance(KIND, Kind), x < LIMIT

def make(y):
    def closure(x):
        with LOCK:
            seen, count, kind = see(x)
            return seen is SEEN, count == COUNT, kind is KIND, isinstance(KIND, Kind), x < LIMIT
    return closure

alone = lambda x: (lambda seen, count, kind: (
    seen is SEEN, count == COUNT, kind is KIND, isinstance(KIND, Kind), x < LIMIT))(*see(x))
given = functools.partial(lambda y, x: alone(x), 2)
with_setting = lambda x: (see(x)[0] is SEEN, SETTING)
"""


@pytest.mark.parametrize(
    "task",
    ["users_own.look", "users_own.make(1)", "users_own.alone", "users_own.given", "lambda x: users_own.alone(x)"],
)
def test_a_function_by_value_of_a_module_uses_the_state_of_this_module_in_the_slave(tmp_path: Path, task: str) -> None:
    """A function that travels by name gives the same answers, as in `concurrent.futures.ProcessPoolExecutor`."""
    (tmp_path / "users_own.py").write_text(OWN)
    assert _printed(tmp_path, f"print({{*mw.map({task}, range(5))}})") == "{(True, True, True, True, True)}\n"


def test_a_constant_that_the_master_has_changed_in_a_module_travels_with_a_function_by_value(tmp_path: Path) -> None:
    """So did it before; the other variables are those of the slave."""
    (tmp_path / "users_own.py").write_text(OWN)
    lines = "users_own.SETTING = 7\nprint({*mw.map(users_own.with_setting, range(5))})"
    assert _printed(tmp_path, lines) == "{(True, 7)}\n"


def test_a_function_by_value_that_uses_no_state_of_its_module_does_not_need_it(tmp_path: Path) -> None:
    """Neither does one whose module was loaded from a path, under a name without meaning for slaves: it has copies."""
    (tmp_path / "plain.py").write_text("import math\nK = 3\nmake = lambda y: lambda x: math.floor(x) + y + K\n")
    lines = """
import importlib.util
spec = importlib.util.spec_from_file_location("other_name", "plain.py")
sys.modules["other_name"] = module = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)
module.SEEN = []
exec("with_state = lambda x: (SEEN.append(x), x)[1]", vars(module))
print(*mw.map(module.make(1), range(3)), *mw.map(module.with_state, range(3)))
"""
    assert _printed(tmp_path, lines) == "4 5 6 0 1 2\n"


def _printed(folder: Path, lines: str) -> str:
    """Return what a script prints that has a master with two slaves."""
    (folder / "users_own.py").touch()
    body = "".join(f"        {line}\n" for line in lines.strip().splitlines())
    head = "import sys, mwpy, users_own\nif __name__ == '__main__':\n    with mwpy.local_master(slaves=2) as mw:\n"
    (folder / "script.py").write_text(head + body)
    run = subprocess.run(
        [sys.executable, "script.py"], capture_output=True, text=True, timeout=PATIENCE_S, check=False, cwd=folder
    )
    assert run.returncode == 0, run.stderr
    return run.stdout
