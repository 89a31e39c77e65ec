"""Messages as frames, for sockets and pipes.

The first frame has one byte for the protocol version, one byte for the kind of the message, and the header, which is
the message's fields in MessagePack. The other frames are the payload, which is not changed. `decode` trusts nothing:
anything that is not a complete message of this version is a `ProtocolError`. Unknown fields are ignored.
"""

from __future__ import annotations

from collections.abc import Sequence

from mwpy._values import messagepack, messages
from mwpy._values.errors import ProtocolError
from mwpy._values.ids import Buffer

__all__ = ["decode", "encode", "parse"]

MAX_HEADER_BYTES = 16 << 20
"""The largest size of a header, in bytes. The lists of the largest group need a hundredth of this size."""

_KINDS: dict[int, type[messages.Message]] = {
    1: messages.Hello,
    2: messages.Welcome,
    3: messages.Refused,
    4: messages.Algorithms,
    5: messages.Tasks,
    6: messages.Results,
    7: messages.Revoke,
    8: messages.Revoked,
    9: messages.SlaveReady,
    10: messages.SlaveNamed,
    11: messages.SlaveDied,
    12: messages.AlgorithmFailed,
    13: messages.Probe,
    14: messages.Shutdown,
    15: messages.Goodbye,
    16: messages.Leaving,
    17: messages.Installed,
    18: messages.Renew,
    19: messages.Cancel,
}
"""The number of each kind. A number is never used for another kind. A new kind needs a new protocol version."""

_PREFIX = {kind: bytes([messages.PROTOCOL_VERSION, number]) for number, kind in _KINDS.items()}
_DECODERS = {number: messagepack.decoder(kind) for number, kind in _KINDS.items()}


def encode(message: messages.Message, frames: Sequence[Buffer] = ()) -> list[Buffer]:
    """Turn a message and its payload into frames."""
    return [_PREFIX[type(message)] + messagepack.encode(message), *frames]


def decode(frames: Sequence[Buffer]) -> tuple[messages.Message, Sequence[Buffer]]:
    """Turn frames into a message and its payload.

    Raises:
        ProtocolError: they are not a message, or its header and payload do not fit together; the sender's fault.
    """
    message, payload = parse(frames)
    messages.check(message, payload)
    return message, payload


def parse(frames: Sequence[Buffer]) -> tuple[messages.Message, Sequence[Buffer]]:
    """Like `decode`, but do not compare header and payload: for slaves, because their agent has compared them.

    Raises:
        ProtocolError: they are not a message.
    """
    if not frames or len(frames[0]) < 2:
        raise ProtocolError(f"{len(frames)} frames that do not begin like a message")
    first = memoryview(frames[0])
    version, number = first[0], first[1]
    if version != messages.PROTOCOL_VERSION:
        raise ProtocolError(
            f"protocol version {version} there, {messages.PROTOCOL_VERSION} here: install the same version of mwpy"
        )
    read = _DECODERS.get(number)
    if read is None:
        raise ProtocolError(f"unknown message kind {number}")
    if len(first) > MAX_HEADER_BYTES:
        raise ProtocolError(f"a header of {len(first)} bytes")
    try:
        message = read(first[2:])
    except messagepack.MALFORMED as error:
        raise ProtocolError(f"a malformed {_KINDS[number].__name__}: {error}") from error
    return message, frames[1:]
