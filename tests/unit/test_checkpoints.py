"""States that tasks leave, in the master: which of them count, who gets them, and how long they stay."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from msgspec.structs import replace
from tests.spans import MAX, defined, span, span_of

from mwpy._core.master import results
from mwpy._core.master.algorithms import Algorithms, Defined
from mwpy._core.master.core import MasterCore
from mwpy._core.master.spans import LeftState, Span
from mwpy._core.master.state import Actions, CancelTasks, MasterSettings, Received, Running, Vanished
from mwpy._simulation.lives import Replay
from mwpy._transport.codec import Codec, loads_call, loads_state, split_resumed
from mwpy._values import groups, messages, records
from mwpy._values.bounds import Buffer, TaskId
from mwpy._values.causes import BLAMELESS_ALLOWED, RESUMED_ALLOWED, Cause
from mwpy._values.errors import ProtocolError
from mwpy._values.last_words import NO_WORDS
from mwpy._values.messagepack import decode
from mwpy._values.messages import check
from mwpy._values.policy import TaskPolicy

CODEC = Codec()


class Master:
    """A master's core with agents that have one slave each. The newest agent is `peer`."""

    def __init__(self, *tasks: Span, task_group: int | None = None) -> None:
        self.core = MasterCore(MasterSettings("m", "g", task_group))
        self.replay = Replay()
        for each in tasks:
            self.core.definitions.add(each.algorithm)
        self.core.submit(tasks)
        self.agents = 0
        self.now = 0.0
        self.records: list[records.Record] = []

    @property
    def peer(self) -> bytes:
        return b"%d" % self.agents

    def join(self) -> list[tuple[int, int, object, object]]:
        self.agents += 1
        self.send(messages.Hello("m", "g", "host", 1, "3.11", 1))
        return self.send(messages.SlaveReady(1))

    def send(
        self, message: messages.Message, frames: Sequence[Buffer] = (), peer: bytes | None = None
    ) -> list[tuple[int, int, object, object]]:
        """Send a message to the master. Return what it sends to slaves then: see `sent`."""
        check(message, frames)
        self.core.handle(Received(peer or self.peer, "here", message, frames), self.now)
        return sent(self.turn())

    def turn(self) -> Actions:
        self.core.decide(self.now)
        self.core.check()
        actions = self.core.take_actions()
        for record in actions.records:
            self.replay.recorded(record)
        self.replay.check(self.core.state)
        self.records = actions.records
        return actions

    def leave(self, task: int, attempt: int, state: object, peer: bytes | None = None) -> None:
        entry, buffers = CODEC.dumps_state(state)
        self.send(messages.Checkpoint(1, task, attempt), [entry, *buffers], peer)

    def evict(self) -> list[tuple[int, int, object, object]]:
        """The agent leaves and the next one joins. Return what the new one is sent."""
        self.send(messages.Goodbye("evicted", Cause.EVICTED))
        return self.join()

    def die(self, running: int) -> None:
        self.send(messages.SlaveDied(1, running, Cause.CRASH, "why", NO_WORDS))


def sent(actions: Actions) -> list[tuple[int, int, object, object]]:
    """The tasks that are sent: id, attempt, first argument, and state; None if there is no state."""
    found: list[tuple[int, int, object, object]] = []
    for send in actions.sends:
        if isinstance(send.message, messages.Tasks):
            check(send.message, send.frames)
            entries, buffers = groups.entries(send.message, send.frames)
            for (task, attempt), entry, own in zip(groups.each_task(send.message), entries, buffers, strict=True):
                call, own_buffers, left = split_resumed(entry, own)
                (argument,), _ = loads_call(call, own_buffers)
                found.append((task, attempt, argument, loads_state(left) if left else None))
    return found


def tasks(count: int, policy: TaskPolicy | None = None, large: bytes = b"") -> Span:
    """Tasks whose argument is "x", or a large buffer."""
    payload, buffers = CODEC.dumps_call((bytearray(large) if large else "x",), {}, "max")
    return span(1, MAX, count, payload, policy or TaskPolicy(), buffers=[bytes(each) for each in buffers])


@pytest.fixture
def master() -> Master:
    """One task, which is sent to the slave of the first agent."""
    master = Master(tasks(1))
    assert master.join() == [(1, 1, "x", None)]
    return master


def test_the_next_attempt_gets_the_newest_state(master: Master) -> None:
    """A state stays until there is a newer one."""
    assert not master.core.state.jar.algorithms.defined[0].leaves_state
    master.leave(1, 1, "old")
    master.leave(1, 1, {"new": 1})
    assert master.evict() == [(1, 2, "x", {"new": 1})]
    assert master.evict() == [(1, 3, "x", {"new": 1})]
    assert master.core.state.jar.algorithms.defined[0].leaves_state


def test_large_buffers_of_arguments_and_state_stay_apart() -> None:
    argument, state = b"a" * 100_000, bytearray(b"s" * 100_000)
    master = Master(tasks(1, large=argument))
    master.join()
    master.leave(1, 1, state)
    assert master.evict() == [(1, 2, argument, state)]


def test_each_state_is_answered_so_that_the_agent_sends_the_next_one(master: Master) -> None:
    """This also holds for a state that does not count."""
    for task in (1, 9):
        master.core.handle(Received(master.peer, "here", messages.Checkpoint(1, task, 1), [b"\x00"]), 0.0)
        assert [send.message for send in master.turn().sends] == [messages.CheckpointRead(1)]


def test_a_state_counts_only_from_the_slave_that_holds_the_task_in_this_attempt() -> None:
    master = Master(tasks(2))
    master.join()
    master.join()
    master.leave(1, 1, "of another slave")
    master.leave(1, 2, "of another attempt", b"1")
    master.leave(7, 1, "of no task", b"1")
    master.send(messages.Checkpoint(5, 1, 1), [b"\x00"], b"1")
    assert master.core.state.jar.left.bytes == 0
    master.leave(2, 1, "mine")
    assert [(each.left is not None) for each in (span_of(master.core, 1), span_of(master.core, 2))] == [False, True]


def test_a_state_without_a_payload_is_a_protocol_error() -> None:
    with pytest.raises(ProtocolError, match="Checkpoint: no payload frame"):
        check(messages.Checkpoint(1, 1, 1), [])


def test_only_the_task_that_left_a_state_gets_it() -> None:
    """Its span is divided when the state arrives."""
    master = Master(tasks(5), task_group=5)
    master.join()
    master.leave(3, 1, "state")
    others = [(4, 2, "x", None), (5, 2, "x", None)]
    assert master.evict() == [(1, 2, "x", None), (2, 2, "x", None), (3, 2, "x", "state"), *others]
    master.send(messages.Revoked(1, [1], [5], [2]))
    assert span_of(master.core, 3).count == 1


@pytest.mark.parametrize("which", [0, 1])
def test_a_task_with_a_state_is_not_joined_with_others(which: int) -> None:
    algorithm = Defined(MAX)
    both = [Span(TaskId(number), 1, algorithm, TaskPolicy(), (b"",), (), (None,)) for number in (1, 2)]
    assert both[0].joins(both[1])
    both[which].left = LeftState([b"state"], 1)
    assert not both[0].joins(both[1])


def test_tasks_without_histories_are_not_joined_with_one_that_has_a_state() -> None:
    """Its result was overwritten in its slave, which is no loss of an attempt."""
    master = Master(tasks(2), task_group=2)
    master.join()
    master.leave(1, 1, "state")
    master.send(messages.SlaveDied(1, 2, Cause.EVICTED, "why", NO_WORDS, [(1, 1, 1)]))
    assert [each.count for each in master.core.state.jar.spans()] == [1, 1]
    assert sorted(master.join()) == [(1, 2, "x", "state"), (2, 2, "x", None)]


def test_a_message_of_tasks_is_limited_with_their_states() -> None:
    master = Master(tasks(3), task_group=3)
    master.join()
    for task in (1, 2):
        master.leave(task, 1, "s" * 600)
    master.send(messages.Goodbye("evicted", Cause.EVICTED))
    pending = master.core.state.jar.pending
    assert [each.first for each in pending.heads(pending.queues[0], 3, 1000)] == [1]
    assert [each.first for each in pending.heads(pending.queues[0], 3, 2000)] == [1, 2, 3]


@pytest.mark.parametrize("how", ["result", "cancelled", "given up", "unrunnable"])
def test_the_state_is_gone_when_its_task_has_ended(how: str) -> None:
    master = Master(tasks(1, TaskPolicy(retry=how != "given up", attempts_max=1)))
    master.join()
    master.leave(1, 1, "state")
    assert master.core.state.jar.left.bytes == len(CODEC.dumps_state("state")[0])
    match how:
        case "result":
            group = messages.Results(1, [1], [1], [1], [0.1], [])
            master.send(group, [groups.payload(1, [b"\x00"])])
        case "cancelled":
            master.core.obey(CancelTasks([(1, 1)], Running.KILL))
            master.turn()
        case "given up":
            master.send(messages.Goodbye("evicted", Cause.EVICTED))
        case _:
            master.die(1)
    assert (master.core.state.jar.runnable, master.core.state.jar.left.bytes) == (0, 0)


def test_a_state_of_a_task_that_must_not_be_sent_again_is_not_kept(master: Master) -> None:
    master.core.obey(CancelTasks([(1, 1)], Running.FINISH))
    master.turn()
    master.leave(1, 1, "state")
    assert master.core.state.jar.left.bytes == 0


def test_a_task_that_raised_an_exception_goes_on_from_its_state() -> None:
    """Also after a pause."""
    master = Master(tasks(1, TaskPolicy(retries_errors=True, after=5.0)))
    master.join()
    master.leave(1, 1, "state")
    group = messages.Results(1, [1], [1], [1], [0.1], [0], again=[0])
    assert master.send(group, [groups.payload(1, [CODEC.dumps_failure(OSError("busy"))])]) == []
    master.now = 6.0
    assert sent(master.turn()) == [(1, 2, "x", "state")]


def test_a_task_that_fails_is_given_out_with_its_last_state(master: Master) -> None:
    """So a replay goes on from there."""
    master.leave(1, 1, "state")
    group = messages.Results(1, [1], [1], [1], [0.1], [0])
    frames = [groups.payload(1, [CODEC.dumps_failure(OSError("wrong"))])]
    master.core.handle(Received(master.peer, "here", group, frames), 0.0)
    [call] = master.core.take_actions().failed
    entry, _, left = split_resumed(decode(call.payload), call.buffers)
    assert (loads_call(entry), loads_state(left)) == ((["x"], {}), "state")


def test_a_task_that_leaves_states_may_be_lost_without_its_fault_any_number_of_times(master: Master) -> None:
    """Its history keeps the last of these losses, and all losses by its own fault."""
    master.die(1)
    master.send(messages.SlaveReady(2))
    master.send(messages.Goodbye("evicted", Cause.EVICTED))
    master.join()
    for attempt in range(3, BLAMELESS_ALLOWED + 10):
        master.leave(1, attempt, attempt)
        assert master.evict() == [(1, attempt + 1, "x", attempt)]
        assert [death.cause for death in span_of(master.core, 1).deaths] == [Cause.CRASH, Cause.EVICTED]


def test_a_task_whose_last_attempts_left_no_state_is_given_up(master: Master) -> None:
    master.leave(1, 1, "state")
    for _ in range(BLAMELESS_ALLOWED - 1):
        assert master.evict()
    master.core.handle(Received(master.peer, "", messages.Goodbye("evicted", Cause.EVICTED), ()), 0.0)
    [unrunnable] = master.core.take_actions().unrunnable
    assert unrunnable.reason.startswith("it was lost 100 times without its fault, the last time: evicted")


def test_the_number_of_losses_of_a_task_that_leaves_states_is_finite(master: Master) -> None:
    """It may leave the same state again and again."""
    master.leave(1, 1, 1)
    task = span_of(master.core, 1)
    assert task.left is not None
    task.left = replace(task.left, num_lost=RESUMED_ALLOWED - 1)
    master.core.handle(Received(master.peer, "", messages.Goodbye("evicted", Cause.EVICTED), ()), 0.0)
    [unrunnable] = master.core.take_actions().unrunnable
    assert unrunnable.reason == (
        "it was lost 10000 times without its fault, each time after it had left a state. Does it go on from its state? "
        "The last time: evicted: AGENT-0 on host: evicted"
    )


def test_a_task_that_may_have_ended_its_agent_stays_a_suspect(master: Master) -> None:
    """A state does not show that it is innocent."""
    for attempt in range(1, 5):
        master.leave(1, attempt, attempt)
        master.core.state.members.peers[master.peer].has_finished = True
        master.core.handle(Vanished(master.peer, 0.0), 0.0)
        if attempt < 4:
            master.turn()
            assert master.join() == [(1, attempt + 1, "x", attempt)]
    assert len(master.core.take_actions().unrunnable) == 1


def test_states_that_take_much_memory_are_reported_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(results, "STATES_BYTES", 2000)
    master = Master(tasks(2), task_group=2)
    master.join()
    noticed = []
    for task, size in ((1, 1500), (1, 1600), (2, 1500), (2, 1500)):
        master.leave(task, 1, "s" * size)
        noticed.append([record.text for record in master.records if isinstance(record, records.Notice)])
    assert [len(texts) for texts in noticed] == [0, 0, 1, 0]
    assert noticed[2][0].startswith(
        "the states that tasks left with mwpy.checkpoint take more than 2.0 KiB of the master"
    )


def test_an_algorithm_that_was_forgotten_and_defined_again_has_left_no_state() -> None:
    """The algorithm's thread keeps its object. A replay of the records would make another one."""
    algorithms, mine = Algorithms(), Defined(defined(3, "f", "", b"x"))
    for _ in range(2):
        algorithms.add(mine.record)
        algorithms.adopt(mine)
        assert not mine.leaves_state
        mine.leaves_state = True
        algorithms.forget(records.AlgorithmsForgotten([3]))
