"""No message of a member harms the master: garbage is a `ProtocolError` and nothing else."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from tests.spans import MAX, ids_of, span

from mwpy._core.master.algorithms import Defined
from mwpy._core.master.core import MasterCore
from mwpy._core.master.restart import Reuse
from mwpy._core.master.state import MasterSettings, Received, Stored
from mwpy._transport import wire
from mwpy._values import groups, messages, records
from mwpy._values.bounds import SlaveId
from mwpy._values.causes import Cause
from mwpy._values.connections import Garbage
from mwpy._values.earlier import EarlierAlgorithm, EarlierTasks, FormerAgent
from mwpy._values.errors import ProtocolError
from mwpy._values.last_words import LastWords
from mwpy._values.messages import LogRow, Share

numbers = st.integers(-2, 12)
columns = st.lists(numbers, max_size=4)
counts = st.lists(st.one_of(numbers, st.sampled_from([1, 1 << 40, (1 << 64) - 1])), max_size=4)
"""Counts of spans. A count may be larger than any real number of tasks."""
seconds = st.lists(st.floats(), max_size=4)

causes = st.sampled_from(Cause)
texts = st.text(max_size=20)
log_rows = st.builds(LogRow, numbers, texts, st.floats(), numbers, texts, texts, texts, numbers, texts, texts)

plain_results = st.builds(
    messages.Results, numbers, columns, counts, columns, seconds, st.just([]), st.just([]), plain=st.just(True)
)
shares = st.builds(Share, texts, numbers, texts)
digests = st.sampled_from(["", "object"])
"""The name of an object, and nonsense."""

hostile = st.one_of(
    st.builds(messages.Hello, st.just("m"), st.sampled_from(["", "g", "x"]), st.text(), numbers, st.text(), numbers),
    st.builds(messages.Results, numbers, columns, counts, columns, seconds, columns, columns),
    st.builds(
        messages.Handover,
        st.sampled_from(["first", "x"]),
        texts,
        st.builds(messages.Results, numbers, columns, counts, columns, seconds, columns, columns),
    ),
    plain_results,
    st.builds(messages.Tasks, numbers, columns, counts, columns, columns, columns),
    st.builds(messages.Tasks, numbers, columns, counts, columns, columns, portions=columns, shares=st.lists(shares)),
    st.builds(messages.ShareWanted, digests, numbers),
    st.builds(messages.SharePart, digests, numbers),
    st.builds(messages.ShareGone, digests),
    st.builds(messages.ShareGiven, shares, texts),
    st.builds(messages.ShareForgotten, digests),
    st.builds(
        messages.FormerTasks,
        st.sampled_from(["first", "x"]),
        st.sampled_from([*messages.FormerFate]),
        columns,
        counts,
    ),
    st.builds(messages.NextGeneration, numbers, texts),
    st.builds(messages.Revoked, numbers, columns, counts, columns),
    st.builds(messages.Cancel, columns, counts, st.booleans()),
    st.builds(messages.Checkpoint, numbers, numbers, numbers),
    st.builds(messages.CheckpointRead, numbers),
    st.builds(messages.Reported, numbers, numbers, numbers, st.floats()),
    st.builds(messages.ReportRead, numbers),
    st.builds(messages.SlaveReady, numbers),
    st.builds(messages.SlaveWorn, numbers, st.text()),
    st.builds(messages.PeakMemory, numbers, numbers, numbers),
    st.builds(messages.OtherValues, numbers, numbers, st.text(max_size=20)),
    st.builds(messages.Logged, numbers, st.lists(log_rows, max_size=3), numbers),
    st.builds(messages.SlaveDied, numbers, numbers, causes, st.text(), st.builds(LastWords, *[st.text()] * 3, numbers)),
    st.builds(messages.AlgorithmFailed, numbers, numbers, st.text(), columns, counts, columns),
    st.builds(messages.SlaveNamed, numbers, st.just(SlaveId("SLAVE-0"))),
    st.builds(messages.Leaving, st.text(), causes),
    st.builds(messages.Goodbye, st.text(), causes),
    st.builds(messages.Renew),
    st.builds(messages.Handled, st.integers(0, 1 << 52)),
    st.just(messages.Probe()),
)


@settings(max_examples=6000)
@given(st.lists(st.binary(max_size=40), max_size=4))
def test_garbage_is_a_protocol_error(frames: list[bytes]) -> None:
    """Any bytes are either a message or a `ProtocolError`."""
    _decode(frames)


@settings(max_examples=6000)
@given(hostile, st.integers(0, 200), st.integers(0, 255), st.lists(st.binary(max_size=20), max_size=2))
def test_a_mutated_message_is_a_protocol_error(
    message: messages.Message, position: int, byte: int, payload: list[bytes]
) -> None:
    """A correct message with one changed byte is either a message or a `ProtocolError`."""
    frames = wire.encode(message, payload)
    header = bytearray(frames[0])
    header[position % len(header)] = byte
    _decode([bytes(header), *payload])
    _decode([bytes(header)[:position], *payload])


@settings(max_examples=2000)
@given(
    st.lists(st.tuples(st.sampled_from([b"a", b"b"]), hostile, st.lists(st.binary(max_size=8), max_size=2))),
    st.booleans(),
)
def test_a_hostile_member_leaves_the_master_unharmed(
    sent: list[tuple[bytes, messages.Message, Sequence[bytes]]], joins: bool
) -> None:
    """Repeated, untimely and invented messages end the sender's connection, perhaps of an agent that holds tasks. They
    harm neither the master nor correct agents."""
    core = _core_with_tasks()
    for peer in (b"a", b"b", b"good") if joins else (b"good",):
        _join(core, peer)
    gone: dict[bytes, None] = {}
    for peer, message, payload in sent:
        _deliver(core, peer, wire.encode(message, payload), gone)
    assert b"good" in core.state.members.peers
    assert core.state.jar.runnable <= 8


@settings(max_examples=300)
@given(st.lists(st.tuples(st.sampled_from([b"a", b"b", b"c"]), st.integers(0, 20)), min_size=1, max_size=30))
def test_each_result_counts_once_however_often_and_on_any_connection_it_is_repeated(
    replays: list[tuple[bytes, int]],
) -> None:
    """A member repeats results, its own and those of others. They do not count, and it stays connected."""
    core = _core_with_tasks()
    recorded: list[list[Any]] = []
    ended: list[int] = []
    for peer in (b"a", b"b"):
        _join(core, peer)
    for peer, pick in [(b"c", 0), *replays]:
        if peer == b"c" and peer not in core.state.members.peers:
            _join(core, peer)
        if pick % 3 == 0:  # these results are new and correct
            slave = next(iter(core.state.members.peers[peer].slaves.values()))
            held = slave.held.spans
            tasks, attempts = ids_of(held), [span.attempt for span in held for _ in span.ids]
            recorded.append(_results(tasks, attempts))
            new, _ = _deliver(core, peer, recorded[-1])
            assert new == tasks, "a correct result did not count"
        else:
            new, dropped = _deliver(core, peer, recorded[pick % len(recorded)])
            assert not new, "a repeated result counted"
            assert not dropped, "an agent was dropped because its result was late"
        ended += new
    assert len(ended) == len(set(ended))
    assert len(ended) + core.state.jar.runnable == 8


firsts = st.one_of(st.integers(-3, 12), st.sampled_from([-(1 << 63), (1 << 64) - 1]))


@settings(max_examples=500)
@given(st.lists(st.lists(st.tuples(firsts, st.integers(1, 4)), max_size=4), max_size=4), st.booleans())
def test_results_of_a_former_generation_end_each_task_at_most_once_whatever_tasks_they_name(
    brought: list[list[tuple[int, int]]], joins: bool
) -> None:
    """They may name tasks twice, or tasks that never were. The tasks are pending, or a slave has them."""
    core = _core_with_former_tasks()
    _join(core, b"a")
    if joins:
        _join(core, b"b")
    ended: list[int] = []
    for spans in brought:
        total = sum(count for _, count in spans)
        columns = [first for first, _ in spans], [count for _, count in spans], [1] * len(spans)
        group = messages.Results(1, *columns, [0.5] * total, [])
        message = messages.Handover("first", "SLAVE-9", group)
        core.handle(Received(b"a", "here", message, [groups.payload(total, [b"x"] * total)]), 1.0)
        for record in core.take_actions().records:
            if isinstance(record, records.ResultsHandedOver):
                core.handle(Stored(record, 1), 1.0)
        core.check()
        core.decide(1.0)
        ended += [result.task_id for result in core.take_actions().results]
    named = {task for spans in brought for first, count in spans if first > 0 for task in range(first, first + count)}
    assert sorted(ended) == sorted({*range(1, 9)} & named)


def test_an_agent_that_returns_more_tasks_than_exist_returns_the_tasks_that_it_holds() -> None:
    """A span is two numbers in a message, for any number of tasks. The master does not go through them one by one."""
    core = _core_with_tasks()
    _join(core, b"a")
    slave = next(iter(core.state.members.peers[b"a"].slaves.values()))
    held = ids_of(slave.held.spans)
    claim = messages.Revoked(1, [0, 1 << 40], [1 << 40, (1 << 64) - 1], [1, 1])
    assert _deliver(core, b"a", wire.encode(claim)) == ([], [])
    again = [span.attempt for span in slave.held.spans for task in span.ids if task in held]
    assert again == [2] * len(held)
    assert core.state.jar.runnable == 8


def test_an_agent_that_names_a_task_twice_is_dropped() -> None:
    core = _core_with_tasks()
    _join(core, b"a")
    assert _deliver(core, b"a", wire.encode(messages.Revoked(1, [1, 2], [5, 1], [1, 1])))[1] == ["AGENT-0"]


def _decode(frames: Sequence[Any]) -> None:
    with suppress(ProtocolError):
        wire.decode(frames)


def _deliver(
    core: MasterCore, peer: bytes, frames: Sequence[Any], gone: dict[bytes, None] | None = None
) -> tuple[list[int], list[str]]:
    """Pass frames to the master as its I/O thread does, and compare its records with its actions.

    Args:
        gone: the peers that were refused so far; this call adds to them.

    Returns:
        The tasks whose results were accepted, and the names of the agents that were dropped. The second list has the
        agent of this peer, if the agent is gone without a goodbye. If the peer has no agent, the peer was refused
        instead.
    """
    before = dict(core.state.members.peers)
    ignored = peer in (gone or {})
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
    assert before.keys() <= core.state.members.peers.keys(), "a message ended the connection of another peer"
    stays = peer in core.state.members.peers
    sent_away = [send.peer for send in actions.sends if isinstance(send.message, messages.Refused)]
    if ignored:
        assert (dropped, refused, sent_away, stays) == ([], [], [], False), "a refused peer was not ignored"
    elif agent is not None:
        assert dropped == ([] if stays or (is_goodbye and not is_garbage) else [agent.name])
        assert not (is_garbage and stays), "an agent stays connected after garbage"
    else:
        assert (dropped, refused) == ([], [] if stays else ["here"])
    assert sent_away in ([], [peer]), "another peer was refused"
    assert len(dropped) <= len(sent_away), "an agent was dropped without a message to it"
    if gone is not None:
        gone.update(dict.fromkeys(sent_away))
    return [result.task_id for result in actions.results], dropped


def _join(core: MasterCore, peer: bytes) -> None:
    """Connect an agent with one slave that is ready."""
    for message in (messages.Hello("m", "g", "h", 1, "3.11", 1), messages.SlaveReady(1)):
        assert _deliver(core, peer, wire.encode(message)) == ([], [])


def _results(tasks: Sequence[int], attempts: Sequence[int]) -> list[Any]:
    count = len(tasks)
    group = messages.Results(1, *groups.spans_of(tasks, attempts), [0.1] * count, [])
    return wire.encode(group, [groups.payload(count, [b"x" * count])])


def _core_with_tasks() -> MasterCore:
    core = MasterCore(MasterSettings("m", "g"))
    core.definitions.add(Defined(MAX))
    core.submit([span(1, MAX, 8)])
    return core


def _core_with_former_tasks() -> MasterCore:
    """The same tasks, which a former generation had submitted, too."""
    core = MasterCore(MasterSettings("m", "g"))
    coded = replace(MAX, code="code")
    core.definitions.add(Defined(coded))
    core.reuse = Reuse(core.state, lambda row, place: (None, ()), lambda *_: (), lambda *_: ())
    keys = b"".join(number.to_bytes(16, "big") for number in range(1, 9))
    core.reuse.apply(EarlierAlgorithm(1, 0, "max", "code", {}))
    core.reuse.apply(EarlierTasks(1, 1, 8, 0, keys))
    core.reuse.names = {"first": 1}
    core.reuse.succession.know([FormerAgent(1, "h", 1, 60.0, False)])
    core.reuse.begin()
    new = span(1, coded, 8)
    new.keys = keys
    core.submit([new])
    return core
