"""Shared objects at an agent: what it asks the master for, gives to its slaves and drops."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from msgspec.structs import replace

from mwpy._core.agent.child import (
    AgentEvent,
    AgentSettings,
    DropShare,
    Heard,
    OpenShare,
    Recalled,
    ShareNotKept,
    ShareOpened,
    SlaveExited,
    SlaveHeard,
    WriteShare,
)
from mwpy._core.agent.core import AgentCore
from mwpy._core.agent.traffic import PARTS_COMING
from mwpy._transport import wire
from mwpy._values import groups, messages
from mwpy._values.bounds import Buffer
from mwpy._values.last_words import NO_WORDS
from mwpy._values.messages import PART_BYTES, Share

HELLO = messages.Hello("m", "g", "host", 1, "3.11", 2)
SETTINGS = AgentSettings(HELLO)
WELCOME = messages.Welcome("AGENT-0", 0, 1000, 30.0)

SMALL = Share("small", 1000, "at the master")
LARGE = Share("large", 6 * PART_BYTES + 1, "at the master")

PART = bytes(PART_BYTES)


def heard(message: messages.Message, *payload: Buffer) -> Heard:
    return Heard(message, wire.encode(message, payload))


def slave_heard(slave: int, message: messages.Message, *payload: Buffer) -> SlaveHeard:
    return SlaveHeard(slave, message, wire.encode(message, payload))


def tasks(first: int, *shares: Share, slave: int = 1) -> Heard:
    """A task that needs shared objects, as it arrives."""
    return heard(messages.Tasks(slave, [first], [1], [1], [0], shares=[*shares]), groups.payload(1, [b"\x90"]))


def result(task: int, slave: int = 1) -> SlaveHeard:
    group = messages.Results(slave, [task], [1], [1], [0.1], [])
    return slave_heard(slave, group, groups.payload(1, [b"\x00"]))


def opened(share: Share, complete: bool = False) -> ShareOpened:
    return ShareOpened(replace(share, location="here"), complete)


def part(share: Share, start: int) -> Heard:
    return heard(messages.SharePart(share.digest, start), bytes(min(PART_BYTES, share.size - start)))


def new_core(settings: AgentSettings = SETTINGS) -> AgentCore:
    """An agent with two slaves, which are ready."""
    core = AgentCore(settings)
    core.handle(heard(WELCOME), 0.0)
    for slave in (1, 2):
        core.handle(slave_heard(slave, messages.SlaveReady(slave)), 0.0)
    core.take_actions()
    return core


@pytest.fixture
def core() -> AgentCore:
    return new_core()


def do(core: AgentCore, *happened: AgentEvent) -> list[object]:
    """Let something happen. Return what is done about shared objects, in a short form."""
    for event in happened:
        core.handle(event, 0.0)
    core.check()
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


def starts(share: Share) -> Sequence[int]:
    return range(0, share.size, PART_BYTES)


def test_an_object_is_fetched_in_parts_and_given_to_the_slaves_that_need_it(core: AgentCore) -> None:
    """The tasks are passed on at once. A few parts are on their way at a time, and each is asked for once."""
    assert do(core, tasks(1, LARGE)) == [("open", "large"), ("pass on", 1, [1])]
    asked = do(core, opened(LARGE))
    assert asked == [("want", "large", start) for start in starts(LARGE)[:PARTS_COMING]]
    assert do(core, tasks(2, LARGE, slave=2)) == [("pass on", 2, [2])]
    done: list[object] = []
    for start in starts(LARGE):
        done += do(core, part(LARGE, start))
    assert done[:2] == [("write", "large", 0, PART_BYTES), ("want", "large", starts(LARGE)[PARTS_COMING])]
    assert [each for each in done if "want" in str(each)] == [
        ("want", "large", start) for start in starts(LARGE)[PARTS_COMING:]
    ]
    assert done[-3:] == [
        ("write", "large", starts(LARGE)[-1], 1),
        ("give", 1, "large", "here", ""),
        ("give", 2, "large", "here", ""),
    ]
    assert do(core, tasks(3, LARGE)) == [("pass on", 1, [3])]


def test_several_objects_share_the_parts_that_may_be_on_their_way(core: AgentCore) -> None:
    do(core, tasks(1, LARGE, SMALL))
    do(core, opened(LARGE))
    assert do(core, opened(SMALL)) == []
    done: list[object] = []
    for start in starts(LARGE):
        done += do(core, part(LARGE, start))
    assert ("want", "small", 0) in done
    assert do(core, part(SMALL, 0)) == [("write", "small", 0, 1000), ("give", 1, "small", "here", "")]


def test_an_object_that_is_on_this_host_is_not_fetched(core: AgentCore) -> None:
    do(core, tasks(1, LARGE))
    assert do(core, opened(LARGE, complete=True)) == [("give", 1, "large", "here", "")]


def test_a_part_that_nobody_asked_for_is_ignored(core: AgentCore) -> None:
    do(core, tasks(1, SMALL), opened(SMALL))
    assert do(core, part(LARGE, 0), heard(messages.SharePart("small", 5), b"x")) == []
    do(core, part(SMALL, 0))
    assert do(core, part(SMALL, 0)) == []


def test_objects_that_no_task_needs_are_dropped_when_all_are_too_large() -> None:
    """The one that was used least recently goes first, and the slaves that know it forget it."""
    core = new_core(replace(SETTINGS, max_share_bytes=2500))
    shares = [Share(f"object {number}", 1000) for number in range(4)]
    for number, share in enumerate(shares[:2], 1):
        do(core, tasks(number, share), opened(share, complete=True), result(number))
    do(core, tasks(3, shares[0]), result(3))
    assert do(core, tasks(4, shares[2])) == [
        ("drop", "object 1"),
        ("open", "object 2"),
        ("pass on", 1, [4]),
        ("forget", 1, "object 1"),
    ]
    do(core, opened(shares[2], complete=True))
    assert ("open", "object 1") in do(core, tasks(5, shares[1]))


def test_an_object_that_a_task_needs_is_not_dropped() -> None:
    core = new_core(replace(SETTINGS, max_share_bytes=500))
    do(core, tasks(1, SMALL), opened(SMALL, complete=True))
    assert do(core, tasks(2, LARGE, slave=2)) == [("open", "large"), ("pass on", 2, [2])]
    do(core, opened(LARGE, complete=True), result(2, slave=2))
    other = Share("other", 10)
    done = do(core, tasks(3, other, slave=2))
    assert ("drop", "large") in done
    assert ("drop", "small") not in done
    do(core, opened(other, complete=True))
    assert ("drop", "small") in do(core, result(1), result(3, slave=2), tasks(4, LARGE))


def test_an_object_whose_slave_has_ended_can_be_dropped() -> None:
    core = new_core(replace(SETTINGS, max_share_bytes=500))
    do(core, tasks(1, SMALL), opened(SMALL, complete=True), SlaveExited(1, "killed by signal 11", NO_WORDS, 1))
    assert ("drop", "small") in do(core, tasks(2, LARGE, slave=2))


def test_tasks_learn_why_an_object_cannot_be_kept(core: AgentCore) -> None:
    """Another task that needs it lets the agent try again, as soon as no task waits for the old answer."""
    do(core, tasks(1, SMALL, LARGE))
    do(core, opened(LARGE))
    assert do(core, ShareNotKept("small", "no memory")) == [("give", 1, "small", "at the master", "no memory")]
    assert do(core, ShareNotKept("large", "no space"))[0] == ("give", 1, "large", "here", "no space")
    assert do(core, part(LARGE, 0), ShareNotKept("large", "again"), ShareNotKept("unknown", "")) == []
    assert do(core, tasks(2, SMALL)) == [("pass on", 1, [2])]
    assert do(core, result(1), result(2), tasks(3, SMALL)) == [
        ("drop", "small"),
        ("open", "small"),
        ("pass on", 1, [3]),
        ("forget", 1, "small"),
    ]


def test_an_object_that_is_larger_than_the_memory_of_the_job_is_refused() -> None:
    core = new_core(replace(SETTINGS, memory_bytes=2 << 20))
    [passed_on, given] = do(core, tasks(1, LARGE))
    assert passed_on == ("pass on", 1, [1])
    assert "of 12.0 MiB does not fit into the 2.0 MiB of memory that the job of this agent has" in str(given)


def test_an_object_whose_tasks_have_ended_is_given_up(core: AgentCore) -> None:
    """A later task lets the agent ask again. What is complete stays while a task needs it."""
    do(core, tasks(1, LARGE), opened(LARGE))
    assert do(core, heard(messages.ShareGone("large"))) == [("drop", "large")]
    assert do(core, part(LARGE, 0), opened(LARGE), heard(messages.ShareGone("large"))) == []
    assert do(core, tasks(2, LARGE)) == [("open", "large"), ("pass on", 1, [2])]
    do(core, opened(LARGE, complete=True))
    assert do(core, heard(messages.ShareGone("large"))) == []
    do(core, result(1), result(2))
    assert do(core, heard(messages.ShareGone("large"))) == [("drop", "large"), ("forget", 1, "large")]


def test_objects_that_no_task_needs_are_dropped_when_they_are_too_many() -> None:
    """Each of them is an open file."""
    core = new_core(replace(SETTINGS, max_share_files=2))
    first, second, third = (Share(digest, 1000, "at the master") for digest in ("first", "second", "third"))
    for number, share in enumerate((first, second), 1):
        do(core, tasks(number, share), opened(share, complete=True))
    do(core, result(1))
    done = do(core, tasks(3, third))
    assert done == [("drop", "first"), ("open", "third"), ("pass on", 1, [3]), ("forget", 1, "first")]
    do(core, opened(third, complete=True), tasks(4, first), opened(first, complete=True))
    assert do(core, tasks(5, second), tasks(6, third)) == [("pass on", 1, [5]), ("pass on", 1, [6])], "all are needed"


def test_tasks_that_were_taken_back_need_nothing(core: AgentCore) -> None:
    core = new_core(replace(SETTINGS, max_share_bytes=500))
    do(core, tasks(1, SMALL), opened(SMALL, complete=True))
    do(core, Recalled(1, 0, 1))
    assert ("drop", "small") in do(core, tasks(2, LARGE))
