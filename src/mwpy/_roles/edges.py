"""The edges: everything outside that the loops of agent and master use, such as sockets, processes, pipes and signals.

In the simulator, the fakes of `_simulation` take their places, so it runs the same loops as production. An edge is a
protocol if production has several classes for it, or if its class uses this module. All others have their only class.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from attrs import define
from msgspec import Struct

from mwpy._system.clock import Clock

if TYPE_CHECKING:
    from mwpy._core.agent import child
    from mwpy._system.process import Child, Signals
    from mwpy._system.streams import Inlet, Outlet
    from mwpy._transport.channel import AgentEnd
    from mwpy._transport.shared_objects import Store
    from mwpy._values import messages
    from mwpy._values.bounds import Buffer
    from mwpy._values.connections import Broken, Connected, Happened
    from mwpy.audit import AuditFile


class AgentConnection(Protocol):
    """The agent's end of the connection to its master: `AgentLink`."""

    def poll(
        self, timeout_s: float | None, files: Mapping[int, int] = ...
    ) -> tuple[list[Connected | Broken], list[list[Buffer]], list[int]]: ...
    def send(self, frames: Sequence[Buffer]) -> None: ...
    def close(self, linger_s: float) -> None: ...


class MasterSearch(Protocol):
    """Finds the master after a connection to it has ended: `Search`."""

    def answer(self) -> child.AddressesFound | child.ComputationOver | None: ...
    def connect(self, address: str) -> AgentConnection: ...


@define(eq=False, repr=False)
class SlaveHandle:
    """A slave that was started: its process, and the agent's ends of its channel and pipes."""

    number: int
    process: Child
    """While the template starts it, the template."""
    channel: AgentEnd
    outputs: Mapping[int, Inlet]
    """Its standard output (1) and error (2)."""
    clean_up: Callable[[], None] | None = None
    """Removes what the slave leaves on the machine; called after its end."""
    has_process: bool = False
    """Whether it has a process of its own. Until then, its stream is not read."""
    exit_seen: bool = False


class SlaveLauncher(Protocol):
    """Starts slave processes and their template: `Launcher`."""

    def start(self, number: int, welcome: messages.Welcome, *, sets_up: bool) -> SlaveHandle: ...
    def start_template(self) -> Any: ...
    def fork(self, template: Any, number: int, welcome: messages.Welcome) -> SlaveHandle: ...
    def renew(self, environment: Mapping[str, str]) -> None: ...
    def reap(self, known: Container[int]) -> None: ...
    def programs(self, names: Sequence[str]) -> dict[str, str]: ...


class AgentEdges(Struct, frozen=True):
    """The edges of an agent."""

    link: AgentConnection
    launcher: SlaveLauncher
    outlets: Mapping[int, Outlet]
    """The agent's own standard output (1) and error (2)."""
    signals: Signals
    audit: AuditFile
    clock: Clock
    shares: Store
    search: MasterSearch | None
    """None if the agent ends with its master."""


class MasterConnections(Protocol):
    """The master's end of all connections: `LocalMasterLink`."""

    asleep: bool

    def poll(self, timeout_s: float, now: float) -> list[Happened]: ...
    def send(self, peer: bytes, frames: Sequence[Buffer]) -> None: ...
    def forget(self, peer: bytes) -> None: ...
    def disconnect(self, peer: bytes) -> None: ...
    def wake(self) -> None: ...
    def close(self, linger_s: float) -> None: ...
