"""Slaves that are replaced between tasks, slaves that hang in their start, and agents that have no work."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from mwpy._core.agent.child import (
    AgentActions,
    AgentSettings,
    Heard,
    Looked,
    Resumed,
    SlaveExited,
    SlaveHeard,
    StreamEnded,
)
from mwpy._core.agent.core import AgentCore
from mwpy._core.agent.limits import EXIT_S, SILENT_S
from mwpy._core.agent.starts import ABORT_S, FAILED_STARTS_ALLOWED
from mwpy._transport import wire
from mwpy._values import groups, messages
from mwpy._values.bounds import Buffer
from mwpy._values.causes import Cause
from mwpy._values.errors import ExitCode
from mwpy._values.last_words import NO_WORDS

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


def test_a_slave_ends_when_it_has_run_its_last_task() -> None:
    """Its end is no failure, whether the results arrive in its stream or are read in its journal."""
    core = limited(2)
    core.handle(tasks(1, 2), 0.0)
    assert to_master(core.take_actions()) == [RETIRING]
    core.handle(results(1, 1), 0.0)
    assert to_slave(core.take_actions()) == []
    group = messages.Results(1, [2], [1], [1], [0.1], [])
    core.decide(SILENT_S)
    core.handle(Looked(1, 2, 0.0, group, wire.encode(group, [groups.payload(1, [b"\0"])])), SILENT_S)
    actions = core.take_actions()
    assert to_slave(actions) == [(STOP, [])]
    assert (actions.recall, actions.kill) == ([], [])
    core.handle(SlaveExited(1, "exit code 0", NO_WORDS, 2), 0.0)
    actions = core.take_actions()
    assert to_master(actions) == [messages.SlaveDied(1, 0, Cause.CRASH, "replaced after 2 tasks", NO_WORDS)]
    assert actions.start == [2]
    core.check()


def test_a_crash_after_the_last_task_is_named() -> None:
    core = limited(1)
    core.handle(tasks(1, 1), 0.0)
    core.handle(results(1, 1), 0.0)
    assert ends(core, 1, reason="exit code 3").reason == "replaced after 1 task (exit code 3)"


# ---- an amount of memory -------------------------------------------------------------------------------------------


# ---- the time of a start -------------------------------------------------------------------------------------------


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


# ---- an idle agent -------------------------------------------------------------------------------------------------


def test_the_end_of_a_job_may_come_before_the_end_of_the_idle_time() -> None:
    core = ready(AgentSettings(HELLO, grace_s=5.0, ends_at=50.0, idle_exit_s=60.0))
    core.decide(0.0)
    assert core.next_deadline() == 43.0
