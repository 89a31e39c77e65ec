"""`mwpy doctor` on this machine: what it says of a healthy computation, and of each thing that is wrong with one."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.integration.apps.stage import Running, Stage, until

from mwpy._transport.link import member_keys, new_key


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    with Stage(tmp_path) as stage:
        yield stage


@pytest.fixture
def master(stage: Stage) -> Running:
    """A master that waits for slaves."""
    return stage.master("obey.py", stage.folder / "orders")


def doctor(stage: Stage, *arguments: object) -> Running:
    """Ask it, and wait for its end."""
    asked = stage.start("", program=[sys.executable, "-m", "mwpy", "doctor", *map(str, arguments)])
    asked.end()
    return asked


def faults(asked: Running) -> list[tuple[str, str]]:
    """What it called a fault, and what it said to do."""
    assert asked.process.returncode == 1, asked.out + asked.err
    return re.findall(r"^FAULT +(.+(?:\n(?! +->).*)*)\n +-> (.+)$", asked.out, re.MULTILINE)


def spoilt(stage: Stage, **changes: object) -> Path:
    """A copy of the resource file in which something is wrong."""
    content: dict[str, Any] = json.loads(stage.resource.read_text())
    content |= {key.replace("_", "-"): value for key, value in changes.items()}
    copy = stage.folder / "copy.rsc"
    copy.write_text(json.dumps(content))
    return copy


@pytest.mark.parametrize("where", [(), ("--with", "local")], ids=["here", "with local"])
def test_a_healthy_computation_is_told_of_as_such(stage: Stage, master: Running, where: tuple[str, ...]) -> None:
    """All is told of, the master sees an agent come and go, and nothing is left."""
    asked = doctor(stage, stage.resource, *where)
    assert asked.process.returncode == 0, asked.out + asked.err
    told = dict(re.findall(r"^ok +([^:]+): (.+)$", asked.out, re.MULTILINE))
    assert [*told] == [
        *("machine", "Python", "libraries", "clock", "resource file", "address", "master", "application"),
        *("memory", "disk", "time left"),
    ]
    assert "accepted it as AGENT-0; round trip " in told["master"]
    assert re.search(r"libzmq \S+, pyzmq \S+, msgspec \S+, cloudpickle \S+, attrs \S+$", told["libraries"])
    assert asked.out.endswith("all is well\n")
    until(lambda: "AGENT-0 -> left: it was an examination" in stage.audit.read_text(), "its leaving in the audit file")
    assert "REFUSED" not in stage.audit.read_text()
    assert master.process.poll() is None


def test_wrong_keys(stage: Stage, master: Running) -> None:
    """Keys of another computation."""
    pair = member_keys(new_key())
    keys = {
        **json.loads(stage.resource.read_text())["keys"],
        "member-public": pair.public,
        "member-secret": pair.secret,
    }
    found = faults(doctor(stage, spoilt(stage, keys=keys)))
    assert len(found) == 1
    assert found[0][0].startswith("address: tcp://127.0.0.1:")
    assert "key" in found[0][0]
    assert "a fresh copy of the resource file" in found[0][1]


def test_a_stale_generation(stage: Stage, master: Running) -> None:
    """The file of an earlier life of the master."""
    [(found, remedy)] = faults(doctor(stage, spoilt(stage, generation="earlier")))
    assert found.startswith("master: did not accept it: ")
    assert "generation earlier" in found
    assert "a fresh copy" in remedy


def test_a_closed_port(stage: Stage, master: Running) -> None:
    """Nobody listens at the address."""
    [(found, remedy)] = faults(doctor(stage, spoilt(stage, master_addresses=["tcp://127.0.0.1:9"])))
    assert found == "address: tcp://127.0.0.1:9: nobody listens there"
    assert "check that the master is running" in remedy


def test_an_application_that_cannot_be_imported(stage: Stage) -> None:
    """What it wrote is shown."""
    stage.master("broken.py")
    [(found, remedy)] = faults(doctor(stage, stage.resource))
    assert found.startswith("application: a slave does not start: exit code 1. It wrote last:\nTraceback")
    assert found.endswith("RuntimeError: no licence for slaves")
    assert "mwpy pack" in remedy


def test_a_program_that_is_not_there(stage: Stage, master: Running) -> None:
    """The job ends without a word of mwpy, and what it wrote instead is shown."""
    [(found, remedy)] = faults(doctor(stage, stage.resource, "--command", "/no/such/python"))
    assert found.startswith("job: there is no report: exit code 127. It wrote last:\n")
    assert "/no/such/python" in found
    assert "another --command" in remedy


def test_a_finished_computation_needs_nothing(stage: Stage, master: Running) -> None:
    """Agents would leave at once."""
    asked = doctor(stage, spoilt(stage, computation_status="finished"))
    assert asked.process.returncode == 0
    assert "finished" in asked.out


def test_bad_usage_is_told_in_a_line(stage: Stage) -> None:
    """Code 2, and no job."""
    for arguments in (("none.rsc",), ("none.rsc", "--with", "pigeons"), ()):
        asked = doctor(stage, *arguments)
        assert asked.process.returncode == 2
        assert len(asked.err.splitlines()) == 1, asked.err
