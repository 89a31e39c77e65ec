"""What all commands share: the parser, the options of a job, and how errors are reported."""

from __future__ import annotations

import argparse
import importlib
import re
import shlex
from pathlib import Path

import pytest

from mwpy import cli
from mwpy._batch.local import Local
from mwpy._batch.ssh import Ssh
from mwpy._values.errors import ExitCode, MasterUnreachable, UsageError
from mwpy._values.options import parse as parse_options
from mwpy.app import report_errors
from mwpy.cli._arguments import Parser, add_job_options, batch_system, lines, number

COMMANDS = (
    *("compare", "doctor", "drain", "explain", "logs", "oversee"),
    *("pack", "page", "queue", "runs", "slave", "status", "submit-files", "sweep"),
)


def parse(*arguments: str) -> argparse.Namespace:
    parser = Parser("test")
    parser.add_argument("--with", dest="system")
    parser.add_argument("--count", type=number(2, int))
    parser.add_argument("--seconds", type=number(0.1, float))
    add_job_options(parser)
    return parser.parse_args(arguments)


def test_shared_modules_are_no_commands(capsys: pytest.CaptureFixture[str]) -> None:
    """All others are in the help, each once, with what it does."""
    assert cli.main(["--help"]) == 0
    listed = capsys.readouterr().out.partition("--mw-help\n")[2]
    shown = dict(re.findall(r"^  ([\w-]+) +(\S.*)", listed, re.MULTILINE))
    assert sorted(shown) == sorted(COMMANDS)
    assert len(re.findall(r"^  \w", listed, re.MULTILINE)) == len(COMMANDS)
    assert shown["sweep"] == "run a program with many settings."
    assert cli.main(["_arguments"]) == ExitCode.USAGE


def test_the_help_says_what_to_type_first(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["--help"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 80
    assert lines[2].startswith("Type this first")
    assert lines[3].startswith("  mwpy sweep ")


@pytest.mark.parametrize("command", COMMANDS)
def test_each_command_shows_its_help_with_examples_and_reports_a_mistake_in_one_line(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """The command accepts the examples. A mistake has exit code 2."""
    assert cli.main([command, "--help"]) == 0
    shown = capsys.readouterr().out
    assert shown.startswith(f"usage: mwpy {command} ")
    examples, codes = shown.partition("\nexamples:\n")[2].split("\nexit codes:\n")
    assert codes.startswith("  0    ")
    for example in examples.splitlines():
        words = shlex.split(example)
        assert words[:2] == ["mwpy", command]
        if command == "slave":
            parse_options(["--mw-slave", *words[2:]], {})
        else:
            module = importlib.import_module(cli.module_of(command))
            getattr(module, "parse", module.make_parser().parse_args)(words[2:])
    assert cli.main([command, "--mw-nonsense"]) == ExitCode.USAGE
    error = capsys.readouterr().err
    assert error.startswith("mwpy: ")
    assert len(error.splitlines()) == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--count", "1"], "1 is too small: write 2 or more; `mwpy test --help` shows the options"),
        (["--count", "2.5"], "'2.5' is not a whole number"),
        (["--seconds", "soon"], "'soon' is not a number"),
        (["--seconds", "inf"], "inf is too small"),
        (["--seconds", "nan"], "nan is too small"),
        (["--coun", "3"], "unrecognized arguments: --coun 3"),
    ],
)
def test_a_mistake_names_the_argument(arguments: list[str], message: str) -> None:
    """Options cannot be abbreviated."""
    with pytest.raises(UsageError, match=message.replace(".", r"\.")):
        parse(*arguments)


def test_batch_systems_are_made_from_the_options_of_a_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    assert isinstance(batch_system(parse()), Local)
    with pytest.raises(UsageError, match="--with ssh needs --hosts FILE"):
        batch_system(parse("--with", "ssh"))
    (tmp_path / "hosts").write_text("node1\n")
    assert isinstance(batch_system(parse("--with", "ssh", "--hosts", str(tmp_path / "hosts"))), Ssh)
    assert parse("--command", "python 'my app.py'").command == ["python", "my app.py"]


def test_an_error_of_mwpy_is_one_line_and_its_exit_code(capsys: pytest.CaptureFixture[str]) -> None:
    def fail(error: BaseException) -> int:
        raise error

    assert report_errors(lambda: fail(MasterUnreachable("no answer"))) == ExitCode.UNREACHABLE
    assert capsys.readouterr().err == "mwpy: no answer\n"
    assert report_errors(lambda: fail(KeyboardInterrupt())) == ExitCode.INTERRUPTED
    assert report_errors(lambda: 7) == 7
    with pytest.raises(ZeroDivisionError):
        report_errors(lambda: fail(ZeroDivisionError()))


@pytest.mark.parametrize(
    ("system", "option", "message"),
    [
        (
            "slurm",
            "--memory=2GB",
            "--memory has no effect with --with slurm, only with --with htcondor; .*--line=--mem=",
        ),
        ("sge", "--memory=2GB", "--memory has no effect with --with sge, .*--line='-l mem_free="),
        ("pbs", "--memory=2GB", "--memory has no effect with --with pbs, .*--line='-l select="),
        ("slurm", "--disk=2GB", "--disk has no effect with --with slurm"),
        ("slurm", "--transfer=app.py", "--transfer has no effect with --with slurm"),
        ("slurm", "--hosts=hosts", "--hosts has no effect with --with slurm, only with --with ssh"),
        ("htcondor", "--ssh-options=-v", "--ssh-options has no effect with --with htcondor"),
        ("ssh", "--log-dir=logs", "--log-dir has no effect with --with ssh, .*each host keeps the output"),
        ("local", "--line=x", "--line has no effect with --with local, only with --with htcondor or --with slurm"),
        (None, "--memory=2GB", "--memory has no effect without --with"),
        ("slurm", "--line=--job-name=a", "--line=--job-name=a is refused: the overseer finds its jobs by their name"),
        ("sge", "--line=-t 1-9", "--line=-t 1-9 is refused: the overseer decides how many jobs are submitted"),
        ("pbs", "--line=-J 1-9", "--line=-J 1-9 is refused: the overseer decides how many jobs are submitted"),
        ("htcondor", "--line=queue 5", "--line=queue 5 is refused: the overseer decides how many jobs are submitted"),
    ],
)
def test_an_option_that_a_batch_system_does_not_use_is_refused(system: str | None, option: str, message: str) -> None:
    parsed = parse(option)
    parsed.system = system
    with pytest.raises(UsageError, match=message):
        batch_system(parsed)


def test_names_of_jobs_accounts_and_queues_are_written_in_the_language_of_each_batch_system() -> None:
    """A user's own lines come later, so they count."""
    words = ("--account", "physics", "--line=--time=5")
    assert lines(parse("--with", "slurm", "--queue", "short", *words)) == (
        "--account=physics",
        "--partition=short",
        "--time=5",
    )
    for system in ("sge", "pbs"):
        assert lines(parse("--with", system, "--queue", "short", *words))[:2] == ("-A physics", "-q short")
    assert lines(parse("--with", "htcondor", "--account", "physics")) == ("accounting_group = physics",)
    with pytest.raises(UsageError, match=r"--queue has no effect .* because HTCondor has no queues"):
        batch_system(parse("--with", "htcondor", "--queue", "short"))
    with pytest.raises(UsageError, match="'my jobs' must be a letter, and then"):
        parse("--job-name", "my jobs")
    with pytest.raises(UsageError, match="must be one word"):
        parse("--queue", "a b")
