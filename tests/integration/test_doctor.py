"""`mwpy doctor` on this machine: what it reports about a healthy computation, and about each fault."""

from __future__ import annotations

import itertools
import json
import platform
import re
import shlex
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.integration.apps.stage import Running, Stage, until

from mwpy._transport.link import member_keys, new_key


@pytest.fixture
def master(stage: Stage) -> Running:
    """A master that waits for slaves."""
    return stage.master("obey.py", stage.folder / "orders")


def doctor(stage: Stage, *arguments: object) -> Running:
    """Run the command, and wait for its end."""
    run = stage.start("", program=[sys.executable, "-m", "mwpy", "doctor", *map(str, arguments)])
    run.end()
    return run


def faults(run: Running) -> list[tuple[str, str]]:
    """Return the faults that the command reported, and their remedies."""
    assert run.process.returncode == 1, run.out + run.err
    return re.findall(r"^FAULT +(.+(?:\n(?! +->).*)*)\n +-> (.+)$", run.out, re.MULTILINE)


def changed_copy(stage: Stage, **changes: object) -> Path:
    """Write a copy of the resource file with wrong values."""
    content: dict[str, Any] = json.loads(stage.resource.read_text())
    for key, value in changes.items():
        name = key.replace("_", "-")
        content[name] = {**content[name], **value} if isinstance(value, dict) else value
    copy = stage.folder / "copy.rsc"
    copy.write_text(json.dumps(content))
    return copy


@pytest.mark.parametrize("where", [(), ("--with", "local")], ids=["here", "with local"])
def test_a_healthy_computation_has_no_faults(stage: Stage, master: Running, where: tuple[str, ...]) -> None:
    """Everything is reported, the master sees an agent join and leave, and nothing is left."""
    run = doctor(stage, stage.resource, *where)
    assert run.process.returncode == 0, run.out + run.err
    found = dict(re.findall(r"^ok +([^:]+): (.+)$", run.out, re.MULTILINE))
    assert [*found] == [
        *("machine", "Python", "libraries", "clock", "resource file", "address", "master", "application"),
        *("memory", "disk", "time left"),
    ]
    assert "accepted it as AGENT-0; round trip " in found["master"]
    assert re.search(r"libzmq \S+, pyzmq \S+, msgspec \S+, cloudpickle \S+, attrs \S+$", found["libraries"])
    assert run.out.endswith("all is well\n")
    until(lambda: "AGENT-0 -> left: it was an examination" in stage.audit.read_text(), "its leaving in the audit file")
    assert "REFUSED" not in stage.audit.read_text()
    assert master.process.poll() is None


def test_an_address_that_does_not_work_is_not_called_ok(stage: Stage, master: Running) -> None:
    """It is no fault either, because the next address works."""
    [address] = json.loads(stage.resource.read_text())["master-addresses"]
    run = doctor(stage, changed_copy(stage, master_addresses=["tcp://127.0.0.1:1", address]))
    assert run.process.returncode == 0, run.out + run.err
    assert re.search(r"^spare +address: tcp://127\.0\.0\.1:1: ", run.out, re.MULTILINE), run.out


OTHERS = member_keys(new_key())
"""The keys of another computation."""


@pytest.mark.parametrize(
    ("changes", "options", "fault", "remedy"),
    [
        ({"master_addresses": []}, (), "address: the resource file names no address of the m", "--mw-master-host"),
        (
            {"master_addresses": ["tcp://127.0.0.1:9"]},
            *((), r"address: tcp://127\.0\.0\.1:9: nobody listens there$", "check that the master is running"),
        ),
        (
            {"keys": {"member-public": OTHERS.public, "member-secret": OTHERS.secret}},
            *((), r"address: tcp://127\.0\.0\.1:\d+: .*key", "a fresh copy of the resource file"),
        ),
        ({"generation": "earlier"}, (), "master: did not accept it: .*generation earlier", "a fresh copy"),
        (
            {},
            ("--command", "/no/such/python"),
            "job: there is no report: exit code 127. It wrote last:\n.*/no/such/python",
            "another --command",
        ),
    ],
    ids=["no address", "closed port", "wrong keys", "stale generation", "no such program"],
)
def test_each_fault_comes_with_its_remedy(
    stage: Stage, master: Running, changes: dict[str, Any], options: tuple[str, ...], fault: str, remedy: str
) -> None:
    [(found, advice)] = faults(doctor(stage, changed_copy(stage, **changes), *options))
    assert re.match(fault, found), found
    assert remedy in advice


def test_a_report_for_scripts(stage: Stage, master: Running) -> None:
    """Standard output has one JSON object, and standard error what the job does."""
    run = doctor(stage, changed_copy(stage, master_addresses=["tcp://127.0.0.1:9"]), "--json")
    assert run.process.returncode == 1, run.out + run.err
    report = json.loads(run.out)
    assert report["faults"] == 1
    [fault] = [finding for finding in report["findings"] if finding["remedy"]]
    assert (fault["about"], fault["found"]) == ("address", "tcp://127.0.0.1:9: nobody listens there")
    assert fault["spare"] is False
    assert report["findings"][0]["about"] == "machine"


def test_an_application_that_cannot_be_imported(stage: Stage) -> None:
    """The end of its output is shown."""
    stage.master("broken.py")
    [(found, remedy)] = faults(doctor(stage, stage.resource))
    assert found.startswith("application: a slave does not start: exit code 1. It wrote last:\nTraceback")
    assert found.endswith("RuntimeError: no licence for slaves")
    assert "mwpy pack" in remedy


@pytest.mark.parametrize("where", [(), ("--with", "local")], ids=["here", "with local"])
def test_the_python_of_another_command_is_compared(stage: Stage, master: Running, where: tuple[str, ...]) -> None:
    """The master's interpreter, which the resource file names, is what it is compared with. Here the other command runs
    this same interpreter, and changes the version in its report."""
    content = json.loads(stage.resource.read_text())
    program = [content["slave-executable"], *itertools.takewhile("--mw-slave".__ne__, content["slave-arguments"])]
    other = stage.folder / "other.sh"
    other.write_text(f"""{shlex.join(program)} "$@" 2>&1 | sed 's/"python": "[0-9.]*"/"python": "3.99.0"/' >&2""")
    [(found, remedy)] = faults(doctor(stage, stage.resource, *where, "--command", f"/bin/sh {other}"))
    assert found == f"Python: 3.99.0 ({sys.executable}), here {platform.python_version()}"
    assert "use the same minor version there" in remedy


def test_a_finished_computation_needs_nothing(stage: Stage, master: Running) -> None:
    """Agents of a finished computation exit at once."""
    run = doctor(stage, changed_copy(stage, computation_status="finished"))
    assert run.process.returncode == 0
    assert "finished" in run.out


def test_wrong_arguments_are_reported_in_one_line(stage: Stage) -> None:
    """The exit code is 2, and there is no job."""
    for arguments in (("none.rsc",), ("none.rsc", "--with", "pigeons"), ()):
        run = doctor(stage, *arguments)
        assert run.process.returncode == 2
        assert len(run.err.splitlines()) == 1, run.err
