"""The agent's core as a whole: tasks, results, recalls, deaths, and every way to leave."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from msgspec.structs import replace

from mwpy._core.agent.child import (
    UNBOUNDED,
    AgentActions,
    AgentSettings,
    Disconnected,
    ExitSeen,
    Heard,
    JournalRead,
    LookedUp,
    MemoryBroken,
    MemoryRead,
    Outgoing,
    Recalled,
    Resumed,
    SlaveExited,
    SlaveHeard,
    StreamBroken,
    Terminated,
)
from mwpy._core.agent.core import AgentCore
from mwpy._core.agent.traffic import FAILED_LOADS_ALLOWED
from mwpy._transport import wire
from mwpy._values import groups, messages, records
from mwpy._values.bounds import MAX_PACKAGES, MAX_TASKS, Buffer, SlaveId
from mwpy._values.causes import Cause
from mwpy._values.errors import ExitCode
from mwpy._values.last_words import NO_WORDS, LastWords
from mwpy._values.messages import LogRow

HELLO = messages.Hello("m", "g", "host", 1, "3.11", 1)
SETTINGS = AgentSettings(HELLO)
WELCOME = messages.Welcome("AGENT-0", 0, 1000, 30.0)
DEFINITION = messages.AlgorithmDefinition(0, "f", "m:f", "", "3.11")
WORDS = LastWords("out", "err", "fault", 1 << 20)


def heard(message: messages.Message, *payload: Buffer) -> Heard:
    """Encode a message of the master, as it arrives."""
    return Heard(message, wire.encode(message, payload))


def slave_heard(message: messages.Message, *payload: Buffer) -> SlaveHeard:
    """Encode a message of slave 1, as it arrives."""
    return SlaveHeard(1, message, wire.encode(message, payload))


def tasks(*numbers: int, attempt: int = 1) -> Heard:
    """A group of tasks for slave 1, as it arrives."""
    firsts, counts, attempts = groups.spans_of(numbers, [attempt] * len(numbers))
    return heard(messages.Tasks(1, firsts, counts, attempts, [0] * len(firsts)), b"")


def results(first: int, count: int = 1, digits: str = "") -> SlaveHeard:
    """Results of `count` tasks from `first` on, as they arrive; each has a digit as its payload."""
    return slave_heard(messages.Results(1, [first], [count], [1], [0.1] * count, []), payload(digits or "0" * count))


def payload(digits: str) -> bytes:
    """A group's first payload frame: a digit for each task."""
    return groups.payload(len(digits), [bytes(map(int, digits))])


def decoded(outgoing: Outgoing) -> tuple[messages.Message, Sequence[Buffer]]:
    """Decode a message as its receiver does."""
    return wire.decode(outgoing.received or wire.encode(outgoing.message, outgoing.payload))


def to_master(actions: AgentActions) -> list[messages.Message]:
    """The messages to the master."""
    return [decoded(outgoing)[0] for outgoing in actions.to_master]


def held(core: AgentCore) -> list[tuple[int, int]]:
    """Task and attempt of all tasks that slave 1 holds, in order."""
    return [(span.first + at, span.attempt) for span in core.children[1].held for at in range(span.count)]


@pytest.fixture
def core() -> AgentCore:
    """An agent with one slave, which is ready."""
    core = AgentCore(SETTINGS)
    core.handle(heard(WELCOME), 0.0)
    core.handle(slave_heard(messages.SlaveReady(1)), 0.0)
    core.handle(heard(messages.Algorithms([DEFINITION])), 0.0)
    core.check()
    core.take_actions()
    return core


def test_a_leaving_agent_starts_no_slave_when_the_master_accepts_it() -> None:
    """It was evicted before the answer of the master arrived."""
    core = AgentCore(SETTINGS)
    core.handle(Terminated("evicted"), 0.0)
    core.take_actions()
    core.handle(heard(WELCOME), 0.0)
    core.decide(0.0)
    assert (core.take_actions().start, core.children) == ([], {})


# ---- tasks and results ---------------------------------------------------------------------------------------------


def test_messages_that_pass_through_leave_as_the_very_frames_that_came(core: AgentCore) -> None:
    """The agent does not encode tasks, results, names or definitions again."""
    for event in (
        tasks(1, 2),
        heard(messages.SlaveNamed(1, SlaveId("SLAVE-3"))),
        heard(messages.Algorithms([DEFINITION])),
    ):
        core.handle(event, 0.0)
        [(number, outgoing)] = core.take_actions().to_slaves
        assert number == 1
        assert outgoing.received is event.frames
    for slave_event in (results(1), slave_heard(messages.AlgorithmFailed(1, 0, "no module", [2], [1], [1]))):
        core.handle(slave_event, 0.0)
        [outgoing] = core.take_actions().to_master
        assert outgoing.received is slave_event.frames


def test_results_that_were_all_read_in_the_journal_are_dropped(core: AgentCore) -> None:
    """No result goes to the master twice."""
    core.handle(tasks(5), 0.0)
    group = messages.Results(1, [5], [1], [1], [0.1], [])
    core.take_actions()
    core.handle(JournalRead(1, group, wire.encode(group, [payload("5")])), 0.0)
    core.handle(slave_heard(group, payload("5")), 0.0)
    assert to_master(core.take_actions()) == [group]


def test_of_results_that_were_partly_read_in_the_journal_the_others_are_sent(core: AgentCore) -> None:
    """Each result keeps its own payload, failure mark and large buffers."""
    core.handle(tasks(*range(1, 8)), 0.0)
    core.handle(results(3, 2, "34"), 0.0)
    core.take_actions()
    group = messages.Results(1, [1], [6], [1], [0.1] * 6, [0, 2, 4], [0, 1, 1, 0, 1, 0])
    core.handle(slave_heard(group, payload("123456"), b"two", b"three", b"five"), 0.0)
    [outgoing] = core.take_actions().to_master
    sent, frames = decoded(outgoing)
    assert sent == messages.Results(1, [1, 5], [2, 2], [1, 1], [0.1] * 4, [0, 2], [0, 1, 1, 0])
    assert frames == [payload("1256"), b"two", b"five"]
    assert held(core) == [(7, 1)]


def test_results_in_another_order_than_the_tasks_keep_their_own_payloads(core: AgentCore) -> None:
    """One span of results may consist of pieces of several sent spans, with the last piece first."""
    core.handle(tasks(3, 4, 1, 2), 0.0)
    core.handle(results(4, 1, "4"), 0.0)
    core.take_actions()
    core.handle(slave_heard(messages.Results(1, [1], [4], [1], [0.1] * 4, [0]), payload("1234")), 0.0)
    [outgoing] = core.take_actions().to_master
    sent, frames = decoded(outgoing)
    assert isinstance(sent, messages.Results)
    entries, _ = groups.entries(sent, frames)
    named = list(groups.each_task(sent))
    assert sorted(zip(named, entries, strict=True)) == [((1, 1), 1), ((2, 1), 2), ((3, 1), 3)]
    assert [name for at, name in enumerate(named) if at in sent.failed] == [(1, 1)]
    assert held(core) == []


def test_a_result_of_another_attempt_is_dropped_and_the_slave_still_holds_the_task(core: AgentCore) -> None:
    """The task was taken back and sent again before the slave's earlier result arrived."""
    core.handle(tasks(5, 6, attempt=2), 0.0)
    core.take_actions()
    core.handle(results(5, 2), 0.0)
    core.handle(slave_heard(messages.AlgorithmFailed(1, 0, "no module", [6], [1], [1])), 0.0)
    assert [type(message) for message in to_master(core.take_actions())] == [messages.AlgorithmFailed]
    assert held(core) == [(5, 2), (6, 2)]
    core.handle(slave_heard(messages.AlgorithmFailed(1, 0, "no module", [5], [1], [2])), 0.0)
    assert held(core) == [(6, 2)]


def cannot_load(task: int, attempt: int = 1) -> SlaveHeard:
    """Slave 1 cannot load an algorithm for a reason that may pass."""
    failure = messages.LoadFailure.PASSING
    return slave_heard(messages.AlgorithmFailed(1, 0, "MemoryError", [task], [1], [attempt], failure))


def test_a_slave_that_could_not_load_an_algorithm_is_replaced(core: AgentCore) -> None:
    """It may finish a task that it runs. Its other tasks go back at once."""
    core.handle(tasks(5, 6, 7), 0.0)
    core.take_actions()
    core.handle(cannot_load(5), 0.0)
    actions = core.take_actions()
    assert [type(message) for message in to_master(actions)] == [messages.AlgorithmFailed]
    assert actions.recall == [(1, UNBOUNDED)]
    assert [type(outgoing.message) for _, outgoing in actions.to_slaves] == [messages.Shutdown]
    core.handle(Recalled(1, 2, UNBOUNDED), 0.0)
    core.handle(cannot_load(8), 0.0)  # the slave has refused another task before it heard of its end
    assert core.take_actions().recall == []
    assert held(core) == [(6, 1)]
    core.handle(results(6), 0.0)
    core.handle(SlaveExited(1, "exit code 0", NO_WORDS, 2), 0.0)
    actions = core.take_actions()
    died = [message for message in to_master(actions) if isinstance(message, messages.SlaveDied)]
    assert [(each.running, each.cause, each.reason) for each in died] == [
        (0, Cause.START_UP, "replaced, because it could not load an algorithm (exit code 0)")
    ]
    assert actions.start == [2]
    core.check()


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


def test_messages_that_are_not_for_this_agent_change_nothing(core: AgentCore) -> None:
    """The messages are a probe, and messages that name a slave that has ended."""
    gone = messages.SlaveNamed(9, SlaveId("SLAVE-9")), messages.Revoke(9, 1), messages.Tasks(9, [], [], [], [])
    for message in (messages.Probe(), *gone):
        core.handle(Heard(message), 0.0)
    core.handle("something else", 0.0)  # type: ignore[arg-type]
    assert core.take_actions() == AgentActions()


def test_tasks_for_a_slave_that_stops_are_not_passed_on(core: AgentCore) -> None:
    """They go back to the master at once, and do not wait for the end of the slave."""
    core.handle(Terminated("evicted"), 0.0)
    core.take_actions()
    core.handle(tasks(1, 2, 5), 0.0)
    actions = core.take_actions()
    assert to_master(actions) == [messages.Revoked(1, [1, 5], [2, 1], [1, 1])]
    assert (actions.to_slaves, actions.recall) == ([], [])
    assert held(core) == []


def test_packages_that_definitions_name_are_looked_up_once(core: AgentCore) -> None:
    """The definitions are passed on first; then the master gets the versions."""

    def packages_looked_up(**packages: str) -> list[str]:
        definition = messages.AlgorithmDefinition(0, "f", "m:f", "", "3.11", packages)
        core.handle(heard(messages.Algorithms([definition])), 0.0)
        actions = core.take_actions()
        assert [number for number, _ in actions.to_slaves] == [1]
        return actions.look_up

    assert packages_looked_up() == []
    assert packages_looked_up(numpy="2.0", scipy="1.0") == ["numpy", "scipy"]
    assert packages_looked_up(scipy="1.0", pandas="2.0") == ["pandas"]
    core.handle(LookedUp({"pandas": ""}), 0.0)
    assert to_master(core.take_actions()) == [messages.Installed({"pandas": ""})]


# ---- recalls -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("started", "count", "taken", "kept"),
    [
        (0, 2, ([8], [2], [1]), [1, 2, 3, 4, 7]),
        (0, 5, ([3, 7], [2, 3], [1, 1]), [1, 2]),
        (2, 100, ([3, 7], [2, 3], [1, 1]), [1, 2]),
        (4, 100, ([7], [3], [1]), [1, 2, 3, 4]),
        (5, 1, ([9], [1], [1]), [1, 2, 3, 4, 7, 8]),
        (6, 100, ([9], [1], [1]), [1, 2, 3, 4, 7, 8]),
        (7, 100, ([], [], []), [1, 2, 3, 4, 7, 8, 9]),
        (0, 100, ([1, 7], [4, 3], [1, 1]), []),
    ],
)
def test_the_last_tasks_that_were_not_started_are_taken_back(
    core: AgentCore, started: int, count: int, taken: tuple[list[int], list[int], list[int]], kept: list[int]
) -> None:
    """Tasks keep their order. A span is cut after the started task, or when enough tasks are taken."""
    core.handle(tasks(1, 2, 3, 4, 7, 8, 9), 0.0)
    core.take_actions()
    core.handle(Recalled(1, started, count), 0.0)
    revoked = messages.Revoked(1, *taken)
    actions = core.take_actions()
    assert to_master(actions) == [revoked]
    assert [(number, outgoing.message) for number, outgoing in actions.to_slaves] == [(1, revoked)]
    assert held(core) == [(task, 1) for task in kept]
    core.check()


def test_a_task_that_was_taken_back_and_sent_again_has_a_new_position(core: AgentCore) -> None:
    """Its new position is the next one, behind all tasks that were ever passed on to the slave."""
    core.handle(tasks(1, 2, 3), 0.0)
    core.handle(Recalled(1, 1, 1), 0.0)
    core.handle(tasks(3, attempt=2), 0.0)
    core.take_actions()
    core.handle(Recalled(1, 2, 5), 0.0)
    assert to_master(core.take_actions()) == [messages.Revoked(1, [3], [1], [2])]
    core.handle(results(1), 0.0)
    core.take_actions()
    core.handle(SlaveExited(1, "killed by signal 9", NO_WORDS, 2), 0.0)
    assert to_master(core.take_actions()) == [messages.SlaveDied(1, 2, Cause.CRASH, "killed by signal 9", NO_WORDS)]


def test_the_master_gets_an_answer_when_it_revokes_tasks_of_a_slave_that_holds_none(core: AgentCore) -> None:
    """The agent waits for an answer before it recalls again."""
    core.handle(heard(messages.Revoke(1, 3)), 0.0)
    assert to_master(core.take_actions()) == [messages.Revoked(1, [], [], [])]


def test_a_slave_may_die_in_the_iteration_in_which_its_tasks_are_revoked(core: AgentCore) -> None:
    """The agent reports only the death to the master."""
    core.handle(tasks(1, 2), 0.0)
    core.take_actions()
    core.handle(heard(messages.Revoke(1, 1)), 0.0)
    core.handle(SlaveExited(1, "killed by signal 9", WORDS, 1), 0.0)
    assert to_master(core.take_actions()) == [messages.SlaveDied(1, 1, Cause.CRASH, "killed by signal 9", WORDS)]


# ---- deaths of slaves ----------------------------------------------------------------------------------------------


def test_a_slave_that_ended_between_two_tasks_of_a_span_charges_none(core: AgentCore) -> None:
    core.handle(tasks(1, 2, 3), 0.0)
    core.handle(results(1), 0.0)
    core.take_actions()
    core.handle(SlaveExited(1, "killed by signal 9", NO_WORDS, 1), 0.0)
    assert to_master(core.take_actions()) == [messages.SlaveDied(1, 0, Cause.CRASH, "killed by signal 9", NO_WORDS)]


def test_tasks_that_arrive_when_their_slave_is_found_dead_are_not_charged(core: AgentCore) -> None:
    """The slave has started none of them."""
    core.handle(tasks(7), 0.0)
    core.handle(SlaveExited(1, "killed by signal 9", NO_WORDS, 0), 0.0)
    assert to_master(core.take_actions()) == [messages.SlaveDied(1, 0, Cause.CRASH, "killed by signal 9", NO_WORDS)]


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
    core.check()
    actions = core.take_actions()
    assert (actions.start, actions.exit) == ([], ExitCode.CANNOT_START)


def test_an_agent_whose_slaves_never_get_ready_gives_up() -> None:
    """The agent gives up after three failures in a row, with its own exit code and the cause of the last failure."""
    core = AgentCore(SETTINGS)
    core.handle(heard(WELCOME), 0.0)
    for number in (1, 2, 3):
        core.handle(SlaveExited(number, "exit code 1", NO_WORDS, 0), 0.0)
    actions = core.take_actions()
    assert actions.exit is ExitCode.CANNOT_START
    why = "3 slaves in a row ended before they could take a task: exit code 1"
    assert to_master(actions)[-1] == messages.Goodbye(why, Cause.START_UP)


def start_of_next(core: AgentCore, slave: int, code: int, now: float) -> float:
    """Let a slave end before it was ready, and return when the next one starts."""
    core.handle(SlaveExited(slave, "it ended", NO_WORDS, 0, code=code), now)
    while True:
        core.decide(now)
        core.check()
        actions = core.take_actions()
        assert actions.exit is None
        if actions.start:
            assert actions.start == [slave + 1]
            return now
        due = core.next_deadline()
        assert due is not None
        now = due


def test_slaves_that_are_killed_from_outside_are_always_replaced_after_longer_and_longer_pauses() -> None:
    """An agent gives up only because of slaves that end by themselves. A slave that is ready forgives all."""
    core = AgentCore(SETTINGS)
    core.handle(heard(WELCOME), 0.0)
    core.take_actions()
    now, pauses = 1.0, []
    for slave in range(1, 13):
        started_at = start_of_next(core, slave, -9, now)
        pauses.append(round(started_at - now, 1))
        now = started_at
    assert pauses == [0.0, 0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 10.0, 10.0, 10.0, 10.0]
    core.handle(SlaveHeard(13, messages.SlaveReady(13)), now)
    core.take_actions()
    core.handle(SlaveExited(13, "killed", NO_WORDS, 0, code=-9), now)
    assert core.take_actions().start == [14]


def test_an_agent_gives_up_when_its_slaves_get_ready_and_fail_before_a_task() -> None:
    """A slave algorithm may raise after it has read `mw.sid`. If it ends with 0, it has perhaps waited long enough."""
    core = AgentCore(SETTINGS)
    core.handle(heard(WELCOME), 0.0)
    for slave, code in enumerate((0, 0, 0, 0, 1, 1, 1), start=1):
        assert core.take_actions().exit is None
        core.handle(SlaveHeard(slave, messages.SlaveReady(slave)), 0.0)
        core.handle(SlaveExited(slave, f"exit code {code}", LastWords(stderr="E: no licence"), 0, code=code), 0.0)
    actions = core.take_actions()
    assert actions.exit is ExitCode.CANNOT_START
    why = "3 slaves in a row ended before they could take a task: exit code 1 (E: no licence)"
    assert to_master(actions)[-1] == messages.Goodbye(why, Cause.START_UP)


def dies(core: AgentCore, started: int, cause: str = "killed by signal 9") -> messages.SlaveDied:
    """Let slave 1 end, and return what the master is sent about it."""
    core.take_actions()
    core.handle(SlaveExited(1, cause, NO_WORDS, started), 1.0)
    [died] = [each for each in to_master(core.take_actions()) if isinstance(each, messages.SlaveDied)]
    return died


def test_a_slave_that_writes_nonsense_into_its_stream_is_killed(core: AgentCore) -> None:
    """The end of such a slave counts like any other death, so the task that it ran is charged. The reason is named."""
    core.handle(tasks(1), 0.0)
    core.take_actions()
    core.handle(StreamBroken(1, "no message"), 0.0)
    actions = core.take_actions()
    assert actions.kill == [1]
    assert actions.records == [records.Notice("slave 1 is killed: what it sent cannot be read: no message")]
    cause = "killed by its agent because what it sent cannot be read: no message"
    assert dies(core, 1) == messages.SlaveDied(1, 1, Cause.CRASH, cause, NO_WORDS)


def test_a_slave_that_overwrites_shared_memory_is_killed(core: AgentCore) -> None:
    """It gets no more tasks, its messages count no more, and it is reported once."""
    core.handle(tasks(1, 2, 3), 0.0)
    core.handle(results(1), 0.0)
    core.take_actions()
    for _ in range(2):
        core.handle(MemoryBroken(1, "numbers have changed"), 0.0)
    actions = core.take_actions()
    assert actions.kill == [1]
    why = "it overwrote the memory that it shares with its agent: numbers have changed"
    assert actions.records == [records.Notice(f"slave 1 is killed: {why}")]
    core.handle(results(2), 0.0)
    core.handle(JournalRead(1, messages.Results(1, [2], [1], [1], [0.1], []), [b"", b""]), 0.0)
    assert core.take_actions() == AgentActions()
    core.handle(tasks(4), 0.0)
    assert to_master(core.take_actions()) == [messages.Revoked(1, [4], [1], [1])]
    assert dies(core, 0) == messages.SlaveDied(1, 2, Cause.CRASH, f"killed by its agent because {why}", NO_WORDS)


def test_a_slave_with_an_impossible_number_is_killed(core: AgentCore) -> None:
    core.handle(tasks(1, 2), 0.0)
    core.take_actions()
    core.handle(MemoryRead(1, 3, 0.0), 1.0)
    assert core.take_actions().kill == [1]
    assert "it says that it runs task 3 of 2" in dies(core, 3).reason


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


def test_a_refusal_has_its_own_exit_code(core: AgentCore) -> None:
    """The slave is asked to end, and killed when it does not."""
    core.handle(heard(messages.Refused("protocol error")), 0.0)
    assert [outgoing.message for _, outgoing in core.take_actions().to_slaves] == [messages.Shutdown(False, 0.0)]
    core.decide(3.0)
    assert core.take_actions().kill == [1]
    core.handle(SlaveExited(1, "killed", NO_WORDS, 0), 3.0)
    assert core.take_actions().exit is ExitCode.REFUSED


def test_when_its_host_is_excluded_the_running_tasks_may_finish(core: AgentCore) -> None:
    core.handle(heard(messages.Refused("host h gets no more work", finish=True)), 0.0)
    [outgoing] = core.take_actions().to_master
    assert outgoing.message == messages.Leaving("host h gets no more work", Cause.SCALED_DOWN)
    assert core.next_deadline() == core.settings.grace_s
    core.handle(SlaveExited(1, "exit code 0", NO_WORDS, 0), 3.0)
    assert core.take_actions().exit is ExitCode.REFUSED


@pytest.mark.parametrize(("finished", "code"), [(True, ExitCode.OK), (False, ExitCode.FAILED)])
def test_only_the_shutdown_of_a_finished_computation_is_a_success(
    core: AgentCore, finished: bool, code: ExitCode
) -> None:
    """A batch system keeps the job in its queue after any exit code except 0."""
    core.handle(heard(messages.Shutdown(finished, 1.0)), 0.0)
    core.handle(SlaveExited(1, "exit code 255", NO_WORDS, 0), 0.5)
    assert core.take_actions().exit is code


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


def test_an_eviction_that_also_kills_the_slave_has_the_exit_code_of_an_eviction(core: AgentCore) -> None:
    """After SIGTERM to the process group, the agent sees the eviction and the end of its slave in one iteration."""
    core.handle(tasks(1, 2), 0.0)
    core.take_actions()
    core.handle(Terminated("evicted (SIGTERM)"), 0.0)
    core.handle(SlaveExited(1, "killed by signal 15", NO_WORDS, 1), 0.0)
    assert core.take_actions().exit is ExitCode.EVICTED


def test_the_last_words_of_slaves_reach_the_master_before_the_goodbye(core: AgentCore) -> None:
    """If the agent has killed the slave, it gives its own reason. The agent's own record has only the peak memory."""
    core.handle(tasks(1), 0.0)
    core.handle(Terminated("evicted (SIGTERM)"), 0.0)
    core.decide(6.0)
    core.take_actions()
    core.handle(SlaveExited(1, "killed by signal 9", WORDS, 1), 6.0)
    actions = core.take_actions()
    cause = "killed by its agent after the grace period: evicted (SIGTERM)"
    assert to_master(actions) == [
        messages.SlaveDied(1, 1, Cause.EVICTED, cause, WORDS),
        messages.Goodbye("evicted (SIGTERM)", Cause.EVICTED),
    ]
    assert actions.records[0] == records.SlaveEnded(
        SlaveId("slave 1"), Cause.EVICTED, cause, "task 1, attempt 1", LastWords(peak_bytes=WORDS.peak_bytes)
    )


def test_an_agent_leaves_before_its_time_is_over() -> None:
    """The agent leaves one grace period earlier. Unstarted tasks are returned, and no task is charged."""
    core = AgentCore(AgentSettings(HELLO, grace_s=5.0, ends_at=100.0))
    core.handle(heard(WELCOME), 0.0)
    core.handle(slave_heard(messages.SlaveReady(1)), 0.0)
    core.handle(tasks(1, 2), 92.0)
    core.decide(92.95)
    core.take_actions()
    assert core.next_deadline() == 93.0
    core.decide(93.0)
    actions = core.take_actions()
    assert actions.recall
    assert to_master(actions) == [messages.Leaving("its time limit is near", Cause.WALLTIME)]
    core.handle(Recalled(1, 1, 1000), 93.0)
    core.handle(results(1), 93.0)
    assert core.next_deadline() == 98.0
    core.handle(SlaveExited(1, "exit code 0", NO_WORDS, 1), 95.0)
    actions = core.take_actions()
    sent = [type(message) for message in to_master(actions)]
    assert sent == [messages.Revoked, messages.Results, messages.SlaveDied, messages.Goodbye]
    assert actions.exit is ExitCode.EVICTED


def test_a_slave_killed_by_sigkill_is_collected_at_once_when_the_agent_leaves(core: AgentCore) -> None:
    """An agent that leaves charges nothing to tasks."""
    core.handle(Terminated("evicted"), 0.0)
    core.handle(ExitSeen(1, by_sigkill=True), 0.0)
    core.decide(0.0)
    assert core.take_actions().collect == [1]


# ---- renewing slaves -----------------------------------------------------------------------------------------------


def test_slaves_are_replaced_after_the_tasks_that_they_hold() -> None:
    """They get no tasks any more. A slave that is not ready ends unnoticed, and its end is no failed start."""
    core = AgentCore(AgentSettings(replace(HELLO, slaves=2)))
    core.handle(heard(WELCOME), 0.0)
    core.handle(slave_heard(messages.SlaveReady(1)), 0.0)
    core.handle(tasks(1, 2), 0.0)
    core.take_actions()
    core.handle(heard(messages.Renew()), 1.0)
    stop = messages.Shutdown(False, 0.0)
    assert [(number, each.message) for number, each in core.take_actions().to_slaves] == [(1, stop), (2, stop)]
    core.handle(heard(messages.Renew()), 1.0)
    core.take_actions()
    core.handle(tasks(3), 1.0)
    core.handle(SlaveHeard(2, messages.SlaveReady(2), ()), 1.0)
    core.handle(SlaveExited(2, "exit code 0", NO_WORDS, 0), 1.0)
    core.check()
    actions = core.take_actions()
    assert (actions.start, actions.to_slaves) == ([3], [])
    assert to_master(actions) == [messages.Revoked(1, [3], [1], [1])]
    core.handle(results(1, 2), 2.0)
    core.handle(SlaveExited(1, "exit code 0", NO_WORDS, 2), 2.0)
    actions = core.take_actions()
    assert actions.start == [4]
    assert [type(each.message) for each in actions.to_master] == [messages.Results, messages.SlaveDied]
    assert list(core.children) == [3, 4]


def test_new_slaves_find_modules_where_the_master_says() -> None:
    """Another replacement of the slaves does not change this."""
    core = AgentCore(SETTINGS)
    core.handle(heard(WELCOME), 0.0)
    for path in ("/old", "/new", ""):
        core.handle(heard(messages.Renew(path)), 0.0)
    assert core.take_actions().module_path == "/new"
    core.handle(heard(messages.Renew()), 0.0)
    assert core.take_actions().module_path == ""


def test_an_agent_that_leaves_does_not_renew_its_slaves() -> None:
    core = AgentCore(SETTINGS)
    core.handle(heard(WELCOME), 0.0)
    core.handle(Terminated("evicted"), 0.0)
    core.take_actions()
    core.handle(heard(messages.Renew()), 0.0)
    assert core.take_actions() == AgentActions()


def test_what_tasks_have_logged_is_passed_on_before_their_results() -> None:
    core = AgentCore(SETTINGS)
    core.handle(heard(WELCOME), 0.0)
    core.handle(slave_heard(messages.SlaveReady(1)), 0.0)
    core.handle(tasks(1), 0.0)
    core.take_actions()
    logged = messages.Logged(1, [LogRow(1, "f", 1.0, 20, "app", "text", "/app.py", 1, "f", "")])
    core.handle(slave_heard(logged), 0.0)
    core.handle(results(1), 0.0)
    first, second = to_master(core.take_actions())
    assert first == logged
    assert isinstance(second, messages.Results)


def test_a_slave_that_finishes_its_last_task_may_log(core: AgentCore) -> None:
    """Its agent leaves, and the running task has the grace period."""
    core.handle(tasks(1), 0.0)
    core.handle(Terminated("evicted"), 0.0)
    core.take_actions()
    core.handle(slave_heard(messages.Logged(1, [])), 0.0)
    actions = core.take_actions()
    assert to_master(actions) == [messages.Logged(1, [])]
    assert actions.kill == []


def test_a_slave_that_logs_before_it_is_ready_or_for_another_one_is_killed() -> None:
    for number, ready in ((1, False), (2, True)):
        core = AgentCore(SETTINGS)
        core.handle(heard(WELCOME), 0.0)
        if ready:
            core.handle(slave_heard(messages.SlaveReady(1)), 0.0)
        core.take_actions()
        core.handle(slave_heard(messages.Logged(number, [])), 0.0)
        actions = core.take_actions()
        assert actions.kill == [1]
        assert not to_master(actions)
