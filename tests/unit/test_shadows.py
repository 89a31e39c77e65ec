"""Files that hide modules of the standard library, or of packages that mwpy needs."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType

import pytest

from mwpy._system.shadows import explain


@pytest.mark.parametrize("name", ["queue", "zmq"])
def test_an_error_names_the_file_that_hides_a_module(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hiding = ModuleType(name)
    hiding.__file__ = str(tmp_path / f"{name}.py")
    monkeypatch.setitem(sys.modules, name, hiding)
    error = AttributeError("no such attribute")
    explain(error)
    (note,) = error.__notes__
    assert note == f"mwpy: {hiding.__file__} hides the module {name!r} that Python or mwpy needs: rename this file"


def test_an_error_names_a_file_that_failed_while_it_was_loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    file = tmp_path / "statistics.py"
    with pytest.raises(ZeroDivisionError) as caught:
        exec(compile("1 / 0", str(file), "exec"), {})
    explain(caught.value)
    (note,) = caught.value.__notes__
    assert f"{file} hides the module 'statistics'" in note


def test_other_errors_stay_as_they_are() -> None:
    """Files of packages may have such names, as `numpy/random/__init__.py` does."""
    with pytest.raises(ValueError, match="no JSON") as caught:
        raise ValueError("no JSON")
    explain(caught.value)
    assert not hasattr(caught.value, "__notes__")
