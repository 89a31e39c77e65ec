"""Shared objects at an agent: what it asks the master for, gives to its slaves and drops."""

from __future__ import annotations

import pytest
from msgspec.structs import replace
from tests.driven_agent import agent, heard, results, slave_heard, tasks, with_slaves

from mwpy._core.agent.child import (
    AgentEvent,
    DropShare,
    Heard,
    OpenShare,
    ShareNotKept,
    ShareOpened,
    SlaveHeard,
    WriteShare,
)
from mwpy._core.agent.core import AgentCore
from mwpy._values import groups, messages
from mwpy._values.messages import PART_BYTES, Share

SMALL = Share("small", 1000, "at the master")
LARGE = Share("large", 6 * PART_BYTES + 1, "at the master")


def opened(share: Share, complete: bool = False) -> ShareOpened:
    return ShareOpened(replace(share, location="here"), complete)


def part(share: Share, start: int) -> Heard:
    return heard(messages.SharePart(share.digest, start), bytes(min(PART_BYTES, share.size - start)))


def needing(task: int, *shares: Share, slave: int = 1) -> Heard:
    """A task that needs shared objects, as it arrives."""
    return tasks(task, slave=slave, shares=[*shares])


@pytest.fixture
def core() -> AgentCore:
    """An agent with two slaves, which are ready."""
    return agent(hello=with_slaves(2))


def do(core: AgentCore, *happened: AgentEvent) -> list[object]:
    """Let something happen. Return what is done about shared objects, in a short form."""
    for event in happened:
        core.handle(event, 0.0)
    actions = core.take_actions()
    done: list[object] = []
    for change in actions.share_files:
        match change:
            case OpenShare(share):
                done.append(("open", share.digest))
            case WriteShare(digest, start, data):
                done.append(("write", digest, start, len(data)))
            case DropShare(digest):
                done.append(("drop", digest))
    for outgoing in actions.to_master:
        if isinstance(outgoing.message, messages.ShareWanted):
            done.append(("want", outgoing.message.digest, outgoing.message.start))
    for slave, outgoing in actions.to_slaves:
        match outgoing.message:
            case messages.ShareGiven(share, reason):
                done.append(("give", slave, share.digest, share.location, reason))
            case messages.ShareForgotten(digest):
                done.append(("forget", slave, digest))
            case messages.Tasks(tasks=numbers):
                done.append(("pass on", slave, numbers))
    return done


def test_tasks_learn_why_an_object_cannot_be_kept(core: AgentCore) -> None:
    """Another task that needs it lets the agent try again, as soon as no task waits for the old answer."""
    do(core, needing(1, SMALL, LARGE))
    do(core, opened(LARGE))
    assert do(core, ShareNotKept("small", "no memory")) == [("give", 1, "small", "at the master", "no memory")]
    assert do(core, ShareNotKept("large", "no space"))[0] == ("give", 1, "large", "here", "no space")
    assert do(core, part(LARGE, 0), ShareNotKept("large", "again"), ShareNotKept("unknown", "")) == []
    assert do(core, needing(2, SMALL)) == [("pass on", 1, [2])]
    assert do(core, results(1), results(2), needing(3, SMALL)) == [
        ("drop", "small"),
        ("open", "small"),
        ("pass on", 1, [3]),
        ("forget", 1, "small"),
    ]


OUTPUT = Share("result-1", 1000)
"""A large buffer of a result."""


def with_output(task: int, *more: Share, share: Share = OUTPUT) -> SlaveHeard:
    """A result with large buffers. The first one is shared."""
    shares = [share, *more]
    group = messages.Results(1, [task], [1], [1], [0.1], [], [len(shares)], shares=shares)
    return slave_heard(group, groups.payload(1, [b"\x00"]), *(bytes(each.size or 10) for each in shares))


def test_the_output_of_a_task_is_not_fetched_for_a_later_task_on_the_same_host(core: AgentCore) -> None:
    do(core, needing(1, SMALL))
    assert do(core, with_output(1, Share("", 0))) == [("open", "result-1")]
    assert do(core, opened(OUTPUT, complete=True)) == []
    assert do(core, needing(2, OUTPUT, slave=2)) == [
        ("pass on", 2, [2]),
        ("give", 2, "result-1", "here", ""),
    ]


def test_an_agent_on_the_machine_of_the_master_keeps_no_outputs() -> None:
    """The master has them in files there."""
    core = agent(hello=with_slaves(2), keeps_outputs=False)
    do(core, needing(1))
    assert do(core, with_output(1), heard(messages.ShareGone("result-1"))) == []


def test_an_output_is_dropped_when_no_task_can_need_it_any_more(core: AgentCore) -> None:
    do(core, needing(1))
    do(core, with_output(1), opened(OUTPUT, complete=True))
    assert do(core, heard(messages.ShareGone("result-1"))) == [("drop", "result-1")]


def test_an_output_for_which_there_is_no_room_is_fetched_like_any_other_object(core: AgentCore) -> None:
    do(core, needing(1))
    do(core, with_output(1), ShareNotKept("result-1", "disk full"))
    assert do(core, needing(2, OUTPUT)) == [("drop", "result-1"), ("open", "result-1"), ("pass on", 1, [2])]
    assert do(core, opened(OUTPUT)) == [("want", "result-1", 0)]


def test_a_slave_cannot_replace_the_output_of_another_task(core: AgentCore) -> None:
    do(core, needing(1), needing(2))
    assert do(core, with_output(1)) == [("open", "result-1")]
    assert do(core, with_output(2)) == []


def test_an_object_that_waits_is_asked_for_when_the_one_before_it_is_dropped() -> None:
    """Also if all parts that were on their way were of the dropped one: no other part would arrive."""
    core = agent(hello=with_slaves(2), max_share_bytes=LARGE.size + SMALL.size)
    other = Share("other", 1000, "at the master")
    do(core, needing(1, LARGE), needing(2, SMALL, slave=2))
    assert do(core, opened(LARGE), opened(SMALL)) == [("want", "large", n * PART_BYTES) for n in range(4)]
    assert do(core, results(1), needing(3, other)) == [
        ("drop", "large"),
        ("open", "other"),
        ("want", "small", 0),
        ("pass on", 1, [3]),
    ]
