"""The agent's core as a whole: tasks, results, recalls, deaths, and every way to leave."""

from __future__ import annotations

import pytest
from msgspec.structs import replace
from tests.driven_agent import HELLO, WELCOME, agent, heard, results, slave_heard, tasks, to_master

from mwpy._core.agent.child import (
    OVERWROTE,
    AgentActions,
    AgentSettings,
    Disconnected,
    Looked,
    LookedUp,
    Nonsense,
    Recalled,
    Resumed,
    SlaveExited,
    SlaveHeard,
    Terminated,
)
from mwpy._core.agent.core import AgentCore
from mwpy._core.agent.traffic import FAILED_LOADS_ALLOWED
from mwpy._transport import wire
from mwpy._values import messages, records
from mwpy._values.bounds import MAX_PACKAGES, MAX_TASKS
from mwpy._values.causes import Cause
from mwpy._values.errors import ExitCode
from mwpy._values.last_words import NO_WORDS


@pytest.fixture
def core() -> AgentCore:
    """An agent with one slave, which is ready."""
    return agent()


# ---- tasks and results ---------------------------------------------------------------------------------------------


def cannot_load(task: int, attempt: int = 1) -> SlaveHeard:
    """Slave 1 cannot load an algorithm for a reason that may pass."""
    failure = messages.LoadFailure.PASSING
    return slave_heard(messages.AlgorithmFailed(1, 0, "MemoryError", [task], [1], [attempt], failure))


def test_the_third_slave_in_a_row_that_cannot_load_an_algorithm_is_kept(core: AgentCore) -> None:
    """It can run other algorithms. The master learns that it failed again."""
    core.children[1].failed_before = FAILED_LOADS_ALLOWED - 1
    core.handle(tasks(5), 0.0)
    core.take_actions()
    core.handle(cannot_load(5), 0.0)
    actions = core.take_actions()
    [message] = to_master(actions)
    assert isinstance(message, messages.AlgorithmFailed)
    assert (message.failure, message.tasks) == (messages.LoadFailure.REPEATED, [5])
    assert (actions.recall, actions.to_slaves) == ([], [])
    core.handle(SlaveExited(1, "exit code 1", NO_WORDS, 0), 0.0)
    assert core.children[2].failed_before == 0


# ---- deaths of slaves ----------------------------------------------------------------------------------------------


def test_when_results_were_lost_the_death_charges_the_task_that_was_started_last(core: AgentCore) -> None:
    """The slave finished the tasks before it, and then wrote over the memory that had their results. They are named."""
    core.handle(tasks(5, 6, 7, 8, attempt=2), 0.0)
    core.take_actions()
    core.handle(SlaveExited(1, "killed by signal 11", NO_WORDS, 3), 0.0)
    assert to_master(core.take_actions()) == [
        messages.SlaveDied(1, 7, Cause.CRASH, "killed by signal 11", NO_WORDS, [(5, 2, 2)])
    ]


def test_an_agent_that_gives_up_starts_no_other_slave() -> None:
    """Three slaves end in one iteration. The first two would be replaced."""
    core = AgentCore(AgentSettings(replace(HELLO, slaves=3)))
    core.handle(heard(WELCOME), 0.0)
    assert core.take_actions().start == [1, 2, 3]
    for number in (1, 2, 3):
        core.handle(SlaveExited(number, "exit code 1", NO_WORDS, 0), 0.0)
    actions = core.take_actions()
    assert (actions.start, actions.exit) == ([], ExitCode.CANNOT_START)


def start_of_next(core: AgentCore, slave: int, code: int, now: float) -> float:
    """Let a slave end before it was ready, and return when the next one starts."""
    core.handle(SlaveExited(slave, "it ended", NO_WORDS, 0, code=code), now)
    while True:
        core.decide(now)
        actions = core.take_actions()
        assert actions.exit is None
        if actions.start:
            assert actions.start == [slave + 1]
            return now
        due = core.next_deadline()
        assert due is not None
        now = due


def test_slaves_that_are_killed_from_outside_are_always_replaced_after_longer_and_longer_pauses() -> None:
    """An agent gives up only because of slaves that end by themselves. A slave that starts a task forgives all."""
    core = AgentCore(AgentSettings(HELLO))
    core.handle(heard(WELCOME), 0.0)
    core.take_actions()
    now, pauses = 1.0, []
    for slave in range(1, 13):
        started_at = start_of_next(core, slave, -9, now)
        pauses.append(round(started_at - now, 1))
        now = started_at
    assert pauses == [0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 10.0, 10.0, 10.0, 10.0, 10.0]
    core.handle(SlaveHeard(13, messages.SlaveReady(13)), now)
    core.handle(heard(messages.Tasks(13, [1], [1], [1], [0]), b""), now)
    core.take_actions()
    core.handle(SlaveExited(13, "killed", NO_WORDS, 1, code=-9), now)
    assert core.take_actions().start == [14]


def dies(core: AgentCore, started: int, cause: str = "killed by signal 9") -> messages.SlaveDied:
    """Let slave 1 end, and return what the master is sent about it."""
    core.take_actions()
    core.handle(SlaveExited(1, cause, NO_WORDS, started), 1.0)
    [died] = [each for each in to_master(core.take_actions()) if isinstance(each, messages.SlaveDied)]
    return died


def test_a_slave_that_overwrites_shared_memory_is_killed(core: AgentCore) -> None:
    """It gets no more tasks, its messages count no more, and it is reported once."""
    core.handle(tasks(1, 2, 3), 0.0)
    core.handle(results(1), 0.0)
    core.take_actions()
    for _ in range(2):
        core.handle(Nonsense(1, OVERWROTE, "numbers have changed"), 0.0)
    actions = core.take_actions()
    assert actions.kill == [1]
    why = "it overwrote the memory that it shares with its agent: numbers have changed"
    assert actions.records == [records.Notice(f"slave 1 is killed: {why}")]
    core.handle(results(2), 0.0)
    core.handle(Looked(1, 2, 0.0, messages.Results(1, [2], [1], [1], [0.1], []), [b"", b""]), 0.0)
    assert core.take_actions() == AgentActions()
    core.handle(tasks(4), 0.0)
    assert to_master(core.take_actions()) == [messages.Revoked(1, [4], [1], [1])]
    assert dies(core, 0) == messages.SlaveDied(1, 2, Cause.CRASH, f"killed by its agent because {why}", NO_WORDS)


@pytest.mark.parametrize("started", [0, 1, 4, (1 << 64) - 1])
def test_an_impossible_number_of_the_running_task_condemns_the_slave(core: AgentCore, started: int) -> None:
    """The number only grows, and no task after the last can run. The first task that is held counts as running."""
    core.handle(tasks(1, 2, 3), 0.0)
    core.handle(results(1), 0.0)
    core.handle(Recalled(1, 2, 0), 0.0)
    core.take_actions()
    core.handle(Recalled(1, started, 9), 0.0)
    actions = core.take_actions()
    assert (actions.kill, actions.to_slaves, actions.to_master) == ([1], [], [])
    died = dies(core, started)
    assert died.running == 2
    assert f"it says that it runs task {started} of 3" in died.reason


def test_a_slave_that_died_with_an_impossible_number_charges_the_first_task_that_it_held(core: AgentCore) -> None:
    """Otherwise nobody would be charged, and the task would be tried again without end."""
    core.handle(tasks(1, 2), 0.0)
    died = dies(core, 1 << 60, "killed by signal 11")
    assert died.running == 1
    assert died.reason.startswith("killed by signal 11; it overwrote the memory that it shares with its agent: it says")


@pytest.mark.parametrize(
    "message",
    [
        messages.SlaveReady(1),
        messages.SlaveReady(2),
        messages.Results(2, [1], [1], [1], [0.0], []),
        messages.Reported(2, 1, 1, 0.5),
        messages.Logged(2, []),
        messages.AlgorithmFailed(1, 7, "no module", [1], [1], [1]),
        messages.Probe(),
    ],
)
def test_a_slave_that_sends_an_impossible_message_is_killed(core: AgentCore, message: messages.Message) -> None:
    """The master would drop the agent for such a message: ready twice, another slave's number, unknown algorithms."""
    core.handle(slave_heard(message), 0.0)
    actions = core.take_actions()
    assert (actions.kill, actions.to_master) == ([1], [])
    assert f"what it sent cannot be read: {type(message).__name__} at the wrong time" in dies(core, 0).reason


def test_what_the_agent_sends_keeps_the_bounds_of_messages(core: AgentCore) -> None:
    """Causes and reasons may contain any text, and a recall may take back more spans than fit into one message."""
    count = MAX_TASKS + 10
    core.handle(tasks(*range(1, 2 * count + 1, 2)), 0.0)
    core.handle(LookedUp({f"p{number}": "1" * 1000 for number in range(MAX_PACKAGES + 1)}), 0.0)
    core.handle(Recalled(1, 0, 1 << 30), 0.0)
    first = core.take_actions()
    assert first.recall == [(1, (1 << 30) - MAX_TASKS)]
    core.handle(Recalled(1, 0, (1 << 30) - MAX_TASKS), 0.0)
    core.handle(Terminated("x" * 100_000), 0.0)
    core.handle(SlaveExited(1, "x" * 100_000, NO_WORDS, 0), 0.0)
    second = core.take_actions()
    assert second.recall == []
    sent = [wire.decode(wire.encode(each), wire.FROM_AGENT)[0] for each in (*to_master(first), *to_master(second))]
    assert sum(len(each.tasks) for each in sent if isinstance(each, messages.Revoked)) == count
    assert sum(len(each.packages) for each in sent if isinstance(each, messages.Installed)) == MAX_PACKAGES + 1
    kinds = [messages.Installed] * 2 + [messages.Revoked] * 2 + [messages.Leaving, messages.SlaveDied, messages.Goodbye]
    assert [type(each) for each in sent] == kinds


# ---- leaving -------------------------------------------------------------------------------------------------------


def test_the_first_reason_decides_the_exit_code_and_the_shortest_grace_period_counts(core: AgentCore) -> None:
    core.handle(heard(messages.Shutdown(True, 10.0)), 0.0)
    core.handle(Disconnected("broke"), 1.0)
    assert core.next_deadline() == 3.0
    core.handle(heard(messages.Shutdown(True, 10.0)), 2.0)
    assert core.next_deadline() == 3.0
    core.handle(SlaveExited(1, "exit code 0", NO_WORDS, 0), 2.5)
    assert core.take_actions().exit is ExitCode.OK


@pytest.mark.parametrize(
    ("stopped_s", "later_s", "comes_back"), [(90.0, 1.0, True), (14.0, 1.0, False), (90.0, 31.0, False)]
)
def test_an_agent_that_was_given_up_because_it_was_stopped_comes_back(
    core: AgentCore, stopped_s: float, later_s: float, comes_back: bool
) -> None:
    """If it was stopped only for a moment, or long ago, the connection broke for another reason."""
    core.handle(Resumed(stopped_s), 100.0)
    core.handle(Disconnected("it broke"), 100.0 + later_s)
    assert core.departure.comes_back is comes_back
    notice, *_ = (record.text for record in core.take_actions().records if isinstance(record, records.Notice))
    assert (
        notice
        == f"the master is lost: {'this agent was stopped for 90 s, and starts again' if comes_back else 'it broke'}"
    )


def test_the_agent_does_not_wait_for_a_slave_that_the_kernel_cannot_end(core: AgentCore) -> None:
    core.handle(Terminated("evicted"), 0.0)
    core.decide(6.0)
    core.decide(9.0)
    assert core.take_actions().exit is ExitCode.EVICTED


def test_a_slave_that_finishes_its_last_task_may_log(core: AgentCore) -> None:
    """Its agent leaves, and the running task has the grace period."""
    core.handle(tasks(1), 0.0)
    core.handle(Terminated("evicted"), 0.0)
    core.take_actions()
    core.handle(slave_heard(messages.Logged(1, [])), 0.0)
    actions = core.take_actions()
    assert to_master(actions) == [messages.Logged(1, [])]
    assert actions.kill == []


def test_a_slave_that_logs_before_it_is_ready_is_killed() -> None:
    core = AgentCore(AgentSettings(HELLO))
    core.handle(heard(WELCOME), 0.0)
    core.take_actions()
    core.handle(slave_heard(messages.Logged(1, [])), 0.0)
    actions = core.take_actions()
    assert actions.kill == [1]
    assert not to_master(actions)
