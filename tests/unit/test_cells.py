"""Cells of a notebook: what an interrupted cell has submitted is cancelled. A fake takes the place of IPython."""

from __future__ import annotations

import asyncio
import gc
import sys
from collections.abc import Callable, Iterator
from types import ModuleType, SimpleNamespace

import pytest

import mwpy

OUTCOMES = (KeyboardInterrupt(), asyncio.CancelledError())


class Shell:
    """The events of a shell of IPython."""

    def __init__(self) -> None:
        self.events = self
        self.callbacks: dict[str, list[Callable[[object], None]]] = {"pre_run_cell": [], "post_run_cell": []}

    def register(self, event: str, callback: Callable[[object], None]) -> None:
        self.callbacks[event].append(callback)

    def unregister(self, event: str, callback: Callable[[object], None]) -> None:
        self.callbacks[event].remove(callback)

    def begin(self) -> None:
        self._call("pre_run_cell", None)

    def end(self, error: BaseException | None = None) -> None:
        self._call("post_run_cell", SimpleNamespace(error_in_exec=error))

    def _call(self, event: str, given: object) -> None:
        for callback in self.callbacks[event][:]:
            callback(given)


@pytest.fixture
def shell(monkeypatch: pytest.MonkeyPatch) -> Shell:
    found = Shell()
    module = ModuleType("IPython")
    module.get_ipython = lambda: found  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "IPython", module)
    return found


@pytest.fixture
def mw(shell: Shell) -> Iterator[mwpy.LocalMaster]:  # it is made first
    with mwpy.open(slaves=0) as mw:
        yield mw


def values(mw: mwpy.Master) -> list[object]:
    while mw.num_runnable_tasks():
        mw.loop()
    return sorted(result.value for result in mw.results())


@pytest.mark.parametrize("error", OUTCOMES)
def test_an_interrupt_cancels_what_the_cell_has_submitted(
    shell: Shell, mw: mwpy.LocalMaster, error: BaseException
) -> None:
    """The tasks of earlier cells stay, and none of the cancelled tasks comes back."""
    mw.submit(mwpy.task(abs, -1))
    shell.end()
    shell.begin()
    mw.submit(mwpy.task(abs, -2))
    mw.submit(mwpy.task(abs, -3))
    shell.end(error)
    shell.begin()
    mw.submit(mwpy.task(abs, -4))
    assert values(mw) == [1, 4]
    assert "2 done, 0 failed, 2 cancelled" in repr(mw)


def test_a_map_that_goes_on_in_a_later_cell_reports_the_cancelled_items(shell: Shell, mw: mwpy.LocalMaster) -> None:
    """It does not wait for them forever."""
    shell.begin()
    results = mw.map_results(abs, [-1, -2])
    shell.end(KeyboardInterrupt())
    shell.begin()
    assert [type(result.error) for result in results] == [mwpy.TaskCancelled] * 2


def test_a_master_that_is_closed_or_gone_does_not_mind_an_interrupt(shell: Shell) -> None:
    """The callbacks of a master that is gone are removed."""
    mw = mwpy.open(slaves=0)
    mw.close()
    shell.begin()
    shell.end(KeyboardInterrupt())
    del mw
    gc.collect()
    shell.begin()
    shell.end()
    assert not any(shell.callbacks.values())


def test_without_a_shell_of_ipython_there_are_no_cells(monkeypatch: pytest.MonkeyPatch) -> None:
    """A module may import IPython in an ordinary script."""
    module = ModuleType("IPython")
    module.get_ipython = lambda: None  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "IPython", module)
    with mwpy.open(slaves=0) as mw:
        assert list(mw.map(abs, [-1])) == [1]
