"""What `mwpy.main` and the `mwpy` command do before anything is started."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

import mwpy
from mwpy import app, cli, slave
from mwpy._values.algorithm import REGISTRY
from mwpy._values.options import OPTIONS, parse


@pytest.fixture(autouse=True)
def nothing_declared(monkeypatch: pytest.MonkeyPatch) -> None:
    """Start as a script that declares no algorithm, and as no process of a computation."""
    monkeypatch.setattr(REGISTRY, "masters", [])
    monkeypatch.setattr(REGISTRY, "slaves", [])
    for variable in ("MWPY_AGENT", "MWPY_SLAVE", "MWPY_KEY"):
        monkeypatch.delenv(variable, raising=False)


def test_the_help_names_every_option_and_its_default(capsys: pytest.CaptureFixture[str]) -> None:
    assert mwpy.main(["--mw-help"]) == 0
    told = capsys.readouterr().out
    for option in OPTIONS:
        assert f"--mw-{option.name}" in told
        assert option.sentence in told
        assert option.default in told


@pytest.mark.parametrize("ask", [lambda: mwpy.main(["--mw-version-string"]), lambda: cli.main(["version"])])
def test_the_version_is_told(ask: Callable[[], int], capsys: pytest.CaptureFixture[str]) -> None:
    assert ask() == 0
    assert capsys.readouterr().out == f"{mwpy.version_string()}\n"


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ([], "no master algorithm"),
        (["--mw-nonsense"], "unknown option --mw-nonsense"),
        (["--mw-master"], "no master algorithm"),
        (["--mw-slave"], "a slave must know its master"),
        (["--mw-slave", "--mw-resource-file", "/nowhere"], "/nowhere"),
    ],
)
def test_a_wrong_command_line_is_one_line_and_code_2(
    line: Sequence[str], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert mwpy.main(line) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("mwpy: ")
    assert told in err
    assert err.count("\n") == 1


def test_a_master_that_nobody_could_join_is_not_started(capsys: pytest.CaptureFixture[str]) -> None:
    mwpy.master_algorithm(lambda mw, argv: 0)
    assert mwpy.main(["--mw-master"]) == 2
    assert "no slave could ever join: give --mw-resource-file FILE" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ([], "usage: mwpy COMMAND"),
        (["nonsense"], "\n  mwpy slave [SCRIPT "),
        (["slave", "--mw-master"], "exclude each other"),
        (["slave", "x"], "--mw-resource-file FILE"),
        (["slave", "--mw-local", "2"], "--mw-slave-processes"),
        (["slave"], "--mw-resource-file FILE"),
    ],
)
def test_the_command_without_sense_tells_its_use(
    line: Sequence[str], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(line) == 2
    assert told in capsys.readouterr().err


def test_the_command_has_help_too(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["--help"]) == 0
    assert capsys.readouterr().out.startswith("usage: mwpy COMMAND")
    for word in ("--help", "--mw-help"):
        assert cli.main(["slave", word]) == 0
        assert capsys.readouterr().out.startswith("usage: mwpy slave")


@pytest.mark.parametrize(
    ("returned", "code"), [(0, 0), (7, 7), (255, 255), (True, 1), (256, 255), (-1, 255), (None, 255), ("done", 255)]
)
def test_what_an_algorithm_returns_is_the_exit_code_if_it_is_one(
    returned: object, code: int, capsys: pytest.CaptureFixture[str]
) -> None:
    assert slave.exit_code(returned, "master algorithm") == code
    told = capsys.readouterr().err
    assert (repr(returned) in told) is not (returned == code)


def test_a_key_file_that_is_missing_is_made_for_its_owner_only(tmp_path: Path) -> None:
    options, _ = parse(["--mw-key-file", str(tmp_path / "key")])
    key = app._key(options)
    assert (tmp_path / "key").read_text() == f"{key}\n"
    assert (tmp_path / "key").stat().st_mode & 0o777 == 0o600
    assert app._key(options) == key
