"""Orders from an agent to its template, and the answers: a socket pair that also carries file descriptors.

An order has the settings of a slave, the descriptors of its channel and, if the slave is not the first one, those of
its standard output and error. The agent gives one order at a time, and never waits for the answer.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Sequence
from contextlib import suppress

from msgspec import Struct
from msgspec.structs import replace

from mwpy._transport.error_texts import encodable
from mwpy._values.environment import SlaveSettings
from mwpy._values.messagepack import MALFORMED, encode_json, json_decoder

__all__ = ["AgentOrders", "Answer", "TemplateOrders", "open_orders"]

MOST_BYTES = 1 << 16
"""The largest order or answer, in bytes."""

MOST_FDS = 5


class Answer(Struct, frozen=True):
    """What the template answers to an order."""

    slave: int
    pid: int = 0
    """The process id of the slave; 0 if there is none."""
    unsafe: str = ""
    """Why the template must not fork. If so, the template has become this slave."""
    own_bytes: int = 0
    """How much memory the template has, without files."""
    failure: str = ""
    """Why there is no slave."""


class AgentOrders:
    """The agent's end; made by `open_orders`. Nothing here ever blocks."""

    def __init__(self, stream: socket.socket) -> None:
        stream.setblocking(False)
        self._socket = stream

    def fileno(self) -> int:
        """Return the descriptor of the socket, to wait for."""
        return self._socket.fileno()

    def give(self, settings: SlaveSettings, fds: Sequence[int]) -> None:
        """Give an order. The descriptors can be closed afterwards.

        Raises:
            OSError: the template has ended.
        """
        socket.send_fds(self._socket, [settings.to_json().encode()], fds)

    def answers(self) -> list[Answer]:
        """Return the answers that have arrived. What is no answer is left out, because the script wrote it."""
        found: list[Answer] = []
        with suppress(OSError):
            while data := self._socket.recv(MOST_BYTES):
                with suppress(*MALFORMED):
                    found.append(json_decoder(Answer)(data))
        return found

    def close(self) -> None:
        """Close the agent's end: the template ends."""
        self._socket.close()


class TemplateOrders:
    """The template's end. It waits for orders.

    Raises:
        OSError: the descriptor is not that of a socket.
    """

    def __init__(self, fd: int) -> None:
        os.set_inheritable(fd, False)
        self._socket = socket.socket(fileno=fd)
        self._socket.setblocking(True)

    def fileno(self) -> int:
        """Return the descriptor of the socket."""
        return self._socket.fileno()

    def take(self) -> tuple[SlaveSettings, Sequence[int]] | None:
        """Wait for an order. Return the settings of the slave, whose channel has its own descriptors here, and the
        descriptors of its standard output and error, if it has any. Return None if the agent has ended.
        """
        data, fds = b"", list[int]()
        with suppress(OSError):
            data, fds, _, _ = socket.recv_fds(self._socket, MOST_BYTES, MOST_FDS, socket.MSG_CMSG_CLOEXEC)
        if not data:
            return None
        stream, memory, passage, *outputs = fds
        settings = SlaveSettings.from_json(data.decode())
        return replace(settings, stream=stream, memory=memory, passage=passage), outputs

    def answer(self, answer: Answer) -> None:
        """Answer the order. If the agent has ended, do nothing: the next `take` returns None."""
        sent = replace(answer, unsafe=encodable(answer.unsafe), failure=encodable(answer.failure))
        with suppress(OSError):
            self._socket.send(encode_json(sent))

    def close(self) -> None:
        """Close this end."""
        self._socket.close()


def open_orders() -> tuple[AgentOrders, int]:
    """Return the agent's end, and the descriptor of the template's end. Close it here after the template was started.

    Raises:
        OSError: out of file descriptors.
    """
    agent, template = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    return AgentOrders(agent), template.detach()
