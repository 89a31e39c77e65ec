"""The file descriptors that an agent waits for: streams and outputs of its slaves, and its own standard streams.

The agent must not block, and must limit how much of its slaves' output it stores. So it reads no slave's output when
its own stream is full. The slaves then wait, as they would without an agent. After a while (`Outlet.patience_until`)
the agent reads them again, and drops output that its stream does not accept.
"""

from __future__ import annotations

from collections.abc import Mapping

from attrs import Factory, define

from mwpy._roles.edges import AgentConnection, SlaveParts
from mwpy._system.streams import Outlet

STREAM, STDOUT, STDERR = 0, 1, 2
"""What a file descriptor of a slave leads to: its stream of messages, or one of its outputs."""


class SlaveHandle:
    """A slave process, and the agent's ends of its channel and pipes."""

    def __init__(self, number: int, parts: SlaveParts) -> None:
        self.number = number
        self.parts = parts
        self.channel = parts.channel
        self.fds: dict[int, None] = {}
        """Its file descriptors that the link watches."""
        self.writable_watched = False
        self.exit_seen = False


@define(eq=False, repr=False)
class WatchedFiles:
    """Tells the link what to wait for.

    Args:
        link: the link that waits for them.
        outlets: the agent's own standard streams.
        slaves: the slaves that run; the agent adds and removes them.
    """

    _link: AgentConnection
    _outlets: Mapping[int, Outlet]
    _slaves: Mapping[int, SlaveHandle]
    _owners: dict[int, tuple[SlaveHandle | None, int]] = Factory(dict)
    """For each file descriptor: its slave, and what it leads to. The agent's own streams have no slave, and
    are here while they have not accepted everything."""
    _listens: bool = True
    """Whether the streams of slaves are read."""
    _full: dict[int, float] = Factory(dict)
    """The agent's own streams that are full, and until when slaves wait for each of them."""

    @property
    def full_until(self) -> float | None:
        """When slaves are read again although one of the agent's own streams is full; None if none is full."""
        return min(self._full.values()) if self._full else None

    def owner(self, fd: int) -> tuple[SlaveHandle | None, int]:
        """The slave to which a file descriptor belongs, and what the descriptor leads to.

        Returns:
            (None, number) for an own stream of the agent that can be written, and (None, 0) if it is no longer watched.
        """
        return self._owners.get(fd, (None, STREAM))

    def add(self, slave: SlaveHandle) -> None:
        """Watch the outputs of a slave that is started."""
        for output in slave.parts.outputs:
            if output not in self._full:
                self._watch(slave, slave.parts.outputs[output].fileno(), output)

    def add_stream(self, slave: SlaveHandle) -> None:
        """Watch the stream of a slave that has a process of its own."""
        self._watch(slave, slave.channel.fileno(), STREAM)
        self.watch_writable(slave)

    def remove(self, slave: SlaveHandle, fd: int) -> None:
        """Stop watching a file descriptor of a slave."""
        if fd in slave.fds:
            del slave.fds[fd], self._owners[fd]
            self._link.unwatch(fd)

    def watch_writable(self, slave: SlaveHandle) -> None:
        """Watch whether the stream of a slave can be written, if a message waits for that."""
        channel = slave.channel
        if channel.wants_write != slave.writable_watched and channel.fileno() in slave.fds:
            slave.writable_watched = channel.wants_write
            self._link.watch(channel.fileno(), slave.writable_watched, self._listens)

    def listen(self, wanted: bool) -> None:
        """Read the streams of all slaves, or let the slaves wait."""
        if wanted != self._listens:
            self._listens = wanted
            for slave in self._slaves.values():
                if slave.channel.fileno() in slave.fds:
                    self._link.watch(slave.channel.fileno(), slave.writable_watched, wanted)

    def control_flow(self, now: float) -> None:
        """Watch the agent's streams that have waiting output. Do not read slaves while such a stream is full."""
        for number, outlet in self._outlets.items():
            is_watched = self.owner(number) == (None, number)  # perhaps a slave has it, because the stream was closed
            if not (outlet.waiting or is_watched or number in self._full):
                continue
            if outlet.waiting != is_watched:
                self._wait_for(number, outlet.waiting)
            until = outlet.patience_until()
            full = until is not None and now < until
            if full != (number in self._full):
                for slave in self._slaves.values():
                    self._listen(slave, number, not full)
            if until is not None and full:
                self._full[number] = until
            else:
                self._full.pop(number, None)

    def _watch(self, slave: SlaveHandle, fd: int, what: int) -> None:
        self._owners[fd] = slave, what
        slave.fds[fd] = None
        self._link.watch(fd, readable=what != STREAM or self._listens)

    def _wait_for(self, number: int, wanted: bool) -> None:
        if wanted:
            self._owners[number] = None, number
            self._link.watch(number, writable=True, readable=False)
        else:
            del self._owners[number]
            self._link.unwatch(number)

    def _listen(self, slave: SlaveHandle, output: int, wanted: bool) -> None:
        pipe = slave.parts.outputs[output]
        if not wanted:
            self.remove(slave, pipe.fileno())
        elif not pipe.ended:
            self._watch(slave, pipe.fileno(), output)
