"""The file descriptors that an agent waits for: streams and outputs of its slaves, and its own standard streams.

The agent must not block, and must limit how much of its slaves' output it stores. So it reads no slave's output when
its own stream is full. The slaves then wait, as they would without an agent. After a while (`Outlet.patience_until`)
the agent reads them again, and drops output that its stream does not accept.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

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
        self.has_process = False
        """Whether it has a process of its own. Until then, its stream is not read."""
        self.exit_seen = False


class _Watch(NamedTuple):
    """How a file descriptor is watched."""

    slave: SlaveHandle | None
    """Whose it is; None if it is an own stream of the agent, which has not accepted everything."""
    what: int
    writable: bool
    readable: bool


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
    _watched: dict[int, _Watch] = Factory(dict)
    """What is watched, by file descriptor."""
    full_until: float | None = None
    """When slaves are read again although one of the agent's own streams is full; None if none is full."""

    def owner(self, fd: int) -> tuple[SlaveHandle | None, int]:
        """The slave to which a file descriptor belongs, and what the descriptor leads to.

        Returns:
            (None, number) for an own stream of the agent that can be written, and (None, 0) if it is not known here.
        """
        watch = self._watched.get(fd)
        return (None, STREAM) if watch is None else (watch.slave, watch.what)

    def update(self, now: float, listens: bool) -> None:
        """Watch what the agent must wait for at this moment, and nothing else.

        Args:
            listens: whether the streams of slaves are read.
        """
        patience = ((number, outlet.patience_until()) for number, outlet in self._outlets.items())
        full = {number: until for number, until in patience if until is not None and now < until}
        self.full_until = min(full.values(), default=None)
        wanted = {number: _Watch(None, number, True, False) for number, each in self._outlets.items() if each.waiting}
        for slave in self._slaves.values():  # one may have the number of an own stream that was closed
            channel = slave.channel
            if slave.has_process and not channel.eof:
                wanted[channel.fileno()] = _Watch(slave, STREAM, channel.wants_write, listens)
            for output, pipe in slave.parts.outputs.items():
                if output not in full and not pipe.ended:
                    wanted[pipe.fileno()] = _Watch(slave, output, False, True)
        for fd in self._watched:
            if fd not in wanted:
                self._link.unwatch(fd)
        for fd, watch in wanted.items():
            if watch != self._watched.get(fd):
                self._link.watch(fd, watch.writable, watch.readable)
        self._watched = wanted

    def remove(self, slave: SlaveHandle) -> None:
        """Stop watching the files of a slave, which are closed next."""
        for fd in [fd for fd, watch in self._watched.items() if watch.slave is slave]:
            del self._watched[fd]
            self._link.unwatch(fd)
