"""Runs that no slave can help end with the reason; runs that somebody disturbs from outside go on."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Sequence

import pytest
from tests.integration.apps.stage import Stage

import mwpy

NONE = "mwpy: no slave can start here, and none elsewhere can join. Correct this, and start again: "

SCRIPT = """
import os, sys
import mwpy

@mwpy.task_algorithm
def twice(number):
    return 2 * number

@mwpy.slave_algorithm
def slave(mw, argv):
    if argv == ["at once"]:
        raise ValueError("no licence")
    if argv == ["when it is ready"]:
        raise ValueError(f"no licence for {mw.sid[:5]}")
    return mw.loop_simple()

@mwpy.master_algorithm
def master(mw, argv):
    print(sum(mw.map(twice, range(10))))
    return 0

if __name__ == "__main__":
    sys.exit(mwpy.main())
"""

PLAIN = """
import mwpy
with mwpy.local_master(slaves={slaves}, slave_start="{way}") as mw:
    big = mw.map(bytes, [2_000_000] * 200)
    print(sum(len(value) for value in big))
"""


def ended(stage: Stage, line: Sequence[str]) -> tuple[int, str, str]:
    """Run a command to its end. Return its exit code, and what it printed."""
    run = stage.start("", program=[*line])
    return run.end(), run.out, run.err


@pytest.mark.parametrize(("when", "error"), [("at once", "no licence"), ("when it is ready", "no licence for SLAVE")])
@pytest.mark.parametrize("way", ["fork", "spawn"])
def test_a_slave_algorithm_that_always_raises_ends_the_run_with_its_error(
    stage: Stage, when: str, error: str, way: str
) -> None:
    (stage.folder / "app.py").write_text(SCRIPT)
    own = "--mw-local", "2", "--mw-slave-start", way
    code, out, err = ended(stage, [sys.executable, "app.py", when, *own])
    assert (code, out) == (6, ""), err
    why = f"3 slaves in a row ended before they could take a task: exit code 1 (ValueError: {error})"
    assert err.splitlines()[-1] == NONE + why
    stage.no_process_left()


def test_a_script_that_its_slaves_cannot_open_again_ends_the_run(stage: Stage) -> None:
    """The shell gives the script in a pipe, which only the master can read."""
    (stage.folder / "app.py").write_text(SCRIPT)
    command = f"exec {sys.executable} <(cat app.py) --mw-local 1"
    code, out, err = ended(stage, ["bash", "-c", command])
    assert (code, out) == (6, ""), err
    reason = f"{NONE}the local agent ended (exit code 2), as it says above. An agent is started as "
    assert any(line.startswith(reason) for line in err.splitlines()), err  # two threads write, so a notice may follow
    assert "[Errno 2] No such file or directory" in err


def test_an_executor_without_any_slave_breaks_with_the_reason(stage: Stage) -> None:
    script = "import mwpy\nwith mwpy.Executor(1) as executor:\n    executor.submit(abs, -1).result()\n"
    code, _, err = ended(stage, ["bash", "-c", f'ulimit -n 16; exec "{sys.executable}" -c "$0"', script])
    assert code == 1
    assert "BrokenExecutor: the executor is broken: no slave can start here" in err.splitlines()[-1]


@pytest.mark.parametrize("way", ["fork", "spawn"])
@pytest.mark.parametrize("files", [8, 16, 24, 29, 32, 40])
def test_too_few_open_files_are_named_or_are_enough(stage: Stage, files: int, way: str) -> None:
    """No limit gives an internal error, a hang, or a reproach to a slave."""
    script = PLAIN.format(slaves=2, way=way)
    code, out, err = ended(stage, ["bash", "-c", f'ulimit -n {files}; exec "{sys.executable}" -c "$0"', script])
    if code == 0:
        assert out == "400000000\n"
    else:
        assert f"a process may have only {files} open files here: raise this limit (ulimit -n)" in err.splitlines()[-1]
        assert files < 40
    for wrong in ("please report", "nonsense", "InternalError"):
        assert wrong not in err
    stage.no_process_left()


def as_a_user() -> list[str]:
    """What starts a program as a user who has no process yet, and who may read all files: root has no such limit."""
    keep = "-all,+dac_override"
    return ["setpriv", "--reuid", "54321", "--clear-groups", f"--inh-caps={keep}", f"--ambient-caps={keep}"]


@pytest.mark.skipif(os.geteuid() != 0 or shutil.which("setpriv") is None, reason="only root can become a new user")
@pytest.mark.parametrize("processes", [1, 3, 4, 5, 6, 7, 40])
def test_too_few_processes_are_named_or_are_enough(stage: Stage, processes: int) -> None:
    """The threads of the master count, too."""
    script = PLAIN.format(slaves=2, way="fork")
    line = [*as_a_user(), "bash", "-c", f'ulimit -u {processes}; exec "{sys.executable}" -c "$0"', script]
    code, out, err = ended(stage, line)
    if code == 0:
        assert out == "400000000\n"
    else:
        assert f"this user may have {processes} of them (ulimit -u)" in err.splitlines()[-1]
        assert processes < 40
    for wrong in ("please report", "InternalError"):
        assert wrong not in err


@pytest.mark.parametrize("slaves", [1.0, "2", [1], -1])
def test_a_number_of_slaves_that_is_none_is_refused_at_the_call(slaves: object) -> None:
    with pytest.raises(mwpy.UsageError, match="give"):
        mwpy.local_master(slaves=slaves)  # type: ignore[arg-type]
