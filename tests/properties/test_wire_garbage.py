"""Whatever a member sends, the master stays whole: garbage is a `ProtocolError`, and nothing else."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from mwpy import _messages as messages
from mwpy import _wire
from mwpy._core.events import Garbage, Received
from mwpy._core.master_core import MasterCore, MasterSettings
from mwpy.algorithm import algorithm_of
from mwpy.errors import ProtocolError
from mwpy.task import DEFAULT_POLICY, SlaveId, Task, TaskId

numbers = st.integers(-2, 12)
columns = st.lists(numbers, max_size=4)
seconds = st.lists(st.floats(), max_size=4)

hostile = st.one_of(
    st.builds(messages.Hello, st.just("m"), st.sampled_from(["", "g", "x"]), st.text(), numbers, st.text(), numbers),
    st.builds(messages.Results, numbers, columns, columns, seconds, columns, columns, columns),
    st.builds(messages.Tasks, numbers, columns, columns, columns, columns, columns),
    st.builds(messages.Revoked, numbers, columns, columns),
    st.builds(messages.SlaveReady, numbers),
    st.builds(messages.SlaveDied, numbers, numbers, st.text(), st.text()),
    st.builds(messages.AlgorithmFailed, numbers, numbers, st.text(), columns, columns),
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
    frames = _wire.encode(message, payload)
    header = bytearray(frames[1])
    header[position % len(header)] = byte
    _decode([frames[0], bytes(header), *payload])
    _decode([frames[0], bytes(header)[:position], *payload])


@settings(max_examples=1500)
@given(st.lists(st.tuples(st.sampled_from([b"a", b"b"]), hostile, st.lists(st.binary(max_size=8), max_size=2))))
def test_a_hostile_member_leaves_the_master_unharmed(
    sent: list[tuple[bytes, messages.Message, Sequence[bytes]]],
) -> None:
    """Replayed, untimely and invented messages cost their sender the connection, and the master nothing."""
    core = _core_with_tasks()
    for peer, message, payload in sent:
        frames = _wire.encode(message, payload)
        try:
            decoded, rest = _wire.decode(frames)
        except ProtocolError as error:
            core.handle(Garbage(peer, "here", str(error)), 1.0)
        else:
            core.handle(Received(peer, "here", decoded, rest), 1.0)
        core.check()
        core.allocate(1.0)
        core.take_actions()
        core.check()
    assert len(core.jar.tasks) <= 8


@settings(max_examples=500)
@given(st.lists(st.tuples(st.sampled_from([b"a", b"b"]), hostile), max_size=6))
def test_hostile_messages_among_live_agents_leave_the_master_unharmed(
    sent: list[tuple[bytes, messages.Message]],
) -> None:
    """Agents that already hold tasks may send anything; the books stay in order and a good agent stays."""
    core = _core_with_tasks()
    for peer in (b"a", b"b", b"good"):
        core.handle(Received(peer, "here", messages.Hello("m", "g", "h", 1, "3.11", 1), ()), 0.0)
        core.handle(Received(peer, "here", messages.SlaveReady(1), ()), 0.0)
    core.allocate(0.0)
    core.take_actions()
    for peer, message in sent:
        try:
            decoded, rest = _wire.decode(_wire.encode(message))
        except ProtocolError as error:
            core.handle(Garbage(peer, "here", str(error)), 1.0)
        else:
            core.handle(Received(peer, "here", decoded, rest), 1.0)
        core.allocate(1.0)
        core.take_actions()
        core.check()
    assert b"good" in core.stable.agents


def _decode(frames: Sequence[Any]) -> None:
    with suppress(ProtocolError):
        _wire.decode(frames)


def _core_with_tasks() -> MasterCore:
    core = MasterCore(MasterSettings("m", "g"))
    algorithm = algorithm_of(max)
    core.define(algorithm, "builtins:max", "", "3.11", b"")
    core.submit([Task(TaskId(n), algorithm, b"x", (), DEFAULT_POLICY, None) for n in range(1, 9)])
    return core
