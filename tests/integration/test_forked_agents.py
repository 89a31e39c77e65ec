"""Local agents that are forked from the script, and those that are fresh interpreters. `test_roles.py` and
`test_faults.py` interrupt and kill masters and agents of the first kind."""

from __future__ import annotations

import re
import signal
import sys

import pytest
from tests.integration.apps.stage import Stage, children_of, kill, name_of, until

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="agents are forked only on Linux")

SCRIPT = """
import atexit, os, random, sys, threading, time
import mwpy

print("loaded", end=" ")
atexit.register(lambda: os.write(1, f"exit of {os.getpid()}\\n".encode()))
random.seed(1)

@mwpy.task_algorithm
def draw(file):
    while not os.path.exists(file):
        time.sleep(0.01)
    return os.getpid(), random.random()

@mwpy.master_algorithm
def master(mw, argv):
    print("master", os.getpid(), random.random(), flush=True)
    for file in (".", ".", *argv):
        print(*mw.map(draw, [file]), flush=True)
    return 0
"""
MAIN = "\nif __name__ == '__main__': sys.exit(mwpy.main())\n"
THREAD = "\nthreading.Thread(target=threading.Event().wait, daemon=True).start()\n"


def test_an_agent_is_forked_from_a_script_that_may_be_forked(stage: Stage) -> None:
    """Script and template load the script, and the agent does not. Each of the processes that loaded it ends once, but
    the template has no end of its own."""
    (stage.folder / "app.py").write_text(SCRIPT + MAIN)
    run = stage.start("", "--mw-local", 1, program=[sys.executable, "app.py"])
    assert run.end() == 0, run.err
    assert run.out.count("loaded") == 2
    [(master, number)] = re.findall(r"master (\d+) (\S+)", run.out)
    drawn = re.findall(r"\((\d+), ([^)]+)\)", run.out)  # other processes may write into the same line
    [slave] = {pid for pid, _ in drawn}
    assert sorted(re.findall(r"exit of (\d+)", run.out)) == sorted([master, slave])
    assert len({number, *(each for _, each in drawn)}) == 3
    assert run.err == ""
    stage.no_process_left()


@pytest.mark.parametrize(("script", "options"), [(SCRIPT + THREAD, ()), (SCRIPT, ("--mw-slave-start", "spawn"))])
def test_otherwise_an_agent_is_a_fresh_interpreter(stage: Stage, script: str, options: tuple[str, ...]) -> None:
    """It loads the script, too."""
    (stage.folder / "app.py").write_text(script + MAIN)
    run = stage.start("", "--mw-local", 1, *options, program=[sys.executable, "app.py"])
    assert run.end() == 0, run.err
    assert run.out.count("loaded") == 3
    stage.no_process_left()


def test_a_forked_agent_that_is_killed_is_replaced_by_a_fresh_one(stage: Stage) -> None:
    (stage.folder / "app.py").write_text(SCRIPT + MAIN)
    run = stage.start("", "go", "--mw-local", 1, program=[sys.executable, "app.py"])
    until(lambda: "(" in run.out, "a result")
    [agent] = children_of(run.pid)
    assert name_of(agent) == "mwpy-agent"
    kill(agent, signal.SIGKILL)
    until(lambda: "the local agent ended (killed by" in run.err, "a report of its end")
    (stage.folder / "go").touch()
    assert run.end() == 0, run.err
    assert run.out.count("loaded") == 4
    stage.no_process_left()


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT, signal.SIGTERM])
def test_a_forked_agent_ends_with_its_master(stage: Stage, number: signal.Signals) -> None:
    (stage.folder / "app.py").write_text(SCRIPT + MAIN)
    run = stage.start("", "never", "--mw-local", 2, program=[sys.executable, "app.py"])
    until(lambda: run.out.count("(") == 2, "two results")
    assert [name_of(pid) for pid in children_of(run.pid)] == ["mwpy-agent"]
    run.send(number)
    assert run.end() == (-signal.SIGKILL if number == signal.SIGKILL else 130)
    stage.no_process_left()


def test_a_plain_script_forks_its_agent_too(stage: Stage) -> None:
    """Its slaves do not load it."""
    script = (
        "import mwpy, os\n"
        "print('loaded', end=' ')\n"
        "with mwpy.open(1) as mw:\n"
        "    [agent] = mw.map(lambda _: os.getppid(), [0])\n"
        "    print(open(f'/proc/{agent}/comm').read().strip(), os.getpid() in [*mw.map(lambda _: os.getpid(), [0])])\n"
    )
    (stage.folder / "plain.py").write_text(script)
    run = stage.start("", program=[sys.executable, "plain.py"])
    assert run.end() == 0, run.err
    assert run.out == "loaded mwpy-agent False\n"
    stage.no_process_left()


def test_a_master_tells_its_agent_that_it_has_loaded(stage: Stage) -> None:
    """The agent in this test would wait for it until the test fails. It loads its own modules then, so that it does not
    compete for the processors with both the master and the template."""
    script = (
        "import mwpy\n"
        "from mwpy._transport import local_link\n"
        "local_link.LOADED_S = 3000.0\n"
        "with mwpy.open(1) as mw:\n"
        "    print(*mw.map(abs, [-1]))\n"
    )
    (stage.folder / "plain.py").write_text(script)
    run = stage.start("", program=[sys.executable, "plain.py"])
    assert run.end() == 0, run.err
    assert run.out == "1\n"
