"""The resource file between a running master and its agents: when it is written, and how agents use it."""

from __future__ import annotations

import json
import os
import platform
import shutil
import signal
import time
from pathlib import Path
from typing import Any

from tests.integration.apps.stage import Running, Stage, free_port, until

NOT_HERE = "127.0.0.2"
"""An address of this machine where the masters of these tests do not listen."""


def obeying(stage: Stage, *arguments: object) -> Running:
    """Start a master that waits for orders."""
    return stage.master("obey.py", stage.folder / "orders", *arguments)


def order(stage: Stage, *order: object) -> None:
    with (stage.folder / "orders").open("a") as file:
        file.write(json.dumps(order) + "\n")


def content(stage: Stage) -> Any:
    return json.loads(stage.resource.read_text())


def until_it_says(stage: Stage, key: str, value: object) -> Any:
    """Wait for a value in the resource file. Return the whole document."""
    until(lambda: content(stage)[key] == value, lambda: f"{key} {value!r} in {content(stage)}")
    return content(stage)


# ---- one master ---------------------------------------------------------------------------------------------


def test_a_second_master_is_refused_with_the_name_of_the_first(stage: Stage) -> None:
    first = obeying(stage)
    second = stage.run("obey.py", stage.folder / "orders", "--mw-master", "--mw-resource-file", stage.resource, code=2)
    assert f"{stage.resource} belongs to another master (process {first.pid} on {platform.node()}, " in second.err
    assert "give another --mw-resource-file" in second.err
    order(stage, "return", 0)
    first.finish()


def test_the_file_of_a_killed_master_is_free(stage: Stage) -> None:
    """Its lock ended with it. Slaves that it had started do not hold the lock."""
    first = obeying(stage, "--mw-local", 1)
    first.kill()
    second = obeying(stage)
    order(stage, "return", 0)
    second.finish()


def test_a_file_that_was_deleted_is_back_in_seconds(stage: Stage) -> None:
    obeying(stage)
    before = content(stage)
    stage.resource.unlink()
    until(stage.resource.exists, "the restored file")
    assert content(stage) == before | {"timestamp": content(stage)["timestamp"]}


# ---- the master writes --------------------------------------------------------------------------------------


def test_a_resource_file_says_finished_at_the_end(stage: Stage) -> None:
    """The file says `finished` even if slaves are still wanted, and for every return value of the master algorithm."""
    master = obeying(stage, "--mw-resource-file-update-interval", 100_000)
    order(stage, "allocate_slaves", 7, "ordered")
    before = until_it_says(stage, "slaves-needed", 7)
    assert before["computation-status"] == "in-progress"
    order(stage, "return", 9)
    assert master.end() == 9, master.err
    after = content(stage)
    assert after["timestamp"] > before["timestamp"]
    changed = {"computation-status": "finished", "slaves-needed": 0, "timestamp": after["timestamp"]}
    assert after == before | changed
    assert [path.name for path in stage.folder.iterdir() if path.name.startswith(".")] == []


# ---- an agent reads -----------------------------------------------------------------------------------------


def edited(stage: Stage, name: str, **values: object) -> Path:
    """Write a copy of the resource file with other values. The keywords are keys with underscores."""
    copy = stage.folder / name
    copy.write_text(json.dumps(content(stage) | {key.replace("_", "-"): value for key, value in values.items()}))
    return copy


def agent_of(stage: Stage, *arguments: object) -> Running:
    return stage.start("obey.py", "--mw-slave", *arguments)


def until_connected(stage: Stage, agent: Running) -> None:
    line = f"-> connected, host {platform.node()}, pid {agent.pid}\n"
    until(lambda: line in stage.audit.read_text() or agent.process.poll() is not None, "a connected agent")
    assert line in stage.audit.read_text(), agent.err


def test_an_agent_warns_about_an_old_resource_file_and_uses_it(stage: Stage) -> None:
    """The agent warns after three missed updates, but not after two."""
    master = obeying(stage, "--mw-resource-file-update-interval", 1000)
    now = time.time()
    quiet = ("--mw-audit-file", os.devnull)
    fresh = agent_of(stage, "--mw-resource-file", edited(stage, "fresh.rsc", timestamp=now - 2500), *quiet)
    stale = agent_of(stage, "--mw-resource-file", edited(stage, "stale.rsc", timestamp=now - 3500), *quiet)
    for agent in (fresh, stale):
        until_connected(stage, agent)
    order(stage, "return", 0)
    assert (master.end(), fresh.end(), stale.end()) == (0, 0, 0), fresh.err + stale.err
    assert fresh.err == ""
    [warning] = stale.err.splitlines()
    assert warning.startswith(f"mwpy: warning: {stage.folder / 'stale.rsc'} was written 58 min ago")
    assert "its master writes it every 17 min" in warning


def test_an_agent_in_a_job_is_known_by_its_job_id(stage: Stage) -> None:
    """The id is in the audit file, and in the resource file as an idle job. It disappears when the job ends."""
    obeying(stage, "--mw-resource-file-update-interval", 0.2)
    variables = {"MWPY_JOB": "17.3"}
    agent = stage.start("obey.py", "--mw-slave", "--mw-resource-file", stage.resource, variables=variables)
    until_it_says(stage, "connected-jobs", {"17.3": 0})
    assert len(stage.until_audited(f"pid {agent.pid}, job 17.3")) == 1
    agent.send(signal.SIGTERM)
    until_it_says(stage, "connected-jobs", {})


def test_each_option_before_or_after_the_resource_file_counts_alone(stage: Stage) -> None:
    """Only options after the file replace values of the file. This holds for each option alone."""
    master = obeying(stage)
    host, _, port = content(stage)["master-addresses"][0].removeprefix("tcp://").rpartition(":")
    closed = free_port()
    file = edited(stage, "port.rsc", master_addresses=[f"tcp://{host}:{closed}"])
    by_port = agent_of(stage, "--mw-master-host", NOT_HERE, "--mw-resource-file", file, "--mw-master-port", port)
    file = edited(stage, "host.rsc", master_addresses=[f"tcp://{NOT_HERE}:{port}"])
    by_host = agent_of(stage, "--mw-master-port", closed, "--mw-resource-file", file, "--mw-master-host", host)
    for agent in (by_port, by_host):
        until_connected(stage, agent)
    order(stage, "return", 0)
    assert (master.end(), by_port.end(), by_host.end()) == (0, 0, 0), by_port.err + by_host.err


def test_an_agent_with_the_file_of_an_older_generation_is_refused(stage: Stage) -> None:
    """Port and key are the same. Both sides name the generations, and the master waits for other agents."""
    key = ("--mw-key-file", stage.folder / "key")
    first = obeying(stage, *key)
    old = content(stage)
    port = old["master-addresses"][0].rpartition(":")[2]
    shutil.copy(stage.resource, stage.folder / "old.rsc")
    first.kill()
    stage.resource.unlink()
    master = obeying(stage, *key, "--mw-master-port", port)
    new = content(stage)
    assert (new["master-addresses"], new["keys"]) == (old["master-addresses"], old["keys"])
    assert new["generation"] != old["generation"]

    late = agent_of(stage, "--mw-resource-file", stage.folder / "old.rsc")
    assert late.end() == 3, late.err
    refusals = [line for line in stage.audit.read_text().splitlines() if "REFUSED" in line]
    assert len(refusals) == 1
    for text in (late.err, refusals[0]):
        assert f"generation {old['generation']}, this master is generation {new['generation']}" in text
    assert "Traceback" not in late.err
    fresh = stage.agent("obey.py")
    until_connected(stage, fresh)
    order(stage, "return", 0)
    assert (master.end(), fresh.end()) == (0, 0), master.err + fresh.err
