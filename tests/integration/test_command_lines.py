"""Scripts that call `mwpy.main` in different ways. Their agents and slaves have the right roles and end."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from tests.integration.apps.stage import Stage, until

from mwpy._values.messages import PROTOCOL_VERSION


@pytest.mark.parametrize(
    ("line", "own", "variables"),
    [
        (["a", "--mw-local", "1", "b", "--", "--mw-x", "-n"], ["a", "b", "--", "--mw-x", "-n"], {}),
        (["ignored"], ["a", "b"], {"TEST_ARGV": "a --mw-local 1 b"}),
        (["--level", "3", "--mw-local", "1", "a"], ["a"], {"TEST_OWN_OPTION": "1"}),
    ],
    ids=["options end at --", "an argv of its own", "an option parser of its own before"],
)
def test_local_slaves_get_the_scripts_own_arguments(
    stage: Stage, line: list[str], own: list[str], variables: dict[str, str]
) -> None:
    """No agent becomes another master, whatever the script does with its command line."""
    run = stage.run("argued.py", *line, variables=variables)
    assert run.report == {"argv": own, "came": [[10, own]]}
    assert run.err == ""
    stage.no_process_left()


def test_an_agent_takes_a_task_of_any_size_that_its_master_allows(stage: Stage) -> None:
    """An agent whose own limit is smaller keeps its connection."""
    size = 3 << 20
    master = stage.start(
        "argued.py",
        *("--mw-master", "--mw-master-host", "127.0.0.1", "--mw-resource-file", stage.resource),
        *("--mw-audit-file", stage.audit),
        variables={"TEST_BYTES": str(size)},
    )
    until(stage.resource.exists, "a resource file")
    agent = stage.agent("argued.py", "--mw-max-read-buffer-size", 100_000, "own")
    assert master.end() == 0, master.err
    assert master.report["came"] == [[size, ["own"]]]
    assert agent.end() == 0, agent.err


def test_an_agent_of_another_version_is_refused_on_both_sides(stage: Stage) -> None:
    """The agent exits with 3. Both sides show both versions and the remedy."""
    master = stage.master("count.py", "--tasks", 10)
    program = (
        "import importlib, sys\n"
        "from mwpy._transport import wire\n"
        "from mwpy._values import messages\n"
        "messages.PROTOCOL_VERSION = 77\n"
        "importlib.reload(wire)\n"
        "from mwpy.cli import main\n"
        "sys.exit(main(['slave', *sys.argv[1:]]))"
    )
    agent = stage.run("", "--mw-resource-file", stage.resource, program=[sys.executable, "-c", program], code=3)
    assert f"protocol version {PROTOCOL_VERSION} there, 77 here: install the same version" in agent.err
    until(lambda: f"77 there, {PROTOCOL_VERSION} here" in master.err, lambda: f"a message, not {master.err!r}")
    stage.until_audited("REFUSED")


def test_a_master_algorithm_can_exit_with_a_text(tmp_path: Path) -> None:
    """As everywhere in Python, `sys.exit("text")` writes the text to standard error, and gives 1."""
    script = "import sys, mwpy\nmwpy.master_algorithm(lambda mw, argv: sys.exit('no data'))\nsys.exit(mwpy.main())"
    program = [sys.executable, "-c", script, "--mw-local", "0"]
    ended = subprocess.run(program, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stderr) == (1, "no data\n")


def test_a_master_algorithm_that_returns_none_gets_a_message(stage: Stage) -> None:
    """The exit code 255 comes with a message."""
    run = stage.run("argued.py", "--mw-local", 1, variables={"TEST_NONE": "1"}, code=255)
    assert run.err == (
        "mwpy: the master algorithm returned None, which is no exit code: it must return 0 to 255, and 0 for success\n"
    )
