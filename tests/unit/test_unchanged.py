"""Functions by value that are submitted again: an unchanged one is not pickled, and each change is noticed."""

from __future__ import annotations

import gc
import sys
import types
from collections.abc import Callable
from typing import Any
from weakref import ref

import cloudpickle
import pytest

import mwpy
from mwpy._core.master.algorithms import Defined
from mwpy._roles.definitions import SNAPSHOT_BYTES, CodeWatch, Definitions
from mwpy._transport.by_value import snapshot_of
from mwpy._transport.codec import Codec, loads_function
from mwpy._values.algorithm import algorithm_of

SCRIPT = """
import functools, math, users, users.part
from users import travels

K = 3
class Value: pass

def decorated(function):
    @functools.wraps(function)
    def wrapper(*args):
        return function(*args)
    return wrapper

def adder(y):
    def change(new):
        nonlocal y
        y = new
    def forget():
        nonlocal y
        del y
    def add(x):
        return x + y
    return add, change, forget

def helper(x):
    return inner(x) + K

def inner(x):
    return 2 * x

L = [{"a": 1, "b": (2, {3})}, [1], inner]

def listed(x):
    return L

def later(x):
    return (lambda: missing)()

def plain(x, more=(1, 2.0), *, scale=1) -> "int":
    "Compute."
    return scale * helper(x)

@decorated
def wrapped(x):
    return x + K

def annotated(x: int, y: "int | None" = None, *z: list[int]) -> int | None:
    return math.sqrt(travels(x)) + users.part.value

added, change, forget = adder(1)
"""
"""What a user's script defines. The functions are of `__main__`, so they travel by value."""


class Script:
    """A script whose functions a master submits."""

    def __init__(self) -> None:
        self.scope: dict[str, Any] = {"__name__": "__main__"}
        exec(SCRIPT, self.scope)
        self.definitions = Definitions(Codec({}))
        self.dumps = 0
        self.kept: list[Defined] = []

    def __getattr__(self, name: str) -> Any:
        return self.scope[name]

    def run(self, text: str) -> None:
        exec(text, self.scope)

    def submit(self, function: Callable[..., Any]) -> bytes:
        """Submit a call. Return the pickle that slaves get."""
        defined = self.definitions.define(algorithm_of(function))
        self.kept.append(defined)  # as the core does
        return defined.record.packed

    def remember(self, function: Callable[..., Any]) -> bytes:
        """Submit calls until the function is not pickled any more."""
        return [self.submit(function) for _ in range(3)][-1]


@pytest.fixture
def users(monkeypatch: pytest.MonkeyPatch) -> types.ModuleType:
    """A package of the user."""
    package, part = types.ModuleType("users"), types.ModuleType("users.part")
    exec("def travels(x): return x\ndef other(x): return -x", vars(package))
    package.__package__, package.part, part.value = "users", part, 1  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "users", package)
    monkeypatch.setitem(sys.modules, "users.part", part)
    return package


@pytest.fixture
def script(users: types.ModuleType, monkeypatch: pytest.MonkeyPatch) -> Script:
    script = Script()
    dumps = Codec.dumps_function

    def counted(*args: Any) -> bytes:
        script.dumps += 1
        return dumps(*args)

    monkeypatch.setattr(Codec, "dumps_function", counted)
    return script


@pytest.mark.parametrize("name", ["plain", "wrapped", "added", "annotated", "later", "listed"])
@pytest.mark.parametrize("mark", [lambda function: function, mwpy.task_algorithm], ids=["plain", "marked"])
def test_an_unchanged_function_is_pickled_twice_only(
    script: Script, name: str, mark: Callable[[Callable[..., Any]], Callable[..., Any]]
) -> None:
    """A function that is used once needs no snapshot, so the snapshot is made at the second use."""
    function = mark(script.scope[name])
    packed = script.remember(function)
    assert script.dumps == 2
    assert {script.submit(function) for _ in range(3)} == {packed}
    assert script.dumps == 2
    assert packed == Codec().dumps_function(function, name)


CHANGES = {
    "a global": ("plain", "K = 4"),
    "a global of the same value and another type": ("plain", "K = 3.0"),
    "a global that was missing": ("later", "missing = 5"),
    "a global that is gone": ("plain", "del K"),
    "a global that can change now": ("plain", "K = Value"),
    "the content of a list": ("listed", "L[1].append(2)"),
    "the order of a dict": ("listed", "L[0]['a'] = L[0].pop('a')"),
    "a function in a list": ("listed", "L[2].__code__ = (lambda x: 0).__code__"),
    "the defaults": ("plain", "plain.__defaults__ = (5,)"),
    "a default of the same value and another type": ("plain", "plain.__defaults__ = ((1, 2),)"),
    "the keyword defaults": ("plain", "plain.__kwdefaults__['scale'] = 7"),
    "the code": ("plain", "plain.__code__ = inner.__code__"),
    "a function that it calls": ("plain", "def helper(x): return 0"),
    "a function that this one calls": ("plain", "def inner(x): return 0"),
    "the code of a function that it calls": ("plain", "inner.__code__ = (lambda x: 0).__code__"),
    "the closure": ("added", "change(2)"),
    "the closure, which is empty now": ("added", "forget()"),
    "an attribute": ("plain", "plain.unit = 'm'"),
    "an attribute of a function that it calls": ("plain", "inner.unit = 'm'"),
    "the name": ("plain", "plain.__name__ = 'f'"),
    "the docstring": ("plain", "plain.__doc__ = None"),
    "an annotation": ("plain", "plain.__annotations__['x'] = 'int'"),
    "an annotation instead of an attribute": ("plain", "plain.__annotations__ |= plain.__dict__"),
    "the module": ("plain", "plain.__module__ = 'other'"),
    "the wrapped function": ("wrapped", "wrapped.__wrapped__.__code__ = (lambda x: -x).__code__"),
    "what the wrapper calls": ("wrapped", "wrapped.__closure__[0].cell_contents = inner"),
    "a module": ("annotated", "math = 0"),
    "a function that does not travel by name any more": ("annotated", "users.travels = users.other"),
    "a module that was loaded again": ("annotated", "sys.modules['users'] = types.ModuleType('users')"),
    "the name of a module": ("annotated", "users.__name__ = 'math'"),
    "an imported submodule": ("annotated", "sys.modules['users.sqrt'] = types.ModuleType('users.sqrt')"),
    "the modules that travel by value": ("annotated", "cloudpickle.register_pickle_by_value(users)"),
    "the global that the package is": ("plain", "__package__ = 'users'"),
}


@pytest.mark.parametrize(("name", "change"), CHANGES.values(), ids=CHANGES)
def test_each_change_of_a_function_is_noticed(
    script: Script, monkeypatch: pytest.MonkeyPatch, name: str, change: str
) -> None:
    """The next task gets the pickle that the function has then."""
    function = script.scope[name]
    monkeypatch.setattr(sys, "modules", sys.modules)
    before = dict(sys.modules)
    function.place = "here"
    script.remember(function)
    pickled = script.dumps
    try:
        script.run(f"import cloudpickle, sys, types\n{change}")
        script.submit(function)
        assert script.dumps == pickled + 1
        assert script.remember(function) == Codec().dumps_function(function, name)
    finally:
        sys.modules.clear()
        sys.modules.update(before)
        if "users" in cloudpickle.list_registry_pickle_by_value():
            cloudpickle.unregister_pickle_by_value(sys.modules["users"])


REACHED = {
    "an instance": "K = Value()",
    "a class of the script": "K = Value",
    "a list with an instance": "K = (1, [Value()])",
    "a cached function": "K = functools.cache(inner)",
    "a method of an instance": "K = Value().__repr__",
    "an open file": "import sys; K = sys.stdin",
    "a type variable": "from typing import TypeVar; K = TypeVar('T')",
    "a module that cannot be imported": "import types; K = types.ModuleType('nowhere')",
    "a function of a module that is not found there": "users.__dict__.pop('travels'); K = travels",
    "a closure without a value": "K = adder(1)[0]; K.__closure__[0].__delattr__('cell_contents')",
}


@pytest.mark.parametrize("change", REACHED.values(), ids=REACHED)
def test_a_function_that_reaches_what_may_change_is_pickled_each_time(script: Script, change: str) -> None:
    script.run(change)
    assert snapshot_of(script.plain) is None
    for number in range(1, 4):
        try:
            script.submit(script.plain)
        except mwpy.ArgumentNotPicklable:
            assert change == REACHED["a module that cannot be imported"]
        assert script.dumps == number


@pytest.mark.parametrize("large", [f"'x' * {SNAPSHOT_BYTES}", f"[travels] * {SNAPSHOT_BYTES // 8}"])
def test_no_snapshot_keeps_much_memory(script: Script, large: str) -> None:
    """Neither if the pickle is large, nor if only the snapshot is."""
    script.run(f"L = {large}")
    for number in range(1, 4):
        script.submit(script.listed)
        assert script.dumps == number


class _Watch(CodeWatch):
    """Says when a module was loaded again."""

    def __init__(self) -> None:
        self.reloaded = False

    def look(self, function: Callable[..., Any], by_value: bool) -> bool:
        return self.reloaded


def test_an_unchanged_function_is_defined_again_when_a_module_was_loaded_again(script: Script) -> None:
    """The code of what it uses is another one, so the answers of the new definition are others, too."""
    watch = _Watch()
    script.definitions = Definitions(Codec({}), watch)
    packed = script.remember(script.plain)
    [before] = {each.record.definition.number for each in script.kept}
    watch.reloaded = True
    assert script.submit(script.plain) == packed
    assert script.kept[-1].record.definition.number != before


def test_a_function_that_changes_while_it_is_pickled_is_pickled_again(
    script: Script, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another thread may change it."""
    dumps = Codec.dumps_function

    def change(*args: Any) -> bytes:
        packed = dumps(*args)
        script.scope["K"] = 4
        return packed

    script.submit(script.plain)
    with monkeypatch.context() as patch:
        patch.setattr(Codec, "dumps_function", change)
        assert loads_function(script.submit(script.plain))(1) == 5
    assert loads_function(script.submit(script.plain))(1) == 6


def test_a_snapshot_keeps_no_function_alive(script: Script) -> None:
    """Not even one that refers to itself."""
    script.run("def make():\n    def again(x): return again(x)\n    return again")
    function = script.make()
    script.remember(function)
    alive = ref(function)
    del function
    gc.collect()
    assert alive() is None


def test_a_function_of_the_script_that_may_get_its_name_again_is_looked_up_each_time(script: Script) -> None:
    """Where functions of `__main__` travel by name, one that is not found there travels by value until it is found."""
    script.definitions = Definitions(Codec())
    for number in range(1, 4):
        script.submit(script.plain)
        assert script.dumps == number
