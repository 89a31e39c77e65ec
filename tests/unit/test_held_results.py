"""What the algorithm's thread tells the core about results to which tasks refer, also when Ctrl-C interrupts it."""

from __future__ import annotations

import sys
import threading
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, cast

import pytest
from attrs import define, field
from tests.interrupts import moments
from tests.spans import MAX

from mwpy._core.master.algorithms import Defined
from mwpy._core.master.core import MasterCore
from mwpy._core.master.state import CancelTasks, Command, MasterSettings, Received, ReleaseResults, Running
from mwpy._core.master.submissions import Submissions
from mwpy._roles.inbox import Access, Inbox
from mwpy._roles.master_io import MasterIo
from mwpy._roles.users import Users
from mwpy._transport.codec import Codec
from mwpy._values import groups, messages
from mwpy._values.bounds import Buffer, SlaveId, TaskId
from mwpy._values.policy import DEFAULT_POLICY, TaskPolicy
from mwpy._values.task import result

CODEC = Codec()
SETTINGS = MasterSettings("m", "g", task_group=1)


class _Link:
    asleep = False

    def wake(self) -> None:
        """Do nothing: `_Io` works at once."""


@define(eq=False)
class _Io:
    """An I/O thread that does each command at once, in the thread that gives it. It is not interrupted."""

    core: MasterCore = field(factory=lambda: MasterCore(SETTINGS))
    submissions: Submissions = field(init=False)
    users: Users = field(factory=Users)
    commands: deque[Command] = field(factory=deque)
    before: Callable[[], None] = lambda: None
    """Called before a command is obeyed: what the core hears meanwhile."""
    link: _Link = field(factory=_Link)
    holds_back: bool = False

    @submissions.default
    def _count(self) -> Submissions:
        return Submissions(self.core.state.jar)

    def command(self, command: Command) -> None:
        self.commands.append(command)
        interrupts = sys.getprofile()
        sys.setprofile(None)
        self.core.submit(self.submissions.take())
        self.before()
        while self.commands:
            self.core.obey(self.commands.popleft())
        self.turn()
        sys.setprofile(interrupts)

    def turn(self) -> None:
        self.core.decide(0.0)
        self.core.check()
        self.users.algorithm.outcomes.put(self.core.take_actions())

    def hear(self, message: messages.Message, *frames: Buffer) -> None:
        self.core.handle(Received(b"a", "here", message, frames), 0.0)
        self.turn()


class Thread:
    """The thread of an algorithm. Task 1 is at a slave, task 2 has a value, task 3 failed, and task 4 is unrunnable."""

    def __init__(self) -> None:
        self.io = _Io()
        access = Access(cast(MasterIo, self.io), threading.current_thread())
        self.inbox = Inbox(access, SETTINGS)
        self.algorithm = Defined(MAX)
        for policy in (*[DEFAULT_POLICY] * 3, TaskPolicy(SlaveId("SLAVE-9"))):
            self.io.submissions.add(self.algorithm, policy, *CODEC.dumps_call((1,), {}, "max"), None)
        self.io.command(ReleaseResults([]))
        self.io.hear(messages.Hello("m", "g", "host", 1, "3.11", 2))
        for slave in (1, 2):
            self.io.hear(messages.SlaveReady(slave))
        self.io.hear(messages.Results(2, [2], [1], [1], [0.1], []), groups.payload(1, [CODEC.dumps_value([7])[0]]))
        failure = groups.payload(1, [CODEC.dumps_failure(OSError("disk full"))])
        self.io.hear(messages.Results(2, [3], [1], [1], [0.1], [0]), failure)

    def refer(self, *numbers: int) -> Sequence[int]:
        args = [[result(TaskId(number)) for number in numbers]]
        return self.inbox.refer(CODEC.dumps_call((args,), {}, "max")[1])

    @property
    def results(self) -> dict[int, tuple[bool, list[bytes], str]]:
        """What the core keeps."""
        found = self.io.core.state.jar.blocked.results
        return {number: (each.is_held, [*map(bytes, each.frames)], each.cause) for number, each in found.items()}

    def fetch(self) -> list[Any]:
        fetched: list[Any] = [*self.inbox.fetch(self.inbox.results), *self.inbox.fetch(self.inbox.unrunnable)]
        self.inbox.fetched(fetched)
        return fetched


EXPECTED = {
    1: (True, [], ""),
    2: (True, [CODEC.dumps_value([7])[0]], ""),
    3: (True, [], "task 3 (max) failed: OSError: disk full"),
    4: (True, [], "task 4 (max) is unrunnable: SLAVE-9, to which it was addressed, is gone or never was"),
}


def test_an_interrupt_leaves_no_task_that_waits_forever() -> None:
    """After an interrupt at any moment, the same call makes the core keep all results. They are forgotten as usual."""
    for moment in moments():
        thread = Thread()
        buffers = CODEC.dumps_call(([result(TaskId(number)) for number in (1, 2, 3, 4)],), {}, "max")[1]
        moment.interrupt(partial(thread.inbox.refer, buffers))
        thread.inbox.refer(buffers)
        assert thread.results == EXPECTED, moment
        thread.fetch()
        assert thread.results == {1: EXPECTED[1]}, moment
    assert moment.number > 20


def meanwhile(thread: Thread) -> None:
    """Task 1 ends before the core keeps its result."""
    thread.io.before = lambda: None
    thread.io.hear(messages.Results(1, [1], [1], [1], [0.1], []), groups.payload(1, [CODEC.dumps_value([1])[0]]))


@pytest.mark.parametrize("fetches", [False, True])
def test_a_result_that_arrives_before_the_core_keeps_it_is_given_back(fetches: bool) -> None:
    """Nobody waits for the core."""
    thread = Thread()
    thread.io.before = partial(meanwhile, thread)
    refers = thread.refer(1)
    thread.io.submissions.add(thread.algorithm, DEFAULT_POLICY, b"x", (), "later", None, refers)
    if fetches:
        assert len(thread.fetch()) == 4
    thread.inbox.receive()
    thread.io.command(ReleaseResults([]))
    assert thread.results == ({} if fetches else {1: (True, [CODEC.dumps_value([1])[0]], "")})
    assert not thread.io.core.state.jar.blocked.tasks


class _Map:
    """Gets the ends of its items, which no later task can refer to then."""

    def arrive(self, ended: object) -> None:
        """Take them."""


def test_a_task_fails_if_a_map_got_the_result_before_the_core_keeps_it() -> None:
    thread = Thread()
    thread.io.submissions.add(thread.algorithm, DEFAULT_POLICY, b"x", (), "item", None, (), _Map())

    def meanwhile() -> None:
        thread.io.before = lambda: None
        thread.io.core.obey(CancelTasks.of([TaskId(5)], Running.KILL))

    thread.io.before = meanwhile
    refers = thread.refer(5)
    thread.io.submissions.add(thread.algorithm, DEFAULT_POLICY, b"x", (), "later", None, refers)
    thread.inbox.receive()
    thread.io.command(ReleaseResults([]))
    [failed] = [each for each in thread.fetch() if each.tag == "later"]
    assert "the result of task 5 belongs to a map" in str(failed.error)


def test_an_interrupt_while_a_task_that_refers_to_results_is_added_adds_it_or_not() -> None:
    """All counts agree at each moment, and no other task gets its references."""
    for moment in moments():
        thread = Thread()
        submissions, algorithm = thread.io.submissions, thread.algorithm
        before = submissions.pending()
        moment.interrupt(partial(submissions.add, algorithm, DEFAULT_POLICY, b"x", [], "tag", None, [1]))
        submissions.add(algorithm, DEFAULT_POLICY, b"x", [], "tag")
        added = submissions.pending() - before
        assert [span.refers for span in submissions.take()] == [[1], ()][-added:], moment
    assert moment.number > 2
