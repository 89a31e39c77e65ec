"""The packages that a function's code imports, and their versions."""

from __future__ import annotations

import functools
import sys
import types
from importlib import metadata
from pathlib import Path

import attrs
import cloudpickle
import msgspec
import pytest
import zmq

from mwpy._system import own_code
from mwpy._values import installed

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
    assert own_code.used_by(module.f, by_value=False).packages == expected


def test_imports_of_modules_without_a_package_count(monkeypatch: pytest.MonkeyPatch) -> None:
    """A module beside the script may import packages, and may import the script."""
    in_a_module(monkeypatch, "import attrs\n", "users_helper")
    module = in_a_module(monkeypatch, "import users_helper\ndef f(): return 1\n")
    sys.modules["users_helper"].back = module  # type: ignore[attr-defined]
    assert own_code.used_by(module.f, by_value=False).packages == {"attrs": VERSION["attrs"]}


def test_imports_inside_a_function_count(monkeypatch: pytest.MonkeyPatch) -> None:
    """Imports in its inner functions count, too. A module that is not installed has no version."""
    source = "def f():\n import no_such_thing\n def g():\n  import cloudpickle.cloudpickle\n return g\n"
    module = in_a_module(monkeypatch, source)
    assert own_code.used_by(module.f, by_value=True).packages == {"cloudpickle": VERSION["cloudpickle"]}


def test_only_the_names_in_a_function_by_value_count() -> None:
    """The other imports of its module do not count."""
    bound = attrs.fields
    assert own_code.used_by(lambda: (zmq.Context, bound), by_value=True).packages == {
        "pyzmq": VERSION["pyzmq"],
        "attrs": VERSION["attrs"],
    }
    assert own_code.used_by(lambda: cloudpickle, by_value=True).packages == {"cloudpickle": VERSION["cloudpickle"]}


def test_a_missing_package_has_an_empty_version(tmp_path: Path) -> None:
    """An empty name also has an empty version."""
    expected = {"msgspec": msgspec.__version__, "no-such-package": "", "": ""}
    assert installed.versions(["msgspec", "no-such-package", ""]) == expected


def test_the_modules_of_the_user_that_a_function_reaches(monkeypatch: pytest.MonkeyPatch) -> None:
    """Packages and the standard library are left out."""
    in_a_module(monkeypatch, "import attrs\n", "users_helper")
    in_a_module(monkeypatch, "X = 1\n", "users_other")
    module = in_a_module(monkeypatch, "import json, users_helper\ndef f(): return 1\n")
    assert sorted(own_code.used_by(module.f, by_value=False).modules) == ["users_helper", "users_module"]
    assert sorted(own_code.used_by(lambda: module.f, by_value=True).modules) == ["users_helper", "users_module"]


def test_a_function_by_value_reaches_what_the_functions_of_main_reach(monkeypatch: pytest.MonkeyPatch) -> None:
    """They travel with it. Partial functions and methods are looked through, and cycles end."""
    module = in_a_module(monkeypatch, "def f(): return 1\n")
    main = types.ModuleType("__main__")
    main.module = module  # type: ignore[attr-defined]
    exec("def g(): return module.f() + h()\ndef h(): return g()\n", vars(main))
    exec("class C:\n def m(self, x): return h()\n", vars(main))
    helper = main.h
    for function in (helper, main.C().m, functools.partial(main.C().m, 1), lambda: helper):
        assert "users_module" in own_code.used_by(function, by_value=True).modules
    assert own_code.used_by(functools.partial(max, 1), by_value=True).modules == []
