"""A member with the right keys that misbehaves is dropped and recorded, and the other agents continue."""

from __future__ import annotations

import json
import os
import random
import re
from collections.abc import Sequence
from typing import TypeVar

import pytest
from msgspec.structs import replace
from tests.integration.apps.stage import Running, Stage, until
from tests.loopback import Agent, Loopback

from mwpy._transport import wire
from mwpy._transport.codec import Codec, loads_call
from mwpy._transport.link import CurvePair
from mwpy._values import groups, messages
from mwpy._values.bounds import Buffer
from mwpy._values.causes import Cause

M = TypeVar("M", bound=messages.Message)

READY = wire.encode(messages.SlaveReady(1))
RESULTS = wire.encode(messages.Results(1, [1], [1], [1], [0.1], []), [groups.payload(1, [b"\x05"])])
GOODBYE = wire.encode(messages.Goodbye("enough", Cause.EVICTED))
TASKS = wire.encode(messages.Tasks(1, [], [], [], []), [groups.payload(0, [])])
HELLO: list[Buffer] = [b"the first message of a member once more"]
"""A placeholder for the Hello message, which depends on the stage."""

CASES: list[tuple[list[list[Buffer]], str]] = [
    ([[b"nonsense"]], f"protocol version 110 there, {messages.PROTOCOL_VERSION} here"),
    ([[bytes(RESULTS[0][:2]) + random.Random(1).randbytes(1000)]], "a malformed Results"),
    ([TASKS], "Tasks is not for a master"),
    ([READY, RESULTS[:1]], "Results: 0 payload frames, but 1 are expected"),
    ([HELLO], "a second Hello on one connection"),
    ([READY, READY], "slave 1 is ready twice"),
    ([READY, GOODBYE, READY], "SlaveReady before Hello"),
]
"""Garbage, a message that lacks its end, and messages at the wrong time."""


def hello_of(stage: Stage, session: str = "", slaves: int = 1) -> list[Buffer]:
    document = json.loads(stage.resource.read_text())
    who = document["member-id"], document["generation"], "here", os.getpid()
    return wire.encode(messages.Hello(*who, "3.11", slaves, session=session, returns_s=60.0 if session else 0.0))


def member(stage: Stage, ends: Loopback, session: str = "", slaves: int = 1) -> Agent:
    """Return an agent that read the resource file and was accepted."""
    document = json.loads(stage.resource.read_text())
    keys = document["keys"]
    agent = ends.agent(
        int(document["master-addresses"][0].rpartition(":")[2]),
        server=keys["server-public"],
        member=CurvePair(keys["member-public"], keys["member-secret"]),
    )
    agent.link.send(hello_of(stage, session, slaves))
    ends.until(lambda: received(agent, messages.Welcome), "welcome")
    return agent


def received(agent: Agent, kind: type[M]) -> list[tuple[M, Sequence[Buffer]]]:
    """Return the messages of a kind that the master has sent so far."""
    decoded = [wire.decode(message) for message in agent.messages]
    return [(message, payload) for message, payload in decoded if isinstance(message, kind)]


def refusals(stage: Stage) -> list[str]:
    """Return the lines of the master's audit file about refused and dropped members."""
    return [line for line in stage.audit.read_text().splitlines() if " REFUSED " in line or " DROPPED " in line]


def all_came_once(stage: Stage, master: Running, agents: Sequence[Running]) -> None:
    """Assert that a master and its proper agents end as if nothing had happened."""
    assert [each.end() for each in (master, *agents)] == [0] * (1 + len(agents)), master.err
    report = master.report
    assert (report["twice"], report["wrong"], report["unrunnable"]) == ([], [], [])
    assert report["came"] == report["submitted"]
    assert "Traceback" not in master.err
    assert stage.audited("-> lost") == []
    stage.no_process_left()


def test_a_member_that_sends_malformed_messages_is_dropped_and_others_continue(stage: Stage, ends: Loopback) -> None:
    """Each member gets the reason and is then ignored. The audit file has one line for each, and all results arrive."""
    go = stage.folder / "go"
    master = stage.master("count.py", "--tasks", 300, "--milliseconds", 1, "--after", go)
    agents = [stage.agent("count.py") for _ in range(2)]
    until(lambda: len(stage.audited("-> idle")) == 2, "two slaves")
    known = len(stage.audited("-> connected"))
    for number, (sent, why) in enumerate(CASES, 1):
        bad = member(stage, ends)
        for message in sent:
            bad.link.send(hello_of(stage) if message is HELLO else message)
        ends.until(lambda: received(bad, messages.Refused), f"refusal because {why}")  # noqa: B023
        [(refused, _)] = received(bad, messages.Refused)
        assert refused.reason.startswith(f"protocol error: {why}")
        until(lambda: len(refusals(stage)) == number, f"a line that says {why}")  # noqa: B023
        outcome = "REFUSED 127.0.0.1" if "before Hello" in why else f"DROPPED AGENT-{known + number - 1}"
        assert f"[A] {outcome}: {why}" in refusals(stage)[-1]
        bad.link.send([b"nonsense"])
        bad.link.send(hello_of(stage))
        bad.link.send(READY)
    go.touch()
    all_came_once(stage, master, agents)
    assert len(refusals(stage)) == len(CASES)
    assert len(stage.audited("-> connected")) == known + len(CASES)


def test_a_member_that_answers_twice_and_is_dropped_neither_loses_nor_doubles_a_task(
    stage: Stage, ends: Loopback
) -> None:
    """The member's result counts once, and other slaves run the tasks that it held when it was dropped."""
    master = stage.master("count.py", "--tasks", 200, "--milliseconds", 1)
    bad = member(stage, ends)
    bad.link.send(READY)
    ends.until(lambda: received(bad, messages.Tasks), "a task")
    [(first, payload)] = received(bad, messages.Tasks)
    assert first.counts == [1]
    (number, _), _ = loads_call(groups.entries(first, payload)[0][0])
    value, _ = Codec().dumps_value((number, os.getpid()))
    answer = wire.encode(
        messages.Results(1, first.tasks, [1], first.attempts, [0.001], []), [groups.payload(1, [value])]
    )
    bad.link.send(answer)
    bad.link.send(answer)
    ends.until(lambda: len(received(bad, messages.Tasks)) > 1, "more tasks")
    assert len(stage.until_audited("SLAVE-0 -> 1 result")) == 1
    bad.link.send(answer)
    bad.link.send(answer[:1])
    ends.until(lambda: received(bad, messages.Refused), "refusal")
    held = sum(sum(group.counts) for group, _ in received(bad, messages.Tasks)) - 1
    until(lambda: bool(stage.audited("SLAVE-0 -> gone")), "the end of the slave in the audit file")
    assert len(stage.audited("DROPPED AGENT-0: Results: 0 payload frames")) == 1
    back = [re.search(r"SLAVE-0 -> (\d+) tasks? back", line) for line in stage.audited("SLAVE-0 -> ")]
    assert sum(int(found[1]) for found in back if found) == held
    agents = [stage.agent("count.py") for _ in range(2)]
    all_came_once(stage, master, agents)
    assert master.report["submitted"] == 200
    assert len([line for line in stage.audited("SLAVE-0 -> ") if "result" in line]) == 1


def test_a_member_that_names_the_session_of_another_one_does_not_get_it(stage: Stage, ends: Loopback) -> None:
    """Both connections can end in any order, and the master and the other agents continue."""
    go = stage.folder / "go"
    master = stage.master("count.py", "--tasks", 100, "--after", go)
    document = json.loads(stage.resource.read_text())
    hello = messages.Hello(document["member-id"], document["generation"], "here", os.getpid(), "3.11", 1)
    keys = document["keys"]
    port = int(document["master-addresses"][0].rpartition(":")[2])
    pair = CurvePair(keys["member-public"], keys["member-secret"])
    for order in (0, 1), (1, 0):
        members = [ends.agent(port, server=keys["server-public"], member=pair) for _ in order]
        for agent in members:
            agent.link.send(wire.encode(replace(hello, session=f"a session {order}", returns_s=60.0)))
        ends.until(lambda members=members: all(received(each, messages.Welcome) for each in members), "welcome")  # type: ignore[misc]
        for at in order:
            lost = len(stage.audited("-> lost"))
            ends.close(members[at])
            until(lambda lost=lost: len(stage.audited("-> lost")) > lost, "the loss")  # type: ignore[misc]
    go.touch()
    proper = stage.agent("count.py")
    assert [master.end(), proper.end()] == [0, 0], master.err
    assert master.report["came"] == 100


LARGE = """
import sys
import mwpy

BYTES, TASKS = 1 << 20, 400

@mwpy.task_algorithm
def size(shared: list[int], own: bytes) -> int:
    return len(shared) + len(own)

@mwpy.master_algorithm
def master(mw: mwpy.Master, argv: list[str]) -> int:
    shared = mw.share([*range(BYTES)])
    sizes = [*mw.map(size, [shared] * TASKS, (bytes(BYTES) for _ in range(TASKS)))]
    print(sizes == [2 * BYTES] * TASKS)
    return 0

if __name__ == "__main__":
    sys.exit(mwpy.main())
"""
"""Each task has large arguments and a shared object."""


@pytest.mark.parametrize("reads", [False, True], ids=["reads nothing", "confirms nothing"])
def test_a_member_for_which_too_much_waits_is_dropped(stage: Stage, ends: Loopback, reads: bool) -> None:
    """It asks for a shared object again and again, or it answers its tasks and never confirms that it got them. The
    reason is audited and shown, and its tasks run elsewhere."""
    (stage.folder / "large.py").write_text(LARGE)
    master = stage.master(str(stage.folder / "large.py"))
    bad = member(stage, ends, "a session")
    bad.link.send(READY)
    ends.until(lambda: received(bad, messages.Tasks), "a task")
    [(first, _)] = received(bad, messages.Tasks)
    value, _ = Codec().dumps_value(2 << 20)
    for _ in range(0 if reads else 400):
        bad.link.send(wire.encode(messages.ShareWanted(first.shares[0].digest, 0)))
    while reads and not stage.audited("DROPPED") and master.process.poll() is None:
        bad.turn()
        for group, _ in received(bad, messages.Tasks):
            count = sum(group.counts)
            result = messages.Results(1, group.tasks, group.counts, group.attempts, [0.001] * count, [])
            bad.link.send(wire.encode(result, [groups.payload(count, [value] * count)]))
        bad.messages.clear()
    [dropped] = stage.until_audited("DROPPED AGENT-0: ")
    assert "wait for it, because it reads nothing or does not confirm what it reads" in dropped
    until(lambda: "is dropped, and its tasks run elsewhere" in master.err, "the reason on the screen")
    agent = stage.agent(str(stage.folder / "large.py"))
    assert [master.end(), agent.end()] == [0, 0], (master.err, agent.err)
    assert master.out == "True\n"


@pytest.mark.parametrize("first", [True, False], ids=["before the others", "beside the others"])
def test_a_member_that_joins_and_vanishes_again_and_again_makes_no_task_unrunnable(
    stage: Stage, ends: Loopback, first: bool
) -> None:
    """It takes tasks each time, and finishes none. Those that were at three such agents run alone at a proper one."""
    master = stage.master("count.py", "--tasks", 60, "--milliseconds", 50)
    agents = [] if first else [stage.agent("count.py")]
    for _ in range(12):
        bad = member(stage, ends, slaves=5)
        for number in range(1, 6):
            bad.link.send(wire.encode(messages.SlaveReady(number)))
        ends.until(lambda bad=bad: received(bad, messages.Tasks) or master.process.poll() is not None, "tasks")  # type: ignore[misc]
        lost = len(stage.audited("-> lost"))
        ends.close(bad)
        until(lambda lost=lost: len(stage.audited("-> lost")) > lost or master.process.poll() is not None, "its end")  # type: ignore[misc]
    agents = agents or [stage.agent("count.py")]
    assert [each.end() for each in (master, *agents)] == [0, 0], master.err
    assert (master.report["unrunnable"], master.report["came"], master.report["twice"]) == ([], 60, [])
