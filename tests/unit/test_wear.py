"""Slaves that are replaced between tasks, slaves that hang in their start, and agents that have no work."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from msgspec.structs import replace

from mwpy._core.agent.child import (
    UNBOUNDED,
    AgentActions,
    AgentSettings,
    Heard,
    JournalRead,
    Recalled,
    Resumed,
    SlaveExited,
    SlaveHeard,
    StreamBroken,
    StreamEnded,
)
from mwpy._core.agent.core import AgentCore
from mwpy._core.agent.limits import EXIT_S, divide
from mwpy._core.agent.starts import ABORT_S, FAILED_STARTS_ALLOWED
from mwpy._transport import wire
from mwpy._values import groups, messages, records
from mwpy._values.bounds import MAX_TASKS, Buffer
from mwpy._values.causes import Cause
from mwpy._values.errors import ExitCode
from mwpy._values.last_words import NO_WORDS
from mwpy._values.messages import check
from mwpy._values.policy import Limits

HELLO = messages.Hello("m", "g", "host", 1, "3.11", 1)
STOP = messages.Shutdown(False, 0.0)
RETIRING = messages.SlaveRetiring(1)


def heard(message: messages.Message, *payload: Buffer) -> Heard:
    """A message of the master, as it arrives."""
    return Heard(message, wire.encode(message, payload))


def slave_heard(message: messages.Message, *payload: Buffer, slave: int = 1) -> SlaveHeard:
    """A message of a slave, as it arrives."""
    return SlaveHeard(slave, message, wire.encode(message, payload))


def tasks(first: int, count: int) -> Heard:
    """Tasks for slave 1, each with its own number as its payload."""
    group = messages.Tasks(1, [first], [count], [1], [0])
    return heard(group, groups.payload(count, [bytes([number]) for number in range(first, first + count)]))


def results(first: int, count: int) -> SlaveHeard:
    """The results of tasks of slave 1."""
    group = messages.Results(1, [first], [count], [1], [0.1] * count, [])
    return slave_heard(group, groups.payload(count, [bytes(count)]))


def ready(settings: AgentSettings) -> AgentCore:
    """An agent with one slave, which is ready."""
    core = AgentCore(settings)
    core.handle(heard(messages.Welcome("AGENT-0", 0, 1000, 30.0)), 0.0)
    core.handle(slave_heard(messages.SlaveReady(1)), 0.0)
    core.handle(heard(messages.Algorithms([messages.AlgorithmDefinition(0, "f", "m:f", "", "3.11")])), 0.0)
    core.check()
    core.take_actions()
    return core


def limited(tasks: int) -> AgentCore:
    """The same. A slave may run this many tasks."""
    return ready(AgentSettings(HELLO, slave_max_tasks=tasks))


def to_master(actions: AgentActions) -> list[messages.Message]:
    """The messages to the master."""
    return [wire.decode(each.received or wire.encode(each.message, each.payload))[0] for each in actions.to_master]


def to_slave(actions: AgentActions) -> list[tuple[messages.Message, Sequence[Buffer]]]:
    """The messages to slaves."""
    encoded = (each.received or wire.encode(each.message, each.payload) for _, each in actions.to_slaves)
    return [wire.decode(frames) for frames in encoded]


def ends(core: AgentCore, started: int, now: float = 0.0, reason: str = "exit code 0") -> messages.SlaveDied:
    """Slave 1 ends. Return what the master gets."""
    core.handle(SlaveExited(1, reason, NO_WORDS, started), now)
    [died] = [each for each in to_master(core.take_actions()) if isinstance(each, messages.SlaveDied)]
    return died


# ---- a number of tasks ---------------------------------------------------------------------------------------------


def test_a_slave_gets_only_as_many_tasks_as_it_may_run() -> None:
    """The group is cut, with its payload. The other tasks go back at once, and the master sends no more."""
    core = limited(5)
    core.handle(tasks(1, 3), 0.0)
    assert to_master(core.take_actions()) == []
    core.handle(tasks(11, 4), 0.0)
    actions = core.take_actions()
    kept = messages.Tasks(1, [11], [2], [1], [0])
    assert to_slave(actions) == [(kept, [groups.payload(2, [b"\x0b", b"\x0c"])])]
    assert to_master(actions) == [RETIRING, messages.Revoked(1, [13], [2], [1])]
    core.handle(tasks(21, 1), 0.0)
    actions = core.take_actions()
    assert (to_slave(actions), to_master(actions)) == ([], [messages.Revoked(1, [21], [1], [1])])
    core.check()


def test_a_slave_ends_when_it_has_run_its_last_task() -> None:
    """Its end is no failure, whether the results arrive in its stream or are read in its journal."""
    core = limited(2)
    core.handle(tasks(1, 2), 0.0)
    assert to_master(core.take_actions()) == [RETIRING]
    core.handle(results(1, 1), 0.0)
    assert to_slave(core.take_actions()) == []
    group = messages.Results(1, [2], [1], [1], [0.1], [])
    core.handle(JournalRead(1, group, wire.encode(group, [groups.payload(1, [b"\0"])])), 0.0)
    actions = core.take_actions()
    assert to_slave(actions) == [(STOP, [])]
    assert (actions.recall, actions.kill) == ([], [])
    core.handle(SlaveExited(1, "exit code 0", NO_WORDS, 2), 0.0)
    actions = core.take_actions()
    assert to_master(actions) == [messages.SlaveDied(1, 0, Cause.CRASH, "replaced after 2 tasks", NO_WORDS)]
    assert actions.start == [2]
    core.check()


def test_tasks_that_a_slave_did_not_run_do_not_count() -> None:
    """Some were taken back, and of one it cannot load the algorithm."""
    core = limited(4)
    core.handle(tasks(1, 3), 0.0)
    core.handle(Recalled(1, 1, 1), 0.0)
    refusal = messages.AlgorithmFailed(1, 0, "no such function", [2], [1], [1])
    core.handle(slave_heard(refusal), 0.0)
    core.take_actions()
    core.handle(tasks(11, 2), 0.0)
    assert to_master(core.take_actions()) == []
    core.handle(tasks(21, 1), 0.0)
    assert to_master(core.take_actions()) == [RETIRING]
    core.handle(results(1, 1), 0.0)
    core.handle(results(11, 2), 0.0)
    core.handle(results(21, 1), 0.0)
    assert to_slave(core.take_actions())[-1] == (STOP, [])
    assert ends(core, 6).reason == "replaced after 4 tasks"


def test_a_slave_that_retires_ends_when_its_last_tasks_are_taken_back() -> None:
    """The master takes tasks back for idle slaves, also from a slave that retires."""
    core = limited(2)
    core.handle(tasks(1, 2), 0.0)
    core.handle(heard(messages.Cancel([1], [1], True)), 0.0)
    core.handle(heard(messages.Revoke(1, 1)), 0.0)
    core.take_actions()
    core.handle(Recalled(1, 1, messages.Cancel([1], [1], True)), 0.0)
    assert (STOP, []) not in to_slave(core.take_actions())
    core.handle(Recalled(1, 1, 1), 0.0)
    assert to_slave(core.take_actions())[-1] == (STOP, [])


def test_a_crash_in_the_last_task_is_a_crash() -> None:
    core = limited(2)
    core.handle(tasks(1, 2), 0.0)
    core.handle(results(1, 1), 0.0)
    died = ends(core, 2, reason="killed by signal 11 (SIGSEGV)")
    assert (died.running, died.cause, died.reason) == (2, Cause.CRASH, "killed by signal 11 (SIGSEGV)")


def test_a_crash_after_the_last_task_is_named() -> None:
    core = limited(1)
    core.handle(tasks(1, 1), 0.0)
    core.handle(results(1, 1), 0.0)
    assert ends(core, 1, reason="exit code 3").reason == "replaced after 1 task (exit code 3)"


def test_many_spans_go_back_in_several_messages() -> None:
    """One message of an agent names at most `MAX_TASKS` spans."""
    core = limited(1)
    count = MAX_TASKS + 2
    spans = [*range(1, 2 * count, 2)], [1] * count, [1] * count, [0] * count
    core.handle(heard(messages.Tasks(1, *spans), groups.payload(count, [bytes(count)])), 0.0)
    back = to_master(core.take_actions())[1:]
    assert [len(each.tasks) for each in back if isinstance(each, messages.Revoked)] == [MAX_TASKS, 1]


@pytest.mark.parametrize("count", range(1, 5))
def test_a_group_is_divided_with_its_large_buffers_and_limits(count: int) -> None:
    limits = [Limits(1.0), None]
    group = messages.Tasks(1, [1, 7], [3, 2], [1, 2], [0, 4], [1, 0, 2, 0, 1], [*limits])
    entries, large = [bytes([number]) for number in range(5)], [b"A", b"B", b"C", b"D"]
    kept, frames, rest = divide(group, [groups.payload(5, entries), *large], count)
    check(kept, frames)
    check(rest, [])
    of_each = [[b"A"], [], [b"B", b"C"], [], [b"D"]]
    read, buffers = groups.entries(kept, frames)
    assert (read, [[*own] for own in buffers]) == ([*range(count)], of_each[:count])
    named = [(1, 1), (2, 1), (3, 1), (7, 2), (8, 2)]
    assert [*groups.each_task(kept)] == named[:count]
    assert [*groups.each_task(rest)] == named[count:]
    assert (kept.algorithms, kept.limits) == (([0], limits[:1]) if count <= 3 else ([0, 4], limits))


# ---- an amount of memory -------------------------------------------------------------------------------------------


def test_a_slave_that_has_grown_finishes_its_task_and_is_replaced() -> None:
    core = ready(AgentSettings(HELLO))
    core.handle(tasks(1, 3), 0.0)
    core.handle(results(1, 1), 0.0)
    core.take_actions()
    for _ in range(2):
        core.handle(slave_heard(messages.SlaveGrown(1, 5 << 30)), 0.0)
    actions = core.take_actions()
    assert to_master(actions) == [RETIRING]
    assert (to_slave(actions), actions.recall) == ([(STOP, [])], [(1, UNBOUNDED)])
    core.handle(Recalled(1, 2, UNBOUNDED), 0.0)
    assert to_master(core.take_actions()) == [messages.Revoked(1, [3], [1], [1])]
    core.handle(results(2, 1), 0.0)
    assert ends(core, 2).reason == "replaced after 2 tasks, because it had grown to 5.0 GiB"


# ---- the time of a start -------------------------------------------------------------------------------------------


def test_a_slave_that_hangs_in_its_start_is_killed_and_counts_as_a_failed_start() -> None:
    """It first gets some time to write where it hangs. After three such slaves the agent gives up."""
    core = AgentCore(AgentSettings(HELLO, start_timeout_s=60.0))
    core.handle(heard(messages.Welcome("AGENT-0", 0, 1000, 30.0)), 0.0)
    now = 0.0
    why = "killed by its agent because it was not ready after 60 s (--mw-slave-start-timeout)"
    for number in range(1, FAILED_STARTS_ALLOWED + 1):
        core.take_actions()
        now += 60.0
        assert core.next_deadline() == now
        core.decide(now - 0.001)
        assert core.take_actions().abort == []
        core.decide(now)
        actions = core.take_actions()
        assert (actions.abort, actions.kill) == ([number], [])
        core.decide(now + ABORT_S)
        assert core.take_actions().kill == [number]
        core.handle(SlaveExited(number, "killed by signal 6 (SIGABRT)", NO_WORDS, 0), now)
        core.check()
        actions = core.take_actions()
        assert to_master(actions)[0] == messages.SlaveDied(number, 0, Cause.START_UP, why, NO_WORDS)
    assert actions.exit is ExitCode.CANNOT_START
    assert (
        records.Notice(f"this agent gives up: 3 slaves in a row ended before they could take a task: {why}")
        in actions.records
    )


def test_the_end_of_a_slave_that_hangs_in_its_start_is_not_put_off_if_it_closes_its_stream() -> None:
    core = AgentCore(AgentSettings(HELLO, start_timeout_s=60.0))
    core.handle(heard(messages.Welcome("AGENT-0", 0, 1000, 30.0)), 0.0)
    core.decide(60.0)
    core.handle(StreamEnded(1), 61.0)
    core.take_actions()
    core.decide(60.0 + ABORT_S)
    assert core.take_actions().kill == [1]


def test_a_slave_that_closes_its_stream_in_its_start_and_hangs_counts_as_a_failed_start() -> None:
    core = AgentCore(AgentSettings(HELLO))
    core.handle(heard(messages.Welcome("AGENT-0", 0, 1000, 30.0)), 0.0)
    for number in range(1, FAILED_STARTS_ALLOWED + 1):
        core.handle(StreamEnded(number), 10.0)
        core.take_actions()
        core.decide(10.0 + EXIT_S)
        assert core.take_actions().kill == [number]
        core.handle(SlaveExited(number, "killed by signal 9 (SIGKILL)", NO_WORDS, 0), 10.0 + EXIT_S)
        core.check()
    assert core.take_actions().exit is ExitCode.CANNOT_START


def test_a_slave_that_is_replaced_before_it_is_ready_must_end_in_time_too() -> None:
    """Otherwise its agent would lack a slave forever."""
    core = AgentCore(AgentSettings(HELLO))
    core.handle(heard(messages.Welcome("AGENT-0", 0, 1000, 30.0)), 0.0)
    core.handle(heard(messages.Renew()), 0.0)
    core.decide(300.0)
    assert core.take_actions().abort == [1]


def test_a_slave_that_was_killed_in_its_start_is_not_killed_again() -> None:
    core = AgentCore(AgentSettings(HELLO))
    core.handle(heard(messages.Welcome("AGENT-0", 0, 1000, 30.0)), 0.0)
    core.take_actions()
    core.decide(299.0)
    core.handle(heard(messages.Renew()), 299.0)
    core.handle(StreamBroken(1, "nonsense"), 299.0)
    assert core.take_actions().kill == [1]
    core.decide(300.0)
    actions = core.take_actions()
    assert actions.abort == actions.kill == []


def test_a_slave_that_starts_gets_more_time_if_its_agent_was_stopped() -> None:
    """The slave was most likely stopped, too."""
    core = AgentCore(AgentSettings(replace(HELLO, slaves=2)))
    core.handle(heard(messages.Welcome("AGENT-0", 0, 1000, 30.0)), 0.0)
    core.handle(slave_heard(messages.SlaveReady(1)), 10.0)
    core.handle(Resumed(1000.0), 1020.0)
    assert core.next_deadline() == 1300.0
    core.decide(1299.0)
    assert core.take_actions().abort == []
    core.decide(1300.0)
    assert core.take_actions().abort == [2]


def test_a_ready_slave_may_wait_for_any_time() -> None:
    core = ready(AgentSettings(HELLO))
    core.decide(1000.0)
    assert core.take_actions() == AgentActions()
    assert core.next_deadline() is None


# ---- an idle agent -------------------------------------------------------------------------------------------------


def test_an_agent_whose_slaves_had_no_task_for_long_leaves() -> None:
    """Its exit code ends its job, and nothing is charged to a task that comes too late."""
    core = ready(AgentSettings(HELLO, idle_exit_s=60.0))
    assert core.next_deadline() == float("-inf")  # decide at once: the time begins now
    core.decide(10.0)
    assert core.next_deadline() == 70.0
    core.handle(tasks(1, 1), 20.0)
    core.decide(20.0)
    core.decide(90.0)
    core.handle(results(1, 1), 100.0)
    core.take_actions()
    core.decide(100.0)
    core.decide(159.9)
    assert to_master(core.take_actions()) == []
    core.decide(160.0)
    why = "its slaves had no task for 60 s (--mw-idle-exit)"
    assert to_master(core.take_actions()) == [messages.Leaving(why, Cause.SCALED_DOWN)]
    core.handle(tasks(2, 1), 160.0)
    assert to_master(core.take_actions()) == [messages.Revoked(1, [2], [1], [1])]
    core.handle(SlaveExited(1, "exit code 0", NO_WORDS, 1), 160.0)
    actions = core.take_actions()
    assert to_master(actions)[-1] == messages.Goodbye(why, Cause.SCALED_DOWN)
    assert actions.exit is ExitCode.OK


def test_an_agent_whose_slaves_start_is_not_idle() -> None:
    core = AgentCore(AgentSettings(HELLO, idle_exit_s=1.0))
    core.handle(heard(messages.Welcome("AGENT-0", 0, 1000, 30.0)), 0.0)
    core.decide(1.0)
    core.decide(200.0)
    assert to_master(core.take_actions()) == []
    assert core.next_deadline() == 300.0


def test_the_end_of_a_job_may_come_before_the_end_of_the_idle_time() -> None:
    core = ready(AgentSettings(HELLO, grace_s=5.0, ends_at=50.0, idle_exit_s=60.0))
    core.decide(0.0)
    assert core.next_deadline() == 43.0
