"""The edges: protocols for everything outside that the loops of agent and master use.

In production the real edges satisfy these protocols: sockets, processes, pipes, signals, the clock. In the simulator,
the fakes of `_simulation` satisfy them. So the simulator runs the same loops as production.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from msgspec import Struct

from mwpy._system.clock import Clock

if TYPE_CHECKING:
    from pathlib import Path

    from mwpy._core.agent import child
    from mwpy._transport.channel import Answer, Journal
    from mwpy._transport.stream import Broken, Connected, Happened
    from mwpy._values import messages, records
    from mwpy._values.bounds import Buffer
    from mwpy._values.earlier import Given
    from mwpy._values.messages import Share


class Trail(Protocol):
    """Where records go: `AuditFile`."""

    def write(self, records: Sequence[records.Record], wall: float) -> None: ...
    def close(self) -> None: ...


class RecordStore(Protocol):
    """Where the records of a master are stored for a restart: `Writer`."""

    def write(self, given: Given) -> None: ...
    @property
    def path(self) -> Path: ...

    on_wait: Callable[[], object]

    def delay_s(self) -> float: ...
    def close(self) -> None: ...


class AgentConnection(Protocol):
    """The agent's end of the connection to its master: `AgentLink`."""

    def watch(self, fd: int, writable: bool = False, readable: bool = True) -> None: ...
    def unwatch(self, fd: int) -> None: ...
    def poll(self, timeout_s: float | None) -> tuple[list[Connected | Broken], list[list[Buffer]], list[int]]: ...
    def send(self, frames: Sequence[Buffer]) -> None: ...
    def close(self, linger_s: float) -> None: ...


class MasterSearch(Protocol):
    """Finds the master after a connection to it has ended: `Search`. No method waits."""

    def answer(self) -> child.AddressesFound | child.ComputationOver | None:
        """Find out where the master may be now; return None if this needs more time."""

    def connect(self, address: str) -> AgentConnection:
        """Begin to connect to one of the addresses."""


class ShareStore(Protocol):
    """The files of the shared objects of an agent: `shared_objects.Store`. All methods but `close` raise OSError."""

    def open(self, share: Share, content: Buffer) -> tuple[str, bool]: ...
    def write(self, digest: str, start: int, part: Buffer) -> None: ...
    def drop(self, digest: str) -> None: ...
    def close(self) -> None: ...


class SignalSource(Protocol):
    """Signals of the agent process: `Signals`."""

    def fileno(self) -> int: ...
    def clear(self) -> None: ...
    def take(self) -> Sequence[signal.Signals]: ...
    def close(self) -> None: ...


class Process(Protocol):
    """A child process: `process.Child`."""

    @property
    def pid(self) -> int: ...
    @property
    def peak_bytes(self) -> int: ...
    @property
    def out_of_memory(self) -> bool: ...
    def poll(self) -> int | None: ...
    def kill(self) -> None: ...
    def describe_exit(self) -> str: ...
    def close(self) -> None: ...


class SlaveProcess(Process, Protocol):
    """The process of a slave: `process.Child`, too."""

    @property
    def limit_kills(self) -> int: ...
    def used_memory(self, exact_above: int) -> int: ...
    def limit_memory(self, most: int | None) -> None: ...
    def abort(self) -> None: ...


class ProcessStarter(Protocol):
    """The function `process.start`."""

    def __call__(self, command: Sequence[str], *, environment: Mapping[str, str]) -> Process:
        """Start a process.

        Raises:
            OSError: it cannot be started.
        """


class JournalReader(Protocol):
    """The journal of a slave, as its agent reads it: `Journal`."""

    def read(self, slave: int) -> tuple[messages.Results, Sequence[Buffer]] | None: ...


class Channel(Protocol):
    """The agent's end of the channel to a slave: `AgentEnd`."""

    @property
    def journal(self) -> JournalReader: ...
    @property
    def eof(self) -> bool: ...
    @property
    def wants_write(self) -> bool: ...
    @property
    def started(self) -> int: ...
    @property
    def began(self) -> float: ...
    def fileno(self) -> int: ...
    def send(self, frames: Sequence[Buffer]) -> None: ...
    def flush(self) -> None: ...
    def receive(self) -> list[list[Buffer]]: ...
    def recall(self) -> None: ...
    def feed(self, now: float) -> None: ...
    def end_at(self, moment: float) -> None: ...
    def fault(self, most: int) -> bytes: ...
    def close(self) -> None: ...


RunEach = Callable[
    [Callable[..., Any], Iterable[Any], bool, int, list[Any], set[type], Callable[[], bool], list[float] | None, float],
    None,
]
"""`SlaveEnd.run_each`"""


class SlaveChannel(Protocol):
    """The slave's end of the channel to its agent: `SlaveEnd`."""

    @property
    def journal(self) -> Journal: ...
    @property
    def eof(self) -> bool: ...
    @property
    def forked(self) -> bool: ...
    @property
    def fed_at(self) -> float: ...
    @property
    def position(self) -> int: ...
    @property
    def has_message(self) -> bool: ...
    def receive(self, timeout_s: float = 0.0) -> list[list[Buffer]]: ...
    def send(self, frames: Sequence[Buffer]) -> None: ...
    def start(self, position: int) -> bool: ...
    def start_timed(self, position: int) -> bool: ...
    def is_open(self) -> bool: ...
    def rest(self) -> None: ...
    @property
    def run_each(self) -> RunEach | None: ...
    @property
    def task_ends_at(self) -> Callable[[float | None], float] | None: ...
    def recall_heard(self) -> None: ...


class InputPipe(Protocol):
    """Standard output or error of a slave, as its agent reads it: `Inlet`."""

    @property
    def ended(self) -> bool: ...
    @property
    def end(self) -> str: ...
    def fileno(self) -> int: ...
    def read(self) -> bytes: ...
    def read_rest(self) -> bytes: ...


class OutputStream(Protocol):
    """Standard output or error of the agent: `Outlet`."""

    @property
    def waiting(self) -> bool: ...
    def patience_until(self) -> float | None: ...
    def pass_on(self, data: bytes | bytearray, now: float) -> None: ...
    def flush(self, now: float, patience_s: float = 0.0) -> None: ...


class SlaveParts(Struct, frozen=True):
    """A slave process that was started, and the agent's ends of its channel and pipes."""

    process: SlaveProcess
    channel: Channel
    outputs: Mapping[int, InputPipe]
    """Its standard output (1) and error (2)."""
    clean_up: Callable[[], None] | None = None
    """Removes what the slave leaves on the machine; called after its end."""


class Template(Protocol):
    """A process that forks slaves: `TemplateProcess`."""

    @property
    def pid(self) -> int: ...
    def fileno(self) -> int: ...
    def poll(self) -> int | None: ...
    def fork(self, number: int, welcome: messages.Welcome) -> SlaveParts:
        """Let it start a slave. Until its answer has arrived, the process of the slave stands for the template.

        Raises:
            OSError: there are too many open files, or the template has ended.
        """

    def answers(self) -> Sequence[tuple[Answer, SlaveProcess | None]]:
        """Return the answers that have arrived, each with the process of its slave, if there is one."""

    def close(self) -> None: ...


class SlaveLauncher(Protocol):
    """Starts slave processes: `Launcher`."""

    def start(self, number: int, welcome: messages.Welcome) -> SlaveParts:
        """Start a slave of an agent that the master has accepted, as a fresh interpreter.

        Raises:
            OSError: it cannot be started.
        """

    def start_template(self, number: int, welcome: messages.Welcome) -> tuple[Template, SlaveParts]:
        """Start a template, and let it start its first slave.

        Raises:
            OSError: it cannot be started.
        """

    def reap(self, known: Container[int]) -> None:
        """Let the kernel forget children of this process that have ended, except for some that are watched.

        Args:
            known: the process ids of those.
        """


class AgentEdges(Struct, frozen=True):
    """The edges of an agent."""

    link: AgentConnection
    launcher: SlaveLauncher
    outlets: Mapping[int, OutputStream]
    """The agent's own standard output (1) and error (2)."""
    signals: SignalSource
    audit: Trail
    clock: Clock
    shares: ShareStore
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
