"""Each part of the agent's core that depends on time, and the agent's view of a slave."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from mwpy._core.agent.child import Child, ChildEvent, ChildState
from mwpy._core.agent.core import AgentCore
from mwpy._core.agent.departure import Departure
from mwpy._core.agent.events import (
    AgentSettings,
    ErrorOutput,
    ExitSeen,
    Heard,
    JournalRead,
    SlaveExited,
    SlaveHeard,
    StreamEnded,
)
from mwpy._core.agent.output import HELD_BACK_BYTES, HELD_BACK_S, StartOutput
from mwpy._core.agent.starts import Starts
from mwpy._core.agent.state import AgentState
from mwpy._core.agent.watch import CHECK_S, EXIT_S, KILLED_TOO_S, SILENT_S, Watch
from mwpy._core.holding import take_named
from mwpy._transport import wire
from mwpy._values import messages
from mwpy._values.bounds import MAX_SECONDS
from mwpy._values.causes import Cause
from mwpy._values.errors import ExitCode, InternalError
from mwpy._values.ids import Buffer, SlaveId
from mwpy._values.last_words import LastWords

WELCOME = messages.Welcome("AGENT-0", 0, 1000, 30.0)
FAILURE = LastWords(stderr="no module named x")
TASKS = messages.Tasks(1, [1], [3], [1], [0])


@pytest.fixture
def state() -> AgentState:
    """An agent that may have two slaves, and has none."""
    return AgentState(AgentSettings(messages.Hello("m", "g", "host", 1, "3.11", 2)))


@pytest.fixture
def child(state: AgentState) -> Child:
    """A slave that was started at 100 s."""
    child = state.children[1] = Child(1, SlaveId("slave 1"), started_at=100.0)
    return child


def due_times(child: Child) -> list[float]:
    """The moments when something is due for a slave."""
    times = (child.print_at, child.read_journal_at, child.kill_at, child.collect_at)
    return [time for time in times if time is not None]


# ---- the record of a slave -----------------------------------------------------------------------------------------


def test_a_slave_holds_tasks_until_they_are_finished(child: Child) -> None:
    child.hold(TASKS)
    child.hold(messages.Tasks(1, [9], [1], [2], [0]))
    assert (child.num_held, child.passed_on) == (4, 4)
    assert [child.running(started) for started in range(6)] == [(0, 0), (1, 1), (2, 1), (3, 1), (9, 2), (0, 0)]
    assert take_named(child.held, messages.Results(1, [2], [2], [1], [0.0] * 2, [])) == [range(2)]
    assert take_named(child.held, messages.Results(1, [1, 9], [3, 1], [1, 1], [0.0] * 4, [])) == [range(1)]
    assert child.num_held == 1
    assert child.running(4) == (9, 2)


def test_an_impossible_transition_is_an_internal_error(child: Child) -> None:
    """It names the slave."""
    child.change(ChildEvent.EXIT)
    with pytest.raises(InternalError, match=f"slave {child.number} is gone, which cannot exit"):
        child.change(ChildEvent.EXIT)


def test_a_slave_that_was_killed_counts_as_living_no_more(state: AgentState, child: Child) -> None:
    child.change(ChildEvent.GET_READY)
    assert state.living() == [child]
    child.change(ChildEvent.KILL)
    assert state.living() == []
    assert child.state is ChildState.KILLED


# ---- silence -------------------------------------------------------------------------------------------------------


@pytest.fixture
def watch(state: AgentState, child: Child) -> Watch:
    """Watches a slave that got tasks at 100 s."""
    watch = Watch(state)
    child.hold(TASKS)
    watch.active(child, 100.0)
    return watch


def test_the_journal_of_a_busy_slave_is_read_after_a_silence_once(
    state: AgentState, child: Child, watch: Watch
) -> None:
    assert due_times(child) == [100.0 + SILENT_S]
    watch.decide(child, 100.0 + SILENT_S - 0.001)
    assert state.actions.read_journal == []
    watch.decide(child, 100.0 + SILENT_S)
    watch.decide(child, 200.0)
    assert state.actions.read_journal == [1]
    assert due_times(child) == []


def test_a_message_of_the_slave_ends_the_silence(state: AgentState, child: Child, watch: Watch) -> None:
    watch.active(child, 100.02)
    watch.decide(child, 100.0 + SILENT_S)
    assert state.actions.read_journal == []
    watch.decide(child, 100.02 + SILENT_S)
    assert state.actions.read_journal == [1]


def test_the_journal_of_an_idle_slave_is_not_read(state: AgentState, child: Child, watch: Watch) -> None:
    """A slave with nothing to do has sent all its results."""
    child.held.clear()
    watch.decide(child, 200.0)
    watch.active(child, 200.0)
    assert state.actions.read_journal == []
    assert due_times(child) == []


def test_a_journal_that_the_slave_emptied_meanwhile_is_read_again(
    state: AgentState, child: Child, watch: Watch
) -> None:
    """The journal is not read again if the slave has sent the results of all its tasks."""
    watch.journal_emptied(child, 101.0)
    assert due_times(child) == [101.0]
    watch.decide(child, 101.0)
    assert state.actions.read_journal == [1]
    child.held.clear()
    watch.journal_emptied(child, 102.0)
    assert due_times(child) == []


def test_no_journal_is_read_if_the_master_fixes_the_size_of_groups() -> None:
    core = AgentCore(AgentSettings(messages.Hello("m", "g", "host", 1, "3.11", 1)))
    welcome = messages.Welcome("AGENT-0", 7, 1000, 30.0)
    core.handle(Heard(welcome), 0.0)
    core.handle(SlaveHeard(1, messages.SlaveReady(1)), 0.0)
    core.handle(Heard(TASKS), 0.0)
    core.decide(100.0)
    assert core.take_actions().read_journal == []
    assert core.welcome == welcome


def test_only_the_first_tasks_of_an_idle_slave_begin_its_silence() -> None:
    """At that moment the slave learns the time from which it may gather results."""
    core = AgentCore(AgentSettings(messages.Hello("m", "g", "host", 1, "3.11", 1)))
    core.handle(Heard(WELCOME), 0.0)
    core.handle(SlaveHeard(1, messages.SlaveReady(1)), 0.0)
    core.handle(Heard(TASKS), 1.0)
    assert core.take_actions().feed == [1]
    core.handle(Heard(messages.Tasks(1, [4], [1], [1], [0])), 1.02)
    assert core.take_actions().feed == []
    assert core.next_deadline() == 1.0 + SILENT_S
    core.decide(1.0 + SILENT_S)
    assert core.take_actions().read_journal == [1]
    assert core.next_deadline() == 1.0 + CHECK_S
    core.handle(JournalRead(1, None), 1.1)
    assert core.next_deadline() == 1.1


# ---- the end of a stream and of a process --------------------------------------------------------------------------


def test_a_slave_that_closes_its_stream_and_does_not_exit_is_killed(
    state: AgentState, child: Child, watch: Watch
) -> None:
    """The slave is killed after the time for a tear-down in Python, and only once."""
    child.held.clear()
    watch.active(child, 100.0)
    watch.stream_ended(child, 110.0)
    watch.decide(child, 110.0 + EXIT_S - 0.1)
    assert state.actions.kill == []
    assert due_times(child) == [110.0 + EXIT_S]
    watch.decide(child, 110.0 + EXIT_S)
    watch.decide(child, 200.0)
    assert state.actions.kill == [1]
    assert child.killed_because.startswith("because it was still there 5 s after its connection to the agent had ended")


def test_a_slave_that_was_killed_before_the_end_of_its_stream_keeps_the_reason(
    state: AgentState, child: Child, watch: Watch
) -> None:
    child.kill("because it used too much memory", Cause.OUT_OF_MEMORY)
    watch.stream_ended(child, 110.0)
    watch.decide(child, 110.0 + EXIT_S)
    assert state.actions.kill == [1]
    assert (child.killed_because, child.loss) == ("because it used too much memory", Cause.OUT_OF_MEMORY)


def test_a_slave_that_exits_after_closing_its_stream_is_not_killed(
    state: AgentState, child: Child, watch: Watch
) -> None:
    watch.stream_ended(child, 110.0)
    watch.exit_seen(child, by_sigkill=False, leaving=False, now=111.0)
    watch.decide(child, 111.0)
    watch.decide(child, 200.0)
    assert state.actions.collect == [1]
    assert state.actions.kill == []


@pytest.mark.parametrize(
    ("by_sigkill", "leaving", "delay_s"), [(False, False, 0.0), (True, False, KILLED_TOO_S), (True, True, 0.0)]
)
def test_only_the_end_by_sigkill_is_reported_late(
    state: AgentState, child: Child, watch: Watch, by_sigkill: bool, leaving: bool, delay_s: float
) -> None:
    """A batch system that kills a job may kill the agent next. When an agent leaves, no task is charged anyway."""
    child.read_journal_at = None
    watch.exit_seen(child, by_sigkill, leaving, 110.0)
    assert due_times(child) == [110.0 + delay_s]
    watch.decide(child, 110.0 + delay_s - 0.01)
    assert state.actions.collect == []
    watch.decide(child, 110.0 + delay_s)
    watch.decide(child, 200.0)
    assert state.actions.collect == [1]


def test_the_core_reports_ends_of_streams_and_processes_to_the_watch() -> None:
    core = AgentCore(AgentSettings(messages.Hello("m", "g", "host", 1, "3.11", 1)))
    core.handle(Heard(WELCOME), 0.0)
    core.handle(StreamEnded(1), 10.0)
    assert core.next_deadline() == 10.0 + EXIT_S
    core.handle(ExitSeen(1, by_sigkill=True), 11.0)
    assert core.next_deadline() == 11.0 + KILLED_TOO_S


# ---- standard error of starting slaves -----------------------------------------------------------------------------


@pytest.fixture
def output(state: AgentState) -> StartOutput:
    return StartOutput(state)


def test_the_standard_error_of_a_starting_slave_is_held_back_for_a_while(
    state: AgentState, child: Child, output: StartOutput
) -> None:
    output.wrote(child, b"a warning", 100.5)
    output.decide(child, 100.0 + HELD_BACK_S - 0.1)
    assert state.actions.error_output == []
    assert due_times(child) == [100.0 + HELD_BACK_S]
    output.decide(child, 100.0 + HELD_BACK_S)
    assert due_times(child) == []
    assert state.actions.error_output == [b"a warning"]


def test_what_a_slave_writes_later_is_printed_at_once(state: AgentState, child: Child, output: StartOutput) -> None:
    """The output is printed even if the slave is not up."""
    output.wrote(child, b"late", 100.0 + HELD_BACK_S)
    assert state.actions.error_output == [b"late"]


def test_a_slave_that_comes_up_prints_what_was_held_back_and_then_everything(
    state: AgentState, child: Child, output: StartOutput
) -> None:
    output.wrote(child, b"before", 100.1)
    output.is_up(child)
    output.wrote(child, b"after", 100.2)
    assert state.actions.error_output == [b"before", b"after"]
    assert due_times(child) == []


def test_more_than_the_limit_is_not_held_back(state: AgentState, child: Child, output: StartOutput) -> None:
    data = b"x" * HELD_BACK_BYTES
    output.wrote(child, data, 100.1)
    assert state.actions.error_output == []
    output.wrote(child, b"y", 100.1)
    assert state.actions.error_output == [data + b"y"]


def test_slaves_that_fail_with_the_same_last_words_print_them_once(state: AgentState, output: StartOutput) -> None:
    """A slave that fails with other words prints these words."""
    for number, words in enumerate((FAILURE, FAILURE, LastWords(stderr="disk full"), FAILURE)):
        child = Child(number, SlaveId(""), 0.0)
        output.wrote(child, words.stderr[:5].encode(), 0.1)
        output.ended(child, words, words.stderr[5:].encode())
    assert state.actions.error_output == [b"no module named x", b"disk full"]


def test_a_slave_that_was_up_and_dies_prints_its_last_words_each_time(state: AgentState, output: StartOutput) -> None:
    for number in (1, 2):
        child = Child(number, SlaveId(""), 0.0)
        output.is_up(child)
        output.ended(child, LastWords(fault="Segmentation fault"), b"Segmentation fault")
    assert state.actions.error_output == [b"Segmentation fault"] * 2


def test_the_core_holds_back_what_a_starting_slave_writes_for_a_while() -> None:
    core = AgentCore(AgentSettings(messages.Hello("m", "g", "host", 1, "3.11", 1)))
    core.handle(Heard(WELCOME), 0.0)
    core.handle(ErrorOutput(1, b"a warning\n"), 0.1)
    assert core.next_deadline() == HELD_BACK_S
    core.decide(HELD_BACK_S)
    assert core.take_actions().error_output == [b"a warning\n"]


def test_the_core_prints_what_it_holds_back_when_the_slave_ends() -> None:
    core = AgentCore(AgentSettings(messages.Hello("m", "g", "host", 1, "3.11", 1)))
    core.handle(Heard(WELCOME), 0.0)
    core.handle(ErrorOutput(1, b"no module"), 0.5)
    core.handle(SlaveExited(1, "exit code 1", FAILURE, 0, b" named x"), 0.6)
    assert core.take_actions().error_output == [b"no module named x"]


# ---- starts --------------------------------------------------------------------------------------------------------


def test_slaves_are_started_until_there_are_enough_with_new_numbers(state: AgentState) -> None:
    starts = Starts(state)
    starts.fill(0.0)
    assert (state.actions.start, state.actions.to_slaves) == ([1, 2], [])
    del state.children[1]
    starts.fill(0.0)
    assert state.actions.start == [1, 2, 3]
    starts.check()
    state.check()


def _sent(state: AgentState) -> list[tuple[int, list[int], list[int], list[Buffer]]]:
    """What slaves were sent: the slave, the numbers of definitions and of forgotten ones, and the payload."""
    sent = []
    for number, outgoing in state.actions.to_slaves:
        message, payload = wire.decode(outgoing.received or wire.encode(outgoing.message, outgoing.payload))
        assert isinstance(message, messages.Algorithms)
        sent.append((number, [each.number for each in message.definitions], message.forgotten, [*payload]))
    state.actions.to_slaves.clear()
    return sent


def test_slaves_get_definitions_as_they_arrive_and_new_slaves_get_all_that_are_not_forgotten(state: AgentState) -> None:
    starts = Starts(state)
    starts.fill(0.0)

    def hear(by_value: Sequence[int], forgotten: Sequence[int] = ()) -> None:
        definitions = [messages.AlgorithmDefinition(number, "f", "", "", "3.11") for number in by_value]
        definitions += [messages.AlgorithmDefinition(9, "max", "builtins:max", "", "3.11")] if 1 in by_value else []
        message = messages.Algorithms(definitions, [*forgotten])
        starts.define(message, wire.encode(message, [b"pickle %d" % number for number in by_value]))

    hear([1, 2])
    assert _sent(state) == [(child, [1, 2, 9], [], [b"pickle 1", b"pickle 2"]) for child in (1, 2)]
    hear([3], [1])
    assert _sent(state) == [(child, [3], [1], [b"pickle 3"]) for child in (1, 2)]
    del state.children[1]
    starts.fill(0.0)
    assert _sent(state) == [(3, [2, 9, 3], [], [b"pickle 2", b"pickle 3"])]
    hear([1], [2, 3])
    del state.children[2]
    _sent(state)
    starts.fill(0.0)
    assert _sent(state) == [(4, [9, 1], [], [b"pickle 1"])]


def test_a_slave_that_gets_ready_forgives_the_failed_starts_before_it(state: AgentState) -> None:
    starts = Starts(state)
    ready, others = Child(1, SlaveId("slave 1"), 0.0), Child(2, SlaveId("slave 2"), 0.0)
    assert [starts.failed(others, "x"), starts.failed(others, "x")] == [None, None]
    starts.succeeded(ready)
    assert [starts.failed(others, "x"), starts.failed(others, "x")] == [None, None]
    assert starts.failed(others, "exit code 1") == "3 slaves in a row ended before they could take a task: exit code 1"


def test_a_slave_that_was_ready_and_fails_before_its_first_task_forgives_nothing(state: AgentState) -> None:
    starts = Starts(state)
    for number in (1, 2):
        ready = Child(number, SlaveId("slave"), 0.0)
        starts.succeeded(ready)
        assert starts.failed(ready, "x") is None
    ready = Child(3, SlaveId("slave"), 0.0)
    starts.succeeded(ready)
    assert starts.failed(ready, "exit code 1") is not None


# ---- departure -----------------------------------------------------------------------------------------------------


def test_an_agent_without_slaves_leaves_at_once(state: AgentState) -> None:
    departure = Departure(state)
    assert departure.deadline is None
    departure.leave(ExitCode.FAILED, "the master is lost", Cause.NETWORK, 2.0, 10.0)
    assert state.actions.exit is ExitCode.FAILED
    assert [outgoing.message for outgoing in state.actions.to_master] == [
        messages.Leaving("the master is lost", Cause.NETWORK),
        messages.Goodbye("the master is lost", Cause.NETWORK),
    ]
    departure.check()


@pytest.mark.parametrize(
    ("ends_at", "cause", "found"),
    [
        (None, Cause.EVICTED, Cause.EVICTED),
        (1000.0, Cause.EVICTED, Cause.EVICTED),
        (100.0, Cause.EVICTED, Cause.WALLTIME),
        (100.0, Cause.SCALED_DOWN, Cause.SCALED_DOWN),
    ],
)
def test_a_signal_near_the_time_limit_comes_because_of_the_limit(
    ends_at: float | None, cause: Cause, found: Cause
) -> None:
    """A batch system sends the same signal for an eviction and for a time limit."""
    state = AgentState(AgentSettings(messages.Hello("m", "g", "host", 1, "3.11", 2), ends_at=ends_at))
    Departure(state).terminated("SIGTERM", cause, {}, 10.0)
    leaving = state.actions.to_master[0].message
    assert isinstance(leaving, messages.Leaving)
    assert leaving.cause is found
    assert leaving.reason == ("its time limit is near: SIGTERM" if found is Cause.WALLTIME else "SIGTERM")


def test_a_task_that_gives_up_when_its_agent_leaves_is_lost_for_the_same_reason(
    state: AgentState, child: Child
) -> None:
    Departure(state).leave(ExitCode.EVICTED, "evicted", Cause.EVICTED, 5.0, 10.0)
    assert child.loss is Cause.EVICTED


def test_a_slave_that_outlives_its_grace_period_is_killed(state: AgentState, child: Child) -> None:
    departure = Departure(state)
    departure.leave(ExitCode.EVICTED, "evicted", Cause.EVICTED, 5.0, 10.0)
    departure.decide(14.9)
    assert state.actions.kill == []
    departure.decide(15.0)
    assert state.actions.kill == [1]
    assert state.actions.exit is None
    assert child.state is ChildState.KILLED


@pytest.mark.parametrize(("ends_at", "known"), [(None, 15.0), (16.0, 14.0), (100.0, 15.0)])
def test_the_slaves_of_an_agent_that_leaves_learn_when_their_tasks_must_end(
    ends_at: float | None, known: float
) -> None:
    """At the end of the grace period, or when the time of the agent is over. The first grace period was longer."""
    state = AgentState(AgentSettings(messages.Hello("m", "g", "host", 1, "3.11", 2), ends_at=ends_at))
    departure = Departure(state)
    departure.leave(ExitCode.EVICTED, "evicted", Cause.EVICTED, 500.0, 5.0)
    departure.leave(ExitCode.EVICTED, "evicted", Cause.EVICTED, 5.0, 10.0)
    assert state.actions.end_at == known


@pytest.mark.parametrize(
    ("ends_at", "left_s"), [(None, None), (130.0, 28.0), (101.0, 0.0), (1e12, MAX_SECONDS)], ids=str
)
def test_the_first_message_says_how_long_tasks_may_run(ends_at: float | None, left_s: float | None) -> None:
    """The agent needs some time for its own end."""
    hello = messages.Hello("m", "g", "node1", 1, "3.11", 1)
    assert AgentSettings(hello, ends_at=ends_at).hello_at(100.0).seconds_left == left_s
