"""What the agent's core receives and returns: settings, events and actions."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct
from msgspec.structs import replace

from mwpy._values import messages, records
from mwpy._values.bounds import MAX_SECONDS
from mwpy._values.causes import Cause
from mwpy._values.errors import ExitCode
from mwpy._values.ids import Buffer
from mwpy._values.last_words import LastWords
from mwpy._values.option_table import DEFAULT_START_TIMEOUT_S
from mwpy._values.share_messages import Share

__all__ = [
    "FAREWELL_S",
    "AddressesFound",
    "AgentActions",
    "AgentEvent",
    "AgentSettings",
    "AttemptFailed",
    "ComputationOver",
    "Disconnected",
    "DropShare",
    "ErrorOutput",
    "ExitSeen",
    "Forked",
    "Heard",
    "JournalRead",
    "LookedUp",
    "Measured",
    "MemoryBroken",
    "MemoryRead",
    "NotForked",
    "OpenShare",
    "Outgoing",
    "Recalled",
    "Resumed",
    "ShareNotKept",
    "ShareOpened",
    "SlaveExited",
    "SlaveHeard",
    "StreamBroken",
    "StreamEnded",
    "Terminated",
    "WriteShare",
]


FAREWELL_S = 2.0
"""Seconds that slaves get for their tear-down when the master is lost, and that killed slaves get to disappear."""


class AgentSettings(Struct, frozen=True):
    """What the core needs to know about its agent."""

    hello: messages.Hello
    """The first message on the connection."""
    grace_s: float = 5.0
    ends_at: float | None = None
    """When the batch system will end this agent, if that is known. The agent leaves early enough to end cleanly."""
    client_timeout_s: float = 30.0
    """After this silence, the master counts this agent as lost."""
    idle_exit_s: float | None = None
    """The agent leaves when its slaves held no task for this long; None if it stays."""
    slave_max_tasks: int | None = None
    """A slave is replaced after this many tasks; None if there is no limit."""
    memory_bytes: int | None = None
    """How much memory the slaves may use together, because their job has no more; None if this is unknown."""
    max_share_bytes: int = 1 << 30
    """When all shared objects take more than this, the agent drops those that no task needs. The manual names this
    number."""
    max_share_files: int = 500
    """When there are more shared objects than this, the agent drops those that no task needs: each is an open file. The
    manual names this number."""
    start_timeout_s: float = DEFAULT_START_TIMEOUT_S
    """A slave that is not ready after this time is killed, and counts as a failed start."""
    forks: bool = False
    """Whether slaves are forked from a template, and not started as fresh interpreters."""

    @property
    def tasks_end_at(self) -> float | None:
        """When the tasks of this agent must have ended; None if this is not known."""
        return None if self.ends_at is None else self.ends_at - FAREWELL_S

    def hello_at(self, now: float) -> messages.Hello:
        """The first message, if it is sent at this time."""
        end_at = self.tasks_end_at
        left_s = None if end_at is None else min(max(0.0, end_at - now), MAX_SECONDS)
        return replace(self.hello, seconds_left=left_s)


# ---- events --------------------------------------------------------------------------------------------------------


class Heard(Struct, frozen=True):
    """A message of the master arrived."""

    message: messages.Message
    frames: Sequence[Buffer] = ()
    """All its frames as they were received, the header first."""


class SlaveHeard(Struct, frozen=True):
    """A message of a slave arrived in its stream."""

    slave: int
    message: messages.Message
    frames: Sequence[Buffer] = ()
    """All its frames as they were received, the header first."""


class StreamEnded(Struct, frozen=True):
    """The stream of a slave is closed by the slave and by all processes that it forked."""

    slave: int


class StreamBroken(Struct, frozen=True):
    """The stream of a slave contains bytes that are not a message, because some code in the slave wrote into it."""

    slave: int
    reason: str


class JournalRead(Struct, frozen=True):
    """The journal of a slave was read: the results that the slave has finished and not sent."""

    slave: int
    results: messages.Results | None
    """None if the slave emptied its journal during the read; then the slave has sent the results itself."""
    frames: Sequence[Buffer] = ()
    """The results as a message, the header first."""
    started: int = 0
    """Position of the last task that the slave had started just before; 0 if it started none."""


class MemoryRead(Struct, frozen=True):
    """The memory that a slave shares with the agent was read."""

    slave: int
    started: int
    """Position of the last task that it started; 0 if it started none."""
    began: float
    """When it started this task, if this task has a limit of time and still runs; else 0."""


class Measured(Struct, frozen=True):
    """The memory was measured that a slave and its descendants use."""

    slave: int
    started: int
    """Position of the last task that it started; 0 if it started none."""
    used: int
    """In bytes."""
    kills: int
    """How many of its processes the kernel has killed because the limit of its control group was reached."""


class MemoryBroken(Struct, frozen=True):
    """The memory that a slave shares with the agent contains nonsense, because some code in the slave wrote into it."""

    slave: int
    reason: str


class ErrorOutput(Struct, frozen=True):
    """A slave wrote to its standard error."""

    slave: int
    data: bytes


class ExitSeen(Struct, frozen=True):
    """A slave process has ended. Its stream, journal and output may still contain something."""

    slave: int
    by_sigkill: bool


class Forked(Struct, frozen=True):
    """The template has started a slave."""

    slave: int
    unsafe: str = ""
    """Why the template must not fork. If so, the template itself has become this slave, and there is no template."""
    template_bytes: int = 0
    """How much memory the template has. Its slaves share it, and it does not count for them."""


class NotForked(Struct, frozen=True):
    """The template could not fork a slave."""

    slave: int
    reason: str


class SlaveExited(Struct, frozen=True):
    """A slave has ended. Everything in its stream and journal was reported before."""

    slave: int
    reason: str
    words: LastWords
    started: int
    """Position of the last task that the slave started; 0 if it started none."""
    error_output: bytes = b""
    """The end of its standard error, and the report of its fault handler."""
    out_of_memory: bool = False
    """Whether the kernel killed it because the memory of its control group was used up."""
    code: int | None = None
    """Its exit code, or the negative number of the signal that ended it; None if it had no process."""


class Recalled(Struct, frozen=True):
    """A slave was stopped: it starts no other task until it reads which tasks were taken back."""

    slave: int
    started: int
    """Position of the last task that it started, and perhaps finished; 0 if it started none."""
    wanted: int | messages.Cancel | None
    """How many tasks to take back at most; or which tasks are cancelled; None to take nothing back, only to look."""


class ShareOpened(Struct, frozen=True):
    """There is room for a shared object."""

    share: Share
    """Its location is that of the agent's content."""
    is_complete: bool
    """Whether the content is here already, because it was on this host."""


class ShareNotKept(Struct, frozen=True):
    """There is no room for a shared object, for this reason."""

    digest: str
    reason: str


class LookedUp(Struct, frozen=True):
    """The installed versions of the requested packages; empty for a package that is not installed."""

    packages: dict[str, str]


class Terminated(Struct, frozen=True):
    """The batch system wants the machine back, or a person removes this agent."""

    reason: str
    cause: Cause = Cause.EVICTED
    used: dict[int, int] = {}
    """How many bytes of memory each busy slave used then, by number; empty if they were not measured."""


class Resumed(Struct, frozen=True):
    """This process was stopped for some seconds, with or without its slaves."""

    stopped_s: float


class AddressesFound(Struct, frozen=True):
    """The addresses at which the master may be now."""

    addresses: Sequence[str]


class ComputationOver(Struct, frozen=True):
    """The resource file says that this master has ended."""

    reason: str
    finished: bool
    """Whether the computation is finished."""


class AttemptFailed(Struct, frozen=True):
    """The master does not answer at an address, or not any more."""


class Disconnected(Struct, frozen=True):
    """The connection to the master ended."""

    reason: str
    returns: bool = True
    """Whether the agent may come back."""


AgentEvent = (
    Heard
    | SlaveHeard
    | StreamEnded
    | StreamBroken
    | JournalRead
    | MemoryRead
    | Measured
    | MemoryBroken
    | ErrorOutput
    | ExitSeen
    | SlaveExited
    | Forked
    | NotForked
    | Recalled
    | ShareOpened
    | ShareNotKept
    | LookedUp
    | Terminated
    | Resumed
    | Disconnected
    | AddressesFound
    | ComputationOver
    | AttemptFailed
)


# ---- actions -------------------------------------------------------------------------------------------------------


class Outgoing(Struct, frozen=True):
    """A message to send."""

    message: messages.Message
    payload: Sequence[Buffer] = ()
    """The frames behind the header."""
    received: Sequence[Buffer] = ()
    """All frames as they were received, if the message is passed on unchanged; else empty."""


class OpenShare(Struct, frozen=True):
    """Make room for a shared object, and report `ShareOpened` or `ShareNotKept`."""

    share: Share


class WriteShare(Struct, frozen=True):
    """Write a part of a shared object. Report `ShareNotKept` if it cannot be written."""

    digest: str
    start: int
    part: Buffer


class DropShare(Struct, frozen=True):
    """Drop the content of a shared object, if there is any."""

    digest: str


class AgentActions(Struct):
    """Everything to do now. The order of the fields is the order of execution."""

    records: list[records.Record] = []
    error_output: list[bytes] = []
    """What slaves wrote to standard error, for the agent's own standard error."""
    end_template: bool = False
    """End the template, because its script was edited."""
    module_path: str = ""
    """Where all processes find modules that are started from now on; empty if this has not changed."""
    start: list[int] = []
    """Slaves to start as fresh interpreters. Report `SlaveExited` for a slave that cannot be started."""
    fork: list[int] = []
    """Slaves to start with the template. If there is none, start one, which then starts the slave. Report `Forked`,
    `NotForked`, or, if the template ends before that, `SlaveExited`."""
    feed: list[int] = []
    """Slaves that had no task and get tasks now: write the time into the memory that is shared with them."""
    end_at: float | None = None
    """When the tasks of all slaves must have ended: write this time into the memory that is shared with them."""
    limit_memory: list[tuple[int, int | None]] = []
    """Pairs (slave, bytes): let the kernel limit the memory of the slave and its descendants, if it can."""
    share_files: list[OpenShare | WriteShare | DropShare] = []
    to_slaves: list[tuple[int, Outgoing]] = []
    recall: list[tuple[int, int | messages.Cancel | None]] = []
    """Pairs (slave, `Recalled.wanted`): report `Recalled` for each slave that still exists."""
    abort: list[int] = []
    """Slaves that hang: let them write where, and end."""
    kill: list[int] = []
    read_journal: list[int] = []
    """Slaves that are silent: report `JournalRead` or `MemoryBroken`."""
    check_memory: list[int] = []
    """Slaves that may be over a limit: report `MemoryRead`."""
    measure: list[tuple[int, int]] = []
    """Pairs (slave, bytes): report `Measured`. Up to this number of bytes, a rough number is enough."""
    collect: list[int] = []
    """Slaves that have ended: report their remaining output and results, then `SlaveExited`."""
    succeeds: str | None = None
    """The session with this generation of the master has ended: bring its results to the next generation."""
    to_master: list[Outgoing] = []
    ask_addresses: bool = False
    """Find out where the master may be, and report `AddressesFound` or `ComputationOver`."""
    connect_to: str | None = None
    """An address: connect to it, and report `AttemptFailed`, or the answer of the master to `Hello`."""
    exit: ExitCode | None = None
    look_up: list[str] = []
    """Packages: report `LookedUp`. This is the last action, because it reads files."""
