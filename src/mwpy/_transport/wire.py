"""Messages as frames, for sockets and pipes.

The first frame has one byte for the protocol version, one byte for the kind of the message, and the header, which is
the message's fields in MessagePack. The other frames are the payload, which is not changed. `decode` trusts nothing:
anything that is not a complete message of this version is a `ProtocolError`. Unknown fields are ignored.

A *route* says which messages a process expects from another one, and how large their headers are. Both are checked
before the header is read, and the lengths of its lists before they are built (see `_values/bounds.py`). So a malformed
message costs its receiver little.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import cache

from mwpy._values import messagepack, messages
from mwpy._values.bounds import Buffer
from mwpy._values.errors import ProtocolError
from mwpy._values.messages import check

MAX_HEADER_BYTES = 16 << 20
"""The largest size of a header, in bytes. The lists of the largest group of tasks need less."""

MAX_MEMBER_HEADER_BYTES = 1 << 20
"""The largest size of a header that an agent or a slave sends. The longest last words need most of it."""

_BASES = (messages.Message, messages.FromSlave, messages.FromAgent, messages.FromMaster, messages.ToInquirer)

_KINDS: dict[int, type[messages.Message]] = dict(
    enumerate(
        each
        for each in vars(messages).values()
        if isinstance(each, type) and issubclass(each, messages.Message) and each not in _BASES
    )
)
"""The number of each kind, in the order of their definitions. So a change of this order needs a new protocol version,
as a new kind does."""

_PREFIX = {kind: bytes([messages.PROTOCOL_VERSION, number]) for number, kind in _KINDS.items()}


_decoder: Callable[[type[messages.Message]], Callable[[Buffer], messages.Message]] = cache(messagepack.decoder)
"""Returns what reads headers of a kind. It is made for the first one: a process meets few of the kinds, and to make all
of them takes 5 ms."""


class Route:
    """Which messages a process expects from another one.

    Args:
        to: the kind of the receiver, for the error message.
        kinds: the kinds of these messages.
        max_header_bytes: how large their headers may be.
    """

    def __init__(self, to: str, kinds: Iterable[type[messages.Message]], max_header_bytes: int) -> None:
        self.to = to
        self.max_header_bytes = max_header_bytes
        self.prefixes = {_PREFIX[kind]: kind for kind in kinds}
        """Which of these kinds has which first two bytes."""


FROM_AGENT = Route("a master", messages.FromAgent.__subclasses__(), MAX_MEMBER_HEADER_BYTES)
FROM_MASTER = Route("an agent", messages.FromMaster.__subclasses__(), MAX_HEADER_BYTES)
FROM_SLAVE = Route("an agent", messages.FromSlave.__subclasses__(), MAX_MEMBER_HEADER_BYTES)
TO_INQUIRER = Route("an inquirer", messages.ToInquirer.__subclasses__(), MAX_HEADER_BYTES)
ANY = Route("anybody", _KINDS.values(), MAX_HEADER_BYTES)


def encode(message: messages.Message, frames: Sequence[Buffer] = ()) -> list[Buffer]:
    """Turn a message and its payload into frames."""
    return [_PREFIX[type(message)] + messagepack.encode(message), *frames]


def decode(frames: Sequence[Buffer], route: Route = ANY) -> tuple[messages.Message, Sequence[Buffer]]:
    """Turn frames into a message and its payload.

    Args:
        frames: as they arrived.
        route: from which process to which they were sent.

    Raises:
        ProtocolError: they are not a message, or its header and payload do not fit together; the sender's fault.
    """
    message, payload = parse(frames, route)
    check(message, payload)
    return message, payload


def parse(frames: Sequence[Buffer], route: Route = ANY) -> tuple[messages.Message, Sequence[Buffer]]:
    """Like `decode`, but do not compare header and payload: for slaves, because their agent has compared them.

    Raises:
        ProtocolError: they are not a message.
    """
    first = memoryview(frames[0] if frames else b"")
    kind = route.prefixes.get(bytes(first[:2]))
    if kind is None or len(first) > route.max_header_bytes:
        raise ProtocolError(_why_unreadable(frames, route))
    try:
        message = _decoder(kind)(first[2:])
    except messagepack.MALFORMED as error:
        raise ProtocolError(f"a malformed {_KINDS[first[1]].__name__}: {error}") from error
    return message, frames[1:]


def _why_unreadable(frames: Sequence[Buffer], route: Route) -> str:
    if not frames or len(frames[0]) < 2:
        return f"{len(frames)} frames that do not begin like a message"
    version, number = memoryview(frames[0])[:2]
    if version != messages.PROTOCOL_VERSION:
        return f"protocol version {version} there, {messages.PROTOCOL_VERSION} here: install the same version of mwpy"
    if number not in _KINDS:
        return f"unknown message kind {number}"
    if _KINDS[number] not in route.prefixes.values():
        return f"{_KINDS[number].__name__} is not for {route.to}"
    return f"a header of {len(frames[0])} bytes"
