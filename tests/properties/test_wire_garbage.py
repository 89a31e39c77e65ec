"""Whatever a member sends, the master stays whole: garbage is a `ProtocolError`, and nothing else."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.spans import MAX, ids_of, span

from mwpy._core.master.core import MasterCore, MasterSettings
from mwpy._core.master.events import Garbage, Received
from mwpy._transport import wire
from mwpy._values import messages, records
from mwpy._values.errors import ProtocolError
from mwpy._values.ids import SlaveId
from mwpy._values.last_words import LastWords

numbers = st.integers(-2, 12)
columns = st.lists(numbers, max_size=4)
counts = st.lists(st.one_of(numbers, st.sampled_from([1, 1 << 40, (1 << 64) - 1])), max_size=4)
"""Of spans; one may claim more tasks than there will ever be."""
seconds = st.lists(st.floats(), max_size=4)

hostile = st.one_of(
    st.builds(messages.Hello, st.just("m"), st.sampled_from(["", "g", "x"]), st.text(), numbers, st.text(), numbers),
    st.builds(messages.Results, numbers, columns, counts, columns, seconds, columns, columns),
    st.builds(messages.Tasks, numbers, columns, counts, columns, columns, columns),
    st.builds(messages.Revoked, numbers, columns, counts, columns),
    st.builds(messages.SlaveReady, numbers),
    st.builds(messages.SlaveDied, numbers, numbers, st.text(), st.builds(LastWords, *[st.text()] * 3, numbers)),
    st.builds(messages.AlgorithmFailed, numbers, numbers, st.text(), columns, columns, columns),
    st.builds(messages.SlaveNamed, numbers, st.just(SlaveId("SLAVE-0"))),
    st.builds(messages.Leaving, st.text()),
    st.builds(messages.Goodbye, st.text()),
    st.just(messages.Probe()),
)


@settings(max_examples=6000)
@given(st.lists(st.binary(max_size=40), max_size=4))
def test_garbage_is_a_protocol_error(frames: list[bytes]) -> None:
    """Any bytes at all are either a message or a `ProtocolError`."""
    _decode(frames)


@settings(max_examples=6000)
@given(hostile, st.integers(0, 200), st.integers(0, 255), st.lists(st.binary(max_size=20), max_size=2))
def test_a_mutated_message_is_a_protocol_error(
    message: messages.Message, position: int, byte: int, payload: list[bytes]
) -> None:
    """A proper message with one byte changed is either a message or a `ProtocolError`."""
    frames = wire.encode(message, payload)
    header = bytearray(frames[0])
    header[position % len(header)] = byte
    _decode([bytes(header), *payload])
    _decode([bytes(header)[:position], *payload])


@settings(max_examples=1500)
@given(st.lists(st.tuples(st.sampled_from([b"a", b"b"]), hostile, st.lists(st.binary(max_size=8), max_size=2))))
def test_a_hostile_member_leaves_the_master_unharmed(
    sent: list[tuple[bytes, messages.Message, Sequence[bytes]]],
) -> None:
    """Replayed, untimely and invented messages cost their sender the connection, and the master nothing."""
    core = _core_with_tasks()
    gone: dict[bytes, None] = {}
    for peer, message, payload in sent:
        _deliver(core, peer, wire.encode(message, payload), gone)
    assert core.state.jar.runnable <= 8


@settings(max_examples=500)
@given(st.lists(st.tuples(st.sampled_from([b"a", b"b"]), hostile), max_size=6))
def test_hostile_messages_among_live_agents_leave_the_master_unharmed(
    sent: list[tuple[bytes, messages.Message]],
) -> None:
    """Agents that already hold tasks may send anything; the books stay in order and a good agent stays."""
    core = _core_with_tasks()
    for peer in (b"a", b"b", b"good"):
        _join(core, peer)
    gone: dict[bytes, None] = {}
    for peer, message in sent:
        _deliver(core, peer, wire.encode(message), gone)
    assert b"good" in core.state.members.peers


@settings(max_examples=300)
@given(st.lists(st.tuples(st.sampled_from([b"a", b"b", b"c"]), st.integers(0, 20)), min_size=1, max_size=30))
def test_each_result_counts_once_however_often_and_on_whatever_connection_it_is_replayed(
    replays: list[tuple[bytes, int]],
) -> None:
    """A member records what it and others said, and says it again: nothing of it counts, nor costs it anything."""
    core = _core_with_tasks()
    recorded: list[list[Any]] = []
    ended: list[int] = []
    for peer in (b"a", b"b"):
        _join(core, peer)
    for peer, pick in [(b"c", 0), *replays]:
        if peer == b"c" and peer not in core.state.members.peers:
            _join(core, peer)
        if pick % 3 == 0:  # what it says is new, and true
            slave = next(iter(core.state.members.peers[peer].slaves.values()))
            held = slave.held.spans
            tasks, attempts = ids_of(held), [span.attempt for span in held for _ in span.ids]
            recorded.append(_results(tasks, attempts))
            new, _ = _deliver(core, peer, recorded[-1])
            assert new == tasks, "a true result did not count"
        else:
            new, dropped = _deliver(core, peer, recorded[pick % len(recorded)])
            assert not new, "a replayed result counted"
            assert not dropped, "a result may be late; that is no crime"
        ended += new
    assert len(ended) == len(set(ended))
    assert len(ended) + core.state.jar.runnable == 8


def test_a_result_said_on_another_connection_does_not_end_a_task_there() -> None:
    """Although slave, task and attempt have the same numbers; its own agent's word counts, once."""
    core = _core_with_tasks()
    _join(core, b"a")
    _join(core, b"b")
    of_a, of_b = _results([1], [1]), _results([2], [1])
    assert _deliver(core, b"b", of_a) == ([], [])
    assert _deliver(core, b"a", of_b) == ([], [])
    assert [_deliver(core, b"a", of_a)[0] for _ in range(3)] == [[1], [], []]
    assert [_deliver(core, b"b", of_b)[0] for _ in range(3)] == [[2], [], []]


def test_who_gives_back_more_tasks_than_there_will_ever_be_gives_back_what_it_holds() -> None:
    """A span is two numbers on the wire, however many tasks it claims; nobody counts them one by one."""
    core = _core_with_tasks()
    _join(core, b"a")
    slave = next(iter(core.state.members.peers[b"a"].slaves.values()))
    held = ids_of(slave.held.spans)
    claim = messages.Revoked(1, [0, 1 << 40], [(1 << 64) - 1] * 2, [1, 1])
    assert _deliver(core, b"a", wire.encode(claim)) == ([], [])
    again = [span.attempt for span in slave.held.spans for task in span.ids if task in held]
    assert again == [2] * len(held)
    assert core.state.jar.runnable == 8


def _decode(frames: Sequence[Any]) -> None:
    with suppress(ProtocolError):
        wire.decode(frames)


def _deliver(
    core: MasterCore, peer: bytes, frames: Sequence[Any], gone: dict[bytes, None] | None = None
) -> tuple[list[int], list[str]]:
    """Let the master hear frames as its shell does, and hold what it records against what it did.

    Args:
        gone: the peers that were sent away so far; added to.

    Returns:
        The tasks whose results came of it, and the names under which peers were dropped: this one's if its agent is
        gone without a goodbye. Who was not an agent, and did not become one, is refused instead.
    """
    before = dict(core.state.members.peers)
    unheard = peer in (gone or {})
    is_garbage, is_goodbye = False, False
    try:
        message, payload = wire.decode(frames)
    except ProtocolError as error:
        is_garbage = True
        core.handle(Garbage(peer, "here", str(error)), 1.0)
    else:
        is_goodbye = isinstance(message, messages.Goodbye)
        core.handle(Received(peer, "here", message, payload), 1.0)
    core.decide(1.0)
    actions = core.take_actions()
    core.check()
    dropped = [record.peer for record in actions.records if isinstance(record, records.PeerDropped)]
    refused = [record.address for record in actions.records if isinstance(record, records.AgentRefused)]
    agent = before.pop(peer, None)
    assert before.keys() <= core.state.members.peers.keys(), "what one said cost another its connection"
    stays = peer in core.state.members.peers
    told = [send.peer for send in actions.sends if isinstance(send.message, messages.Refused)]
    if unheard:
        assert (dropped, refused, told, stays) == ([], [], [], False), "a peer was heard after it had been sent away"
    elif agent is not None:
        assert dropped == ([] if stays or (is_goodbye and not is_garbage) else [agent.name])
        assert not (is_garbage and stays), "it is heard on after garbage"
    else:
        assert (dropped, refused) == ([], [] if stays else ["here"])
    assert told in ([], [peer]), "somebody else was sent away"
    assert len(dropped) <= len(told), "it was dropped without a word to it"
    if gone is not None:
        gone.update(dict.fromkeys(told))
    return [result.task_id for result in actions.results], dropped


def _join(core: MasterCore, peer: bytes) -> None:
    """An agent comes, with one slave that is ready."""
    for message in (messages.Hello("m", "g", "h", 1, "3.11", 1), messages.SlaveReady(1)):
        assert _deliver(core, peer, wire.encode(message)) == ([], [])


def _results(tasks: Sequence[int], attempts: Sequence[int]) -> list[Any]:
    count = len(tasks)
    group = messages.Results(1, *messages.spans_of(tasks, attempts), [0.1] * count, [])
    return wire.encode(group, [messages.payload(count, [b"x" * count])])


def _core_with_tasks() -> MasterCore:
    core = MasterCore(MasterSettings("m", "g"))
    core.define(MAX)
    core.submit([span(1, MAX, 8)])
    return core
