"""A user edits files while a computation runs. The run keeps the code with which its master was started."""

from __future__ import annotations

import json
import signal
import sys

from tests.integration.apps.stage import Running, Stage, kill, slaves_of, template_of, until

SCRIPT = """
import sys, time
from pathlib import Path
import mwpy
import measures

def work(x):
    return measures.scale(x)

@mwpy.master_algorithm
def master(mw, argv):
    while not Path("go").exists():
        time.sleep(0.01)
    print(list(mw.map(work, range(4))))
    return 0

if __name__ == "__main__":
    sys.exit(mwpy.main())
"""

MODULE = """
FACTOR = 10

def scale(x):
    return FACTOR * x
"""

EDITED = "# edited\n\n" + MODULE.replace("10", "11")


def _write(stage: Stage, module: str) -> None:
    """Write a module as an editor does it. A file of the same size and second would look the same to Python."""
    (stage.folder / "new.py").write_text(module)
    (stage.folder / "new.py").replace(stage.folder / "measures.py")


def _master(stage: Stage) -> Running:
    (stage.folder / "script.py").write_text(SCRIPT)
    _write(stage, MODULE)
    return stage.master(str(stage.folder / "script.py"))


def test_a_slave_with_an_edited_module_runs_nothing_and_the_master_says_why(stage: Stage) -> None:
    """Its results would be wrong without notice. A slave with the code of the run then does everything."""
    master = _master(stage)
    (stage.folder / "go").touch()
    _write(stage, EDITED)
    stage.agent(str(stage.folder / "script.py"))
    why = "variable FACTOR in measures.py differs from the master's: give the slave the files"
    stage.until_audited(f"cannot run work: {why}")
    until(lambda: f"has other code for work, and gets no more tasks of it: {why}" in master.err, "a notice")
    _write(stage, MODULE)
    stage.agent(str(stage.folder / "script.py"))
    master.finish()
    assert json.loads(master.out) == [0, 10, 20, 30]


def test_slaves_that_were_forked_from_the_old_code_go_on_after_an_edit(stage: Stage) -> None:
    """Also those that are forked after the edit, and that hear of the algorithm only then."""
    master = _master(stage)
    agent = stage.agent(str(stage.folder / "script.py"))
    stage.until_audited("SLAVE-0 -> idle")
    template_of(agent.pid)
    _write(stage, EDITED)
    (stage.folder / "script.py").write_text("# edited\n\n" + SCRIPT)
    kill(slaves_of(agent.pid)[0], signal.SIGKILL)
    stage.until_audited("SLAVE-1 -> idle")
    (stage.folder / "go").touch()
    master.finish()
    assert json.loads(master.out) == [0, 10, 20, 30]
    assert not stage.audited("other code")


def test_a_slave_with_an_edited_script_does_not_run_a_lambda_that_uses_its_functions(stage: Stage) -> None:
    """The lambda travels by value, and what it finds in the slave's own script by name."""
    edited, path = MODULE + SCRIPT.replace("import measures", ""), stage.folder / "script.py"
    path.write_text(edited.replace("mw.map(work", "mw.map(lambda x: work(x)").replace("measures.", ""))
    master = stage.master(str(path))
    (stage.folder / "go").touch()
    path.write_text(path.read_text().replace("FACTOR * x", "FACTOR * x + 1"))
    stage.agent(str(path))
    stage.until_audited("function scale in script.py differs from the master's: give the slave the files")
    path.write_text(path.read_text().replace("FACTOR * x + 1", "FACTOR * x"))
    stage.agent(str(path))
    master.finish()
    assert json.loads(master.out) == [0, 10, 20, 30]


WITHOUT_SCRIPT = """
import json, math, sys
from json import dumps
import mwpy

def helper(x):
    return x

@mwpy.master_algorithm
def master(mw, argv):
    print(list(mw.map(lambda x: [math.sqrt(x), dumps(x), json.loads("1")], [4])))
    print(list(mw.map(lambda x: helper(x), [4])))
    return 0

if __name__ == "__main__":
    sys.exit(mwpy.main())
"""


def test_a_slave_without_the_script_runs_a_lambda_that_uses_only_modules(stage: Stage) -> None:
    """One that uses a function of the script runs on a slave with the script."""
    path = stage.folder / "script.py"
    path.write_text(WITHOUT_SCRIPT)
    master = stage.master(str(path))
    command = [sys.executable, "-m", "mwpy", "slave", "--mw-resource-file", str(stage.resource)]
    stage.start("", program=command)
    stage.until_audited("function helper in __main__.py differs from the master's: give the slave the files")
    stage.agent(str(path))
    master.finish()
    assert master.out == "[[2.0, '4', 1]]\n[4]\n"
