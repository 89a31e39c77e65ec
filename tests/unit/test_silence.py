"""When nothing can progress, the master says so in time. It says why, and what the user can do."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest
from tests.driven import Driven
from tests.spans import MAX, MIN, defined, span_of

from mwpy._core.master.algorithms import Defined
from mwpy._core.master.state import Actions, AllocateSlaves, Command, Event, ShutDown, Waiting
from mwpy._core.pauses import SAY_AGAIN_S
from mwpy._values import messages
from mwpy._values.bounds import SlaveId
from mwpy._values.causes import Cause
from mwpy._values.connections import Stranger
from mwpy._values.last_words import LastWords
from mwpy._values.policy import TaskPolicy
from mwpy._values.task import SlaveKind, UnrunnableTask

PROMISED_S = 10.0
"""A notice must come within this many seconds after progress became impossible."""

DAY_S = 86400.0

ALGORITHMS = [MAX, MIN]

CANNOT_IMPORT = "app:min is not there (No module named 'app'): install the module 'app' there"
"""The reason that a slave sends when it does not find the function of an algorithm."""


class _Master(Driven):
    """As in a real master, the core decides at each deadline and after each event."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(ALGORITHMS, **settings)
        self.now = 1000.0
        self.silence_notices: list[tuple[float, str]] = []
        """The notices that nothing progresses: the time and the text of each."""
        self.other_notices: list[tuple[float, str]] = []
        """All other notices."""
        self.unrunnable: list[UnrunnableTask] = []

    def step(self, event: Event | Command | None = None) -> Actions:
        actions = super().step(event)
        for text in self.notices:
            is_silence = text.startswith("nothing has progressed")
            (self.silence_notices if is_silence else self.other_notices).append((self.now, text))
        self.unrunnable += actions.unrunnable
        return actions

    def run(self, seconds: float) -> None:
        """Let time pass. The core decides at each of its deadlines, and at the end."""
        until = self.now + seconds
        while (due := self.core.next_deadline()) is not None and due <= until:
            self.now = due
            self.step()
        self.now = until
        self.step()

    def connect(self, slaves: int, peer: bytes = b"a", seconds_left: float | None = None) -> None:
        """Connect an agent of which this many slaves become ready. It announces one more, which starts later."""
        hello = messages.Hello("m", "g", "node1", 1, "3.11", slaves + 1, seconds_left=seconds_left)
        self.receive(hello, peer=peer)
        for number in range(1, slaves + 1):
            self.receive(messages.SlaveReady(number), peer=peer)

    def put(
        self,
        algorithm: int = 0,
        sid: str | None = None,
        anyway: bool = False,
        after: float = 0.0,
        expected: float | None = None,
    ) -> None:
        """Submit one task."""
        address = SlaveId(sid) if sid else None
        policy = TaskPolicy(address, do_it_anyway=anyway, after=after, seconds_expected=expected)
        self.submit(algorithm=ALGORITHMS[algorithm], policy=policy)

    def refuse(self, task: int, peer: bytes = b"a", reason: str = CANNOT_IMPORT) -> None:
        """The first slave of an agent holds a task, and reports that it cannot run the algorithm of this task."""
        held = span_of(self.core, task)
        number = held.algorithm.number
        self.receive(messages.AlgorithmFailed(1, number, reason, [task], [1], [held.attempt]), peer=peer)

    def wait(self) -> None:
        """The master algorithm calls `mw.loop()`."""
        self.core.waiting = Waiting.FOREVER
        self.step()


# What makes progress impossible

CAUSES: list[Any] = []
"""For each cause: what happens to a master, and two parts of the notice: why nothing progresses, and what to do."""

START = "If none is queued in a batch system, start some with `python APP --mw-slave"


def cause(reason: str, next_step: str) -> Callable[[Callable[[_Master], None]], object]:
    """Add a cause."""
    return lambda happen: CAUSES.append(pytest.param(happen, reason, next_step, id=happen.__name__))


@cause("no slave is connected (1 tasks wait)", START)
def only_mwpy_doctor_connects(master: _Master) -> None:
    master.put()
    master.receive(messages.Hello("m", "g", "node1", 1, "3.11", 0))
    master.receive(messages.Goodbye("it was an examination by mwpy doctor", Cause.EVICTED))


@cause("no slave is connected (1 tasks wait)", START)
def no_agent_connects(master: _Master) -> None:
    master.put()


@cause("no slave is connected (0 tasks wait)", START)
def no_agent_connects_and_no_task_is_submitted(master: _Master) -> None:
    master.wait()


@cause(
    "Refused connections: 1, the last from here: member id 'other' is not this master's 'm'",
    "check --mw-member-id or its resource file",
)
def an_agent_of_another_computation_connects(master: _Master) -> None:
    master.put()
    master.receive(messages.Hello("other", "g", "node1", 1, "3.11", 1))


@cause("Refused connections: 1, the last from 10.0.0.9", "give it a fresh resource file")
def a_stranger_connects(master: _Master) -> None:
    master.put()
    master.step(
        Stranger("10.0.0.9", "a stranger: it has no key of ours; if it is an agent, give it a fresh resource file")
    )


@cause("1 agent is connected, but its slaves are not ready yet", "see what they write on standard error")
def an_agent_connects_without_slaves(master: _Master) -> None:
    master.put()
    master.connect(slaves=0)


@cause("All agents left, most often (1) because: evicted", "If none is queued in a batch system, start slaves again")
def the_only_agent_leaves(master: _Master) -> None:
    master.connect(1)
    master.put()
    master.receive(messages.Goodbye("evicted", Cause.EVICTED))


@cause(
    f"(1 wait), such as task 1: AGENT-0 on node1, AGENT-1 on node1: cannot run min: {CANNOT_IMPORT}",
    "correct this on their machines",
)
def no_slave_can_run_the_task(master: _Master) -> None:
    master.connect(1)
    master.connect(1, b"b")
    master.put(1)
    master.refuse(1)
    master.refuse(1, b"b")


@cause("(1 wait), such as task 1: AGENT-0 on node1: cannot run min", "install the module")
def the_only_slave_cannot_run_the_task_that_is_addressed_to_it(master: _Master) -> None:
    master.connect(1)
    master.put(1, "SLAVE-0", anyway=True)
    master.refuse(1)


@cause("s at most, and the task takes 500000 s; AGENT-2 on node1: cannot run min", "correct seconds_expected")
def no_agent_has_time_for_the_task(master: _Master) -> None:
    """The agent with the most time cannot run the algorithm. Time passes, and the agents stay."""
    for peer, seconds_left in ((b"a", 2e5), (b"b", 3e5), (b"c", 4e5)):
        master.connect(1, peer, seconds_left)
        master.put(1)
    master.finish(1)
    master.finish(2, peer=b"b")
    master.refuse(3, b"c")
    master.finish(3, attempt=2)
    master.put(1, expected=5e5)


@cause("s at most, and the task takes 300000 s", "give it to tasks that take less than their mean")
def no_agent_has_time_for_another_task_like_that(master: _Master) -> None:
    master.connect(1, seconds_left=2e5)
    master.put()
    master.finish(1, seconds=3e5)
    master.put()


@cause(
    "AGENT-0 on node1: all slaves are ordered or freed, and get no task that is not addressed to them",
    "free one with mw.free_slave, or start more slaves",
)
def every_slave_is_ordered(master: _Master) -> None:
    master.core.obey(AllocateSlaves(2, SlaveKind.ORDERED))
    master.connect(2)
    master.put()


@cause("2 more ordered slaves are wanted and none connects", "start more slaves")
def no_more_ordered_slaves_connect(master: _Master) -> None:
    master.connect(1)
    master.core.obey(AllocateSlaves(3, SlaveKind.ORDERED))
    master.wait()


@cause("2 more ordered slaves are wanted and none connects", "start more slaves")
def no_more_ordered_slaves_connect_while_the_loop_waits_with_a_timeout(master: _Master) -> None:
    master.connect(1)
    master.core.obey(AllocateSlaves(3, SlaveKind.ORDERED))
    master.core.waiting = Waiting.FOR_A_WHILE
    master.step()


@cause("no slave is connected (1 tasks wait)", "are leaving: start others")
def the_only_agent_finishes_its_last_task(master: _Master) -> None:
    master.connect(1)
    master.put()
    master.put()
    master.receive(messages.Leaving("evicted", Cause.EVICTED))
    master.receive(messages.Revoked(1, [], [], []))
    master.finish(1)


@cause("mw.loop() waits, but no task is submitted and no ordered slave is wanted", "submit tasks, or leave the loop")
def the_loop_waits_before_a_task_is_submitted(master: _Master) -> None:
    master.connect(1)
    master.wait()


@pytest.mark.parametrize(("happen", "reason", "next_step"), CAUSES)
def test_a_notice_comes_in_time_with_the_reason_and_the_next_step_and_is_repeated_at_growing_intervals(
    happen: Callable[[_Master], None], reason: str, next_step: str
) -> None:
    """The first one comes within ten seconds. It does not come at once, because most waits are short. Each interval is
    longer than the one before, up to ten minutes."""
    master = _Master()
    happen(master)
    assert not master.silence_notices
    began = master.now
    master.run(PROMISED_S)
    assert master.silence_notices, "no notice came in time"
    master.run(DAY_S)
    gaps = [late - early for early, late in pairwise([began, *(at for at, _ in master.silence_notices)])]
    assert all(late > early or late == SAY_AGAIN_S == 600.0 for early, late in pairwise(gaps)), gaps
    assert max(gaps) == SAY_AGAIN_S
    assert DAY_S / SAY_AGAIN_S <= len(gaps) < 150
    assert all(reason in text and next_step in text for _, text in master.silence_notices), "the reason changed"


def test_if_all_tasks_pause_the_notice_says_when_the_next_attempt_starts() -> None:
    """A pending task that cannot run has precedence, also if the next attempt starts soon."""
    master = _Master()
    master.connect(1)
    master.put(after=1000.0)
    master.receive(messages.SlaveDied(1, 1, Cause.CRASH, "killed", LastWords()))
    master.run(100.0)
    texts = [text for _, text in master.silence_notices if "pause before their next attempt" in text]
    assert [text.rpartition(" in ")[2] for text in texts] == ["17 min", "16 min", "16 min"]
    master.put()
    master.run(PROMISED_S)
    assert "no slave is connected (2 tasks wait)" in master.silence_notices[-1][1]


def test_a_task_is_handed_back_with_the_reason_when_its_slave_cannot_run_it() -> None:
    """The task is addressed to this slave, so no other slave may run it. A notice gives the reason at once."""
    master = _Master()
    master.connect(1)
    master.connect(1, b"b")
    master.put(1, "SLAVE-0")
    master.refuse(1)
    reasons = [task.reason for task in master.unrunnable]
    assert reasons == [f"SLAVE-0, to which it was addressed, cannot run min: {CANNOT_IMPORT}"]
    assert [text for _, text in master.other_notices if "AGENT-0" in text and CANNOT_IMPORT in text]
    master.put(1, "SLAVE-0")
    assert len(master.unrunnable) == 2
    master.run(DAY_S)
    assert not master.silence_notices, "a notice came although no task waits"


def test_there_is_no_notice_while_a_task_runs_or_nothing_is_to_do() -> None:
    """A task can run for a day, slaves can wait for the master algorithm, and a shutdown can take a day."""
    master = _Master()
    master.run(DAY_S)
    master.connect(2)
    master.run(DAY_S)
    master.put()
    master.put()
    master.wait()
    master.run(DAY_S)
    master.finish(1)
    master.run(DAY_S)
    master.step(ShutDown(True, 1.0))
    master.run(DAY_S)
    assert not master.silence_notices
    assert master.core.next_deadline() is None


def test_there_is_no_notice_while_results_wait_for_the_disk_of_the_run_database() -> None:
    """The algorithm waits for these results, so no other reason is true. Another message says how long it takes."""
    master = _Master()
    master.connect(1)
    master.wait()
    master.core.silence.waits_for_disk = True
    master.run(DAY_S)
    assert not master.silence_notices
    master.core.silence.waits_for_disk = False
    master.step()
    master.run(DAY_S)
    assert master.silence_notices


def test_a_computation_on_one_machine_does_not_ask_for_other_slaves() -> None:
    """No agent from elsewhere can connect, so the notice must not advise the user to start one."""
    master = _Master(only_here=True)
    master.core.definitions.add(Defined(defined(0, "max", reference="")))
    master.put()
    master.run(PROMISED_S)
    assert "The slaves on this machine are not ready" in master.silence_notices[-1][1]
    master.connect(1)
    master.receive(messages.Goodbye("3 slaves in a row ended", Cause.EVICTED))
    master.run(PROMISED_S)
    assert "Correct that, and start the computation again" in master.silence_notices[-1][1]


def test_the_notice_names_tasks_that_wait_for_a_leaving_slave() -> None:
    """The other slave must not run the task, because it is addressed to the leaving slave."""
    master = _Master()
    master.core.obey(AllocateSlaves(1, SlaveKind.ORDERED))
    master.connect(1)
    master.connect(1, b"b")
    master.receive(messages.Leaving("evicted", Cause.EVICTED))
    master.put(sid="SLAVE-0")
    master.run(PROMISED_S)
    text = master.silence_notices[-1][1]
    assert "it is addressed to SLAVE-0, so no other slave is sent it; AGENT-0 on node1: leaving: evicted" in text


def test_agents_that_cannot_run_the_task_do_not_delay_the_notice() -> None:
    """A new agent connects every four seconds, and none of them can run the task. This is no progress."""
    master = _Master()
    master.put(1)
    for number in range(100):
        peer = b"agent %d" % number
        master.connect(1, peer)
        master.refuse(1, peer)
        master.run(4.0)
    assert master.silence_notices


# Tasks that run for long


def test_a_task_that_hangs_is_reported_at_growing_intervals() -> None:
    """The report says which task has run for how long, on which slave, and on which machine."""
    master = _Master()
    master.connect(1)
    master.put()
    master.run(DAY_S)
    at = [moment - 1000.0 for moment, _ in master.other_notices]
    assert at[:4] == [60.0, 240.0, 780.0, 1380.0]
    assert {later - earlier for earlier, later in pairwise(at[3:])} == {SAY_AGAIN_S}
    texts = [text for _, text in master.other_notices]
    assert "task 1 (max) for 60 s on SLAVE-0 at node1" in texts[0]
    assert "task 1 (max) for 4 min on SLAVE-0 at node1" in texts[1]
    assert "cancel it with mw.cancel, or kill the process of its slave; the policy seconds_max limits" in texts[0]


def test_one_report_names_the_longest_tasks_of_many() -> None:
    master = _Master()
    master.connect(8)
    for number in range(7):
        if number == 2:
            master.run(5.0)
        master.put()
    master.run(66.0)
    [(_, text)] = master.other_notices
    assert "task 2 (max) for 60 s on SLAVE-1" in text
    assert "task 3" not in text, "the report names only what runs for long at that moment"
    master.run(180.0)
    assert "task 5 (max) for 3 min 55 s on SLAVE-4 at node1 and 2 more" in master.other_notices[1][1]
