"""What a notebook does about edited modules before a function is submitted."""

from __future__ import annotations

import sys
import threading
import types
from collections.abc import Callable
from typing import Any, cast

import pytest

from mwpy._core.master.state import Command, RenewSlaves
from mwpy._roles.definitions import CodeWatch, Definitions
from mwpy._roles.inbox import Access
from mwpy._roles.local_agents import LocalAgents
from mwpy._roles.master_io import MasterIo
from mwpy._system import clock
from mwpy._system.packages import UserModules, module_path
from mwpy._transport.codec import Codec
from mwpy._values.algorithm import algorithm_of
from mwpy._values.errors import UsageError


class _Modules(UserModules):
    """Modules that were edited or loaded again as a test says."""

    reloaded: bool = False

    def look(self) -> bool:
        reloaded, self.reloaded = self.reloaded, False
        return reloaded


@pytest.fixture
def modules() -> _Modules:
    return _Modules()


@pytest.fixture
def commands() -> list[Command]:
    return []


@pytest.fixture
def definitions(modules: _Modules, commands: list[Command]) -> Definitions:
    io = types.SimpleNamespace(command=commands.append)
    return Definitions(Codec({}), CodeWatch(Access(cast(MasterIo, io), threading.current_thread()), modules))


def _plain() -> object:
    return definitions


FUNCTIONS = [_plain, lambda: _plain]


@pytest.mark.parametrize("function", FUNCTIONS)
def test_slaves_are_replaced_once_when_a_module_was_loaded_again(
    definitions: Definitions, modules: _Modules, commands: list[Command], function: Callable[[], Any]
) -> None:
    definitions.prepare(algorithm_of(function))
    assert commands == []
    for _ in range(2):
        modules.reloaded = True
        definitions.prepare(algorithm_of(function))
        definitions.prepare(algorithm_of(function))
    assert commands == [RenewSlaves(None)] * 2


@pytest.mark.parametrize("function", FUNCTIONS)
def test_a_function_that_uses_an_edited_module_is_refused_with_the_remedy(
    definitions: Definitions, modules: _Modules, function: Callable[[], Any]
) -> None:
    """Other edited modules do not matter. After the module is loaded again, the function is accepted."""
    modules.edited = {"unrelated"}
    definitions.prepare(algorithm_of(function))
    modules.edited = {__name__}
    with pytest.raises(UsageError, match=rf"importlib.reload\({__name__}\)"):
        definitions.prepare(algorithm_of(function))
    modules.edited = set()
    definitions.prepare(algorithm_of(function))


def test_functions_by_name_are_defined_again_when_a_module_was_loaded_again(
    definitions: Definitions, modules: _Modules
) -> None:
    """Their digests may have changed, even if they are the same objects."""
    algorithm = algorithm_of(_plain)
    assert definitions.define(algorithm).number == 0
    modules.reloaded = True
    definitions.prepare(algorithm)
    assert definitions.known[algorithm].number == 1
    modules.reloaded = True
    definitions.prepare(algorithm_of(lambda: 7))
    assert not definitions.known


def test_a_function_that_some_slaves_refused_is_tried_again_in_new_slaves(
    definitions: Definitions, commands: list[Command]
) -> None:
    """At the next map it gets a new number, under which no agent has refused it."""
    algorithm = algorithm_of(_plain)
    first = definitions.define(algorithm)
    definitions.prepare(algorithm)
    assert definitions.known == {algorithm: first}
    first.refused = True
    definitions.prepare(algorithm)
    again = definitions.known[algorithm]
    assert (first.number, again.number, commands) == (0, 1, [RenewSlaves(0)])
    assert again.record.definition.reference == first.record.definition.reference


def test_a_function_whose_name_belongs_to_another_one_travels_by_value(
    definitions: Definitions, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A notebook may still have a function from before its module was loaded again."""
    old = _plain
    assert definitions.prepare(algorithm_of(old)) is algorithm_of(old)
    monkeypatch.setattr(sys.modules[__name__], "_plain", lambda: None)
    for _ in range(2):
        defined = definitions.define(definitions.prepare(algorithm_of(old)))
        assert (defined.record.definition.reference, bool(defined.record.packed)) == ("", True)
    assert not definitions.known


@pytest.mark.parametrize("only_here", [True, False])
def test_slaves_are_replaced_once_when_the_module_path_was_changed_if_nobody_else_can_join(
    modules: _Modules, commands: list[Command], monkeypatch: pytest.MonkeyPatch, only_here: bool
) -> None:
    """Agents that replace others get the new path, too. Folders of this machine mean nothing to other machines."""
    process, started = _Ended(), list[Any]()

    def start(command: object, environment: object) -> _Ended:
        started.append(environment)
        return process

    local = LocalAgents(cast(Any, start), clock, lambda text: None, lambda: 0, lambda pid: True)
    local.keep(["python"], {"PYTHONPATH": module_path(), "A": "b"}, cast(Any, process))
    io = types.SimpleNamespace(command=commands.append, local=local)
    watch = CodeWatch(Access(cast(MasterIo, io), threading.current_thread()), modules, only_here)
    assert not watch.look(_plain, False)
    monkeypatch.syspath_prepend("/new")
    assert [watch.look(_plain, False) for _ in range(2)] == [only_here, False]
    assert commands == [RenewSlaves(None, module_path())] * only_here
    local.look()
    [environment] = started
    assert (environment["PYTHONPATH"] == module_path(), environment["A"]) == (only_here, "b")


class _Ended:
    """A process that has ended."""

    pid = 1

    def poll(self) -> int:
        return 0

    def describe_exit(self) -> str:
        return "exit code 0"
