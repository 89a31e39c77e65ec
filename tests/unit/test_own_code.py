"""What an algorithm uses: the user's modules, whether another process has loaded the same, and packages."""

from __future__ import annotations

import argparse
import functools
import importlib
import linecache
import logging
import os
import sys
import threading
import types
from collections.abc import Callable, Iterator
from importlib import metadata
from pathlib import Path
from typing import Any

import attrs
import cloudpickle
import numpy as np
import pandas as pd
import pytest
import zmq

from mwpy._system.own_code import differences, other_values, used_by
from mwpy._values.algorithm import Initialized
from mwpy._values.code import code_of
from mwpy._values.messages import ModuleCode
from mwpy._values.sources import Sources

Load = Callable[[dict[str, str]], Any]

APP = """
import enum
import functools
import own_helpers
from own_helpers import SIZE, Base
from own_other import *
from own_odd import odd

RATE = 2
TABLE = {}
TABLE["a"] = own_helpers.FACTOR
MODEL = own_helpers.Model()
try:
    import numpy_of_nobody
except ImportError:
    LIMIT, REST = 1, 2
UNUSED = 1
KIND = enum.Enum("KIND", "A B")

def decorate(function):
    @functools.wraps(function)
    def wrapper(*args):
        return function(*args)
    return wrapper

class Shape(Base):
    @property
    def area(self):
        return RATE * LIMIT

    @staticmethod
    def make():
        return own_helpers.deep(1)

@decorate
def f(x):
    import own_lazy
    return Shape.make() + helper(x) + TABLE["a"] + SIZE + odd() + MODEL.run() + short(x) + own_lazy.late()

def helper(x):
    return [own_helpers.scale(each) for each in [x]]

short = lambda x: x + 1

def unused(x):
    return 1
"""

HELPERS = """
FACTOR = 3
SIZE = 5
class Base:
    KIND = "base"
class Model:
    def run(self):
        return FACTOR
def scale(x):
    return x
def deep(x):
    return 1
def not_used(x):
    return x
"""

ODD = """\f
TEXT = '\x1c\x1d\x1e\x85\u2028\u2029'  # \v\x85\u2028
\f

def odd():
    return 1
"""
"""Characters at which `str.splitlines` splits, and Python does not."""

FILES = {
    "own_app": APP,
    "own_helpers": HELPERS,
    "own_other": "",
    "own_lazy": "def late(): return 1\n",
    "own_odd": ODD,
}


@pytest.fixture
def load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Load]:
    """Writes modules, and loads `own_app` as a new process would."""
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    before = set(sys.modules)

    def forget() -> None:
        for name in set(sys.modules) - before:
            if name.startswith("own_"):
                del sys.modules[name]

    def load(texts: dict[str, str]) -> Any:
        forget()
        for name, text in texts.items():
            (tmp_path / f"{name}.py").write_text(text)
        importlib.invalidate_caches()
        linecache.clearcache()
        return importlib.import_module("own_app")

    yield load
    forget()


def _code(
    function: Callable[..., Any], by_value: bool = False, sources: Sources | None = None
) -> dict[str, ModuleCode]:
    """What a new process would find that a function uses."""
    return used_by(function, by_value, sources=sources or Sources()).code


def _other_values(load: Load, change: Callable[[Any], object]) -> list[str]:
    """Change something in the master, and return what is named by another process."""
    app = load(FILES)
    change(app)
    theirs = _code(app.f)
    loaded = load(FILES)
    compared: dict[tuple[str, str], str] = {}
    found = other_values(theirs, compared)
    loaded.RATE = "of a task"
    assert other_values(theirs, compared) == found, "the value before the first task counts, because tasks change it"
    return found


@pytest.mark.parametrize(
    ("change", "found"),
    [
        (lambda app: None, []),
        (lambda app: app.TABLE.update(b=1), ["TABLE of own_app"]),
        (lambda app: setattr(app, "RATE", 3), ["RATE of own_app"]),
        (lambda app: setattr(app, "UNUSED", 3), []),
        (lambda app: setattr(app.own_helpers, "FACTOR", 4), ["FACTOR of own_helpers"]),
        (lambda app: setattr(app.own_helpers.Base, "KIND", "other"), ["Base of own_app"]),
        (lambda app: setattr(app.MODEL, "rate", 1), ["MODEL of own_app"]),
        (lambda app: setattr(app.MODEL, "lock", threading.Lock()), []),
        (lambda app: setattr(app, "RATE", str(Path.cwd() / "data")), ["RATE of own_app"]),
        (lambda app: app.TABLE.update(b=[*range(20_000)]), []),
        (lambda app: app.TABLE.update(b=np.arange(3)), ["TABLE of own_app"]),
        (lambda app: app.TABLE.update(b=np.arange(1_000_000)), ["TABLE of own_app"]),
        (lambda app: app.TABLE.update(b=np.zeros(100_000_000)), []),
        (lambda app: app.TABLE.update(b=np.full(20_000, None)), ["TABLE of own_app"]),
        (lambda app: app.TABLE.update(b=np.random.default_rng(1)), []),
        (lambda app: app.TABLE.update(b=pd.DataFrame({"a": range(100)})), ["TABLE of own_app"]),
        (lambda app: app.TABLE.update(b=pd.DataFrame({"a": range(1_000_000)})), []),
        (lambda app: app.TABLE.update(b=types.SimpleNamespace(a=1)), ["TABLE of own_app"]),
        (lambda app: app.TABLE.update(b=argparse.Namespace(a=1)), ["TABLE of own_app"]),
        (lambda app: app.TABLE.update(b=functools.partial(app.unused, 1)), ["TABLE of own_app"]),
        (lambda app: app.TABLE.update(b=app.unused), ["TABLE of own_app"]),
        (lambda app: setattr(app, "RATE", app.KIND.B), ["RATE of own_app"]),
        (lambda app: setattr(app, "helper", app.unused), ["helper of own_app"]),
        (lambda app: setattr(app, "Shape", app.own_helpers.Model), ["Shape of own_app"]),
        (lambda app: setattr(app.Shape, "make", app.unused), ["Shape of own_app"]),
        (lambda app: setattr(app.Shape, "area", property(app.unused)), ["Shape of own_app"]),
        (lambda app: setattr(app.Shape, "log", logging.getLogger("a")), []),
        (lambda app: app.TABLE.update(b=sys.stdout), []),
        (lambda app: app.TABLE.update(b=(each for each in "ab")), []),
    ],
)
def test_values_that_only_the_master_has_changed_are_named(
    load: Load, change: Callable[[Any], object], found: list[str]
) -> None:
    """Large values and those without a structure are not compared."""
    assert _other_values(load, change) == found


class Strange:
    """Its text and its attributes cannot be had."""

    def __repr__(self) -> str:
        raise RuntimeError("no text")

    def __reduce__(self) -> Any:
        raise KeyError("no structure")


@pytest.mark.parametrize("value", [np.sin, Strange(), np.random.default_rng(1), [Strange()]])
def test_no_value_makes_a_comparison_fail(load: Load, value: object) -> None:
    """A comparison only leads to a message, so it must not end a slave or a submission."""
    assert _other_values(load, lambda app: setattr(app, "RATE", value)) == []


def test_a_value_that_names_the_place_of_a_process_may_differ(load: Load) -> None:
    assert _other_values(load, lambda app: None) == []
    texts = {**FILES, "own_app": APP.replace("RATE = 2", 'RATE = __import__("os").getcwd()')}
    theirs = _code(load(FILES).f)
    load(texts)
    assert other_values(theirs, {}) == []


def _differences(load: Load, changed: dict[str, str]) -> list[str]:
    theirs = _code(load(FILES).f)
    load({**FILES, **changed})
    return differences(theirs, Sources())


@pytest.mark.parametrize(
    ("module", "old", "new", "part"),
    [
        ("own_app", "own_lazy.late()", "own_lazy.late() + 1", "function f"),
        ("own_app", "in [x]]", "in [x, x]]", "function helper"),
        ("own_app", "RATE = 2", "RATE = 3", "variable RATE"),
        ("own_app", "REST = 1, 2", "REST = 3, 2", "variable LIMIT"),
        ("own_app", "x: x + 1", "x: x + 2", "variable short"),
        ("own_app", 'TABLE["a"] =', 'TABLE["a"] = 1 +', "variable TABLE"),
        ("own_app", "RATE * LIMIT", "RATE + LIMIT", "class Shape"),
        ("own_helpers", "FACTOR = 3", "FACTOR = 4", "variable FACTOR"),
        ("own_helpers", "SIZE = 5", "SIZE = 6", "variable SIZE"),
        ("own_odd", "return 1", "return 2", "function odd"),
        ("own_helpers", '"base"', '"other"', "class Base"),
        ("own_helpers", "return FACTOR", "return FACTOR + 1", "class Model"),
        ("own_helpers", "scale(x):\n    return x", "scale(x):\n    return -x", "function scale"),
        ("own_helpers", "deep(x):\n    return 1", "deep(x):\n    return 2", "function deep"),
        ("own_lazy", "return 1", "return 2", "module own_lazy"),
    ],
)
def test_an_edit_of_what_a_function_uses_is_found_and_named(
    load: Load, module: str, old: str, new: str, part: str
) -> None:
    assert old in FILES[module]
    assert _differences(load, {module: FILES[module].replace(old, new)}) == [f"{part} in {module}.py"]


@pytest.mark.parametrize(
    ("module", "old", "new"),
    [
        ("own_app", "UNUSED = 1", "UNUSED = 2  # and more lines\n\n"),
        ("own_app", "unused(x):\n    return 1", "unused(x):\n    return 2"),
        ("own_helpers", "not_used(x):\n    return x", "not_used(x):\n    return -x"),
        ("own_helpers", "\nFACTOR", "# FACTOR\n\nFACTOR"),
    ],
)
def test_an_edit_elsewhere_in_the_file_does_not_matter(load: Load, module: str, old: str, new: str) -> None:
    assert old in FILES[module]
    assert _differences(load, {module: FILES[module].replace(old, new)}) == []


@pytest.mark.parametrize(
    ("old", "new", "part"),
    [
        ("from own_helpers import deep", "from own_other import deep", "import deep"),
        ("from own_helpers import deep", "from own_helpers import scale as deep", "import deep"),
        ("import own_helpers as h", "import own_other as h", "import h"),
        ("from own_lazy import *", "from own_other import *", "import late"),
    ],
)
def test_a_name_that_is_imported_from_elsewhere_is_found(load: Load, old: str, new: str, part: str) -> None:
    app = "from own_helpers import deep\nimport own_helpers as h\nfrom own_lazy import *\n"
    app += "def f(x):\n    return deep(x) + h.deep(x) + late()\n"
    others = {"own_other": f"{HELPERS}\ndef late(): return 2\n"}
    theirs = _code(load({**FILES, **others, "own_app": app}).f)
    load({"own_app": app.replace(old, new)})
    assert differences(theirs, Sources()) == [f"{part} in own_app.py"]
    load({"own_app": app.replace("import deep", "import scale, deep")})
    assert differences(theirs, Sources()) == []


def test_a_package_and_its_module_of_the_same_alias_are_not_the_same_import(load: Load) -> None:
    app = "import os as paths\ndef f(x):\n    return paths.sep\n"
    theirs = _code(load({"own_app": app}).f)
    load({"own_app": app.replace("import os as", "import os.path as")})
    assert differences(theirs, Sources()) == ["import paths in own_app.py"]
    app = "import os\ndef f(x):\n    return os.sep\n"
    theirs = _code(load({"own_app": app}).f)
    load({"own_app": app.replace("import os", "import os.path as os")})
    assert differences(theirs, Sources()) == ["import os in own_app.py"]


def test_an_item_that_is_set_under_a_name_does_not_belong_to_this_name(load: Load) -> None:
    app = "SCALE = 2\nOUT = {}\ndef f(x):\n    return SCALE\nOUT[SCALE] = 1\n"
    theirs = _code(load({"own_app": app}).f)
    load({"own_app": app.replace("= 1", "= 3")})
    assert differences(theirs, Sources()) == []


def test_an_edit_of_what_a_decorator_or_a_default_argument_is_made_from_is_found(load: Load) -> None:
    app = (
        "RATE, MORE = 2, 3\ndef scaled(k):\n    def decorate(g):\n        return lambda x: k * g(x)\n"
        "    return decorate\n@scaled(RATE)\ndef f(x, y=MORE + 1):\n    return x + y\n"
    )
    theirs = _code(load({"own_app": app}).f)
    assert sorted(theirs["own_app"].parts) == ["function f", "function scaled", "variable MORE", "variable RATE"]
    load({"own_app": app.replace("k * g", "k + g")})
    assert differences(theirs, Sources()) == ["function scaled in own_app.py"]


@pytest.mark.parametrize(
    ("app", "part"),
    [
        ("K = 0\ndef init():\n    global K\n    K = 1\ninit()\ndef f(x):\n    return K\n", "variable K in own_app.py"),
        (
            "from functools import singledispatch\n@singledispatch\ndef g(x):\n    return x\n"
            "@g.register\ndef _(x: int):\n    return x + 1\ndef f(x):\n    return g(x)\n",
            "function g in own_app.py",
        ),
        ("import own_other\ndef f(x):\n    m = own_other\n    return m.g(x)\n", "module own_lazy in own_lazy.py"),
    ],
)
def test_an_edit_that_is_reached_in_another_way_is_found(load: Load, app: str, part: str) -> None:
    """A variable that a function sets, a function that a decorator registers, and what a module as a value imports."""
    files = {"own_app": app, "own_other": "import own_lazy\ndef g(x): return own_lazy.K\n", "own_lazy": "K = 1\n"}
    theirs = _code(load(files).f)
    load({name: text.replace("1", "2") for name, text in files.items()})
    assert differences(theirs, Sources()) == [part]


def test_the_file_of_a_loaded_module_counts_as_it_was_when_it_was_loaded(load: Load, tmp_path: Path) -> None:
    """A slave that was started before an edit runs the old code, although the file has other code now."""
    module, master, slave = load(FILES), Sources(), Sources()
    master.remember()
    slave.remember()
    (tmp_path / "own_app.py").write_text("\n\n" + APP.replace("RATE = 2", "RATE = 3"))
    linecache.checkcache()
    theirs = _code(module.f, sources=master)
    assert differences(theirs, slave) == []
    assert differences(theirs, Sources()) == ["variable RATE in own_app.py"]


@pytest.mark.parametrize("name", ["own_app", "own_other"])  # the second file is empty at first
def test_a_file_that_was_edited_since_it_was_loaded_is_named(load: Load, tmp_path: Path, name: str) -> None:
    load(FILES)
    own = Sources()
    own.remember()
    assert own.edited() == ""
    file = tmp_path / f"{name}.py"
    file.write_text(FILES[name] + "# edited")
    assert own.edited() == str(file)


def test_a_file_that_was_loaded_without_notice_counts_as_edited(load: Load, tmp_path: Path) -> None:
    """Nobody knows whether it was edited between the loading of the module and the question."""
    load(FILES)
    own = Sources()
    own.remember()
    importlib.import_module("own_lazy")
    assert own.edited() == str(tmp_path / "own_lazy.py")


def test_a_value_that_differs_between_processes_is_no_other_code(load: Load) -> None:
    module = load(FILES)
    theirs = _code(module.f)
    module.RATE, module.TABLE["a"] = 7, 8
    assert [each.parts for each in _code(module.f).values()] == [each.parts for each in theirs.values()]


def test_the_helpers_of_a_function_by_value_count(load: Load) -> None:
    load(FILES)
    own_helpers = sys.modules["own_helpers"]
    function = functools.partial(lambda x: own_helpers.scale(x), 1)
    assert list(_code(function, by_value=True)) == ["own_helpers"]
    scope: dict[str, Any] = {"__name__": "__main__", "own_helpers": own_helpers}
    exec("def by_value(x): return own_helpers.scale(x) + own_helpers.FACTOR", scope)
    theirs = _code(scope["by_value"], by_value=True)
    assert {name: sorted(each.parts) for name, each in theirs.items()} == {
        "own_helpers": ["function scale", "variable FACTOR"]
    }
    load({**FILES, "own_helpers": HELPERS.replace("FACTOR = 3", "FACTOR = 4")})
    assert differences(theirs, Sources()) == ["variable FACTOR in own_helpers.py"]


def test_what_a_callable_object_is_made_of_counts(load: Load) -> None:
    """The arguments of a partial and the initializer of an executor travel with the function of a task."""
    load(FILES)
    helpers = sys.modules["own_helpers"]
    made = functools.partial(max, key=helpers.scale)
    started = Initialized("mark", helpers.deep, (helpers.Model,), made)
    assert {*_code(started, by_value=True)["own_helpers"].parts} >= {"function scale", "function deep", "class Model"}


def test_variables_that_come_from_a_module_with_everything_else_count(load: Load) -> None:
    app = "from own_other import *\nfrom own_helpers import *\ndef f(x):\n    return x * SIZE\n"
    theirs = _code(load({**FILES, "own_app": app}).f)
    load({"own_helpers": HELPERS.replace("SIZE = 5", "SIZE = 6")})
    assert differences(theirs, Sources()) == ["variable SIZE in own_helpers.py"]


def test_what_slaves_find_in_the_script_counts_in_a_closure(load: Load, monkeypatch: pytest.MonkeyPatch) -> None:
    """It travels by name, although the function around it travels by value."""
    script = load({"own_app": "def scale(x):\n    return x\nclass Model:\n    def run(self):\n        return 1\n"})
    for each in (script.scale, script.Model, script.Model.run):
        monkeypatch.setattr(each, "__module__", "__main__")
    monkeypatch.setitem(script.__dict__, "__name__", "__main__")
    monkeypatch.setitem(sys.modules, "__main__", script)

    def made(function: Callable[..., Any], model: Any) -> Callable[..., Any]:
        return lambda x: function(x) + model.run()

    by_value = made(script.scale, script.Model())
    used = used_by(by_value, by_value=True, found=vars(script), sources=Sources()).code
    assert {*used["__main__"].parts} == {"function scale", "class Model"}
    del script.scale  # now it travels with the function
    used = used_by(by_value, by_value=True, found=vars(script), sources=Sources()).code
    assert {*used["__main__"].parts} == {"class Model"}


def test_closures_with_the_same_code_use_what_the_variables_around_them_mean(load: Load) -> None:
    module = load({**FILES, "own_other": "def other(x):\n    return x\n"})

    def made(inner: Callable[..., Any], again: bool = True) -> Callable[..., Any]:
        return made(lambda x: inner(x), again=False) if again else lambda x: inner(x)

    uses = [[*_code(made(each), by_value=True)] for each in (module.own_helpers.scale, module.other)]
    assert [["own_helpers" in each, "own_other" in each] for each in uses] == [[True, False], [False, True]]


def test_an_object_of_the_script_that_behaves_strangely_is_not_followed(load: Load) -> None:
    strange = "class Strange:\n    def __getattr__(self, name):\n        raise RuntimeError('not now')\n"
    module = load({**FILES, "own_app": strange + "class Holder:\n    held = Strange()\n    def use(self): pass\n"})
    assert "class Holder" in _code(module.Holder)["own_app"].parts


def test_a_notebook_reads_a_file_again_after_it_was_loaded_again(
    load: Load, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in ("mwpy._system.own_code", "mwpy._values.sources"):
        monkeypatch.setattr(f"{module}.is_interactive", lambda: True)
    module, sources = load(FILES), Sources()
    before = _code(module.f, sources=sources)
    (tmp_path / "own_app.py").write_text(APP.replace("RATE = 2", "RATE = 333"))
    after = _code(importlib.reload(module).f, sources=sources)
    changed = [part for part, digest in before["own_app"].parts.items() if after["own_app"].parts[part] != digest]
    assert changed == ["variable RATE"]
    assert {name: each.parts for name, each in _code(module.f, by_value=True).items()} == {
        "own_app": {},
        "own_helpers": {},
    }, "only values are compared, because slaves are replaced when modules were edited"


@pytest.mark.parametrize(
    ("start", "encoding"),
    [
        ("\f\n", "utf-8"),
        ("A = 1 + \\\n\f 2\n", "utf-8"),
        ("A = '\u2028\u2029'\n", "utf-8"),
        ("A = '\x85'  # \v\n", "utf-8"),
        ("A = '\x1c\x1d\x1e'\n", "utf-8"),
        ("A = 1\r\n", "utf-8"),
        ("A = 1\r", "utf-8"),
        ("if True:\n\tA = 1\n", "utf-8"),
        ("# coding: latin-1\nA = '\xe9\x85'\n", "latin-1"),
        ("\ufeffA = 1\n", "utf-8"),
    ],
)
def test_an_edit_is_noticed_by_late_slaves_and_the_run_database_in_any_file_that_python_reads(
    start: str, encoding: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    name = "own_start"
    parts, digests = [], []
    for number in (1, 2):
        text = f"{start}def f():\n    return helper()\n\ndef helper():\n    return {number}"
        (tmp_path / f"{name}.py").write_bytes(text.encode(encoding))
        os.utime(tmp_path / f"{name}.py", (number, number))
        linecache.clearcache()
        module = types.ModuleType(name)
        module.__file__ = str(tmp_path / f"{name}.py")
        exec(compile((tmp_path / f"{name}.py").read_bytes(), module.__file__, "exec"), vars(module))
        monkeypatch.setitem(sys.modules, name, module)
        assert module.f() == number
        [found] = _code(module.f).values()
        parts.append(found.parts)
        digests.append(code_of(module.f).digest)
    assert digests[0] != digests[1]
    assert [part for part in parts[0] if parts[0][part] != parts[1][part]] == ["function helper"]


# ---- packages and modules ----

VERSION = {name: metadata.version(name) for name in ("attrs", "cloudpickle", "msgspec", "pyzmq", "pytest")}


def in_a_module(monkeypatch: pytest.MonkeyPatch, source: str, name: str = "users_module") -> types.ModuleType:
    """Make a module of a user. It belongs to no package."""
    module = types.ModuleType(name)
    module.__file__ = f"/home/user/{name}.py"
    exec(source, vars(module))
    monkeypatch.setitem(sys.modules, name, module)
    return module


def test_all_imports_of_the_module_of_a_function_count(monkeypatch: pytest.MonkeyPatch) -> None:
    """Modules, names from modules and instances of their classes count. The standard library and mwpy do not."""
    source = "import json, zmq, mwpy\nfrom cloudpickle import dumps\nfrom msgspec.json import Encoder\nx = Encoder()\n"
    module = in_a_module(monkeypatch, source + "del Encoder\ndef f(): return 1\n")
    expected = {name: VERSION[name] for name in ("pyzmq", "cloudpickle", "msgspec")}
    assert used_by(module.f, by_value=False).packages == expected


def test_imports_inside_a_function_count(monkeypatch: pytest.MonkeyPatch) -> None:
    """Imports in its inner functions count, too. A module that is not installed has no version."""
    source = "def f():\n import no_such_thing\n def g():\n  import cloudpickle.cloudpickle\n return g\n"
    module = in_a_module(monkeypatch, source)
    assert used_by(module.f, by_value=True).packages == {"cloudpickle": VERSION["cloudpickle"]}


def test_only_the_names_in_a_function_by_value_count() -> None:
    """The other imports of its module do not count."""
    bound = attrs.fields
    assert used_by(lambda: (zmq.Context, bound), by_value=True).packages == {
        "pyzmq": VERSION["pyzmq"],
        "attrs": VERSION["attrs"],
    }
    assert used_by(lambda: cloudpickle, by_value=True).packages == {"cloudpickle": VERSION["cloudpickle"]}


def test_the_modules_of_the_user_that_a_function_reaches(monkeypatch: pytest.MonkeyPatch) -> None:
    """And what they import, also if they import the script. The standard library is left out."""
    in_a_module(monkeypatch, "import attrs\n", "users_helper")
    module = in_a_module(monkeypatch, "import json, users_helper\ndef f(): return 1\n")
    sys.modules["users_helper"].back = module  # type: ignore[attr-defined]
    for used in (used_by(module.f, by_value=False), used_by(lambda: module.f, by_value=True)):
        assert sorted(used.modules) == ["users_helper", "users_module"]
        assert used.packages == {"attrs": VERSION["attrs"]}


def test_a_function_by_value_reaches_what_the_functions_of_main_reach(monkeypatch: pytest.MonkeyPatch) -> None:
    """They travel with it. Partial functions and methods are looked through, and cycles end."""
    module = in_a_module(monkeypatch, "def f(): return 1\n")
    main = types.ModuleType("__main__")
    main.module = module  # type: ignore[attr-defined]
    exec("def g(): return module.f() + h()\ndef h(): return g()\n", vars(main))
    exec("class C:\n def m(self, x): return h()\n", vars(main))
    helper = main.h
    for function in (helper, main.C().m, functools.partial(main.C().m, 1), lambda: helper):
        assert "users_module" in used_by(function, by_value=True).modules
    assert used_by(functools.partial(max, 1), by_value=True).modules == []
