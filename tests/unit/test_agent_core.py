"""The agent's decisions that the simulator does not reach, and rare orders of events that it once did not stand."""

from __future__ import annotations

import pytest

from mwpy._core.agent import (
    AgentCore,
    AgentSettings,
    ChildEvent,
    Heard,
    LookedUp,
    Recalled,
    SlaveExited,
    SlaveHeard,
    Terminated,
)
from mwpy._values import messages, records
from mwpy._values.errors import ExitCode, InternalError
from mwpy._values.ids import SlaveId
from mwpy._values.last_words import NO_WORDS, LastWords

WORDS = LastWords("out", "err", "fault", 1 << 20)


def _payload(digits: str) -> bytes:
    """A group's first frame: for each task a digit."""
    return messages.payload(len(digits), [bytes(map(int, digits))])


@pytest.fixture
def core() -> AgentCore:
    core = AgentCore(AgentSettings("m", "g", "host", 1, "3.11"))
    core.handle(Heard(messages.Welcome("AGENT-0", 30.0, 0, 1000)), 0.0)
    core.handle(SlaveHeard(1, messages.SlaveReady(1)), 0.0)
    core.check()
    core.take_actions()
    return core


def test_a_refusal_is_its_own_exit_code(core: AgentCore) -> None:
    """The slave is told to end, and killed when it does not."""
    core.handle(Heard(messages.Refused("protocol error")), 0.0)
    core.decide(3.0)
    actions = core.take_actions()
    assert actions.kill == [1]
    core.handle(SlaveExited(1, "killed", NO_WORDS, 0), 3.0)
    assert core.take_actions().exit is ExitCode.REFUSED


def test_a_shutdown_of_an_unfinished_computation_is_no_success(core: AgentCore) -> None:
    """So a batch system keeps the job queued."""
    core.handle(Heard(messages.Shutdown(False, 1.0)), 0.0)
    core.handle(SlaveExited(1, "exit code 255", NO_WORDS, 0), 0.5)
    assert core.take_actions().exit is ExitCode.FAILED


def test_a_slave_that_cannot_be_reaped_does_not_hold_the_agent(core: AgentCore) -> None:
    """One stuck in the kernel is left to it."""
    core.handle(Terminated("evicted"), 0.0)
    core.decide(6.0)
    core.decide(9.0)
    assert core.take_actions().exit is ExitCode.EVICTED


def test_an_agent_whose_slaves_never_get_ready_gives_up() -> None:
    """After three in a row, with an exit code of its own and the cause of the last."""
    core = AgentCore(AgentSettings("m", "g", "host", 1, "3.11"))
    core.handle(Heard(messages.Welcome("AGENT-0", 30.0, 0, 1000)), 0.0)
    for number in (1, 2, 3):
        core.handle(SlaveExited(number, "exit code 1", NO_WORDS, 0), 0.0)
    actions = core.take_actions()
    assert actions.exit is ExitCode.CANNOT_START
    goodbye, _ = actions.to_master[-1]
    assert goodbye == messages.Goodbye("3 slaves in a row ended before they could take a task: exit code 1")


def test_what_is_not_for_an_agent_is_passed_over(core: AgentCore) -> None:
    """A probe does nothing; a name or tasks for a slave that is gone neither."""
    core.take_actions()
    for message in (messages.Probe(), messages.SlaveNamed(9, "SLAVE-9"), messages.Revoke(9, 1)):  # type: ignore[arg-type]
        core.handle(Heard(message), 0.0)
    core.handle(Heard(messages.Tasks(9, [], [], [], []), (b"",)), 0.0)
    core.handle("something else", 0.0)  # type: ignore[arg-type]
    actions = core.take_actions()
    assert not actions.to_slaves
    assert not actions.to_master


def test_results_that_were_all_rescued_before_are_dropped(core: AgentCore) -> None:
    """Nothing goes to the master twice."""
    core.handle(_sent_tasks(5), 0.0)
    group = messages.Results(1, [5], [1], [1], [0.1], [])
    core.take_actions()
    core.handle(SlaveHeard(1, group, (b"",)), 0.0)
    core.handle(SlaveHeard(1, group, (b"",)), 0.0)
    assert len(core.take_actions().to_master) == 1


def test_results_of_which_some_were_rescued_before_are_sent_without_those(core: AgentCore) -> None:
    """Each with its own payload; failures and large buffers stay with theirs."""
    core.handle(_sent_tasks(*range(1, 8)), 0.0)
    core.handle(SlaveHeard(1, messages.Results(1, [3], [2], [1], [0.1] * 2, []), (_payload("34"),)), 0.0)
    core.take_actions()
    group = messages.Results(1, [1], [6], [1], [0.1] * 6, [0, 2, 4], [0, 1, 1, 0, 1, 0])
    core.handle(SlaveHeard(1, group, (_payload("123456"), b"two", b"three", b"five")), 0.0)
    [(sent, frames)] = core.take_actions().to_master
    assert sent == messages.Results(1, [1, 5], [2, 2], [1, 1], [0.1] * 4, [0, 2], [0, 1, 1, 0])
    assert frames == [_payload("1256"), b"two", b"five"]
    assert _held(core) == [(7, 1)]


def test_results_in_an_order_of_the_slaves_own_go_with_their_own_payloads(core: AgentCore) -> None:
    """A span of results may lie in pieces of what was sent, the last first."""
    core.handle(_sent_tasks(3, 4, 1, 2), 0.0)
    core.handle(SlaveHeard(1, messages.Results(1, [4], [1], [1], [0.1], []), (_payload("4"),)), 0.0)
    core.take_actions()
    group = messages.Results(1, [1], [4], [1], [0.1] * 4, [0])
    core.handle(SlaveHeard(1, group, (_payload("1234"),)), 0.0)
    [(sent, frames)] = core.take_actions().to_master
    entries, _ = messages.entries(sent, frames)
    assert sorted(zip(messages.each_task(sent), entries, strict=True)) == [((1, 1), 1), ((2, 1), 2), ((3, 1), 3)]
    assert [name for name, at in zip(messages.each_task(sent), range(3), strict=True) if at in sent.failed] == [(1, 1)]
    assert _held(core) == []


def test_a_result_of_another_attempt_is_dropped_and_the_task_is_still_held(core: AgentCore) -> None:
    """It was taken back and came again before the slave's old word of it."""
    core.handle(_sent_tasks(5, 6, attempt=2), 0.0)
    core.take_actions()
    core.handle(SlaveHeard(1, messages.Results(1, [5], [2], [1], [0.1] * 2, []), (b"",)), 0.0)
    core.handle(SlaveHeard(1, messages.AlgorithmFailed(1, 0, "no module", [6], [1], [1])), 0.0)
    assert [type(message) for message, _ in core.take_actions().to_master] == [messages.AlgorithmFailed]
    assert _held(core) == [(5, 2), (6, 2)]
    core.handle(SlaveHeard(1, messages.AlgorithmFailed(1, 0, "no module", [5], [1], [2])), 0.0)
    assert _held(core) == [(6, 2)]


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
def test_the_last_of_the_unstarted_tasks_are_taken_back(
    core: AgentCore, started: int, count: int, taken: tuple[list[int], ...], kept: list[int]
) -> None:
    """In the order in which they were sent, and a span is cut where the slave stands or enough is taken."""
    core.handle(_sent_tasks(1, 2, 3, 4, 7, 8, 9), 0.0)
    core.take_actions()
    core.handle(Recalled(1, started, count), 0.0)
    revoked = messages.Revoked(1, *taken)
    actions = core.take_actions()
    assert actions.to_master == [(revoked, ())]
    assert actions.to_slaves == [(1, revoked, ())]
    assert _held(core) == [(task, 1) for task in kept]
    assert core.children[1].num_held == len(kept)


def test_a_task_that_was_taken_back_and_comes_again_has_its_new_place(core: AgentCore) -> None:
    """What the slave has started by then is before it."""
    core.handle(_sent_tasks(1, 2, 3), 0.0)
    core.handle(Recalled(1, 1, 1), 0.0)
    core.handle(_sent_tasks(3, attempt=2), 0.0)
    core.take_actions()
    core.handle(Recalled(1, 2, 5), 0.0)
    assert core.take_actions().to_master == [(messages.Revoked(1, [3], [1], [2]), ())]
    core.handle(SlaveHeard(1, messages.Results(1, [1], [1], [1], [0.1], []), (b"",)), 0.0)
    core.take_actions()
    core.handle(SlaveExited(1, "killed by signal 9", NO_WORDS, 2), 0.0)
    assert core.take_actions().to_master == [(messages.SlaveDied(1, 2, "killed by signal 9", NO_WORDS), ())]


def test_a_revoke_of_an_empty_slave_is_answered(core: AgentCore) -> None:
    """So that the master may ask again."""
    core.take_actions()
    core.handle(Heard(messages.Revoke(1, 3)), 0.0)
    assert core.take_actions().to_master == [(messages.Revoked(1, [], [], []), ())]


def test_nonsense_of_a_slave_and_impossible_ways_are_internal_errors(core: AgentCore) -> None:
    """They tell which slave it was."""
    with pytest.raises(InternalError, match="slave 1 sent a Probe"):
        core.handle(SlaveHeard(1, messages.Probe()), 0.0)
    with pytest.raises(InternalError, match="slave 1 is ready, which cannot get ready"):
        core.children[1].change(ChildEvent.GET_READY)


def _sent_tasks(*tasks: int, attempt: int = 1) -> Heard:
    firsts, counts, attempts = messages.spans_of(tasks, [attempt] * len(tasks))
    return Heard(messages.Tasks(1, firsts, counts, attempts, [0] * len(firsts)), (b"",))


def _held(core: AgentCore) -> list[tuple[int, int]]:
    """Task and attempt of all that the slave holds, in its order."""
    return [(span.first + at, span.attempt) for span in core.children[1].held for at in range(span.count)]


def test_an_eviction_that_kills_the_slave_too_ends_with_its_exit_code(core: AgentCore) -> None:
    """SIGTERM to the process group: the agent hears of it and of its slave's end in one iteration.

    The shell finds no slave to recall tasks from.
    """
    core.handle(_sent_tasks(1, 2), 0.0)
    core.take_actions()
    core.handle(Terminated("evicted (SIGTERM)"), 0.0)
    core.handle(SlaveExited(1, "killed by signal 15", NO_WORDS, 1), 0.0)
    actions = core.take_actions()
    assert actions.exit is ExitCode.EVICTED


def test_what_slaves_of_a_leaving_agent_leave_is_sent_before_its_goodbye(core: AgentCore) -> None:
    """With the agent's own reason, if it was the agent that killed them; its own trail has the memory alone."""
    core.handle(_sent_tasks(1), 0.0)
    core.handle(Terminated("evicted (SIGTERM)"), 0.0)
    core.decide(6.0)
    core.take_actions()
    core.handle(SlaveExited(1, "killed by signal 9", WORDS, 1), 6.0)
    actions = core.take_actions()
    cause = "killed by its agent after its grace: evicted (SIGTERM)"
    sent = [message for message, _ in actions.to_master]
    assert sent == [messages.SlaveDied(1, 1, cause, WORDS), messages.Goodbye("evicted (SIGTERM)")]
    assert actions.records[0] == records.SlaveEnded(
        SlaveId("slave 1"), cause, "task 1, attempt 1", LastWords(peak_bytes=WORDS.peak_bytes)
    )


def test_a_slave_may_die_in_the_iteration_in_which_its_tasks_are_asked_back(core: AgentCore) -> None:
    """The master hears of its death, and of nothing else."""
    core.handle(_sent_tasks(1, 2), 0.0)
    core.take_actions()
    core.handle(Heard(messages.Revoke(1, 1)), 0.0)
    core.handle(SlaveExited(1, "killed by signal 9", WORDS, 1), 0.0)
    actions = core.take_actions()
    assert [message for message, _ in actions.to_master] == [messages.SlaveDied(1, 1, "killed by signal 9", WORDS)]


def test_the_rest_of_a_begun_span_is_charged_with_no_death(core: AgentCore) -> None:
    """The slave ended between two tasks of it."""
    core.handle(_sent_tasks(1, 2, 3), 0.0)
    core.handle(SlaveHeard(1, messages.Results(1, [1], [1], [1], [0.1], []), (b"",)), 0.0)
    core.take_actions()
    core.handle(SlaveExited(1, "killed by signal 9", NO_WORDS, 1), 0.0)
    assert core.take_actions().to_master == [(messages.SlaveDied(1, 0, "killed by signal 9", NO_WORDS), ())]


def test_tasks_that_were_never_passed_on_are_charged_with_no_death(core: AgentCore) -> None:
    """They arrive in the iteration in which their slave, which ran nothing, is found dead."""
    core.handle(_sent_tasks(7), 0.0)
    core.handle(SlaveExited(1, "killed by signal 9", NO_WORDS, 0), 0.0)
    died = [message for message, _ in core.take_actions().to_master]
    assert died == [messages.SlaveDied(1, 0, "killed by signal 9", NO_WORDS)]


def test_the_death_of_a_slave_whose_results_were_lost_is_charged_to_what_it_ran_last(core: AgentCore) -> None:
    """It finished the tasks before: it wrote over the memory where their results stood."""
    core.handle(_sent_tasks(5, 6, 7, 8, attempt=2), 0.0)
    core.take_actions()
    core.handle(SlaveExited(1, "killed by signal 11", NO_WORDS, 3), 0.0)
    [(message, _)] = core.take_actions().to_master
    assert isinstance(message, messages.SlaveDied)
    assert message.running == 7


def test_an_agent_goes_before_its_time_is_over() -> None:
    """So early that running tasks get their grace; what was not started is given back, and no slave is to blame."""
    core = AgentCore(AgentSettings("m", "g", "host", 1, "3.11", grace_s=5.0, ends_at=100.0))
    core.handle(Heard(messages.Welcome("AGENT-0", 30.0, 0, 1000)), 0.0)
    core.handle(SlaveHeard(1, messages.SlaveReady(1)), 0.0)
    core.handle(_sent_tasks(1, 2), 1.0)
    assert core.next_deadline() == 93.0
    core.decide(92.9)
    core.take_actions()
    core.decide(93.0)
    actions = core.take_actions()
    assert actions.recall
    assert [message for message, _ in actions.to_master] == [messages.Leaving("the time that it was given is over")]
    core.handle(Recalled(1, 1, 1000), 93.0)
    assert core.next_deadline() == 98.0
    core.handle(SlaveExited(1, "exit code 0", NO_WORDS, 1), 95.0)
    actions = core.take_actions()
    told = [type(message) for message, _ in actions.to_master]
    assert told == [messages.Revoked, messages.SlaveDied, messages.Goodbye]
    assert actions.exit is ExitCode.EVICTED


def test_packages_that_definitions_name_are_looked_up_once(core: AgentCore) -> None:
    """After the definitions are passed on; the master is told what was found."""

    def hear(**packages: str) -> list[str]:
        definition = messages.AlgorithmDefinition(0, "f", "m:f", "", "3.11", packages)
        core.handle(Heard(messages.Algorithms([definition])), 0.0)
        actions = core.take_actions()
        assert [number for number, *_ in actions.to_slaves] == [1]
        return actions.look_up

    assert hear() == []
    assert hear(numpy="2.0", scipy="1.0") == ["numpy", "scipy"]
    assert hear(scipy="1.0", pandas="2.0") == ["pandas"]
    core.handle(LookedUp({"pandas": ""}), 0.0)
    assert core.take_actions().to_master == [(messages.Installed({"pandas": ""}), ())]
