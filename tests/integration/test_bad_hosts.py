"""A host where all tasks fail: its agent runs with another host name, in a namespace of its own."""

from __future__ import annotations

import json
import os
import socket
import sys
from typing import Any

import pytest
from tests.integration.apps.stage import APPS, Running, Stage, until

ELSEWHERE = 'hostname bad-host && exec "$@"'


pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root may have another host name")


def on_bad_host(stage: Stage, *arguments: object) -> Running:
    """Start the application on `bad-host`."""
    program = ["unshare", "--uts", "sh", "-c", ELSEWHERE, "sh", sys.executable, str(APPS / "unwell.py")]
    return stage.start("", *arguments, program=program)


def bad_agent(stage: Stage) -> Running:
    return on_bad_host(stage, "--mw-slave", "--mw-resource-file", stage.resource)


def test_a_host_where_all_tasks_fail_is_named_and_gets_no_more_work(stage: Stage) -> None:
    """The other host finishes all tasks. A second agent from the bad host is refused."""

    def resource() -> Any:
        return json.loads(stage.resource.read_text())

    master = stage.master("unwell.py", stage.folder)
    first, good = bad_agent(stage), stage.agent("unwell.py")
    [excluded] = stage.until_audited("EXCLUDED host bad-host gets no more work for 1 h: ")
    assert first.end() == 3
    assert "attempts of work failed there, and 0 of" in excluded
    assert "refused this agent: host bad-host gets no more work for 1 h" in first.err
    assert "For example: OSError: no disk is left" in master.err
    until(lambda: resource()["excluded-hosts"] == {"bad-host": []}, lambda: f"an excluded host in {resource()}")
    second = bad_agent(stage)
    assert second.end() == 3
    assert "host bad-host gets no more work" in second.err

    (stage.folder / "enough").touch()
    until(lambda: bool(master.out), "the end of the tasks")
    assert [*master.report] == [socket.gethostname()]
    until(lambda: resource()["slaves-needed"] == 4, lambda: f"four needed slaves, not {resource()}")
    (stage.folder / "done").touch()
    assert (master.end(), good.end()) == (0, 0)
    lines = stage.audit.read_text().splitlines()
    [bad, *_] = [line.split()[2] for line in lines if "through AGENT" in line and _agent(lines, "bad-host") in line]
    after = lines[next(number for number, line in enumerate(lines) if "EXCLUDED" in line) :]
    assert not [line for line in after if f" {bad} <- " in line]


def test_the_local_agents_of_a_master_on_a_bad_host_are_not_started_again(stage: Stage) -> None:
    own = "--mw-master", "--mw-master-host", "127.0.0.1", "--mw-resource-file", stage.resource, "--mw-local", 1
    master = on_bad_host(stage, *own, "--mw-audit-file", stage.audit, stage.folder)
    until(stage.resource.exists, lambda: f"a resource file\n{master.err}")
    stage.agent("unwell.py")
    stage.until_audited("EXCLUDED host bad-host gets no more work for 1 h: ")
    [local] = stage.audited("connected, host bad-host, ")
    stage.until_audited(f"{local.split()[2]} -> left: host bad-host gets no more work")
    (stage.folder / "enough").touch()
    until(lambda: bool(master.out), "the end of the tasks")
    assert "bad-host" not in master.report
    (stage.folder / "done").touch()
    assert master.end() == 0
    assert "starting another" not in master.err
    assert not stage.audited("REFUSED")


def _agent(lines: list[str], host: str) -> str:
    """The name of the agent that the master accepted from a host."""
    return next(line.split()[2] for line in lines if f"connected, host {host}, " in line)
