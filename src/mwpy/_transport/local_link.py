"""The connection between a master and the agents that it starts on its own machine: a stream that they inherit.

The master makes the stream and its passage before it starts the agent, as an agent does for its slaves. So there is no
address, no key and no handshake, no thread of ZeroMQ stands between the two, and the agent need not import ZeroMQ. The
end of a process is the end of its stream. Three things need more than the stream itself:

- *Silence.* A process that was stopped does not end its stream. So an agent sends heartbeats: messages without frames.
  The master counts looks at which nothing had arrived since the look before. A time would be wrong: when both processes
  were stopped, the agent had no chance to send anything. A master that was stopped is not lost, because its agent can
  do nothing better than wait for it.
- *Forks.* A process that was forked from the master has a copy of the master's end, so the stream does not end with the
  master. Therefore the agent also waits for the end of the process itself, where the kernel has a descriptor for it.
- *A master that agents of other machines can join, too.* One thread waits for everything at once: the streams are in an
  `epoll` object, and the network waits for its descriptor, too. Without a network, the thread waits for this object.
"""

from __future__ import annotations

import os
import select
import socket
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from mwpy._system import clock
from mwpy._system.process import Bell
from mwpy._transport.stream import MAX_BYTES, Passage, StreamEnd, heartbeat_interval, make_passage, milliseconds
from mwpy._values.bounds import Buffer
from mwpy._values.connections import Broken, Connected, Frames, Garbage, Happened, Vanished
from mwpy._values.errors import ProtocolError, UsageError
from mwpy._values.options import OWN_ADDRESS, MasterStream

if TYPE_CHECKING:
    from mwpy._transport.link import MasterLink

MESSAGE_SLACK = 32 << 20
"""How many bytes a message of an agent may have beyond the largest payload: the other tasks of its group, and its
header."""

SILENT_LOOKS = 5
"""An agent is gone after so many looks in a row at which nothing had arrived. There are four looks in a timeout."""


class LocalMasterLink:
    """The master's end of all connections, if it has agents of its own. One thread uses it. Other threads may only call
    `wake`.

    Args:
        network: the connections to other agents; None if only its own agents can join.
        timeout_s: after this silence an agent is gone.
        max_payload: bytes of the largest payload frame that is accepted.
    """

    def __init__(self, network: MasterLink | None, timeout_s: float, max_payload: int) -> None:
        self.asleep = False
        """Whether it waits in `poll`, or is about to. Another thread that has something for it must call `wake`."""
        self._network = network
        self._max_bytes = max_payload + MESSAGE_SLACK
        self._interval_s = heartbeat_interval(timeout_s)
        self._look_at = 0.0
        self._opened = 0
        """How many streams were ever made."""
        self._ends: dict[bytes, StreamEnd] = {}
        """The streams that have not ended, by the name of the peer."""
        self._peers: dict[int, bytes] = {}
        """The peer of each descriptor."""
        self._silent: dict[bytes, int] = {}
        """Each peer that sent something and is not forgotten: the number of looks since then."""
        self._bell = Bell()
        self._epoll = select.epoll()
        self._epoll.register(self._bell.fd, select.EPOLLIN)
        if network is not None:
            network.watch(self._epoll.fileno())

    def open(self) -> MasterStream:
        """Make the stream of an agent. Start the agent with it, and close its descriptors here then.

        Raises:
            OSError: out of file descriptors.
        """
        here, there = socket.socketpair()
        try:
            passage, passage_there = make_passage()
        except OSError:
            here.close()
            there.close()
            raise
        self._opened += 1
        peer = f"local agent {self._opened}".encode()
        self._ends[peer] = StreamEnd(here, passage, self._max_bytes, passes_on=False)
        self._peers[here.fileno()] = peer
        self._epoll.register(here.fileno(), select.EPOLLIN)
        return MasterStream((there.detach(), passage_there.detach()), os.getpid())

    def poll(self, timeout_s: float, now: float) -> list[Happened]:
        """Wait for something to happen, and return what happened.

        Args:
            timeout_s: how long to wait at most.
            now: seconds on a monotonic clock.
        """
        wait_s = min(timeout_s, self._look_at - now)
        happened: list[Happened] = []
        if self._network is not None:
            happened = self._network.poll(wait_s, now)
            wait_s = 0.0
        ready = self._epoll.poll(milliseconds(wait_s) / 1000)
        self.asleep = False
        for fd, _ in ready:
            if (peer := self._peers.get(fd)) is not None:
                self._hear(peer, happened)
            else:
                self._bell.clear()
        if now >= self._look_at:
            self._look()
            self._look_at = now + self._interval_s
        return happened

    def _hear(self, peer: bytes, happened: list[Happened]) -> None:
        end = self._ends[peer]
        if end.wants_write:
            end.flush()
            self._watch(end)
        try:
            for frames in end.receive():
                self._silent[peer] = 0
                if frames:  # else it is a heartbeat
                    happened.append(Frames(peer, OWN_ADDRESS, frames))
        except ProtocolError as error:
            happened.append(Garbage(peer, OWN_ADDRESS, str(error)))
            end.eof = True
        if end.eof:
            self._close(peer)
            looks = self._silent.pop(peer, None)
            if looks is not None:
                happened.append(Vanished(peer, looks * self._interval_s if looks >= SILENT_LOOKS else 0.0))

    def _watch(self, end: StreamEnd) -> None:
        self._epoll.modify(end.fileno(), select.EPOLLIN | (select.EPOLLOUT if end.wants_write else 0))

    def _look(self) -> None:
        """End the streams of the agents that were silent for too long."""
        for peer in self._silent:
            self._silent[peer] += 1
            if self._silent[peer] >= SILENT_LOOKS:
                self.disconnect(peer)

    def wake(self) -> None:
        """End the wait in `poll`. Any thread may call this."""
        self.asleep = False
        self._bell.ring()

    def send(self, peer: bytes, frames: Sequence[Buffer]) -> None:
        """Send to a peer without waiting. If it is gone, `poll` reports that, after all messages that it had sent."""
        if (end := self._ends.get(peer)) is not None:
            waited = end.wants_write
            end.send(frames)
            if end.wants_write != waited:
                self._watch(end)
        elif self._network is not None:
            self._network.send(peer, frames)

    def forget(self, peer: bytes) -> None:
        """Do not report that a peer is gone."""
        self._silent.pop(peer, None)
        if self._network is not None:
            self._network.forget(peer)

    def disconnect(self, peer: bytes) -> None:
        """End the connection of a peer; `poll` then reports that it is gone."""
        if (end := self._ends.get(peer)) is not None:
            end.end()
        elif self._network is not None:
            self._network.disconnect(peer)

    def _close(self, peer: bytes, until: float = 0.0) -> None:
        end = self._ends.pop(peer)
        del self._peers[end.fileno()]
        self._epoll.unregister(end.fileno())  # a process that was forked from this one may have a copy
        end.send_rest(until)
        end.end()
        end.close()

    def close(self, linger_s: float) -> None:
        """Close. Messages that were sent have `linger_s` seconds to leave."""
        until = clock.monotonic() + linger_s
        for peer in [*self._ends]:
            self._close(peer, until)
        if self._network is not None:
            self._network.close(linger_s)
        self._epoll.close()
        self._bell.close()


class LocalAgentLink:
    """The end of an agent that a master has started on its own machine.

    Args:
        given: what the master gave to this process.
        timeout_s: the client timeout: the master must hear this process within it.

    Raises:
        UsageError: the descriptors are not those of a stream; probably a person set the variable.
    """

    address = OWN_ADDRESS

    def __init__(self, given: MasterStream, timeout_s: float) -> None:
        self.timeout_s = timeout_s
        try:
            stream, passage = (socket.socket(fileno=fd) for fd in given.fds)
        except OSError as error:
            raise UsageError(
                f"this agent has no stream to its master ({error}): does the command that starts it close the file "
                f"descriptors that it inherits?"
            ) from error
        for fd in given.fds:
            os.set_inheritable(fd, False)
        self._end = StreamEnd(stream, Passage(passage), MAX_BYTES, passes_on=True)
        self._is_over = False
        self._interval_s = heartbeat_interval(timeout_s)
        self._beat_at = clock.monotonic() + self._interval_s
        self._master = -1
        """A descriptor of the master's process; -1 if there is none."""
        with suppress(OSError, AttributeError):  # it has ended, or the system has no such descriptors
            self._master = os.pidfd_open(given.master_pid)

    def poll(
        self, timeout_s: float | None, files: Mapping[int, int] = {}
    ) -> tuple[list[Connected | Broken], list[list[Buffer]], list[int]]:
        """Wait for something to happen.

        Args:
            timeout_s: how long to wait at most; None for as long as it takes.
            files: other file descriptors to wait for, each with `POLLIN`, `POLLOUT` or both of `select`.

        Returns:
            The end of the connection, the messages that came before it, and the file descriptors that are ready.
        """
        fates, received = list[Connected | Broken](), list[list[Buffer]]()
        left_s, stream = self._beat_at - clock.monotonic(), self._end.fileno()
        poll = select.poll()
        for fd, wanted in files.items():
            poll.register(fd, wanted)
        if not self._is_over:
            poll.register(stream, select.POLLIN | (select.POLLOUT if self._end.wants_write else 0))
            if self._master >= 0:
                poll.register(self._master, select.POLLIN)
        ready = dict(poll.poll(milliseconds(left_s if timeout_s is None else min(left_s, timeout_s))))
        has_ended = ready.pop(self._master, 0)
        if ready.pop(stream, 0):
            self._end.flush()
            try:
                received = self._end.receive()
            except ProtocolError as error:
                fates.append(self._over(f"a message of the master cannot be read: {error}"))
            else:
                if self._end.eof:
                    fates.append(self._over("the connection broke"))
        elif has_ended:  # all that it had sent was read
            fates.append(self._over("its process has ended"))
        if clock.monotonic() >= self._beat_at:
            self._beat_at = clock.monotonic() + self._interval_s
            self.send([])
        return fates, received, [*ready]

    def _over(self, reason: str) -> Broken:
        """Wait for the connection no more."""
        self._is_over = True
        return Broken("lost", reason)

    def send(self, frames: Sequence[Buffer]) -> None:
        """Send to the master without waiting. Only an answer shows that the message arrived."""
        if not self._is_over:
            self._end.send(frames)

    def close(self, linger_s: float) -> None:
        """Close. Messages that were sent have `linger_s` seconds to leave."""
        self._end.send_rest(clock.monotonic() + linger_s)
        self._end.close()
        if self._master >= 0:
            os.close(self._master)
