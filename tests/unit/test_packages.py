"""Which packages a function's code imports, and their versions."""

from __future__ import annotations

import sys
import types
from importlib import metadata
from pathlib import Path

import attrs
import cloudpickle
import msgspec
import pytest
import zmq

from mwpy._system import packages

VERSION = {name: metadata.version(name) for name in ("attrs", "cloudpickle", "msgspec", "pyzmq", "pytest")}


def in_a_module(monkeypatch: pytest.MonkeyPatch, source: str, name: str = "users_module") -> types.ModuleType:
    """A module of a user, that belongs to no package."""
    module = types.ModuleType(name)
    module.__file__ = f"/home/user/{name}.py"
    exec(source, vars(module))
    monkeypatch.setitem(sys.modules, name, module)
    return module


def test_all_that_the_module_of_a_function_imports_comes_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Modules, names from modules, instances of their classes; the standard library and mwpy do not count."""
    source = "import json, zmq, mwpy\nfrom cloudpickle import dumps\nfrom msgspec.json import Encoder\nx = Encoder()\n"
    module = in_a_module(monkeypatch, source + "del Encoder\ndef f(): return 1\n")
    expected = {name: VERSION[name] for name in ("pyzmq", "cloudpickle", "msgspec")}
    assert packages.used_by(module.f, by_value=False) == expected


def test_modules_of_nobody_are_followed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A module beside the script imports for it, and may import it back."""
    in_a_module(monkeypatch, "import attrs\n", "users_helper")
    module = in_a_module(monkeypatch, "import users_helper\ndef f(): return 1\n")
    sys.modules["users_helper"].back = module  # type: ignore[attr-defined]
    assert packages.used_by(module.f, by_value=False) == {"attrs": VERSION["attrs"]}


def test_imports_inside_a_function_count(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also those of functions inside it, and of modules that are not installed under that name, which have none."""
    source = "def f():\n import no_such_thing\n def g():\n  import cloudpickle.cloudpickle\n return g\n"
    module = in_a_module(monkeypatch, source)
    assert packages.used_by(module.f, by_value=True) == {"cloudpickle": VERSION["cloudpickle"]}


def test_a_function_by_value_takes_along_what_it_names() -> None:
    """Not all that its module imports."""
    bound = attrs.fields
    assert packages.used_by(lambda: (zmq.Context, bound), by_value=True) == {
        "pyzmq": VERSION["pyzmq"],
        "attrs": VERSION["attrs"],
    }
    assert packages.used_by(lambda: cloudpickle, by_value=True) == {"cloudpickle": VERSION["cloudpickle"]}


def test_builtins_use_nothing() -> None:
    """And neither does a bound method of one."""
    assert packages.used_by(max, by_value=False) == {}
    assert packages.used_by([].append, by_value=True) == {}


def test_versions_of_what_is_here_and_what_is_not(tmp_path: Path) -> None:
    """A name that is none is not installed either."""
    expected = {"msgspec": msgspec.__version__, "no-such-package": "", "": ""}
    assert packages.versions(["msgspec", "no-such-package", ""]) == expected
