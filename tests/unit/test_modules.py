"""The user's modules: which of them were edited, and which were loaded again."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterator
from os import utime
from pathlib import Path

import pytest

from mwpy._system.packages import UserModules

Write = Callable[[str, str], None]


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Write]:
    """Writes a module. Each file is newer than the one before."""
    monkeypatch.syspath_prepend(str(tmp_path))
    before = set(sys.modules)
    written: list[str] = []

    def write(name: str, text: str) -> None:
        path = tmp_path / f"{name}.py"
        path.write_text(text)
        written.append(name)
        utime(path, (1e9 + 10 * len(written),) * 2)
        importlib.invalidate_caches()

    yield write
    for name in set(sys.modules) - before:
        del sys.modules[name]


def test_an_edited_module_is_reported_until_it_is_loaded_again(write: Write) -> None:
    write("edited_a", "X = 1\n")
    write("edited_b", "X = 1\n")
    import edited_a  # type: ignore[import-not-found]

    seen = UserModules()
    assert (seen.look(), seen.edited) == (False, set())
    importlib.import_module("edited_b")
    assert (seen.look(), seen.edited) == (False, set())
    write("edited_a", "X = 22\n")
    write("edited_b", "X = 22\n")
    for _ in range(2):
        assert (seen.look(), seen.edited) == (False, {"edited_a", "edited_b"})
    importlib.reload(edited_a)
    assert (seen.look(), seen.edited) == (True, {"edited_b"})
    assert (seen.look(), seen.edited) == (False, {"edited_b"})
    del sys.modules["edited_b"]
    assert (seen.look(), seen.edited) == (False, set())
    importlib.import_module("edited_b")
    assert (seen.look(), seen.edited) == (True, set())


def test_a_module_that_is_loaded_again_unchanged_is_not_reported(write: Write) -> None:
    """Neither is a module whose file is gone."""
    write("edited_c", "X = 1\n")
    module = importlib.import_module("edited_c")
    seen = UserModules()
    seen.look()
    importlib.reload(module)
    assert (seen.look(), seen.edited) == (False, set())
    module.__file__ = "/nowhere/edited_c.py"
    seen = UserModules()
    assert [seen.look() for _ in range(2)] == [False, False]
    assert seen.edited == set()
