"""The command at the end of a computation, a sweep or an overseer."""

from __future__ import annotations

import json
import signal
import sys
from pathlib import Path

import pytest
from tests.integration.apps.stage import Running, Stage, until
from tests.stored import sample

from mwpy import run_database
from mwpy.cli import sweep
from mwpy.run_database import run_at_end

SCRIPT = """
import sys, time, mwpy

@mwpy.master_algorithm
def master(mw, argv):
    print(*mw.map(abs, [-1, -2]), flush=True)
    if argv == ["fail"]:
        raise ValueError("wrong")
    if argv == ["wait"]:
        time.sleep(60)
    return 7

sys.exit(mwpy.main())
"""


def start(stage: Stage, command: str, *arguments: str) -> Running:
    path = stage.folder / "script.py"
    path.write_text(SCRIPT)
    return stage.start("", *arguments, "--mw-local", "1", "--mw-on-end", command, program=[sys.executable, str(path)])


def test_a_master_runs_a_command_with_the_report_and_the_summary_at_its_end(stage: Stage) -> None:
    running = start(stage, "cp {report} report.html; cat {summary}; echo end", "--mw-run-database", "run.db")
    assert running.end() == 7
    assert "abs" in running.err
    assert running.err.endswith("end\n")
    assert "script.py was given 2 tasks" in (stage.folder / "report.html").read_text()


@pytest.mark.parametrize(("argument", "code"), [("fail", 255), ("wait", 130)])
def test_the_command_runs_after_a_failure_and_changes_no_exit_code(stage: Stage, argument: str, code: int) -> None:
    """Without a run database, the report is the summary."""
    running = start(stage, "cp {report} report.txt; exit 3", argument)
    if argument == "wait":
        until(lambda: bool(running.out), "the results")
        running.send(signal.SIGINT)
    assert running.end() == code
    assert "mwpy: the command at the end failed (exit code 3): cp {report} report.txt; exit 3\n" in running.err
    assert (stage.folder / "report.txt").read_text().startswith("mwpy: summary\n")


def test_a_sweep_runs_a_command_with_the_report_and_the_summary(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    on_end = "cp {report} report.html; cp {summary} end.json; cat > read.json"
    assert sweep.main(["echo {x}", "--values", "x=1,2", "--slaves", "1", "--on-end", on_end]) == 0
    assert json.loads(Path("end.json").read_text())["succeeded"] == 2
    assert Path("end.json").read_text() == Path("read.json").read_text()
    assert "2 finished" in Path("report.html").read_text()


def test_an_overseer_runs_a_command_at_its_end(stage: Stage) -> None:
    master = stage.master("waves.py", stage.folder)
    program = [sys.executable, "-m", "mwpy", "oversee", str(stage.resource), "--with", "local", "--dry-run"]
    sample(stage.folder / "run.db")
    words = "--on-end", "cp {report} report.html; cat {summary}; exit 1", "--run-database", "run.db"
    running = stage.start("", *words, program=program)
    assert running.end() == 0
    assert "<html" in (stage.folder / "report.html").read_text()
    assert "--dry-run" in running.err
    assert "ended with exit code 0" in running.err
    master.send(signal.SIGINT)
    master.end()


def test_a_command_that_takes_too_long_is_killed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(run_database, "AT_END_S", 0.1)
    run_at_end("sleep 60", "summary")
    assert capsys.readouterr().err == "mwpy: the command at the end: no answer within 0 s\n"


def test_the_command_gets_the_summary_if_there_can_be_no_report(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "run.db"
    sample(path)
    path.write_bytes(path.read_bytes()[:8192])
    run_at_end("cat {report}; pwd", "the summary\n", path, folder=tmp_path)
    first, *others = capsys.readouterr().err.splitlines()
    assert first.startswith("mwpy: no report at the end, only the summary: the run database")
    assert others == ["the summary", str(tmp_path)]
