"""What a function consists of, and when it is the same as in an earlier run."""

from __future__ import annotations

import functools
import importlib
import importlib.machinery
import itertools
import linecache
import os
import random
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cloudpickle
import numpy as np
import pytest

from mwpy._transport.codec import Codec
from mwpy._transport.shared_objects import handle_of as share
from mwpy._values import sources
from mwpy._values.algorithm import Initialized
from mwpy._values.bounds import TaskId
from mwpy._values.code import (
    Code,
    NotComparable,
    changes,
    code_of,
)
from mwpy._values.task import result

HELPERS = '''
import threading
import numpy as np

LOCK = threading.Lock()
TABLE = {"x": {3, 1, 2, "a", "b"}}

def scale(x):
    """Scale."""
    with LOCK:
        return np.sin(x) * len(TABLE["x"])

def unused():
    return 3
'''

APP = """
import dataclasses, enum, functools, logging, random
from pathlib import Path

import helpers
import mwpy

HERE = Path(__file__).parent / "x"
SCALE = 3
LOG = logging.getLogger(__name__)

def plus(x):
    return x + 1

def make(k):
    def inner(x):
        return k * x
    return inner

HANDLERS = {make(1), plus, make(2)}

class Color(enum.Enum):
    RED = 1

@dataclasses.dataclass
class Point:
    x: int = 3
    y: list = dataclasses.field(default_factory=list)

    def norm(self):
        return self.x * SCALE + len([Point])

@functools.cache
def cached(x):
    return recursive(x)

def recursive(x):
    return cached(x - 1) if x else 0

@mwpy.task_algorithm
def simulate(x, y=2):
    import json
    LOG.info("x %s", HERE)
    handled = sum(each(1) for each in HANDLERS) + random.random() + Color.RED.value
    return helpers.scale(x) * SCALE + Point(3).norm() + cached(3) + handled

def digests():
    from mwpy._values.code import call_digest, code_of
    codes = [simulate, functools.partial(simulate, y={1, "a"}), lambda x: simulate(x), Point(3).norm, Point]
    values = [Point(3), {"a", "b"}, simulate, Color.RED]
    return [*[code_of(each).digest.hex() for each in codes], *[call_digest((each,), {"k": 1}).hex() for each in values]]

if __name__ == "__main__":
    print(digests())
"""


def files(folder: Path, app: str = APP, helpers: str = HELPERS) -> Path:
    folder.mkdir()
    (folder / "app.py").write_text(app)
    (folder / "helpers.py").write_text(helpers)
    return folder


def output(cwd: Path, *command: str, seed: int = 0) -> str:
    environment = os.environ | {"PYTHONHASHSEED": str(seed)}
    done = subprocess.run([sys.executable, *command], cwd=cwd, env=environment, capture_output=True, check=True)
    return done.stdout.decode()


def test_processes_folders_and_the_name_of_the_module_do_not_count(tmp_path: Path) -> None:
    one, other = files(tmp_path / "one"), files(tmp_path / "other")
    expected = output(one, "app.py", seed=1)
    assert output(tmp_path, "other/app.py", seed=2) == expected
    assert output(other, "-c", "import app; print(app.digests())", seed=3) == expected


Modules = Callable[..., Any]


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Modules:
    """Make modules of a user, each with another version of its source at each call."""
    count = 0

    def make(source: str, name: str = "app", **others: str) -> Any:
        nonlocal count
        count += 1
        folder = tmp_path / str(count)
        folder.mkdir()
        for each, text in {**others, name: source}.items():
            (folder / f"{each}.py").write_text(text)
            monkeypatch.delitem(sys.modules, each, raising=False)
        monkeypatch.syspath_prepend(folder)
        made = importlib.import_module(name)
        for each in (name, *others):
            if each in sys.modules:
                monkeypatch.setitem(sys.modules, each, sys.modules[each])
        return made

    return make


def parts(function: object) -> dict[str, str]:
    return code_of(function).parts  # type: ignore[arg-type]


def reported(one: Code, other: Code) -> list[str]:
    """What changed between two versions; at least something, if the digests differ."""
    assert (one.digest == other.digest) == (one.parts == other.parts)
    return changes(one.parts, other.parts)


# ---- what does not count


@pytest.mark.parametrize(
    "other",
    [
        "def f(x):\n    # comment\n    return (x\n        + 1)",
        'def f(x):\n    "Docstring."\n    return x + 1',
        "\n\n\ndef unused(): ...\n\ndef f(x):\n    return x + 1",
        "def f(x: int) -> 'int':\n    pass\n    return x + 1",
        "import mwpy\n@mwpy.task_algorithm(retry=False)\ndef f(x):\n    return x + 1",
        "from mwpy import task_algorithm\n@task_algorithm\ndef f(x):\n    return x + 1",
    ],
)
def test_what_cannot_change_a_result_does_not_count(module: Modules, other: str) -> None:
    """Comments, format, docstrings, annotations that nobody reads, other functions, and the decorators of mwpy."""
    assert code_of(module("def f(x):\n    return x + 1").f) == code_of(module(other).f)


def test_paths_below_the_folder_of_a_module_do_not_count(module: Modules) -> None:
    source = "import os\nfrom pathlib import Path\nA = os.path.dirname(__file__)\nB = Path(A)\nC = B / 'c'\n"
    source += "def f(): return A, B, C, __file__, __name__"
    assert code_of(module(source).f) == code_of(module(source).f)
    changed = code_of(module(source.replace("'c'", "'d'")).f)
    assert reported(code_of(module(source).f), changed) == ["global app.C changed"]


# ---- what counts, and how it is reported


@pytest.mark.parametrize(
    ("source", "old", "new", "sentences"),
    [
        ("def f(x): return x + 1", "1", "2", ["function app.f changed"]),
        (
            "def f(x, *, y=1): return x",
            "=1",
            "=2",
            ["default y of app.f changed from 1 to 2"],
        ),
        ("K = 1\ndef f(x): return K", "K = 1", "K = 1.0", ["global app.K changed from 1 to 1.0"]),
        ("def g(): return 1\ndef f(x): return g()", "1", "2", ["function app.g changed"]),
        ("f = lambda x: x + 1", "1", "2", ["function app.<lambda> changed"]),
        ("f = [lambda x: x, lambda x: [\n x + 1, lambda: x]][1]", "+ 1", "+ 2", ["function app.<lambda> changed"]),
        (
            "def make(k):\n    def f(x): return k\n    return f\nf = make(1)",
            "make(1)",
            "make(2)",
            ["variable k of app.make.<locals>.f changed from 1 to 2"],
        ),
        (
            "class A:\n    x = 1\ndef f(): return A.x",
            "1",
            "2",
            ["attribute x of app.A changed from 1 to 2", "class app.A changed"],
        ),
        ("class A:\n    def g(self): return 1\ndef f(): return A", "1", "2", ["function app.A.g changed"]),
        (
            "class B:\n    def g(self): return 1\nclass A(B): pass\ndef f(): return A",
            "1",
            "2",
            ["function app.B.g changed"],
        ),
        (
            "class A:\n    @property\n    def g(self): return 1\ndef f(): return A",
            "1",
            "2",
            ["function app.A.g changed"],
        ),
        (
            "class A:\n    @staticmethod\n    def g(x): return x\ndef f(): return A.g()",
            "static",
            "class",
            ["class app.A changed"],
        ),
        (
            "import functools\nclass A:\n    @functools.cached_property\n    def g(self): return 1\ndef f(): return A",
            "1",
            "2",
            ["function app.A.g changed"],
        ),
        ("class A:\n    x: int\ndef f(): return A", "int", "str", ["class app.A changed"]),
        (
            "import msgspec\nK = 1\nclass A(msgspec.Struct):\n    x: int = K\ndef f(): return A()",
            "K = 1",
            "K = 2",
            ["global app.K changed from 1 to 2"],
        ),
        (
            "class V:\n    def __init__(self, k): self.k = k\ndef make(k):\n    class A:\n        v = k\n    return A\n"
            "A = make(V(1))\ndef f(): return A",
            "(1)",
            "(2)",
            ["attribute v of app.make.<locals>.A changed"],
        ),
        (
            "import numpy as np\nh = np.frompyfunc(lambda x: x + 1, 1, 1)\ndef f(x): return h(x)",
            "+ 1",
            "+ 2",
            ["source of global app.h changed"],
        ),
        (
            "def g(): return 1\nclass A:\n    x = [g()]\n    del x\ndef f(): return A",
            "1",
            "2",
            ["function app.g changed"],
        ),
        (
            "import enum\nclass A(enum.Enum):\n    X = 1\ndef f(): return A.X",
            "1",
            "2",
            ["attribute members of app.A changed", "class app.A changed"],
        ),
        ("import functools\n@functools.cache\ndef f(x): return 1", "1", "2", ["function app.f changed"]),
        (
            "import functools\ndef d(g):\n    @functools.wraps(g)\n    def w(): return g() + 1\n    return w\n"
            "@d\ndef f(): return 5",
            "5",
            "6",
            ["function app.f changed"],
        ),
        ("def f(x): return later", "", "", []),
        ("def g(): return 1\nH = {g, len}\ndef f(): return H", "1", "2", ["function app.g changed"]),
        (
            "import msgspec\nclass A(msgspec.Struct):\n    x: int = 1\ndef f(): return A()",
            "1",
            "2",
            ["class app.A changed"],
        ),
        (
            "import functools\nclass A:\n    @functools.lru_cache\n    def g(self): return K\nK = 1\ndef f(): return A",
            "= 1",
            "= 2",
            ["global app.K changed from 1 to 2"],
        ),
        ("def f(x: int) -> int:\n    y: int = 1\n    return y", "y: int", "y: float", []),
        ("def d(k):\n    return lambda g: g\n@d(1)\ndef f(): return 5", "1", "2", []),
        (
            "def d(k):\n    def e(g):\n        g.k = k\n        return g\n    return e\n@d(1)\ndef f(): return f.k",
            "(1)",
            "(2)",
            ["attribute k of app.f changed from 1 to 2"],
        ),
        ("def f(*a: int, b: int = 1, **c: int): return 1000000", "1000000", "1000001", ["function app.f changed"]),
        (
            "from mwpy._values.algorithm import Initialized\nf = Initialized('mark', print, (1,), max)",
            "1",
            "2",
            ["arguments of the initializer changed"],
        ),
    ],
)
def test_a_change_is_reported_where_it_is(
    module: Modules, source: str, old: str, new: str, sentences: list[str]
) -> None:
    changed = source.replace(old, new)
    assert reported(code_of(module(source).f), code_of(module(changed).f)) == sentences
    assert code_of(module(source).f) == code_of(module(source).f)


@pytest.mark.parametrize("place", range(3))
def test_each_function_of_a_property_counts(module: Modules, place: int) -> None:
    source = "class A:\n    @property\n    def x(self): return {}\n    @x.setter\n    def x(self, y): self.y = {}\n"
    source += "    @x.deleter\n    def x(self): self.y = {}\ndef f(): return A"
    numbers = [0, 0, 0]
    before = code_of(module(source.format(*numbers)).f)
    numbers[place] = 7
    [*_, sentence] = reported(before, code_of(module(source.format(*numbers)).f))
    assert "function app.A.x" in sentence


def test_annotations_that_a_decorator_may_have_read_count(module: Modules) -> None:
    source = "import functools\n@functools.cache\ndef f(x: int): return x"
    own = "def d(g):\n    def w(x): return g.__annotations__['x'](x)\n    return w\n@d\ndef f(x: int): return x"
    hidden = "import helpers\nf = helpers.hide(lambda x: x)\nf.__wrapped__.__annotations__['x'] = int"
    helpers = "def hide(g):\n    space = {'__name__': 'contextlib', 'g': [g]}\n"
    helpers += "    exec('def w(x): return g[0](x)', space)\n    space['w'].__wrapped__ = g\n    return space['w']"
    for text in (source, own, hidden):
        codes = [code_of(module(each, helpers=helpers).f) for each in (text, text, text.replace("int", "str"))]
        assert codes[0] == codes[1] != codes[2], text


def test_functions_that_a_decorator_generates_do_not_count(module: Modules) -> None:
    """They follow from the source, and differ between versions of Python and of the library."""
    source = (
        "import dataclasses, attrs\n@dataclasses.dataclass\nclass A:\n    x: int\n@attrs.define\nclass B:\n    x: int\n"
    )
    found = parts(module(source + "def f(): return A, B").f)
    assert {*found} == {"Python", "class app.A", "class app.B", "function app.f", "package attrs"}


@pytest.mark.parametrize(
    "use",
    [
        "import helpers\ndef f(): return helpers.g()",
        "from helpers import g\ndef f(): return g()",
        "def f():\n    from helpers import g\n    return g()",
        "import helpers\ndef f():\n    from helpers import g\n    return g()",
        "import helpers\nclass A:\n    g = staticmethod(helpers.g)\ndef f(): return A",
        "import helpers as h\nimport functools\nf = functools.partial(h.g)",
    ],
)
def test_a_function_of_another_module_of_the_user_counts(module: Modules, use: str) -> None:
    """A module that was not loaded counts as a whole. Otherwise other functions of the module do not count."""
    helpers = "def g(): return 1\ndef unused(): return 5\n"
    before = code_of(module(use, helpers=helpers).f)
    changed = code_of(module(use, helpers=helpers.replace("1", "2")).f)
    whole = "helpers" not in use.partition("def f")[0]
    assert reported(before, changed) == (["module helpers changed"] if whole else ["function helpers.g changed"])
    other = reported(before, code_of(module(use, helpers=helpers.replace("5", "6")).f))
    assert other == (["module helpers changed"] if whole else [])


def test_a_module_that_is_used_as_a_value_counts_as_a_whole(module: Modules) -> None:
    """So do the modules that it imports, but not the packages of Python, nor what only types need."""
    use = "import helpers\ndef f(): return getattr(helpers, 'g')()"
    helpers = (
        "TYPE_CHECKING = False\nif TYPE_CHECKING:\n    import nobody_has\n"
        "import json, inner\nfrom inner import x\nfrom inner import *\ndef g(): return 1"
    )
    old, new = (code_of(module(use, helpers=helpers, inner=f"x = {x}").f) for x in (1, 2))
    assert reported(old, new) == ["global inner.x changed from 1 to 2", "module inner changed"]
    assert not [part for part in old.parts if "nobody_has" in part]
    assert old.parts["Python"] == f"{sys.version_info.major}.{sys.version_info.minor}"


@pytest.mark.parametrize(
    ("use", "changed"),
    [
        ("EXPRESSION = 'x + K'\ndef f(x): return eval(EXPRESSION)", "module app"),
        ("def f(x): return globals()['K'.upper()]", "module app"),
        ("import sys\ndef f(): return getattr(sys.modules[__name__], 'K'.upper())", "module app"),
        ("def f(x):\n    return [eval('x + K') for x in range(2)]", "global app.K"),
        ("import importlib\ndef f(): return importlib.import_module('helpers').K", "module helpers"),
        ("def f():\n    from importlib import import_module\n    return import_module('helpers').K", "module helpers"),
        ("from importlib import import_module as find\ndef f(): return find('helpers').K", "module helpers"),
        ("def f(): return __import__('helpers').K", "module helpers"),
    ],
)
def test_what_a_function_finds_by_names_in_texts_counts(module: Modules, use: str, changed: str) -> None:
    """The whole module of the function counts, and what its texts name."""
    own, helpers = f"K = 1\n{use}", "K = 1"
    before = code_of(module(own, helpers=helpers).f)
    assert reported(before, code_of(module(own, helpers=helpers).f)) == []
    if "helpers" in changed:
        helpers = "K = 2"
    else:
        own = own.replace("K = 1", "K = 2")
    assert any(
        each.startswith(f"{changed} changed") for each in reported(before, code_of(module(own, helpers=helpers).f))
    )


def test_methods_that_are_named_as_functions_which_find_names_in_texts_do_not_count(module: Modules) -> None:
    source = "def unused(): return 1\ndef f(model): return model.eval().globals"
    codes = [code_of(module(each).f) for each in (source, source.replace("1", "2"))]
    assert codes[0] == codes[1]


def test_a_package_of_the_user_is_followed(module: Modules, tmp_path: Path) -> None:
    """Also through relative imports inside a function, and to a module that nobody has loaded."""

    def package(number: int) -> Any:
        folder = tmp_path / f"package{number}" / "own"
        folder.mkdir(parents=True)
        (folder / "__init__.py").write_text("from . import first\n")
        (folder / "first.py").write_text(
            "def g(): return 1\ndef f():\n    from . import second\n    return second.h()\n"
        )
        (folder / "second.py").write_text(f"def h(): return {number}\n")
        sys.path.insert(0, str(folder.parent))
        for name in [each for each in sys.modules if each.partition(".")[0] == "own"]:
            del sys.modules[name]
        try:
            importlib.invalidate_caches()
            found = importlib.import_module("own.first").f
            code_of(found)
            return found, code_of(found)
        finally:
            sys.path.remove(str(folder.parent))

    (_, one), (_, other), (_, again) = package(1), package(2), package(1000)
    assert changes(one.parts, other.parts) == ["module own.second changed"]
    assert len({one.digest, other.digest, again.digest}) == 3


@pytest.mark.parametrize("use", ["import lazy.inner.one", "from lazy.inner.one import K", "from lazy.inner import one"])
@pytest.mark.parametrize("part", ["lazy", "lazy.inner", "lazy.inner.one"])
def test_a_package_that_only_the_task_imports_counts(
    module: Modules, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, use: str, part: str
) -> None:
    """So do the packages in which it is, which Python then loads, too. Nothing is imported to find them."""
    codes = []
    for number in (1, 2):
        for name, file in (("lazy", "__init__"), ("lazy.inner", "inner/__init__"), ("lazy.inner.one", "inner/one")):
            path = tmp_path / "packages" / str(number) / "lazy" / f"{file}.py"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(f"K = {number if name == part else 0}\n")
        with monkeypatch.context() as patch:
            patch.syspath_prepend(tmp_path / "packages" / str(number))
            codes.append(code_of(module(f"def f():\n    {use}").f))
    assert reported(*codes) == [f"module {part} changed"]
    assert "lazy" not in sys.modules


def test_installed_packages_count_by_version(module: Modules) -> None:
    source = "import numpy as np, cloudpickle\nfrom numpy import sin\n"
    source += "def f(x):\n    import attrs\n    return np.sin(x), sin, cloudpickle.dumps"
    found = parts(module(source).f)
    assert found["package numpy"] == np.__version__
    assert found["package cloudpickle"] == cloudpickle.__version__
    assert "package attrs" in found


def test_another_version_of_python_is_reported_and_not_what_it_compiles_in_another_way() -> None:
    kinds = "function app.f", "class app.A", "module app"
    versions = ("3.11", "#1"), ("3.12", "#2")
    old, new = ({"Python": version, **dict.fromkeys(kinds, digest)} for version, digest in versions)
    assert changes(old, new) == ["Python changed from 3.11 to 3.12"]


def test_what_is_new_or_not_used_any_more_is_reported() -> None:
    assert changes({"function app.f": "#1"}, {"function app.g": "#2"}) == [
        "function app.g is used now, and was not used before",
        "function app.f is not used any more",
    ]


def test_objects_that_cannot_be_compared_are_parts(module: Modules) -> None:
    """Their values never make two runs differ, but the statements that set them do."""
    source = "import threading\nL = threading.Lock()\ndef f(): return L"
    one, other = parts(module(source).f), parts(module(source).f)
    assert one == other
    assert one["global app.L"].startswith("?an object of the type _thread.lock has no structure")
    sentence = f"global app.L cannot be compared: {one['global app.L'][1:]}"
    changed = module(source.replace("threading.Lock()", "1")).f
    assert changes(one, parts(changed))[:1] == changes(parts(changed), one)[:1] == [sentence]
    codes = [code_of(module(each).f) for each in (source, source.replace("Lock()", "RLock()"))]
    assert "source of global app.L changed" in reported(*codes)


def test_loggers_and_hidden_random_generators_do_not_differ(module: Modules) -> None:
    source = "import logging, random\nfrom random import random as r, randint\nfrom numpy.random import rand\n"
    source += "LOG = logging.getLogger(str(random.random()))\ndef f(): return LOG, r(), randint(1, 2), rand(3)"
    assert code_of(module(source).f) == code_of(module(source).f)


def test_recursion_and_cycles_end(module: Modules) -> None:
    """Functions that call each other, methods that use their class, and a table that contains its user."""
    source = "T = {}\ndef g(x): return f(x), len(x)\ndef f(x): return g(x), len(x), T, A\nT['f'] = f\n"
    source += "class A:\n    def m(self): return A, f\n"
    made = module(source)
    one = code_of(made.f)
    assert one.digest != code_of(made.g).digest
    assert one == code_of(module(source).f)
    assert reported(one, code_of(module(source.replace("return A, f", "return f, A")).f)) == [
        "function app.A.m changed"
    ]


def test_functions_that_differ_only_in_what_they_reach_are_not_mixed_up(module: Modules) -> None:
    """Two closures with the same source in a table: which one is where counts, though the parts are the same."""
    source = "def make(k):\n    def g(x): return k\n    return g\nT = {'a': make(1), 'b': make(2)}\ndef f(): return T"
    swapped = source.replace("make(1), 'b': make(2)", "make(2), 'b': make(1)")
    one, other = code_of(module(source).f), code_of(module(swapped).f)
    assert one.parts == other.parts
    assert one.digest != other.digest


# ---- other callables


class Adder:
    """A callable object."""

    def __init__(self, number: object) -> None:
        self.number = number

    def __call__(self, x: object) -> object:
        return x, self.number


marks = itertools.count()
"""Numbers of which each names another executor."""


def _of_an_executor(function: Callable[..., object], initializer: Callable[..., object], argument: object) -> Any:
    return Initialized(f"executor {next(marks)}", initializer, (argument,), function)


def test_partials_methods_objects_classes_builtins_and_functions_of_executors_have_code() -> None:
    own: list[list[Any]] = [[max, min], [parts, changes], [1, 2]]
    makers: list[Callable[[], Any]] = [
        lambda: functools.partial(parts, 1),
        lambda: functools.partial(parts, 2),
        lambda: Adder(1),
        lambda: Adder(2),
        lambda: Adder(1).__call__,
        lambda: Adder(2).__call__,
        lambda: Adder,
        lambda: max,
        lambda: min,
        lambda: np.sin,
        lambda: np.linalg.norm,
        lambda: np.random.default_rng(1).random,
        lambda: np.random.default_rng(2).random,
        lambda: random.random,
        lambda: random.randint,
        lambda: str.upper,
        lambda: "x".join,
        lambda: int,
        lambda: functools.singledispatch(parts),
        *(functools.partial(_of_an_executor, *each) for each in itertools.product(*own)),
    ]
    digests = [code_of(make()).digest for make in makers]
    assert digests == [code_of(make()).digest for make in makers]
    assert len({*digests}) == len(digests)


def test_what_runs_before_a_function_counts(module: Modules) -> None:
    """A set-up of agents can be a command; a function counts with what it uses."""
    source = "K = 1\ndef prepare(): return K\n"
    code = code_of(max, ["make all", module(source).prepare])
    assert reported(code, code_of(max, ["make all", module(source).prepare])) == []
    assert reported(code, code_of(max, ["make", module(source).prepare])) == ["set-up of agents and slaves changed"]
    changed = module(source.replace("1", "2")).prepare
    assert reported(code, code_of(max, ["make all", changed])) == ["global app.K changed from 1 to 2"]


@pytest.mark.parametrize(
    "make",
    [
        lambda: Adder(iter(sys.stdout)),
        lambda: Adder(iter(sys.stdout)).__call__,
        lambda: functools.partial(max, sys.stdout),
        lambda: _of_an_executor(max, parts, sys.stdout),
    ],
)
def test_an_object_without_structure_has_no_code(make: Callable[[], Any]) -> None:
    with pytest.raises(NotComparable, match="has no structure"):
        code_of(make())


def test_code_without_source_counts_by_its_instructions() -> None:
    """As in a REPL. Docstrings and lines do not count."""

    def defined(source: str) -> Any:
        space: dict[str, Any] = {"__name__": "__main__"}
        exec(source, space)
        return space["f"]

    one = code_of(defined("def f(x):\n  'Doc.'\n  return [y + 1 for y in (1, 2)]"))
    assert one == code_of(defined("\n\ndef f(x): return [y + 1 for y in (1, 2)]"))
    assert one.digest != code_of(defined("def f(x): return [y + 2 for y in (1, 2)]")).digest
    assert code_of(defined("f = lambda: 'a'")).digest != code_of(defined("f = lambda: 'b'")).digest
    bodies = [
        *("x = 1", "x = 2", "x = 1.0", "x = True", "x = 'a'", "x = b'a'", "y = 1", "x = y", "x = 'y'", "f(a, b)"),
        *("f([a, b])", "f(a)(b)", "x = a - (b - c)", "x = (a - b) - c", "self.x = 1", "x = f'{y}a'", "x = f'{y!r}a'"),
        *("try: x()\n  except: y()", "try: x()\n  finally: y()", "x = 10 ** 20", "lambda: 1", "lambda: 2", "yield x"),
        *("if x: y = 1", "while x: y = 1", "class A: x = 1", "class A: x = 2", "x = {1, 2}", "x = [1, 2]"),
    ]
    digests = {code_of(defined(f"def f(x, y):\n  {body}")).digest for body in bodies}
    assert len(digests) == len(bodies)
    kind = "class f:\n  x = {}\n  def g(self): return {}"
    digests = {code_of(defined(kind.format(*each))).digest for each in ((1, 1), (2, 1), (1, 2))}
    assert len(digests) == 3
    assert "function f" in parts(eval("lambda: 1", {})) or "function <lambda>" in parts(eval("lambda: 1", {}))


def test_the_source_of_a_notebook_cell_is_found() -> None:
    """IPython puts it into linecache."""

    def cell(source: str, name: str) -> Any:
        linecache.cache[name] = (len(source), None, source.splitlines(keepends=True), name)
        space: dict[str, Any] = {"__name__": "__main__"}
        exec(compile(source, name, "exec"), space)
        return space["f"]

    one = code_of(cell("def f(x):\n    return x + 1\n", "<ipython-input-1>"))
    assert one == code_of(cell("# again\ndef f(x):\n    return (x + 1)\n", "<ipython-input-2>"))
    assert one.digest != code_of(cell("def f(x):\n    return x + 2\n", "<ipython-input-3>")).digest
    kind = cell(
        "import dataclasses\n@dataclasses.dataclass\nclass f:\n    x: int\n    def g(self): return 1",
        "<ipython-input-4>",
    )
    assert {"class __main__.f", "function __main__.f.g"} <= {*parts(kind)} or "f.g" in str(parts(kind))


def test_a_file_that_changed_after_it_was_loaded_does_not_count(module: Modules) -> None:
    """Its source would be that of other code than the one that runs."""
    source = "class A:\n    x: int\n    def g(self): return 1\ndef f(x): return A\ndef h(): return 3\n"
    expected = code_of(module(source).f)
    loaded = module(source)
    sources.SOURCES.remember()
    Path(str(loaded.__file__)).write_text("import os\n" + source.replace("return 1", "return 2").replace("int", "str"))
    linecache.checkcache()
    assert code_of(loaded.f) == expected
    Path(str(loaded.__file__)).write_text("def f(:")
    assert code_of(loaded.h).parts.keys() == {"Python", "function app.h"}


def test_source_in_a_zip_file_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    digests = set()
    source = "class A:\n    {}x: {}\ndef f(): return A"
    for number, given in enumerate((("", "int"), ("# one\n    ", "int"), ("", "str"))):
        name = f"zipped{number}"
        with zipfile.ZipFile(tmp_path / f"{name}.zip", "w") as file:
            file.writestr(f"{name}.py", source.format(*given))
        monkeypatch.syspath_prepend(tmp_path / f"{name}.zip")
        function = importlib.import_module(name).f
        digests.add(code_of(function).digest)
    assert len(digests) == 2


# ---- changes in one process


def test_each_change_of_what_a_function_depends_on_counts_at_once(module: Modules) -> None:
    source = "K, T, M = 1, [1], object()\ndef g(): return 1\nclass A:\n    x = 1\n"
    source += "def make(k):\n    def f(x, y=1):\n        return k, K, T, M, g(), A\n"
    source += "    def put(z):\n        nonlocal k\n        k = z\n    return f, put\n"
    made = module(source + "f, put = make(1)")
    codes = [code_of(made.f)]
    assert code_of(made.f) == codes[0]

    def changed() -> bool:
        codes.append(code_of(made.f))
        return codes[-1].digest not in [each.digest for each in codes[:-1]]

    made.K = 2
    assert changed()
    made.T.append(2)
    assert changed()
    made.A.x = 2
    assert changed()
    made.put(2)
    assert changed()
    made.g.__code__ = (lambda: 2).__code__
    assert changed()
    made.f.__defaults__ = ([2],)
    assert changed()
    made.f.__defaults__[0].append(3)
    assert changed()
    made.f.__kwdefaults__ = {"z": 1}
    assert changed()
    made.f.__kwdefaults__["z"] = 2
    assert changed()
    del made.K
    assert changed()


def test_a_module_that_a_notebook_has_loaded_again_counts(module: Modules, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sources, "is_interactive", lambda: True)
    made = module("import helpers\ndef f(): return getattr(helpers, 'K')", helpers="K = 1")
    before = code_of(made.f)
    Path(sys.modules["helpers"].__file__ or "").write_text("K = 222")
    importlib.reload(sys.modules["helpers"])
    assert reported(before, code_of(made.f)) == ["module helpers changed"]


def test_names_that_get_a_value_later_count_from_then_on(module: Modules) -> None:
    """In a notebook, a helper may be defined after the function that uses it, and an import may be repeated."""
    source = "import one as model\ndef f(): return helper(), abs(1), model.K\n"
    source += "def make():\n    def g(): return k\n    yield g\n    k = 1\n    yield\n    k = 2\n    yield\n"
    made = module(source, one="K = 1", two="K = 2")
    steps = made.make()
    g, digests = next(steps), list[bytes]()

    def changed(function: Any) -> bool:
        digests.append(code_of(function).digest)
        return digests[-1] not in digests[:-1]

    assert changed(g)
    for _ in range(2):
        next(steps)
        assert changed(g)
    assert changed(made.f)
    for text in ("def helper(): return 1", "def helper(): return 2", "def abs(x): return 3"):
        exec(compile(text, f"<{text}>", "exec"), made.__dict__)
        assert changed(made.f), text
    made.model = importlib.import_module("two")
    assert changed(made.f)


# ---- graphs


def test_a_captured_handle_counts_by_its_value(module: Modules) -> None:
    """Like that of an argument."""
    source = "def make(k):\n    def f(): return k\n    return f\n"
    handles = [share(each, Codec()) for each in ({"a": 1, "b": 2}, {"b": 2, "a": 1}, {"a": 2})]
    digests = [code_of(module(source).make(each)).digest for each in handles]
    assert digests[0] == digests[1] != digests[2]


# ---- corners


class Evil:
    """Raises wherever it can."""

    @property
    def __dict__(self) -> Any:  # type: ignore[override]
        raise RuntimeError

    def __reduce_ex__(self, protocol: object) -> Any:
        raise Unspeakable


class Unspeakable(Exception):
    """Has no text."""

    def __str__(self) -> str:
        raise ValueError


def test_objects_that_raise_are_contained(module: Modules) -> None:
    """Only what is reached through them is not followed."""
    made = module("def f(): return e, later")
    made.e = Evil()
    expected = f"?an object of the type {__name__}.Evil has no structure (Unspeakable)"
    assert parts(made.f)["global app.e"] == parts(functools.partial(made.f))["global app.e"] == expected
    assert parts(made.f)["global app.later"] == "not defined"


def test_a_compiled_module_of_the_user_counts_by_its_file(
    module: Modules, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has no source, and no version."""
    made, compiled = module("import fast\ndef f(): return fast", fast="x = 1"), sys.modules["fast"]
    digests = set()
    for number in (1, 2):
        file = tmp_path / f"fast{number}.so"
        file.write_bytes(b"\0" * number)
        compiled.__file__ = str(file)
        digests.add(code_of(functools.partial(made.f)).digest)
    compiled.__file__ = str(tmp_path / "gone.so")
    digests.add(code_of(functools.partial(made.f)).digest)
    assert len(digests) == 3


def test_a_captured_reference_cannot_be_compared() -> None:
    def outer(k: object) -> Callable[[], object]:
        def inner() -> object:
            return k

        return inner

    assert "mwpy.result(3) can be compared only as an argument" in str(parts(outer([result(TaskId(3))])))
