"""`mwpy completion SHELL`: what the shells complete after they have loaded the script."""

from __future__ import annotations

import shlex
import shutil
import subprocess
from pathlib import Path

import pytest

from mwpy import cli
from mwpy.cli.completion import FILES, FOLDERS, parser_of

COMMANDS = cli.commands()


@pytest.fixture
def script(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Path:
    """The script for bash, in a folder with a file and a folder."""
    assert cli.main(["completion", "bash"]) == 0
    path = tmp_path / "completion.bash"
    path.write_text(capsys.readouterr().out)
    (tmp_path / "work").mkdir()
    (tmp_path / "work" / "my app.rsc").touch()
    (tmp_path / "work" / "runs").mkdir()
    return path


def completed(script: Path, *words: str) -> list[str]:
    """Return what bash offers for the last of these words of a command line that starts with mwpy."""
    program = f"""
        source {shlex.quote(str(script))}
        complete -p mwpy >/dev/null || exit
        COMP_WORDS=(mwpy {shlex.join(words)})
        COMP_CWORD={len(words)}
        _mwpy
        printf '%s\\n' "${{COMPREPLY[@]}}"
    """
    ended = subprocess.run(
        ["bash", "--norc", "--noprofile", "-c", program],
        cwd=script.parent / "work",
        capture_output=True,
        text=True,
        check=True,
    )
    assert ended.stderr == ""
    return sorted(filter(None, ended.stdout.splitlines()))


def test_bash_completes_commands(script: Path) -> None:
    assert completed(script, "") == sorted([*COMMANDS, "help", "version"])
    assert completed(script, "do") == ["doctor"]


@pytest.mark.parametrize("command", COMMANDS)
def test_bash_completes_the_options_of_each_command(script: Path, command: str) -> None:
    expected = [name for action in parser_of(command).actions() for name in action.option_strings]
    assert completed(script, command, "-") == sorted(expected)


def test_the_options_of_an_agent_are_those_of_a_script(script: Path) -> None:
    assert completed(script, "slave", "--mw-slave-max-") == ["--mw-slave-max-memory", "--mw-slave-max-tasks"]
    assert completed(script, "slave", "--mw-resource-file", "my") == ["my app.rsc"]
    assert completed(script, "slave", "my app.py", "r") == ["runs"]


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["doctor", "--with", ""], ["htcondor", "local", "slurm", "ssh"]),
        (["doctor", "my app.rsc", "--with", "s"], ["slurm", "ssh"]),
        (["doctor", "--with", "="], ["htcondor", "local", "slurm", "ssh"]),
        (["doctor", "--with", "=", "h"], ["htcondor"]),
        (["completion", ""], ["bash", "zsh"]),
        (["doctor", "--memory", ""], []),
        (["version", ""], []),
        (["nonsense", "--"], []),
    ],
    ids=" ".join,
)
def test_bash_completes_choices(script: Path, words: list[str], expected: list[str]) -> None:
    """bash makes three words of `--with=h`."""
    assert completed(script, *words) == expected


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["status", ""], ["my app.rsc", "runs"]),
        (["status", "my"], ["my app.rsc"]),
        (["status", "--json", "--interval", "5", "my"], ["my app.rsc"]),
        (["status", "my app.rsc", ""], []),
        (["explain", "my app.rsc", ""], []),
        (["doctor", "--log-dir", ""], ["runs"]),
        (["doctor", "--with", "=", "ssh", "--hosts", "m"], ["my app.rsc"]),
        (["oversee", "my app.rsc", "--with", "local", "r"], ["runs"]),
        (["pack", "-o", "m"], ["my app.rsc"]),
    ],
    ids=" ".join,
)
def test_bash_completes_files_where_a_file_is_expected(script: Path, words: list[str], expected: list[str]) -> None:
    """A second argument is not completed if the command takes only one file."""
    assert completed(script, *words) == expected


@pytest.mark.parametrize("command", [command for command in COMMANDS if command != "slave"])
def test_each_path_is_known_as_a_file_or_a_folder(command: str) -> None:
    """The metavar says it."""
    for action in parser_of(command).actions():
        if action.type is Path:
            assert action.metavar in FILES | FOLDERS, f"mwpy {command} {action.option_strings or action.metavar}"


@pytest.mark.skipif(shutil.which("zsh") is None, reason="zsh is not installed")
def test_zsh_accepts_its_script(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It can be parsed, and it defines a completion function for mwpy. A file in `$fpath` must start in this way."""
    assert cli.main(["completion", "zsh"]) == 0
    path = tmp_path / "_mwpy"
    path.write_text(capsys.readouterr().out)
    assert path.read_text().startswith("#compdef mwpy\n")
    program = f"autoload -U compinit; compinit -D -u; source {shlex.quote(str(path))}; print $_comps[mwpy]"
    for arguments in (["-n", str(path)], ["-f", "-c", program]):
        ended = subprocess.run(["zsh", *arguments], cwd=tmp_path, capture_output=True, text=True, check=True)
        assert ended.stderr == ""
    assert ended.stdout == "_mwpy\n"
