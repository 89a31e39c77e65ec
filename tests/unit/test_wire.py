"""Messages are encoded as frames and decoded again. Frames that are not a message are refused."""

from __future__ import annotations

from typing import Any, get_args

import pytest

from mwpy._transport import wire
from mwpy._values import messages
from mwpy._values.errors import ProtocolError
from mwpy._values.ids import SlaveId
from mwpy._values.last_words import LastWords

DEFINITION = messages.AlgorithmDefinition(0, "f", "m:f", "d", "3.11", {"p": "1"})
ALL: list[tuple[messages.Message, list[bytes]]] = [
    (messages.Hello("m", "g", "h", 1, "3.11", 2, "17.3"), []),
    (messages.Welcome("A", 0, 1 << 30), []),
    (messages.Refused("why"), []),
    (messages.Algorithms([DEFINITION]), []),
    (messages.Installed({"p": "1", "q": ""}), []),
    (messages.Tasks(1, [1], [1], [1], [0], [1]), [b"x", b"large"]),
    (messages.Results(1, [1], [1], [1], [0.5], [0]), [b"x"]),
    (messages.Revoke(1, 2), []),
    (messages.Revoked(1, [1], [1], [1]), []),
    (messages.Cancel([1, 5], [4, 1], True), []),
    (messages.SlaveReady(1), []),
    (messages.SlaveNamed(1, SlaveId("SLAVE-0")), []),
    (messages.SlaveDied(1, 0, "why", LastWords("out", "err", "fault", 1 << 40)), []),
    (messages.AlgorithmFailed(1, 0, "why", [1], [1], [1]), []),
    (messages.Probe(), []),
    (messages.Renew(), []),
    (messages.Shutdown(True, 5.0), []),
    (messages.Leaving("why"), []),
    (messages.Goodbye("why"), []),
]


VERSION = bytes([messages.PROTOCOL_VERSION])


@pytest.mark.parametrize(("message", "payload"), ALL)
def test_a_message_comes_back_equal(message: messages.Message, payload: list[bytes]) -> None:
    decoded, rest = wire.decode(wire.encode(message, payload))
    assert (decoded, list(rest)) == (message, payload)


def test_every_kind_of_message_can_travel() -> None:
    assert {type(message) for message, _ in ALL} == set(get_args(messages.Message))


@pytest.mark.parametrize(
    ("frames", "words"),
    [
        ([], "0 frames"),
        ([b"\x01"], "1 frames"),
        ([b"", b"\x80"], "do not begin like a message"),
        ([b"\x63\x0d\x80"], "protocol version 99 there"),
        ([VERSION + b"\x63\x80"], "unknown message kind 99"),
        ([VERSION + b"\x0d" + bytes(wire.MAX_HEADER_BYTES + 1)], "a header of"),
        ([VERSION + b"\x03\x80"], "a malformed Refused"),
        ([VERSION + b"\x03\x81\xa6reason\xa1\xff"], "a malformed Refused"),
        ([VERSION + b"\x0d\x81\xa1a" + b"\x91" * 100_000], "a malformed Probe"),
        ([VERSION + b"\x0d\x80", b"x"], "payload frames, but none are expected"),
    ],
)
def test_what_is_no_message_is_a_protocol_error(frames: list[Any], words: str) -> None:
    with pytest.raises(ProtocolError, match=words):
        wire.decode(frames)
