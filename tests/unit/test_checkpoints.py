"""States that tasks leave, in the master: which of them count, who gets them, and how long they stay."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace
from tests.driven import Replayed
from tests.spans import span_of

from mwpy._core.master import results
from mwpy._core.master.state import Actions, CancelTasks, Received, Running
from mwpy._transport.codec import Codec, loads_call, loads_state, split_resumed
from mwpy._values import groups, messages
from mwpy._values.bounds import Buffer
from mwpy._values.causes import BLAMELESS_ALLOWED, RESUMED_ALLOWED, Cause
from mwpy._values.connections import Vanished
from mwpy._values.errors import ProtocolError
from mwpy._values.last_words import NO_WORDS
from mwpy._values.messages import check
from mwpy._values.policy import DEFAULT_POLICY, TaskPolicy

CODEC = Codec()


class Master(Replayed):
    """A master with tasks whose argument is "x"."""

    def __init__(self, count: int = 1, policy: TaskPolicy = DEFAULT_POLICY, **settings: Any) -> None:
        super().__init__(**settings)
        self.submit(count, policy=policy, payload=CODEC.dumps_call(("x",), {}, "max")[0])

    def come(self) -> list[tuple[int, int, object, object]]:
        """The next agent joins. Return what it is sent."""
        return sent(self.next_joins())

    def tell(self, message: messages.Message, *frames: Buffer, peer: bytes | None = None) -> None:
        check(message, frames)
        self.receive(message, *frames, peer=peer or self.peer)

    def leave(self, task: int, attempt: int, state: object, peer: bytes | None = None) -> None:
        entry, buffers = CODEC.dumps_state(state)
        self.tell(messages.Checkpoint(1, task, attempt), entry, *buffers, peer=peer)

    def evict(self) -> list[tuple[int, int, object, object]]:
        """The agent leaves and the next one joins. Return what the new one is sent."""
        self.tell(messages.Goodbye("evicted", Cause.EVICTED))
        return self.come()

    def die(self, running: int) -> None:
        self.tell(messages.SlaveDied(1, running, Cause.CRASH, "why", NO_WORDS))


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


@pytest.fixture
def master() -> Master:
    """One task, which is sent to the slave of the first agent."""
    master = Master()
    assert master.come() == [(1, 1, "x", None)]
    return master


def test_a_state_without_a_payload_is_a_protocol_error() -> None:
    with pytest.raises(ProtocolError, match="Checkpoint: 0 payload frames, but 1 are expected"):
        check(messages.Checkpoint(1, 1, 1), [])


@pytest.mark.parametrize("how", ["result", "cancelled", "given up", "unrunnable"])
def test_the_state_is_gone_when_its_task_has_ended(how: str) -> None:
    master = Master(1, TaskPolicy(retry=how != "given up", attempts_max=1))
    master.come()
    master.leave(1, 1, "state")
    assert master.core.state.jar.left_bytes == len(CODEC.dumps_state("state")[0])
    match how:
        case "result":
            master.finish(1, peer=master.peer)
        case "cancelled":
            master.step(CancelTasks([(1, 1)], Running.KILL))
        case "given up":
            master.tell(messages.Goodbye("evicted", Cause.EVICTED))
        case _:
            master.die(1)
    assert (master.core.state.jar.runnable, master.core.state.jar.left_bytes) == (0, 0)


def test_a_task_that_leaves_states_may_be_lost_without_its_fault_any_number_of_times(master: Master) -> None:
    """Its history keeps the last of these losses, and all losses by its own fault."""
    master.die(1)
    master.tell(messages.SlaveReady(2))
    master.tell(messages.Goodbye("evicted", Cause.EVICTED))
    master.come()
    for attempt in range(3, BLAMELESS_ALLOWED + 10):
        master.leave(1, attempt, attempt)
        assert master.evict() == [(1, attempt + 1, "x", attempt)]
        assert [death.cause for death in span_of(master.core, 1).deaths] == [Cause.CRASH, Cause.EVICTED]


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
            master.step()
            assert master.come() == [(1, attempt + 1, "x", attempt)]
    assert len(master.core.take_actions().unrunnable) == 1


def test_states_that_take_much_memory_are_reported_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(results, "STATES_BYTES", 2000)
    master = Master(2, task_group=2)
    master.come()
    noticed = []
    for task, size in ((1, 1500), (1, 1600), (2, 1500), (2, 1500)):
        master.leave(task, 1, "s" * size)
        noticed.append(master.notices)
    assert [len(texts) for texts in noticed] == [0, 0, 1, 0]
    assert noticed[2][0].startswith(
        "the states that tasks left with mwpy.checkpoint take more than 2.0 KiB of the master"
    )


def test_a_state_counts_only_from_the_slave_that_holds_the_task_in_this_attempt() -> None:
    master = Master(2)
    master.come()
    master.come()
    master.leave(1, 1, "of another slave")
    master.leave(1, 2, "of another attempt", b"1")
    master.leave(7, 1, "of no task", b"1")
    master.tell(messages.Checkpoint(5, 1, 1), b"\x00", peer=b"1")
    assert master.core.state.jar.left_bytes == 0
    master.leave(2, 1, "mine")
    assert [(each.left is not None) for each in (span_of(master.core, 1), span_of(master.core, 2))] == [False, True]
