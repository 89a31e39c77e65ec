"""The messages between master and agent, and between agent and slave.

A message is a small header, which is one of the classes below, and payload frames. The processes that pass a message on
do not read its payload.

Every message names tasks in spans: entry i of `tasks` is the first of `counts[i]` tasks with consecutive ids, all in
attempt `attempts[i]`. Values that differ from task to task are in lists with one entry for each task.

The first payload frame of a group is such a list, in MessagePack. Its entries are the arguments or the results of the
tasks; a pickle is an extension type. The large buffers of a pickle (protocol 5, out of band) are frames of their own:
`buffers[j]` says how many of the following frames belong to task j. An empty `buffers` means that no task has any.

`message_checks.check` compares a header with the number of its frames. `groups.entries` reads the first frame.
"""

from __future__ import annotations

from msgspec import Struct, field

from mwpy._values.bounds import (
    LostSpans,
    Name,
    Number,
    Packages,
    Reason,
    Seconds,
    SlaveCount,
    Spans,
    TimeLeft,
)
from mwpy._values.causes import Cause
from mwpy._values.ids import SlaveId
from mwpy._values.inquiry_messages import AskStatus, AskTask, Explanation, Status
from mwpy._values.last_words import LastWords
from mwpy._values.log_messages import Logged
from mwpy._values.plain_enum import PlainEnum
from mwpy._values.policy import Limits
from mwpy._values.share_messages import Share, ShareForgotten, ShareGiven, ShareGone, SharePart, ShareWanted

__all__ = [
    "PROTOCOL_VERSION",
    "AlgorithmDefinition",
    "AlgorithmFailed",
    "Algorithms",
    "AskStatus",
    "AskTask",
    "Cancel",
    "Checkpoint",
    "CheckpointRead",
    "Explanation",
    "Goodbye",
    "Handled",
    "Handover",
    "Hello",
    "Installed",
    "Leaving",
    "LoadFailure",
    "Logged",
    "Message",
    "ModuleCode",
    "NextGeneration",
    "NotStarted",
    "NotWanted",
    "PeakMemory",
    "Probe",
    "Refused",
    "Renew",
    "ReportRead",
    "Reported",
    "Results",
    "Revoke",
    "Revoked",
    "ShareForgotten",
    "ShareGiven",
    "ShareGone",
    "SharePart",
    "ShareWanted",
    "Shutdown",
    "SlaveDied",
    "SlaveGrown",
    "SlaveNamed",
    "SlaveReady",
    "SlaveRetiring",
    "Status",
    "StillRunning",
    "Tasks",
    "Welcome",
]

PROTOCOL_VERSION = 10
"""The version changes whenever an agent and a master of different versions could misunderstand each other."""


class Hello(Struct, frozen=True):
    """Agent to master, the first message: what this agent is, and which computation it was started for."""

    member_id: Name
    generation: Name
    """The generation of the master that it wants to join: the one in the resource file that it read, or the one that
    has accepted it before. Empty for any."""
    host: Name
    pid: Number
    python: Name
    """`major.minor` of its interpreter."""
    slaves: SlaveCount
    """How many slaves it will start."""
    job: Name = ""
    """The id of its job in a batch system; empty if it is unknown."""
    resumed: Name = ""
    """The name that it had before it was stopped for so long that its connection ended; empty if it was not stopped."""
    seconds_left: TimeLeft | None = None
    """How long from now on a task may run at most, because then the agent's time is over; None if this is not known."""
    session: Name = ""
    """What names the session of this agent: a text that nobody else knows. Empty if its session ends with its
    connection."""
    returns_s: TimeLeft = 0.0
    """For how long it looks for the master after its connection has ended."""
    handled: Number | None = None
    """How many messages of the master it has handled, if it goes on with a session; None if it is a new agent."""


class Welcome(Struct, frozen=True):
    """Master to agent: the agent is admitted, and these are the master's settings."""

    agent: str
    result_group: int
    """How many results a slave sends at a time; 0 lets the slave decide."""
    max_result_bytes: int
    """The largest result that the master accepts, in bytes."""
    client_timeout_s: float
    """After this silence of the network the master counts the agent as gone, and the agent the master."""
    handled: int | None = None
    """How many messages of the agent the master has handled, if a session goes on; None if the agent is new."""
    generation: Name = ""
    """The name of the master's generation."""


class Handled(Struct, frozen=True):
    """Agent to master, or master to agent: how many messages of their session the sender has handled.

    `_core/session.py` has the reason.
    """

    count: Number


class Refused(Struct, frozen=True):
    """Master to agent: the agent is refused, or must leave, for this reason."""

    reason: str
    finish: bool = False
    """Whether its running tasks may finish within its grace period."""
    again: bool = False
    """Whether it may join again: the session with which it came back is over."""
    generation: Name = ""
    """The name of the master's generation, if the agent was sent to another one; else empty."""


class ModuleCode(Struct, frozen=True):
    """What a task algorithm uses of a module of the user."""

    digest: str
    """Digest of the text of the whole module."""
    parts: dict[str, str]
    """Digests of the functions, classes and variables that it uses."""


class AlgorithmDefinition(Struct, frozen=True):
    """How a slave finds a task algorithm: by its reference, or by value in a payload frame."""

    number: int
    name: str
    reference: str
    """`module:qualname`, or empty if the function is in the next payload frame."""
    digest: str
    """Digest of its pickle; empty if it travels by name."""
    python: str
    """`major.minor` of the master's interpreter: another version cannot load functions by value."""
    packages: dict[str, str] = field(default_factory=dict)
    """The packages that its code imports, and the master's versions of them."""
    code: dict[str, ModuleCode] = field(default_factory=dict)
    """What it uses of the user's modules, by their names. It may travel by value, but its helpers do not."""


class Algorithms(Struct, frozen=True):
    """Master to agent to slave: definitions that later tasks refer to by number."""

    definitions: list[AlgorithmDefinition]
    forgotten: list[int] = field(default_factory=list)
    """The numbers of earlier definitions that no later task refers to, unless they are sent again."""


class Installed(Struct, frozen=True):
    """Agent to master: its versions of the packages that definitions named; empty for one that is not installed."""

    packages: Packages


class Tasks(Struct, frozen=True):
    """Master to agent to slave: a group of tasks for one slave, in the order in which to run them."""

    slave: int
    tasks: list[int]
    counts: list[int]
    attempts: list[int]
    algorithms: list[int]
    buffers: list[int] = field(default_factory=list)
    limits: list[Limits | None] = field(default_factory=list)
    """The limits of each span; empty if no task has any."""
    shares: list[Share] = field(default_factory=list)
    """The shared objects that a slave needs before it starts one of these tasks."""
    portions: list[int] = field(default_factory=list)
    """For each span of a portion what its entries are, see `packed.py`; else 0. Empty if no span is of a portion. The
    arguments have no large buffers, and the tasks may be run as a stretch."""


class Results(Struct, frozen=True):
    """Slave to agent to master: a group of finished tasks of one slave, in the order in which they finished."""

    slave: Number
    tasks: Spans
    counts: Spans
    attempts: Spans
    seconds: Seconds
    """The compute time of each task; or one entry, the time of all tasks of a stretch."""
    failed: Spans
    """The positions in this group of the results that are failures, in ascending order."""
    buffers: Spans = field(default_factory=list)
    again: Spans = field(default_factory=list)
    """The positions of those failures after which the task is tried again if it has attempts left, in ascending order.
    """
    plain: bool = False
    """Whether all results are values that `decode_plain` reads."""


class Handover(Struct, frozen=True):
    """Agent to master: results of tasks that an earlier generation of the master has sent to a slave. Payload frames
    follow as with `Results`."""

    generation: Name
    """The name of that generation."""
    sid: Name
    """The id that the slave had there."""
    results: Results
    """The results, with the ids that the tasks had there."""


class StillRunning(Struct, frozen=True):
    """Agent to master: a slave runs tasks that an earlier generation of the master has sent to it.

    Without tasks: it runs none of these any more.
    """

    slave: Number
    generation: Name
    """The name of that generation."""
    tasks: Spans
    """The first id of each range of tasks, with the ids that the tasks had there."""
    counts: Spans


class NotStarted(Struct, frozen=True):
    """Agent to master: its slaves have not started these tasks of the generation that ended last, and it does not keep
    them.

    Without tasks: the agent has said everything about this generation. Tasks of which it has neither brought the result
    nor said that they still run or were not started have no result here.
    """

    generation: Name
    """The name of that generation."""
    tasks: Spans
    """The first id of each range of tasks, with the ids that the tasks had there."""
    counts: Spans


class NotWanted(Struct, frozen=True):
    """Master to agent: nobody wants the results of the tasks that `StillRunning` named. The agent ends the slave."""

    slave: int


class Checkpoint(Struct, frozen=True):
    """Slave to agent to master: the state that a running task leaves for its next attempt.

    The first payload frame is the encoded state. The large buffers of its pickle follow.
    """

    slave: Number
    task: Number
    attempt: Number


class CheckpointRead(Struct, frozen=True):
    """Master to agent: it has read a state of a task of this slave. The agent may send the next one."""

    slave: int


class Reported(Struct, frozen=True):
    """Slave to agent to master: interim values of a running task. The payload frame is what `dumps_report` encoded."""

    slave: Number
    task: Number
    attempt: Number
    seconds: TimeLeft
    """How long the attempt has run."""


class ReportRead(Struct, frozen=True):
    """Master to agent: it has read a report of this slave. The agent may send the next one."""

    slave: int


class Revoke(Struct, frozen=True):
    """Master to agent: take back up to `count` tasks that this slave has not started."""

    slave: int
    count: int


class Revoked(Struct, frozen=True):
    """Agent to master and to slave: these tasks were not started and will not be started.

    Or, if they are late: they are finished, but their results wait in the slave behind a long task.
    """

    slave: Number
    tasks: Spans
    counts: Spans
    attempts: Spans
    cancelled: bool = False
    """Whether this is the answer to a `Cancel`. Otherwise it is the answer to a `Revoke`."""
    late: bool = False
    """Whether this is no answer, and the tasks are late."""


class Cancel(Struct, frozen=True):
    """Master to agent: the master wants no result of these tasks, whichever slaves hold them.

    If `kill` is false, those that have started may finish, and the agent answers which have not started. If it is true,
    they have ended for the master, and there is no answer.
    """

    tasks: list[int]
    """The first id of each range of consecutive ids, in ascending order."""
    counts: list[int]
    kill: bool


class SlaveReady(Struct, frozen=True):
    """Slave to agent to master: this slave process is ready for tasks."""

    slave: Number


class SlaveNamed(Struct, frozen=True):
    """Master to agent to slave: the slave's id."""

    slave: int
    sid: SlaveId
    levels: dict[str, int] | None = None
    """The levels of the loggers in the master's process, by name; None if the slave sends no records of `logging`."""


class SlaveGrown(Struct, frozen=True):
    """Slave to agent: this slave process has more memory than it may have between two tasks."""

    slave: Number
    resident_bytes: Number


class PeakMemory(Struct, frozen=True):
    """Slave to agent to master: the most memory that this slave process, or a program that it has waited for, has used
    while tasks of an algorithm ran. A slave says this again only when the peak has grown."""

    slave: Number
    algorithm: Number
    peak_bytes: Number


class SlaveRetiring(Struct, frozen=True):
    """Agent to master: send this slave no more tasks. It ends after the tasks that it holds, and is replaced."""

    slave: Number


class SlaveDied(Struct, frozen=True):
    """Agent to master: a slave process has ended. `running` is the task that it ran, or 0."""

    slave: Number
    running: Number
    cause: Cause
    reason: Reason
    words: LastWords
    lost: LostSpans = field(default_factory=list)
    """Tasks that it had run before, with results that are lost: first id, count and attempt of each span."""
    allowed: Number = 0
    """If its agent killed it because the job was short of memory, and other slaves used memory, too: how many bytes the
    task could use then. Otherwise 0."""


class LoadFailure(PlainEnum):
    """Why a slave cannot load an algorithm."""

    SURE = "sure"
    """Each slave of its agent fails, too: the module is missing, or the Pythons differ."""
    PASSING = "passing"
    """A new slave may succeed. The agent replaces this slave."""
    REPEATED = "repeated"
    """As `PASSING`, but the slaves before this one failed, too. The agent keeps this slave for other algorithms."""
    OTHER_CODE = "other code"
    """This slave has loaded other code than the master. The other slaves of its agent may be older or newer."""


class AlgorithmFailed(Struct, frozen=True):
    """Slave to agent to master: this slave cannot run an algorithm. The named tasks were not started."""

    slave: Number
    number: Number
    reason: Reason
    tasks: Spans
    counts: Spans
    attempts: Spans
    failure: LoadFailure = LoadFailure.SURE


class NextGeneration(Struct, frozen=True):
    """Agent to slave, which has no task: the tasks that follow are those of another generation of the master. Forget
    everything that the former generation has defined.

    Slave to agent: it has forgotten it. All its messages before this one belong to the former generation.
    """

    slave: Number
    edited: Reason = ""
    """A file that was edited after the slave had loaded it, so that the slave must be replaced; empty if there is none.
    """


class Renew(Struct, frozen=True):
    """Master to agent: replace all slaves after the tasks that they hold, because what they import may have changed."""

    module_path: Reason = ""
    """Where new slaves find modules (`PYTHONPATH`); empty if this has not changed."""


class Probe(Struct, frozen=True):
    """Master to agent: no content. If it cannot be sent, the agent is gone."""


class Shutdown(Struct, frozen=True):
    """Master to agent to slave: the computation ends.

    `finished` says whether it is complete: only then does the agent exit with 0.
    """

    finished: bool
    grace_s: float
    """How long a slave has to end by itself, in seconds, before it is killed."""


class Leaving(Struct, frozen=True):
    """Agent to master: send no more tasks, for this reason.

    The tasks that were not started follow. Running tasks may still finish.
    """

    reason: Reason
    cause: Cause
    """The cause of the loss of each task that does not finish in time."""


class Goodbye(Struct, frozen=True):
    """Agent to master: the agent ends, for this reason."""

    reason: Reason
    cause: Cause
    """The cause of the loss of the tasks that its slaves hold."""


Message = (
    Hello
    | Welcome
    | Refused
    | Algorithms
    | Installed
    | Tasks
    | Results
    | Handover
    | StillRunning
    | NotStarted
    | NotWanted
    | NextGeneration
    | Revoke
    | Revoked
    | Cancel
    | Checkpoint
    | CheckpointRead
    | Reported
    | ReportRead
    | Logged
    | ShareWanted
    | SharePart
    | ShareGone
    | ShareGiven
    | ShareForgotten
    | SlaveReady
    | SlaveNamed
    | SlaveGrown
    | PeakMemory
    | SlaveRetiring
    | SlaveDied
    | AlgorithmFailed
    | Handled
    | Probe
    | Renew
    | Shutdown
    | Leaving
    | Goodbye
    | AskStatus
    | Status
    | AskTask
    | Explanation
)
