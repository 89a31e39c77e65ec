"""Whenever nothing can progress, the master reports it in time, with the reason and a remedy."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import pytest
from attrs import define, field, frozen
from tests.spans import MAX, MIN, defined, span, span_of

from mwpy._core.master.commands import AllocateSlaves, FreeSlave, ShutDown
from mwpy._core.master.core import MasterCore, MasterSettings
from mwpy._core.master.events import Event, Garbage, Received, Stranger, Vanished
from mwpy._core.master.silence import LONGEST_S, Waiting
from mwpy._values import messages
from mwpy._values.ids import SlaveId
from mwpy._values.last_words import LastWords
from mwpy._values.records import Notice
from mwpy._values.task import SlaveKind, TaskPolicy, UnrunnableTask

PROMISED_S = 10.0
"""Seconds without possible progress after which the user must have a notice."""

A_DAY_S = 86400.0

ALGORITHMS = [MAX, MIN]

UNABLE = "app:min is not there (No module named 'app'): install the module 'app' there"
"""The report of a slave about an algorithm that it does not find."""


def _core() -> MasterCore:
    core = MasterCore(MasterSettings("m", "g"))
    for algorithm in ALGORITHMS:
        core.define(algorithm)
    return core


@define
class _Master:
    """A master whose loop waits until the next deadline, or until an event."""

    core: MasterCore = field(factory=_core)
    now: float = 1000.0
    tasks: int = 0
    words: list[tuple[float, str]] = field(factory=list)
    """The notices that nothing progresses, with their times."""
    notices: list[str] = field(factory=list)
    """All other notices."""
    unrunnable: list[UnrunnableTask] = field(factory=list)
    sent: list[int] = field(factory=list)

    def acts(self) -> None:
        self.core.decide(self.now)
        self.core.check()
        actions = self.core.take_actions()
        for text in [record.text for record in actions.records if isinstance(record, Notice)]:
            if text.startswith("nothing has progressed"):
                self.words.append((self.now, text))
            else:
                self.notices.append(text)
        self.unrunnable += actions.unrunnable
        for send in actions.sends:
            if isinstance(send.message, messages.Tasks):
                self.sent += send.message.tasks

    def passes(self, seconds: float) -> None:
        until = self.now + seconds
        while (due := self.core.next_deadline()) is not None and due <= until:
            self.now = due
            self.acts()
        self.now = until
        self.acts()

    def happens(self, event: Event) -> None:
        self.core.handle(event, self.now)
        self.acts()

    def hears(self, message: messages.Message, peer: bytes = b"a", frames: tuple[bytes, ...] = ()) -> None:
        self.happens(Received(peer, "10.0.0.1", message, frames))

    def agent(self, slaves: int, peer: bytes = b"a") -> None:
        self.hears(messages.Hello("m", "g", "node1", 1, "3.11", slaves), peer)
        for number in range(1, slaves + 1):
            self.hears(messages.SlaveReady(number), peer)

    def submits(self, algorithm: int = 0, sid: str | None = None, anyway: bool = False) -> None:
        self.tasks += 1
        policy = TaskPolicy(SlaveId(sid) if sid else None, do_it_anyway=anyway)
        self.core.submit([span(self.tasks, ALGORITHMS[algorithm], policy=policy)])
        self.acts()

    def cannot(self, task: int, peer: bytes = b"a", reason: str = UNABLE) -> None:
        """Report that the first slave of an agent cannot run a task that it holds."""
        held = span_of(self.core, task)
        number = held.algorithm.number
        self.hears(messages.AlgorithmFailed(1, number, reason, [task], [1], [held.attempt]), peer)

    def finishes(self, task: int, peer: bytes = b"a") -> None:
        attempt = span_of(self.core, task).attempt
        self.hears(messages.Results(1, [task], [1], [attempt], [0.1], []), peer, (messages.payload(1, [b"\0"]),))

    def waits(self) -> None:
        self.core.waiting = Waiting.FOR_EVER
        self.acts()


# The ways


def _nobody_comes(master: _Master) -> None:
    master.submits()


def _a_doctor_looks_around(master: _Master) -> None:
    master.submits()
    master.agent(0)
    master.hears(messages.Goodbye("it was an examination by mwpy doctor"))


def _nobody_comes_and_nothing_is_submitted(master: _Master) -> None:
    master.waits()


def _another_computation_comes(master: _Master) -> None:
    master.submits()
    master.hears(messages.Hello("other", "g", "node1", 1, "3.11", 1))


def _old_resource_files_come(master: _Master) -> None:
    master.submits()
    for number in range(3):
        master.hears(messages.Hello("m", "old", "node1", 1, "3.11", 1), b"old %d" % number)


def _strangers_come(master: _Master) -> None:
    master.submits()
    master.happens(
        Stranger("10.0.0.9", "a stranger: it has no key of ours; if it is an agent, give it a fresh resource file")
    )


def _agents_come_without_slaves(master: _Master) -> None:
    master.submits()
    master.agent(slaves=0)


def _slaves_end_before_they_are_ready(master: _Master) -> None:
    master.submits()
    master.agent(slaves=0)
    master.hears(messages.SlaveDied(1, 0, "exit code 1", LastWords(stderr="ImportError: no numpy")))


def _all_agents_leave(master: _Master) -> None:
    master.agent(1)
    master.submits()
    master.hears(messages.Goodbye("evicted"))


def _the_last_agent_is_lost(master: _Master) -> None:
    master.agent(1)
    master.submits()
    master.happens(Vanished(b"a", "the connection broke"))


def _the_last_agent_talks_nonsense(master: _Master) -> None:
    master.agent(1)
    master.submits()
    master.happens(Garbage(b"a", "10.0.0.1", "an unknown kind of message"))


def _no_slave_can_run_it(master: _Master) -> None:
    master.agent(1)
    master.agent(1, b"b")
    master.submits(1)
    master.cannot(1)
    master.cannot(1, b"b")


def _the_slave_of_an_address_cannot_run_it(master: _Master) -> None:
    master.agent(1)
    master.submits(1, "SLAVE-0", anyway=True)
    master.cannot(1)


def _every_slave_is_ordered(master: _Master) -> None:
    master.core.obey(AllocateSlaves(2, SlaveKind.ORDERED))
    master.agent(2)
    master.submits()


def _ordered_slaves_never_come(master: _Master) -> None:
    master.agent(1)
    master.core.obey(AllocateSlaves(3, SlaveKind.ORDERED))
    master.waits()


def _intermingle_slaves_never_come(master: _Master) -> None:
    master.agent(1)
    master.core.obey(AllocateSlaves(2, SlaveKind.INTERMINGLE))
    master.waits()


def _ordered_slaves_never_come_to_who_waits_again_and_again(master: _Master) -> None:
    master.agent(1)
    master.core.obey(AllocateSlaves(3, SlaveKind.ORDERED))
    master.core.waiting = Waiting.FOR_A_WHILE
    master.acts()


def _an_agent_runs_its_last_task(master: _Master) -> None:
    master.agent(1)
    master.submits()
    master.submits()
    master.hears(messages.Leaving("evicted"))
    master.hears(messages.Revoked(1, [], [], []))
    master.finishes(1)


def _nothing_is_submitted(master: _Master) -> None:
    master.agent(1)
    master.waits()


def _all_is_done_and_the_loop_waits(master: _Master) -> None:
    master.agent(1)
    master.submits()
    master.finishes(1)
    master.waits()


# The ways back


def _an_agent_comes(master: _Master) -> None:
    master.agent(1, b"able")


def _an_agent_comes_and_the_loop_returns(master: _Master) -> None:
    master.agent(1, b"able")
    master.core.waiting = Waiting.NOT
    master.acts()


def _a_slave_gets_ready(master: _Master) -> None:
    master.hears(messages.SlaveReady(2))


def _a_slave_is_freed(master: _Master) -> None:
    master.core.obey(FreeSlave(SlaveId("SLAVE-1")))
    master.acts()


def _tasks_are_submitted(master: _Master) -> None:
    master.submits()


@frozen
class _Way:
    """One cause of silence: how it begins, the expected notice, and how progress returns."""

    goes: Callable[[_Master], None]
    reason: str
    next_step: str
    back: Callable[[_Master], None] = _an_agent_comes


TRANSITIONS = [
    _Way(_a_doctor_looks_around, "no slave is connected (1 tasks wait)", "Start some with `python APP --mw-slave"),
    _Way(_nobody_comes, "no slave is connected (1 tasks wait)", "Start some with `python APP --mw-slave"),
    _Way(
        _nobody_comes_and_nothing_is_submitted,
        "no slave is connected (0 tasks wait)",
        "Start some with `python APP --mw-slave",
        _an_agent_comes_and_the_loop_returns,
    ),
    _Way(
        _another_computation_comes,
        "1 were refused, the last from 10.0.0.1: member id 'other' is not this master's 'm'",
        "check --mw-member-id or its resource file",
    ),
    _Way(_old_resource_files_come, "3 were refused, the last from 10.0.0.1", "give it a fresh copy"),
    _Way(_strangers_come, "1 were refused, the last from 10.0.0.9", "give it a fresh resource file"),
    _Way(
        _agents_come_without_slaves,
        "1 agents are connected, but their slaves are not ready yet",
        "see what they write on standard error",
        _a_slave_gets_ready,
    ),
    _Way(
        _slaves_end_before_they_are_ready,
        "1 agents are connected, but their slaves are not ready yet",
        "see what they write on standard error",
        _a_slave_gets_ready,
    ),
    _Way(_all_agents_leave, "All agents left, most often (1) because: evicted", "Start slaves again"),
    _Way(_the_last_agent_is_lost, "most often (1) because: the connection broke", "Start slaves again"),
    _Way(_the_last_agent_talks_nonsense, "because: an unknown kind of message", "Start slaves again"),
    _Way(_no_slave_can_run_it, "for which 1 tasks wait", "correct that there"),
    _Way(
        _the_slave_of_an_address_cannot_run_it,
        "for which 1 tasks wait",
        "install the module",
    ),
    _Way(
        _every_slave_is_ordered,
        "1 tasks are addressed to no slave, but every slave is ordered",
        "free one with mw.free_slave, or start more slaves",
        _a_slave_is_freed,
    ),
    _Way(
        _ordered_slaves_never_come,
        "2 more ordered slaves are wanted and none connects",
        "start more slaves",
        _an_agent_comes_and_the_loop_returns,
    ),
    _Way(
        _ordered_slaves_never_come_to_who_waits_again_and_again,
        "2 more ordered slaves are wanted and none connects",
        "start more slaves",
        _an_agent_comes_and_the_loop_returns,
    ),
    _Way(_an_agent_runs_its_last_task, "no slave is connected (1 tasks wait)", "are leaving: start others"),
    _Way(
        _intermingle_slaves_never_come,
        "1 more intermingle slaves are wanted and none connects",
        "start more slaves",
        _an_agent_comes_and_the_loop_returns,
    ),
    _Way(
        _nothing_is_submitted,
        "mw.loop() waits, but no task is submitted and no ordered slave is wanted",
        "submit tasks, or leave the loop",
        _tasks_are_submitted,
    ),
    _Way(
        _all_is_done_and_the_loop_waits,
        "mw.loop() waits, but no task is submitted and no ordered slave is wanted",
        "submit tasks, or leave the loop",
        _tasks_are_submitted,
    ),
]

every_way = pytest.mark.parametrize("way", TRANSITIONS, ids=lambda way: way.goes.__name__.strip("_"))


@every_way
def test_the_notice_has_the_reason_and_a_remedy_and_comes_in_time(way: _Way) -> None:
    """The notice comes within ten seconds, but not at once, because most waits are short."""
    master = _Master()
    way.goes(master)
    assert not master.words
    master.passes(PROMISED_S)
    assert master.words, "nothing was said"
    _, text = master.words[0]
    assert way.reason in text
    assert way.next_step in text


@every_way
def test_the_notice_is_repeated_at_growing_intervals(way: _Way) -> None:
    """Each interval is about three times the one before, and at most half an hour."""
    master = _Master()
    way.goes(master)
    began = master.now
    master.passes(A_DAY_S)
    gaps = [late - early for early, late in pairwise([began, *(at for at, _ in master.words)])]
    assert all(late > early or late == LONGEST_S for early, late in pairwise(gaps)), gaps
    assert max(gaps) == LONGEST_S
    assert A_DAY_S / LONGEST_S <= len(gaps) < 60
    assert all(way.reason in text and way.next_step in text for _, text in master.words), "the reason changed"


@every_way
def test_the_notice_stops_when_progress_returns(way: _Way) -> None:
    """This holds however long the running task takes."""
    master = _Master()
    way.goes(master)
    master.passes(100.0)
    way.back(master)
    said = len(master.words)
    master.passes(A_DAY_S)
    assert len(master.words) == said, master.words[said:]


@every_way
def test_the_notice_comes_in_time_when_progress_ends_again(way: _Way) -> None:
    """This holds however long the intervals had become."""
    master = _Master()
    way.goes(master)
    master.passes(A_DAY_S)
    way.back(master)
    master.passes(60.0)
    said = len(master.words)
    master.core.waiting = Waiting.FOR_EVER
    for peer in list(master.core.state.members.peers):
        master.happens(Vanished(peer, "the connection broke"))
    master.passes(PROMISED_S)
    assert len(master.words) == said + 1
    assert "no slave is connected" in master.words[-1][1]


def test_a_task_whose_slave_cannot_run_it_is_handed_back_with_the_reason() -> None:
    """The task is addressed to this slave, so there is nothing to wait for. The user gets the reason at once."""
    master = _Master()
    master.agent(1)
    master.agent(1, b"b")
    master.submits(1, "SLAVE-0")
    master.cannot(1)
    reasons = [task.reason for task in master.unrunnable]
    assert reasons == [f"SLAVE-0, to which it was addressed, cannot run it: {UNABLE}"]
    assert [text for text in master.notices if "AGENT-0" in text and UNABLE in text]
    master.submits(1, "SLAVE-0")
    assert len(master.unrunnable) == 2
    master.passes(A_DAY_S)
    assert not master.words, "nothing waits"


def test_an_agent_whose_slaves_cannot_start_is_reported_at_once() -> None:
    """The notice has the last output of the slave. There is one notice for each kind of failure."""
    master = _Master()
    _slaves_end_before_they_are_ready(master)
    master.hears(messages.SlaveDied(2, 0, "exit code 1", LastWords(stderr="ImportError: no numpy")))
    assert len(master.notices) == 1
    assert "ended before it could take a task: exit code 1" in master.notices[0]
    assert "ImportError: no numpy" in master.notices[0]


def test_there_is_no_notice_during_progress_or_without_work() -> None:
    """A task can run for a day, slaves can wait for a busy algorithm, and the shutdown causes no notice."""
    master = _Master()
    master.passes(A_DAY_S)
    master.agent(2)
    master.passes(A_DAY_S)
    master.submits()
    master.submits()
    master.waits()
    master.passes(A_DAY_S)
    master.finishes(1)
    master.passes(A_DAY_S)
    master.core.obey(ShutDown(True, 1.0))
    master.acts()
    master.passes(A_DAY_S)
    assert not master.words
    assert master.core.next_deadline() is None


def test_there_is_no_notice_while_the_last_agent_ends_its_task() -> None:
    """The agent is leaving, which may take a while, but its task is still running."""
    master = _Master()
    master.agent(1)
    master.submits()
    master.hears(messages.Leaving("evicted"))
    master.passes(A_DAY_S)
    assert not master.words


def test_there_is_no_notice_for_a_wait_with_a_timeout_without_work() -> None:
    """`mw.loop(1.0)` returns by itself."""
    master = _Master()
    master.agent(1)
    master.core.waiting = Waiting.FOR_A_WHILE
    master.passes(A_DAY_S)
    assert not master.words


def test_a_computation_that_no_agent_can_join_does_not_ask_for_slaves() -> None:
    """It has only the slaves of its own machine."""
    master = _Master(MasterCore(MasterSettings("m", "g", only_here=True)))
    master.core.define(defined(0, "max", reference=""))
    master.submits()
    master.passes(PROMISED_S)
    assert "The slaves on this machine are not ready" in master.words[-1][1]
    master.agent(1)
    master.hears(messages.Goodbye("3 slaves in a row ended"))
    master.passes(PROMISED_S)
    assert "Correct that, and start the computation again" in master.words[-1][1]


def test_an_agent_that_was_refused_before_another_was_accepted_is_not_the_reason() -> None:
    """A stranger in the morning is not the cause of an eviction in the evening."""
    master = _Master()
    master.happens(Stranger("10.0.0.9", "a stranger"))
    master.agent(1)
    master.submits()
    master.hears(messages.Goodbye("evicted"))
    master.passes(PROMISED_S)
    assert "because: evicted" in master.words[0][1]
    assert "10.0.0.9" not in master.words[0][1]


def test_an_agent_of_another_version_is_named_as_refused() -> None:
    """Its first message is not a message of this version."""
    master = _Master()
    master.submits()
    master.happens(Garbage(b"new", "10.0.0.7", "protocol version 2 there, 1 here: install the same version of mwpy"))
    master.passes(PROMISED_S)
    assert "1 were refused, the last from 10.0.0.7: protocol version 2 there, 1 here" in master.words[0][1]


def test_a_loop_that_sleeps_until_the_deadline_does_not_miss_it() -> None:
    """The core asks to be called when the next notice is due, and not earlier."""
    master = _Master()
    master.submits()
    due = master.core.next_deadline()
    assert due is not None
    assert master.now < due <= master.now + PROMISED_S
    master.now = due - 0.001
    master.acts()
    assert not master.words
    assert master.core.next_deadline() == due
    master.now = due
    master.acts()
    assert len(master.words) == 1


def test_a_new_reason_is_reported_in_time() -> None:
    """No slave connects for an hour. Then an ordered slave does, and nothing can progress for another reason."""
    master = _Master()
    master.core.obey(AllocateSlaves(1, SlaveKind.ORDERED))
    master.submits()
    master.passes(3600.0)
    master.agent(1)
    said = len(master.words)
    master.passes(PROMISED_S)
    assert len(master.words) > said
    assert "every slave is ordered" in master.words[-1][1]


def test_the_notice_names_the_reason_of_the_waiting_algorithm() -> None:
    """It is not the reason of another algorithm that the same slaves cannot run, either."""
    master = _Master()
    master.agent(1)
    master.submits(0)
    master.cannot(1, reason="first reason")
    master.submits(1)
    master.cannot(2, reason="second reason")
    master.agent(1, b"b")
    master.finishes(1, b"b")
    master.cannot(2, b"b", reason="second reason")
    master.passes(PROMISED_S)
    assert "second reason" in master.words[-1][1]


def test_tasks_that_wait_for_a_leaving_slave_are_reported() -> None:
    """Other slaves are connected but must not run the tasks, and the leaving slave takes a long time."""
    master = _Master()
    master.core.obey(AllocateSlaves(1, SlaveKind.ORDERED))
    master.agent(1)
    master.agent(1, b"b")
    master.hears(messages.Leaving("evicted"))
    master.submits(sid="SLAVE-0")
    master.passes(PROMISED_S)
    assert "1 tasks are at slaves that are leaving, or addressed to them" in master.words[-1][1]


def test_agents_that_connect_and_cannot_run_the_task_do_not_delay_the_notice() -> None:
    """A new agent connects every four seconds and cannot run the task. This is no progress."""
    master = _Master()
    master.submits(1)
    for number in range(100):
        peer = b"agent %d" % number
        master.agent(1, peer)
        master.cannot(1, peer)
        master.passes(4.0)
    assert master.words
