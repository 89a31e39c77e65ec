"""The set-up of agents with real processes: what it leaves for tasks, how often it runs, and how its failures end."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.integration.apps.stage import SOURCES, Running, Stage, kill, until

import mwpy
from mwpy._values.errors import ExitCode

SCRIPT = """
import os, sys, time
from pathlib import Path
import mwpy

HERE = Path(sys.argv[1])

@mwpy.agent_setup{options}
def build():
    with (HERE / "built").open("a") as file:
        file.write(f"{{os.getpid()}}\\n")
    {body}
    Path("factor").write_text("3")
    return {{"SCALE": 2}}

def scaled(number):
    return number * int(Path(mwpy.agent_folder(), "factor").read_text()) * int(os.environ["SCALE"])

@mwpy.master_algorithm
def master(mw, argv):
    total = 0
    for value in mw.map(scaled, range(20)):
        total += value
    {between}
    print(total + sum(mw.map(scaled, range(20))), flush=True)
    return 0

if __name__ == "__main__":
    sys.exit(mwpy.main())
"""

EXPECTED = 2 * 6 * sum(range(20))


def start(stage: Stage, *arguments: str, options: str = "", body: str = "", between: str = "") -> Running:
    path = stage.folder / "script.py"
    path.write_text(SCRIPT.format(options=options, body=body or "pass", between=between or "pass"))
    variables = {"PYTHONPATH": os.fspath(SOURCES)}
    return stage.start("", str(stage.folder), *arguments, program=[sys.executable, str(path)], variables=variables)


def built(stage: Stage) -> list[int]:
    """The processes that have begun to set up."""
    path = stage.folder / "built"
    return [*map(int, path.read_text().split())] if path.exists() else []


def test_it_runs_once_for_all_slaves_and_leaves_nothing(
    stage: Stage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where the path of the folder for temporary files is too long for sockets, and slaves have none."""
    temporary = tmp_path / ("long " * 20)
    temporary.mkdir()
    monkeypatch.setenv("TMPDIR", str(temporary))
    running = start(stage, "--mw-local", "3")
    assert running.end() == 0, running.err
    assert running.out.split() == [str(EXPECTED)]
    assert len(built(stage)) == 1
    assert [*temporary.iterdir()] == []
    stage.no_process_left()


def test_each_agent_has_one(stage: Stage) -> None:
    options = "--mw-master-host", "127.0.0.1", "--mw-resource-file", str(stage.resource)
    running = start(stage, "--mw-master", *options, between='time.sleep(0.05) if (HERE / "both").exists() else None')
    until(stage.resource.exists, "a resource file")
    agents = [start(stage, "--mw-slave", "--mw-resource-file", str(stage.resource)) for _ in range(2)]
    assert running.end() == 0, running.err
    assert running.out.split() == [str(EXPECTED)]
    for agent in agents:
        agent.end()
    assert len({*built(stage)}) == len(built(stage)) <= 2


@pytest.mark.parametrize("on_failure", ["exclude", "stop"])
def test_a_faulty_build_ends_a_run_on_one_machine_with_what_it_wrote(stage: Stage, on_failure: str) -> None:
    body = 'print("cc: no such file: model.c", file=sys.stderr); raise ValueError("make failed")'
    running = start(stage, "--mw-local", "2", options=f'(on_failure="{on_failure}")', body=body)
    assert running.end() == ExitCode.CANNOT_START, running.err
    assert "the set-up build failed: ValueError: make failed" in running.err
    assert "cc: no such file: model.c" in running.err
    assert "Correct this, and start again" in running.err
    assert len(built(stage)) == 1
    stage.no_process_left()


@pytest.mark.parametrize("on_failure", ["exclude", "stop"])
def test_a_faulty_build_excludes_the_host_or_ends_the_run(stage: Stage, on_failure: str) -> None:
    """The master waits for other hosts, unless the script says that the run shall end."""
    options = "--mw-master-host", "127.0.0.1", "--mw-resource-file", str(stage.resource)
    audit = "--mw-audit-file", str(stage.audit)
    setup = f'(on_failure="{on_failure}")', 'raise ValueError("make failed")'
    running = start(stage, "--mw-master", *options, *audit, options=setup[0], body=setup[1])
    until(stage.resource.exists, "a resource file")
    own = "--mw-slave", "--mw-resource-file", str(stage.resource)
    agent = start(stage, *own, options=setup[0], body=setup[1])
    assert agent.end() == ExitCode.CANNOT_START, agent.err
    if on_failure == "stop":
        assert running.end() == ExitCode.CANNOT_START, running.err
        return
    assert "it could not be set up" in stage.until_audited("EXCLUDED")[0]
    assert running.process.poll() is None
    assert "ValueError: make failed" in running.err


def test_a_set_up_that_is_killed_runs_again(stage: Stage) -> None:
    """A person or the kernel may kill it with SIGKILL."""
    body = 'while not (HERE / "go").exists(): time.sleep(0.01)'
    running = start(stage, "--mw-local", "2", body=body)
    until(lambda: len(built(stage)) == 1, "a set-up")
    kill(built(stage)[0], signal.SIGKILL)
    until(lambda: len(built(stage)) == 2, "another attempt")
    (stage.folder / "go").touch()
    assert running.end() == 0, running.err
    assert running.out.split() == [str(EXPECTED)]
    assert len(built(stage)) == 2
    stage.no_process_left()


def test_a_passing_failure_is_tried_again(stage: Stage) -> None:
    body = 'if not (HERE / "up").exists(): (HERE / "up").touch(); raise ConnectionRefusedError("no server")'
    running = start(stage, "--mw-local", "2", body=body)
    assert running.end() == 0, running.err
    assert running.out.split() == [str(EXPECTED)]
    assert "ConnectionRefusedError: no server" in running.err
    assert len(built(stage)) == 2


@pytest.mark.parametrize(
    ("options", "body", "words"),
    [
        ("(seconds_max=0.5)", "time.sleep(1000)", "it ran for more than 0.5 s, its seconds_max"),
        ('(memory_max="60 MB")', "kept = bytearray(os.urandom(200 << 20)); time.sleep(1000)", "its memory_max is 60"),
    ],
    ids=["time", "memory"],
)
def test_a_set_up_that_exceeds_a_limit_is_killed(stage: Stage, options: str, body: str, words: str) -> None:
    running = start(stage, "--mw-local", "1", options=options, body=body)
    assert running.end() == ExitCode.CANNOT_START, running.err
    assert words in running.err
    stage.no_process_left()


def test_a_master_that_starts_again_finds_its_agents_set_up(stage: Stage) -> None:
    """The agent waits for the next generation of the master, and keeps its slaves."""
    options = "--mw-master-host", "127.0.0.1", "--mw-resource-file", str(stage.resource)
    database = "--mw-run-database", str(stage.folder / "run.db")
    between = '(HERE / "half").touch()\n    while not (HERE / "go").exists(): time.sleep(0.01)'
    running = start(stage, "--mw-master", *options, *database, between=between)
    until(stage.resource.exists, "a resource file")
    own = "--mw-slave", "--mw-resource-file", str(stage.resource), "--mw-slave-processes", "2"
    agent = start(stage, *own, between=between)
    until((stage.folder / "half").exists, "the first half")
    running.send(signal.SIGKILL)
    running.end()
    (stage.folder / "go").touch()
    again = start(stage, "--mw-master", *options, *database, between=between)
    assert again.end() == 0, again.err
    assert again.out.split() == [str(EXPECTED)]
    agent.end()
    assert len(built(stage)) == 1


def test_a_script_that_opens_a_master_sets_up_by_value(stage: Stage) -> None:
    """The script comes from standard input, so slaves cannot load it. The set-up is a closure."""
    script = """
import os, mwpy
from pathlib import Path
def declare(factor):
    @mwpy.agent_setup
    def build():
        Path("factor").write_text(str(factor))
declare(7)
def scaled(number):
    return number * int(Path(mwpy.agent_folder(), "factor").read_text())
with mwpy.open(slaves=2) as mw:
    print(sum(mw.map(scaled, range(10))))
"""
    running = stage.start("", program=[sys.executable, "-"], script=script)
    assert running.end() == 0, running.err
    assert running.out == "315\n"


@pytest.fixture
def declared(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Declares a set-up for the masters of this test only."""
    monkeypatch.setattr(mwpy._values.algorithm.REGISTRY, "setups", [])
    monkeypatch.setenv("MWPY_AGENT_FOLDER", "")
    return mwpy.agent_setup


def folder(_: int) -> list[str]:
    return sorted(each.name for each in Path(mwpy.agent_folder()).iterdir())


def test_a_command_sets_up_and_without_slaves_it_runs_in_this_process(declared: Callable[..., None]) -> None:
    """`slaves=0`: each master that is opened runs it once."""
    declared("touch one two")
    for slaves in (0, 1):
        with mwpy.local_master(slaves=slaves) as mw:
            assert list(mw.map(folder, range(3))) == [["one", "two"]] * 3


def test_without_slaves_a_faulty_set_up_is_an_error_of_the_caller(declared: Callable[..., None]) -> None:
    declared("echo no compiler >&2; exit 3")
    with mwpy.local_master(slaves=0) as mw, pytest.raises(mwpy.CannotRun, match="exit status 3"):
        list(mw.map(folder, range(3)))


def test_an_environment_variable_that_is_none_is_an_error_which_names_it(declared: Callable[..., None]) -> None:
    declared(lambda: {"SCALE": 2, "ROOT": None})
    with mwpy.local_master(slaves=0) as mw, pytest.raises(mwpy.CannotRun, match="variable 'ROOT': leave it out"):
        list(mw.map(folder, range(3)))
