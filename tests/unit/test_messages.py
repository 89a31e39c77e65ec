"""Groups of tasks and results compared with their payload, packed calls, and texts that are too long."""

from __future__ import annotations

import tracemalloc
from collections.abc import Sequence

import pytest

from mwpy._transport import wire
from mwpy._transport.codec import Codec, loads
from mwpy._values import groups, messages
from mwpy._values.bounds import MAX_REASON, shortened
from mwpy._values.errors import ProtocolError
from mwpy._values.groups import ARGUMENTS, CALLS, ROWS, PackedCalls
from mwpy._values.messagepack import decode, decode_plain, encode
from mwpy._values.messages import check

CODEC = Codec()


def payload(*values: object) -> bytes:
    """Return the first frame of a group with these values."""
    return groups.payload(len(values), [CODEC.dumps_value(value)[0] for value in values])


@pytest.mark.parametrize(
    ("message", "frames"),
    [
        (messages.Results(1, [1], [3], [1], [0.1, 0.1], []), [b""]),
        (messages.Results(1, [1], [2], [1], [0.1], [0], plain=True), [b""]),
        (messages.Results(1, [1], [2], [1], [0.1], [], [0, 0], plain=True), [b""]),
        (messages.Results(1, [1], [1], [1], [0.1], [1]), [b""]),
        (messages.Results(1, [1], [1], [1], [0.1], [0, 0]), [b""]),
        (messages.Results(1, [1], [2], [1], [0.1, 0.1], [1], again=[0]), [b""]),
        (messages.Results(1, [1], [1], [1], [0.1], [0], again=[0, 0]), [b""]),
        (messages.Results(1, [1], [2], [1], [0.1, 0.1], [0, 1], again=[1, 0]), [b""]),
        (messages.Results(1, [1], [1], [1], [-0.1], []), [b""]),
        (messages.Results(1, [1], [1], [1], [float("nan")], []), [b""]),
        (messages.Results(1, [1], [-1], [1], [], []), [b""]),
        (messages.Revoked(1, [1], [1], []), []),
        (messages.Revoked(1, [1], [1], [1]), [b"x"]),
        (messages.Revoked(1, [1], [-5], [1]), []),
        (messages.AlgorithmFailed(1, 0, "", [1], [1], [1]), [b"x"]),
        (messages.AlgorithmFailed(1, 0, "", [1], [], [1]), []),
        (messages.AlgorithmFailed(1, 0, "", [1], [0], [1]), []),
    ],
)
def test_a_message_that_does_not_fit_its_frames_is_an_error(message: messages.Message, frames: Sequence[bytes]) -> None:
    """The lists, the payload and the buffers must agree before a group is cut."""
    with pytest.raises(ProtocolError):
        wire.decode(wire.encode(message, frames))


def test_a_group_is_cut_into_the_entry_and_the_buffers_of_each_task() -> None:
    """All small values are in the first frame. Large buffers follow."""
    group = messages.Results(1, [1], [3], [1], [0.1] * 3, [1], [0, 1, 1])
    frames = [payload(5, None, "bc"), b"large", b"larger"]
    check(group, frames)
    assert groups.entries(group, frames) == ([5, None, "bc"], [[], [b"large"], [b"larger"]])


def test_the_calls_of_a_portion_are_read_as_rows_of_arguments() -> None:
    calls = PackedCalls.of(ROWS, [(1, "a"), (2, "b")])
    assert calls is not None
    group = messages.Tasks(1, [1], [2], [1], [0], portions=[ROWS])
    frames = [groups.payload(2, list(calls))]
    check(group, frames)
    assert groups.entries(group, frames) == ([(1, "a"), (2, "b")], [])


@pytest.mark.parametrize(
    "frame",
    [
        *(b"", b"\x05", b"\xdd", payload(1), payload(1, 2, 3), payload(1, 2)[:-1], payload(1, 2) + b"\x01"),
        *(payload(1, "word").replace(b"word", b"w\xffrd"), b"\x91" * 100_000, b"\xdd\xff\xff\xff\xff"),
    ],
)
def test_a_payload_without_one_entry_for_each_task_is_a_protocol_error(frame: bytes) -> None:
    """Wrong payloads: not a list, cut off, nested too deeply, or with a length that exceeds any memory."""
    with pytest.raises(ProtocolError, match="Tasks"):
        groups.entries(messages.Tasks(1, [1], [2], [1], [0]), [frame])


def test_a_selected_group_has_the_results_that_are_kept() -> None:
    """Results that the journal already gave are left out. Failures and large buffers stay with their tasks."""
    group = messages.Results(1, [1, 7], [3, 1], [1, 2], [0.1, 0.2, 0.3, 0.4], [0, 1, 3], [0, 0, 0, 1], [0, 3])
    frames = [payload(1, "two", 3, "four"), b"large"]
    check(group, frames)
    smaller, rest = groups.select(group, frames, [1, 2, 3])
    assert smaller == messages.Results(1, [2, 7], [2, 1], [1, 2], [0.2, 0.3, 0.4], [0, 2], [0, 0, 1], [2])
    assert rest == [payload("two", 3, "four"), b"large"]
    check(smaller, rest)
    plain = messages.Results(1, [1], [2], [1], [0.1, 0.1], [])
    assert groups.select(plain, [payload(1, 2)], [1]) == (
        messages.Results(1, [2], [1], [1], [0.1], []),
        [payload(2)],
    )


@pytest.mark.parametrize(
    ("tasks", "attempts", "spans"),
    [
        ([], [], ([], [], [])),
        ([5, 6, 7], [1, 1, 1], ([5], [3], [1])),
        ([5, 6, 8], [1, 1, 1], ([5, 8], [2, 1], [1, 1])),
        ([5, 6, 7], [1, 2, 2], ([5, 6], [1, 2], [1, 2])),
        ([7, 6, 5], [1, 1, 1], ([7, 6, 5], [1, 1, 1], [1, 1, 1])),
    ],
)
def test_tasks_form_as_few_spans_as_their_order_allows(
    tasks: list[int], attempts: list[int], spans: tuple[list[int], list[int], list[int]]
) -> None:
    """The spans name the same tasks."""
    assert groups.spans_of(tasks, attempts) == spans
    assert list(groups.each_task(messages.Revoked(1, *spans))) == list(zip(tasks, attempts, strict=True))


@pytest.mark.parametrize("container", [b"\x90", b"\x80", b"\xdc\x00\x00", b"\xdf\x00\x00\x00\x00"])
def test_a_large_result_that_is_a_list_or_dict_is_not_read(container: bytes) -> None:
    """Results that are lists or dicts travel as pickles. A list of empty lists would take 70 times its size."""
    count = 100_000
    frame = groups.payload(1, [b"\xdd" + count.to_bytes(4, "big") + container * count])
    tracemalloc.start()
    try:
        with pytest.raises(ProtocolError, match="an entry is a list or dict"):
            groups.entries(messages.Results(1, [1], [1], [1], [0.1], []), [frame])
        assert tracemalloc.get_traced_memory()[1] < 10_000
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("value", ["x" * 60_000, b"x" * 60_000, [*range(60_000)]])
def test_a_large_group_arrives(value: object) -> None:
    """Only the arguments of calls are lists, which come from the master."""
    found, _ = groups.entries(messages.Results(1, [1], [2], [1], [0.1, 0.1], []), [payload(value, value)])
    assert [*map(loads, found)] == [value, value]
    call, _ = CODEC.dumps_call((1, "x" * 60_000, "y" * 60_000), {}, "f")
    found, _ = groups.entries(messages.Tasks(1, [1], [1], [1], [0]), [groups.payload(1, [call])])
    assert found == [[1, "x" * 60_000, "y" * 60_000]]


# ---- the calls of a portion: one piece of bytes, until some of them are needed alone ----


@pytest.mark.parametrize("count", [1, 15, 16, 1000, 70_000])
def test_calls_are_encoded_one_after_the_other(count: int) -> None:
    """Whatever MessagePack writes before them: the first byte of a list depends on its length."""
    calls = PackedCalls.of(ROWS, [(7, "x")] * count)
    assert len(calls) == count
    assert calls.data == b"\x92\x07\xa1x" * count
    assert calls.size == len(calls.data)


def _packed(kind: int) -> PackedCalls:
    if kind == CALLS:
        return PackedCalls.of_encoded([encode([number]) for number in range(10)])
    return PackedCalls.of(kind, [(number,) for number in range(10)] if kind == ROWS else [*range(10)])


@pytest.mark.parametrize("kind", [ROWS, ARGUMENTS, CALLS])
def test_each_call_and_each_part_can_be_had_alone(kind: int) -> None:
    """Also if only the arguments are encoded, a call is the list of its arguments."""
    calls = _packed(kind)
    part = calls[2:7][1:]
    assert [decode(call) for call in part] == [[3], [4], [5], [6]]
    assert (part.kind, decode(part[0]), decode(part[-1])) == (kind, [3], [6])
    assert part.data == (b"\x03\x04\x05\x06" if kind == ARGUMENTS else b"\x91\x03\x91\x04\x91\x05\x91\x06")
    assert part.size == len(part.data)
    assert len(calls[5:3]) == 0
    with pytest.raises(IndexError):
        part[4]


def test_a_list_of_plain_values_is_read_without_lists_in_it() -> None:
    assert decode_plain(b"\x94\x01\xc0\xa1x\xc3") == [1, None, "x", True]
    assert decode_plain(b"\x92\xc4\x01x\xcb\x3f\xf0\0\0\0\0\0\0") == [b"x", 1.0]
    for other in (b"\x91\x90", b"\x91\x80", b"\x91\xd4\x01x", b"\x92\xc4\x01x\xa1x"):
        with pytest.raises(Exception, match="Expected"):
            decode_plain(other)


# ---- texts ----


@pytest.mark.parametrize("length", [0, 1, 100])
def test_a_short_text_stays_as_it_is(length: int) -> None:
    assert shortened("x" * length, 100) == "x" * length


@pytest.mark.parametrize("most", [100, 101, MAX_REASON])
def test_a_long_text_keeps_its_beginning_and_its_end(most: int) -> None:
    """The beginning says what happened, and the end of a traceback names the error."""
    text = shortened("begin" + "x" * 100_000 + "end", most)
    assert len(text) == most
    assert text.startswith("begin")
    assert text.endswith("end")
    assert " [... 100008 characters ...] " in text
