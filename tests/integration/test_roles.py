"""The roles as processes: how each begins and ends, what it prints, and its exit code."""

from __future__ import annotations

import ctypes
import json
import os
import re
import select
import signal
import socket
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.integration.apps.stage import PATIENCE_S, Running, Stage, free_port, until

from mwpy._transport.link import new_key


def one_line(process: Running) -> str:
    """Assert that a process ended with a usage error. Return its message."""
    assert process.end() == 2, process.err
    lines = process.err.splitlines()
    assert len(lines) == 1, process.err
    assert lines[0].startswith("mwpy: ")
    return lines[0]


def until_tasks_are_sent(stage: Stage, slaves: int) -> None:
    """Wait until a master has sent tasks to each of its slaves."""

    def sent() -> bool:
        trail = stage.audit.read_text() if stage.audit.exists() else ""
        return all(f"SLAVE-{number} <- " in trail for number in range(slaves))

    until(sent, f"tasks at {slaves} slaves")


# ---- Ctrl-C ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "line",
    [
        ("count.py", "--milliseconds", "1"),
        ("count.py", "--tasks", "8", "--milliseconds", "600000"),
        ("hold.py", "600"),
    ],
    ids=["quick tasks", "long tasks", "GIL held"],
)
@pytest.mark.parametrize("times", [1, 2])
def test_ctrl_c_ends_all_processes(stage: Stage, line: tuple[str, ...], times: int) -> None:
    """One or two Ctrl-C end the computation although its tasks take ten minutes or are endless, without a traceback.
    No process is left."""
    run = stage.start(*line, "--mw-audit-file", stage.audit)
    until_tasks_are_sent(stage, slaves=len(os.sched_getaffinity(0)))
    if line[0] == "hold.py":
        until((stage.folder / "holds").exists, "a task that holds the GIL")
    os.killpg(run.pid, signal.SIGINT)
    if times == 2:
        until(lambda: "interrupted" in run.err, lambda: f"an answer to the first Ctrl-C, not {run.err!r}")
        os.killpg(run.pid, signal.SIGINT)
    assert run.end() == 130, run.err
    assert "Traceback" not in run.err
    assert "KeyboardInterrupt" not in run.err
    stage.no_process_left()


# ---- slaves that cannot work -----------------------------------------------------------------------------


def test_a_script_that_slaves_cannot_import_is_reported_once(stage: Stage) -> None:
    """The master shows the remote traceback once, and the agent exits with 6."""
    master = stage.master("broken.py")
    agent = stage.agent("broken.py")
    assert agent.end() == 6, agent.err
    until(lambda: "no licence for slaves" in master.err, lambda: f"the reason, not {master.err!r}")
    until(lambda: "AGENT-0 -> left" in stage.audit.read_text(), "the end of the agent, after all that it sent")
    assert master.err.count('raise RuntimeError("no licence for slaves")') == 1, master.err
    assert master.err.count("Traceback (most recent call last)") == 1, master.err
    assert master.process.poll() is None


def published(stage: Stage) -> list[str]:
    """Return the command in the resource file that starts an agent."""
    document = json.loads(stage.resource.read_text())
    return [document["slave-executable"], *document["slave-arguments"]]


def test_a_script_that_cannot_be_imported_is_reported_at_the_master(stage: Stage) -> None:
    """The command in the resource file starts an agent that loads no script. It sends the output of its slaves."""
    master = stage.master("lacking.py")
    agent = stage.run("", program=published(stage), code=6)
    reason = "ModuleNotFoundError: No module named 'module_of_the_submit_machine'"
    until(lambda: reason in master.err, lambda: f"the reason, not {master.err!r}")
    assert "module_of_the_submit_machine" in agent.err
    stage.run("", "no_such.py", program=[*published(stage)[:4], "--mw-resource-file", str(stage.resource)], code=6)
    until(lambda: "can't open file" in master.err, lambda: f"the reason, not {master.err!r}")


def test_an_agent_serves_a_script_that_it_does_not_load(stage: Stage) -> None:
    """The agent's slaves run the script with its arguments, and run algorithms that are sent by name."""
    master = stage.master("count.py", "--tasks", 200)
    agent = stage.start("", program=published(stage))
    assert master.end() == 0, master.err
    assert master.report["came"] == 200
    assert agent.end() == 0, agent.err
    stage.no_process_left()


def test_local_slaves_of_a_master_that_returns_at_once_end(stage: Stage) -> None:
    """The agent connects during the shutdown and ends by itself."""
    run = stage.run("several.py", "idle", "--mw-local", 2, "--mw-audit-file", stage.audit)
    assert run.err == ""
    assert "FINI" in stage.audit.read_text()
    stage.no_process_left()


# ---- agents that find no master ----------------------------------------------------------------------------


def test_both_sides_report_a_wrong_member_id(stage: Stage) -> None:
    """An agent of another computation is refused with code 3. The agent and the master name both ids."""
    master = stage.master("count.py", "--tasks", 10, "--mw-member-id", "ours")
    stranger = stage.agent("count.py", "--mw-member-id", "theirs")
    assert stranger.end() == 3, stranger.err
    for text in (stranger.err, stage.audit.read_text() + master.err):
        assert "'theirs'" in text
        assert "'ours'" in text
    assert "Traceback" not in stranger.err
    assert master.process.poll() is None
    friend = stage.agent("count.py")
    assert master.end() == 0, master.err
    assert friend.end() == 0, friend.err


def test_an_agent_that_asks_for_the_client_timeout_is_refused_once(stage: Stage) -> None:
    key = stage.folder / "key"
    stage.master("count.py", "--tasks", 10, "--mw-key-file", key)
    host, _, port = address_in(stage.resource).rpartition(":")
    where = ("--mw-master-host", host, "--mw-master-port", port, "--mw-key-file", key, "--mw-member-id", "theirs")
    stranger = stage.run("count.py", "--mw-slave", *where, code=3)
    assert len(stranger.err.splitlines()) == 1, stranger.err
    assert "'theirs'" in stranger.err
    assert len(stage.until_audited("'theirs'")) == 1


def test_a_wrong_key_is_refused(stage: Stage) -> None:
    """An agent with another key exits with 3 and prints one line. The audit file of the master records a stranger."""
    master = stage.master("count.py", "--tasks", 10)
    wrong = stage.folder / "wrong.key"
    wrong.write_text(new_key() + "\n")
    host, _, port = address_in(stage.resource).rpartition(":")
    line = ("--mw-slave", "--mw-master-host", host, "--mw-master-port", port, "--mw-key-file", wrong)
    stranger = stage.run("count.py", *line, code=3)
    assert len(stranger.err.splitlines()) == 1, stranger.err
    assert "the process that listens there has other keys" in stranger.err
    continues_without(stage, master, "it has the keys of another computation")


def address_in(resource: Path) -> str:
    """Return the first address of a master, `HOST:PORT`."""
    address: str = json.loads(resource.read_text())["master-addresses"][0]
    return address.removeprefix("tcp://")


def continues_without(stage: Stage, master: Running, why: str) -> None:
    """Assert that a master recorded one stranger, accepted no agent so far, and accepts a proper agent.

    The address of the stranger is unknown if its connection was closed before the master examined it.
    """
    until(lambda: "REFUSED" in stage.audit.read_text(), lambda: f"a refusal, not {stage.audit.read_text()}")
    assert master.process.poll() is None
    [refusal] = [line for line in stage.audit.read_text().splitlines() if "REFUSED" in line]
    assert re.search(rf"REFUSED (127\.0\.0\.1|unknown address): a stranger: {why}", refusal), refusal
    assert "-> connected" not in stage.audit.read_text()
    friend = stage.agent("count.py")
    assert (master.end(), friend.end()) == (0, 0), master.err + friend.err
    assert master.report["came"] == 10


@pytest.mark.parametrize("has_address", [True, False])
def test_an_agent_without_a_master_reports_it(stage: Stage, has_address: bool) -> None:
    """If the file has no address, or nothing listens there, the agent exits with 4 and prints one line."""
    stage.master("count.py", "--tasks", 10).send(signal.SIGKILL)
    addresses = [f"tcp://127.0.0.1:{free_port()}"] if has_address else []
    document = json.loads(stage.resource.read_text())
    stage.resource.write_text(json.dumps(document | {"master-addresses": addresses}))
    agent = stage.agent("count.py")
    assert agent.end() == 4, agent.err
    [line] = agent.err.splitlines()
    assert all(address in line for address in addresses)


@pytest.mark.parametrize("line", [("count.py", "--milliseconds", "1"), ("hold.py", "600")], ids=["quick", "GIL held"])
def test_an_agent_ends_after_its_master_is_killed(stage: Stage, line: tuple[str, ...]) -> None:
    """After SIGKILL of the master, its agents exit with 255, which keeps their jobs in the queue."""
    master = stage.master(*line, "--mw-client-timeout", 2)
    agent = stage.agent(*line, "--mw-client-timeout", 2, "--mw-reconnect-seconds", 1)
    until_tasks_are_sent(stage, slaves=1)
    if line[0] == "hold.py":
        until((stage.folder / "holds").exists, "a task that holds the GIL")
    master.send(signal.SIGKILL)
    assert agent.end() == 255, agent.err
    assert "Traceback" not in agent.err
    assert "lost" in agent.err
    stage.no_process_left()


def test_an_agent_of_a_finished_computation_exits_with_0(stage: Stage) -> None:
    """If the resource file says `finished`, an agent exits with 0 at once."""
    master = stage.master("count.py", "--tasks", 10)
    first = stage.agent("count.py")
    assert (master.end(), first.end()) == (0, 0), master.err + first.err
    late = stage.agent("count.py")
    assert late.end() == 0, late.err
    assert "finished" in late.err
    command = [sys.executable, "-m", "mwpy", "slave", "no_such.py", "--mw-resource-file", str(stage.resource)]
    missing = stage.run("", program=command, code=2)
    assert "there is no script no_such.py" in missing.err


def test_an_agent_of_an_interrupted_computation_stays_queued(stage: Stage) -> None:
    """After Ctrl-C on a master, its agents do not exit with 0, and the file does not say `finished`."""
    master = stage.master("count.py", "--milliseconds", 1)
    agent = stage.agent("count.py")
    until_tasks_are_sent(stage, slaves=1)
    master.send(signal.SIGINT)
    assert master.end() == 130, master.err
    assert agent.end() == 255, agent.err
    assert json.loads(stage.resource.read_text())["computation-status"] == "in-progress"


# ---- bad input ----------------------------------------------------------------------------------------------


def test_a_port_in_use_is_reported_in_one_line(stage: Stage) -> None:
    """A master with a port in use names the port and exits with 2."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        line = ("--mw-master-port", port, "--mw-master-host", "127.0.0.1")
        assert str(port) in one_line(stage.start("count.py", "--tasks", 1, *line))


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1", "*", "0.0.0.0"])
def test_a_master_host_can_be_a_name_an_address_or_all_addresses(stage: Stage, host: str) -> None:
    """The published address works, also for local slaves."""
    run = stage.run("count.py", "--tasks", 5, "--mw-local", 1, "--mw-master-host", host, "--mw-audit-file", "-")
    assert "tcp://*" not in run.out
    assert "tcp://0.0.0.0" not in run.out


@contextmanager
def readings(path: Path) -> Iterator[Callable[[], None]]:
    """Yield a function that waits until a process has read the file. It uses inotify."""
    libc = ctypes.CDLL(None)
    closed_after_reading = 0x10
    with os.fdopen(libc.inotify_init1(os.O_CLOEXEC), "rb", buffering=0) as events:
        libc.inotify_add_watch(events.fileno(), bytes(path), closed_after_reading)

        def wait() -> None:
            while select.select([events], [], [], 0)[0]:
                events.read(4096)
            assert select.select([events], [], [], PATIENCE_S)[0], f"no process read {path}"

        yield wait


def test_a_resource_file_that_appears_late_and_in_part_is_read_again(stage: Stage) -> None:
    """A network file system can show a new file late or in part. The slave joins the computation anyway."""
    master = stage.master("count.py", "--tasks", 10)
    shown = stage.folder / "shown.rsc"
    content = stage.resource.read_bytes()
    shown.touch()
    with readings(shown) as until_read:
        agent = stage.start("count.py", "--mw-slave", "--mw-resource-file", shown, "--mw-audit-file", os.devnull)
        until_read()
        shown.write_bytes(content[: len(content) // 2])
        until_read()
        shown.write_bytes(content)
    assert agent.end() == 0, agent.err
    assert agent.err == ""
    assert master.end() == 0, master.err


def test_an_empty_key_file_is_reported_in_one_line(stage: Stage) -> None:
    """A master or agent with an empty key file names the file and exits with 2."""
    key = stage.folder / "empty.key"
    key.touch()
    where = ("--mw-master-host", "127.0.0.1", "--mw-master-port", free_port(), "--mw-key-file", key)
    for role in ("--mw-slave", "--mw-master"):
        assert str(key) in one_line(stage.start("count.py", role, *where))
