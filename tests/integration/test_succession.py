"""A master that is killed while agents live on: they bring the next generation what its slaves have finished."""

from __future__ import annotations

import json
import shutil
import signal
import socket
import sqlite3
import stat
import time
from contextlib import closing

from msgspec.structs import replace
from tests.integration.apps.stage import Running, Stage, free_port, until
from tests.integration.test_bad_member import member, received
from tests.loopback import Agent, Loopback

from mwpy import resource_file
from mwpy._roles.sessions import SAY_BYTES
from mwpy._transport import wire
from mwpy._transport.codec import Codec
from mwpy._transport.link import MasterLink, member_keys, new_key, server_keys
from mwpy._values import groups, messages
from mwpy._values.connections import Frames
from mwpy._values.messagepack import encode

SCRIPT = """
import json, sys, time
from pathlib import Path
import mwpy
def work(number):
    raise AssertionError("no task runs in this test")
@mwpy.master_algorithm
def master(mw, argv):
    first = [mw.submit(mwpy.task(work, number), tag=number) for number in range(3)]
    while not Path("go").exists():
        time.sleep(0.01)
    later = [mw.submit(mwpy.task(work, number), tag=number) for number in range(3, 6)]
    found = {}
    while len(found) < 6:
        mw.loop()
        for result in mw.results():
            found[result.tag] = [result.value if result.ok else "failed", result.sid, result.host]
    print(json.dumps(found))
    return 0
sys.exit(mwpy.main())
"""


def _start(stage: Stage, script: str = SCRIPT, *arguments: object) -> Running:
    stage.resource.unlink(missing_ok=True)
    started = stage.script(
        *("--mw-master", "--mw-resource-file", stage.resource, "--mw-audit-file", stage.audit),
        *("--mw-master-host", "127.0.0.1", "--mw-slave-task-group", "6", "--mw-run-database", "run.db"),
        *arguments,
        text=script,
    )
    until(lambda: stage.resource.exists() or started.process.poll() is not None, "a resource file")
    assert stage.resource.exists(), started.err
    return started


def _generation(stage: Stage) -> str:
    return str(json.loads(stage.resource.read_text())["generation"])


def _bring(agent: Agent, generation: str, tasks: list[int]) -> None:
    """An agent brings the results of tasks: ten times the id, and a failure of task 2."""
    count = len(tasks)
    failed = [tasks.index(2)] if 2 in tasks else []
    results = messages.Results(1, tasks, [1] * count, [1] * count, [0.5] * count, failed)
    failure = Codec().dumps_failure(ValueError("no"))
    entries = [failure if task == 2 else encode(10 * task) for task in tasks]
    message = messages.Handover(generation, "SLAVE-0", results)
    agent.link.send(wire.encode(message, [groups.payload(count, entries)]))


def _fed(stage: Stage, ends: Loopback, tasks: int) -> Agent:
    """An agent whose slave has got tasks, which are in the file."""
    agent = member(stage, ends)
    agent.link.send(wire.encode(messages.SlaveReady(1)))
    ends.until(lambda: sum(sum(each.counts) for each, _ in received(agent, messages.Tasks)) == tasks, "tasks")
    until(lambda: _sent(stage) == tasks, "the tasks in the file, and that this agent has them")
    return agent


def _sent(stage: Stage) -> int:
    """How many tasks of the last generation were sent to slaves, as far as this is in the run database."""
    query = "SELECT sum(count) FROM allocations WHERE generation = (SELECT max(generation) FROM generations)"
    with closing(sqlite3.connect(f"file:{stage.folder / 'run.db'}?mode=ro", uri=True)) as reading:
        return int(reading.execute(query).fetchone()[0] or 0)


def test_an_agent_that_outlives_its_master_brings_its_results_to_the_next_generation(
    stage: Stage, ends: Loopback
) -> None:
    """The agent speaks the protocol itself, and no task runs. Some tasks are submitted again before it comes, and some
    later. The second generation is killed, too, when the results are in the file, and the third one has them
    without any agent."""
    (stage.folder / "go").touch()
    first = _start(stage)
    generation = _generation(stage)
    _fed(stage, ends, 6)
    first.kill()
    (stage.folder / "go").unlink()
    second = _start(stage)
    agent = _fed(stage, ends, 3)
    _bring(agent, generation, [6, 1, 2, 4, 5])
    ends.until(lambda: received(agent, messages.Cancel), "the order to kill tasks that are answered")
    [(order, _)] = received(agent, messages.Cancel)
    assert [
        task for first, count in zip(order.tasks, order.counts, strict=True) for task in range(first, first + count)
    ] == [1, 2]
    second.kill()
    (stage.folder / "go").touch()
    third = _start(stage)
    agent = member(stage, ends)
    _bring(agent, generation, [3, 6])
    third.finish()
    expected = {str(task - 1): ["failed" if task == 2 else 10 * task, "SLAVE-0", "here"] for task in range(1, 7)}
    assert third.report == expected
    assert len(stage.until_audited("AGENT-0 -> 1 result of SLAVE-0 in generation 1")) == 1


def test_an_agent_keeps_a_result_until_the_run_database_has_it(stage: Stage, ends: Loopback) -> None:
    """The file is locked, so nothing can be written. Meanwhile, the master handles a large result and answers later
    messages."""
    (stage.folder / "go").touch()
    master = _start(stage)
    agent = member(stage, ends, session="a session", slaves=3)
    agent.link.send(wire.encode(messages.SlaveReady(1)))
    ends.until(lambda: received(agent, messages.Tasks), "tasks")
    until(lambda: _sent(stage) == 6, "the tasks in the file")
    with closing(sqlite3.connect(stage.folder / "run.db", isolation_level=None)) as locking:
        locking.execute("BEGIN IMMEDIATE")
        large = groups.payload(1, [encode("x" * SAY_BYTES)])
        agent.link.send(wire.encode(messages.Results(1, [1], [1], [1], [0.5], []), [large]))
        agent.link.send(wire.encode(messages.SlaveReady(2)))
        ends.until(lambda: len(received(agent, messages.SlaveNamed)) == 2, "an answer")
        agent.link.send(wire.encode(messages.SlaveReady(3)))
        ends.until(lambda: len(received(agent, messages.SlaveNamed)) == 3, "another answer")
        assert received(agent, messages.Handled) == []
        locking.execute("ROLLBACK")
    ends.until(lambda: received(agent, messages.Handled), "what was handled")
    master.kill()


SUM = """
import json, os, sys, time
from pathlib import Path
import mwpy
from tests.integration.apps.restarted import append
def work(number):
    append("ran", f"{number}:{os.getpid()}")
    WAIT
    return number
@mwpy.master_algorithm
def master(mw, argv):
    for number in range(COUNT):
        mw.submit(mwpy.task(work, number), tag=number)
    found = []
    while len(found) < COUNT:
        mw.loop()
        for result in mw.results():
            append("seen", result.value)
            found.append(result.value)
    print(json.dumps(sum(found)))
    return 0
sys.exit(mwpy.main())
"""

LONG = SUM.replace("COUNT", "400").replace("WAIT", "time.sleep(0.02)")

STEADY = SUM.replace("COUNT", "40").replace(
    "WAIT",
    """while number in (0, 20) and not Path("finish").exists():
        time.sleep(0.01)""",
)


def test_an_agent_goes_on_looking_if_the_next_master_dies_before_it_accepts_the_agent(stage: Stage) -> None:
    """The results that it brings are not lost."""
    first = _start(stage, LONG)
    agent = stage.script("--mw-slave", "--mw-resource-file", stage.resource, "--mw-client-timeout", "5")
    until(lambda: len(stage.lines("seen")) > 50, "results")
    first.kill()
    key = new_key()
    second = MasterLink("127.0.0.1", 0, key, 30.0, 1 << 20, [b"probe"])
    address, member_pair = f"tcp://127.0.0.1:{second.port}", member_keys(key)
    keys = resource_file.MemberKeys(server_keys(key).public, member_pair.public, member_pair.secret)
    left = resource_file.read(stage.resource)
    resource_file.write(
        stage.resource, replace(left, generation="short", master_addresses=(address,), keys=keys, timestamp=time.time())
    )
    until(lambda: any(isinstance(each, Frames) for each in second.poll(0.1, time.monotonic())), "a Hello")
    second.close(0.0)
    third = _start(stage, LONG).finish()
    agent.finish()
    assert third.report == sum(range(400))


def test_agents_of_a_killed_master_join_its_next_generation_and_bring_what_they_finished(stage: Stage) -> None:
    """They are the same processes, and most tasks run once."""
    first = _start(stage, LONG)
    command = ("--mw-slave", "--mw-resource-file", stage.resource, "--mw-client-timeout", "5")
    agents = [stage.script(*command) for _ in range(2)]
    until(lambda: len(stage.lines("seen")) > 50, "results")
    first.kill()
    second = _start(stage, LONG).finish()
    assert [agent.end() for agent in agents] == [0, 0], agents[0].err
    assert second.report == sum(range(400))
    assert len({line.split(":")[0] for line in stage.lines("ran")}) == 400
    assert all("the master was started again" in agent.err for agent in agents)
    assert stage.until_audited("in generation 1")


PATIENT = """
import json, os, sys, time
from pathlib import Path
import mwpy
from tests.integration.apps.restarted import append
state = {"runs": 0}
def work(number):
    state["runs"] += 1
    append("ran", f"{number}:{os.getpid()}")
    while number == 0 and not Path("finish").exists():
        time.sleep(0.01)
    return [number, state["runs"], os.getpid()]
@mwpy.master_algorithm
def master(mw, argv):
    numbers = [0, *range(1000, 1003)] if Path("life").exists() else range(4)
    for number in numbers:
        mw.submit(mwpy.task(work, number), tag=number)
    found = []
    while len(found) < 4:
        mw.loop()
        for result in mw.results():
            found.append([*result.value, result.sid])
    print(json.dumps(found))
    return 0
sys.exit(mwpy.main())
"""


def test_a_task_that_runs_when_its_master_dies_finishes_in_its_slave_which_then_serves_the_next_generation(
    stage: Stage,
) -> None:
    first = _start(stage, PATIENT)
    command = ("--mw-slave", "--mw-resource-file", stage.resource, "--mw-client-timeout", "5")
    agent = stage.script(*command, "--mw-slave-processes", "1")
    until(lambda: bool(stage.lines("ran")), "a running task")
    [running] = stage.lines("ran")
    first.kill()
    (stage.folder / "life").touch()
    second = _start(stage, PATIENT)
    until(lambda: "back at the master" in agent.err, "the agent at the second master")
    (stage.folder / "finish").touch()
    second.finish()
    agent.finish()
    pid = int(running.split(":")[1])
    assert stage.lines("ran") == [running, *(f"{number}:{pid}" for number in range(1000, 1003))]
    later = [[1000 + each, 2 + each, pid, "SLAVE-0"] for each in range(3)]
    assert sorted(second.report) == [[0, 1, pid, "SLAVE-0"], *later]


def test_an_agent_whose_resource_file_is_a_copy_finds_the_next_master(stage: Stage) -> None:
    """As in a job of HTCondor. The master has a run database, and no option for its port or its key. Nobody else can
    read where it keeps them."""
    first = _start(stage, PATIENT)
    copy = shutil.copy(stage.resource, stage.folder / "copy.rsc")
    agent = stage.script("--mw-slave", "--mw-resource-file", copy, "--mw-slave-processes", "1")
    until(lambda: bool(stage.lines("ran")), "a running task")
    before = resource_file.read(stage.resource)
    first.kill()
    (stage.folder / "life").touch()
    second = _start(stage, PATIENT)
    until(lambda: "back at the master" in agent.err, "the agent at the second master")
    after = resource_file.read(stage.resource)
    assert (before.keys, before.master_addresses) == (after.keys, after.master_addresses)
    assert stat.S_IMODE((stage.folder / "run.db.keys").stat().st_mode) == 0o600
    (stage.folder / "finish").touch()
    second.finish()
    agent.finish()
    assert len(stage.lines("ran")) == len(second.report) == 4


def test_a_master_whose_former_port_is_taken_or_whose_keys_others_can_read_takes_others(stage: Stage) -> None:
    first = _start(stage, PATIENT)
    before = resource_file.read(stage.resource)
    first.kill()
    (stage.folder / "run.db.keys").chmod(0o644)
    second = _start(stage, PATIENT)
    assert resource_file.read(stage.resource).keys != before.keys
    second.kill()
    left = resource_file.read(stage.resource)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", int(left.master_addresses[0].rpartition(":")[2])))
        taken.listen()
        _start(stage, PATIENT)
        now = resource_file.read(stage.resource)
        assert (now.keys, now.master_addresses != left.master_addresses) == (left.keys, True)


def test_an_old_resource_file_does_not_lead_an_agent_back_to_a_former_generation(stage: Stage) -> None:
    """As a network file system may show it. The agent stays with its task, and goes on where it was."""
    seen, old = stage.folder / "seen.rsc", stage.folder / "old.rsc"
    short = "--mw-client-timeout", "2"
    first = _start(stage, PATIENT, *short)
    shutil.copy(stage.resource, old)
    shutil.copy(stage.resource, seen)
    agent = stage.script("--mw-slave", "--mw-resource-file", seen, "--mw-slave-processes", "1", *short)
    until(lambda: bool(stage.lines("ran")), "a running task")
    first.kill()
    (stage.folder / "life").touch()
    second = _start(stage, PATIENT, *short)
    shutil.copy(stage.resource, seen)
    until(lambda: agent.err.count("back at the master") == 1, "the agent at the second master")
    shutil.copy(old, seen)
    second.send(signal.SIGSTOP)
    until(lambda: agent.err.count("looking for it") == 2, "an agent that looks for its master")
    second.send(signal.SIGCONT)
    until(lambda: agent.err.count("back at the master") == 2, "the agent at the second master again")
    shutil.copy(stage.resource, seen)
    (stage.folder / "finish").touch()
    second.finish()
    agent.finish()
    assert len(stage.lines("ran")) == len(second.report) == 4
    assert agent.err.count("the master was started again") == 1


def _listens(port: int) -> bool:
    with socket.socket() as client:
        return client.connect_ex(("127.0.0.1", port)) == 0


def _start_at(stage: Stage, port: int, *arguments: object) -> Running:
    """Start the script at a port, without a resource file."""
    started = stage.script(
        *("--mw-master", "--mw-master-host", "127.0.0.1", "--mw-master-port", port, "--mw-key-file", "key"),
        *("--mw-audit-file", stage.audit, "--mw-slave-task-group", "1", *arguments),
        text=STEADY,
    )
    until(lambda: _listens(port) or started.process.poll() is not None, "a master that listens")
    assert started.process.poll() is None, started.err
    return started


def _agent_of(stage: Stage, port: int) -> Running:
    """Start an agent with two slaves that only knows the address of its master."""
    where = ("--mw-master-host", "127.0.0.1", "--mw-master-port", port, "--mw-key-file", "key")
    return stage.script("--mw-slave", *where, "--mw-slave-processes", "2")


def test_slaves_that_only_know_the_address_of_their_master_serve_its_next_generation(stage: Stage) -> None:
    """Each slave finishes the task that it ran. They are the same processes, and no task runs twice."""
    port = free_port()
    first = _start_at(stage, port, "--mw-run-database", "run.db")
    agent = _agent_of(stage, port)
    until(lambda: len(stage.lines("seen")) == 19 and len(stage.lines("ran")) == 21, "two tasks that do not end")
    slaves = {line.split(":")[1] for line in stage.lines("ran")}
    first.kill()
    second = _start_at(stage, port, "--mw-run-database", "run.db")
    until(lambda: "back at the master" in agent.err, "the agent at the second master")
    (stage.folder / "finish").touch()
    second.finish()
    agent.finish()
    ran = [line.split(":") for line in stage.lines("ran")]
    assert sorted(int(number) for number, _ in ran) == [*range(40)]
    assert {pid for _, pid in ran} == slaves
    assert len(slaves) == 2
    assert second.report == sum(range(40))
    assert "the master was started again: this agent joins its next generation" in agent.err


def test_an_agent_leaves_if_another_computation_has_the_address_of_its_master(stage: Stage) -> None:
    """The master refuses it in one line: it could run nothing there."""
    port = free_port()
    first = _start_at(stage, port)
    agent = _agent_of(stage, port)
    until(lambda: len(stage.lines("seen")) == 19, "results")
    first.kill()
    _start_at(stage, port, "--mw-member-id", "another")
    assert agent.end() == 3, agent.err
    assert "member id 'default-member-id' is not this master's 'another'" in agent.err
