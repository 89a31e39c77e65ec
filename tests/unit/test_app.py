"""`mwpy.main` and the `mwpy` command, before they start any process."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

import mwpy
from mwpy import app, cli
from mwpy._system import script
from mwpy._values.algorithm import REGISTRY
from mwpy._values.options import parse


@pytest.fixture(autouse=True)
def no_algorithm_declared(monkeypatch: pytest.MonkeyPatch) -> None:
    """Start like a script without algorithms, outside of any computation."""
    monkeypatch.setattr(REGISTRY, "masters", [])
    monkeypatch.setattr(REGISTRY, "slaves", [])
    for variable in ("MWPY_AGENT", "MWPY_SLAVE", "MWPY_KEY"):
        monkeypatch.delenv(variable, raising=False)


@pytest.mark.parametrize("ask", [lambda: mwpy.main(["--mw-version-string"]), lambda: cli.main(["version"])])
def test_the_version_is_printed(ask: Callable[[], int], capsys: pytest.CaptureFixture[str]) -> None:
    assert ask() == 0
    assert capsys.readouterr().out == f"{mwpy.version_string()}\n"


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ([], "no master algorithm"),
        (["--mw-nonsense"], "unknown option --mw-nonsense"),
        (["--mw-master"], "no master algorithm"),
    ],
)
def test_a_wrong_command_line_prints_one_line_and_exits_with_2(
    line: Sequence[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert mwpy.main(line) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("mwpy: ")
    assert message in err
    assert err.count("\n") == 1


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (["--mw-slave"], "a slave needs to know its master"),
        (["--mw-slave", "--mw-resource-file", "/nowhere"], "/nowhere"),
    ],
)
def test_an_agent_does_not_return_to_the_script(
    line: Sequence[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """What the script does after `mwpy.main` is for the master only."""
    with pytest.raises(SystemExit) as caught:
        mwpy.main(line)
    assert caught.value.code == 2
    assert message in capsys.readouterr().err


def test_a_master_that_no_slave_could_join_is_not_started(capsys: pytest.CaptureFixture[str]) -> None:
    mwpy.master_algorithm(lambda mw, argv: 0)
    assert mwpy.main(["--mw-master"]) == 2
    assert "no slave could ever join: give --mw-resource-file FILE" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ([], "usage: mwpy COMMAND"),
        (["nonsense"], "\n  slave "),
        (["slave", "--mw-master"], "exclude each other"),
        (["slave", "x"], "--mw-resource-file FILE"),
        (["slave", "--mw-local", "2"], "--mw-slave-processes"),
        (["slave"], "--mw-resource-file FILE"),
    ],
)
def test_a_wrong_command_prints_its_usage(
    line: Sequence[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(line) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("returned", "code"), [(0, 0), (7, 7), (255, 255), (True, 255), (256, 255), (-1, 255), (None, 255), ("done", 255)]
)
def test_a_valid_return_value_of_an_algorithm_is_the_exit_code(
    returned: object, code: int, capsys: pytest.CaptureFixture[str]
) -> None:
    assert script.exit_code(returned, "master algorithm") == code
    complaint = capsys.readouterr().err
    assert (repr(returned) in complaint) is not (returned == code)


def test_a_missing_key_file_is_created_for_its_owner_only(tmp_path: Path) -> None:
    options, _ = parse(["--mw-key-file", str(tmp_path / "key")])
    key = app._key(options)
    assert (tmp_path / "key").read_text() == f"{key}\n"
    assert (tmp_path / "key").stat().st_mode & 0o777 == 0o600
    assert app._key(options) == key


def test_lines_for_each_group_are_for_files(capsys: pytest.CaptureFixture[str]) -> None:
    """Standard error shows only what a person wants to see."""
    mwpy.master_algorithm(lambda mw, argv: 0)
    assert mwpy.main(["--mw-local", "1", "--mw-audit-level", "groups"]) == 2
    assert "give --mw-audit-file FILE" in capsys.readouterr().err


@pytest.mark.parametrize("argument", [lambda mw, argv: 0, "--mw-local 2"])
def test_a_function_or_a_text_instead_of_arguments_is_explained(argument: object) -> None:
    """Somebody may expect that `mwpy.main` is given the master algorithm."""
    with pytest.raises(mwpy.UsageError, match=r"by their decorators, so call mwpy\.main\(\) without arguments"):
        mwpy.main(argument)  # type: ignore[arg-type]
