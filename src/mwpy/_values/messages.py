"""The messages between master, agent, slave and inquirer, and their checks.

A message is a small header, which is one of the classes below, and payload frames. The processes that pass a message on
do not read its payload.

Every message names tasks in spans: entry i of `tasks` is the first of `counts[i]` tasks with consecutive ids, all in
attempt `attempts[i]`. Values that differ from task to task are in lists with one entry for each task.

The first payload frame of a group is such a list, in MessagePack. Its entries are the arguments or the results of the
tasks; a pickle is an extension type. The large buffers of a pickle (protocol 5, out of band) are frames of their own:
`buffers[j]` says how many of the following frames belong to task j. An empty `buffers` means that no task has any.

`check` compares a header with the number of its frames. `groups.entries` reads the first frame.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from itertools import pairwise
from typing import Annotated, Any, Protocol

from msgspec import Meta, Struct, field

from mwpy._values.bounds import (
    MAX_REPORT_BYTES,
    MAX_SLAVES,
    MAX_TASKS,
    Attempts,
    Buffer,
    Counts,
    Environment,
    LostSpans,
    Name,
    Number,
    Packages,
    Places,
    Reason,
    Seconds,
    SlaveCount,
    SlaveId,
    Spans,
    TaskId,
    TimeLeft,
)
from mwpy._values.causes import Cause, PlainEnum
from mwpy._values.errors import ProtocolError, UsageError
from mwpy._values.last_words import LastWords
from mwpy._values.messagepack import decode, to_plain
from mwpy._values.policy import Limits
from mwpy._values.requires import Given, Offers, Texts
from mwpy._values.task import loaded


class Message(Struct, frozen=True):
    """The base of all messages. `_transport/wire.py` numbers them in the order of this file.

    The bases below say which messages a process expects from another one. What an agent sends to its slave has none,
    because the slave relies on its agent.
    """


class FromSlave(Message, frozen=True):
    """An agent expects it from a slave."""


class FromAgent(Message, frozen=True):
    """A master expects it from an agent or an inquirer."""


class FromMaster(Message, frozen=True):
    """An agent expects it from a master."""


class ToInquirer(Message, frozen=True):
    """An inquirer expects it from a master."""


# The messages of inquirers, which ask a running master what it does. `messages.py` describes messages in general.
#
# An inquirer is a member that runs no tasks. Its only message is a question. The master answers when it has time for
# it, so an answer may take some seconds. For the next question, the inquirer connects again.
#
# All lists and tables of an answer have a limited length, however many tasks and slaves there are.


MAX_DRAINED = 1000
"""How many names of agents a question has at most."""


class Ask(FromAgent, frozen=True):
    """Inquirer to master: what do you do now, or why does a task wait, or how did it end; or let agents leave."""

    member_id: Name
    generation: Name
    """The generation in the resource file that it read."""
    task: Number | None = None
    """The task; None for what the master does."""
    drain: Annotated[list[Name], Meta(max_length=MAX_DRAINED)] = field(default_factory=list)
    """The agents that must leave after their tasks, by name, host or job; if there are some, this is the question."""
    detailed: bool = False
    """Whether the answer to what the master does is an `Overview`; else it is a `Status`."""


class Drained(ToInquirer, frozen=True):
    """Master to inquirer: which agents leave after the tasks that they run."""

    agents: list[str]
    """These agents, their hosts and their jobs."""
    running: int
    """How many tasks their slaves have, those that have not started included."""
    unknown: list[str]
    """The names that are those of no agent which can leave, and why."""


class AlgorithmStatus(Struct):
    """The tasks of the algorithms with one name."""

    pending: int = 0
    """They wait to be sent to a slave."""
    blocked: int = 0
    """They wait for the results of other tasks."""
    delayed: int = 0
    """They pause before their next attempt."""
    at_slaves: int = 0
    finished: int = 0
    """They have results, also failures."""
    failed: int = 0
    """Their results are failures."""
    seconds: float = 0.0
    """How long the finished tasks ran, together."""


class HostStatus(Struct):
    """The agents and slaves of one machine."""

    agents: int = 0
    starting: int = 0
    """Slaves that are not ready yet."""
    idle: int = 0
    busy: int = 0
    leaving: int = 0
    """Slaves that get no more tasks."""
    away: int = 0
    """Slaves of agents that have lost their connection, and may come back."""
    finished: int = 0
    """Tasks that have results from there."""
    failed: int = 0
    """Those of these results that are failures."""
    setting_up: int = 0
    """Agents whose set-up runs, so that their slaves do not start yet."""
    excluded: str = ""
    """Why the host gets no more work; empty if it gets work."""


class Notice(Struct, frozen=True):
    """A message that the master has shown."""

    age_s: float
    text: str


class MapStatus(Struct):
    """How far a map is."""

    name: str
    done: int
    total: int | None
    """How many items there are; None if this is unknown."""
    failed: int


class Status(ToInquirer, frozen=True):
    """Master to inquirer: what the master does."""

    member_id: str
    generation: str
    uptime_s: float
    tasks: dict[str, int]
    """How many tasks there are, by state. `failed` contains the unrunnable ones, and `cancelled` those that failed
    because a task failed whose result they need."""
    rate: float
    """How many tasks ended in a second, over the last minute."""
    slaves_wanted: int
    slaves_connected: int
    slaves_needed: int
    algorithms: dict[str, AlgorithmStatus]
    """By the name of the algorithm; those with most tasks."""
    hosts: dict[str, HostStatus]
    """By the name of the machine; those with most slaves."""
    failures: dict[str, int]
    """How many tasks failed, by the type of the exception; for unrunnable tasks, with the cause of the last loss."""
    lost: dict[str, int]
    """How many attempts were lost, by cause."""
    last_failure: str = ""
    """The last task that failed: id, algorithm, machine and error."""
    last_failure_age_s: float = 0.0
    notices: list[Notice] = field(default_factory=list)
    """The newest messages of the master, the oldest of them first."""
    waits: str = ""
    """Why no tasks are sent at all; empty if they are sent."""
    reused: int = 0
    """How many of the tasks that have ended were answered from the run database."""
    maps: list[MapStatus] = field(default_factory=list)
    """The maps of the master algorithm that are open."""
    unsubmitted: int | None = 0
    """How many more tasks will be submitted, as far as this is known: the items that open maps have not read, and what
    is in the queues of executors; None if a map does not know how many items it has."""


class SlaveStatus(Struct):
    """What a slave does."""

    sid: str
    agent: str
    host: str
    job: str
    """The job of a batch system in which its agent runs; empty if there is none."""
    state: str
    task: int
    """The task that it runs; 0 if it runs none."""
    algorithm: str
    running_s: float
    """How long this has been running, about."""
    waiting: int
    """How many tasks it was sent in advance."""
    finished: int
    """How many results it has sent."""
    busy_s: float
    """How long the tasks with these results ran, together."""
    up_s: float
    """How long ago it got ready."""
    memory: int
    """The most memory that a task used there when this was measured last, in bytes; 0 if it was not measured."""


class AlgorithmAtHost(Struct):
    """What the tasks of one algorithm did on one host."""

    algorithm: str
    host: str
    tasks: int
    failed: int
    seconds: float
    """How long the tasks with results ran, together."""
    longest_s: float
    lost: int
    """How many attempts were lost."""
    lost_s: float
    memory_used: int
    """The most memory that a task with a limit used, in bytes; 0 if nothing was measured."""


class FailureExample(Struct):
    """The failures of one kind, and the newest of them."""

    kind: str
    count: int
    task: int
    algorithm: str
    host: str
    text: str
    arguments: str
    """The arguments of the task; empty if they are no plain values, or are not kept any more."""
    common: str
    """Which arguments the newest failures of this kind have in common; empty if there are fewer than three of them."""
    traceback: str
    """Empty if the task has no end of its own, because it is unrunnable."""
    age_s: float


class LogLine(Struct):
    """A record of `logging` of a task."""

    sid: str
    host: str
    task: int
    algorithm: str
    created: float
    """When, by the clock of the slave, in seconds since 1970."""
    level: int
    logger: str
    text: str


class Overview(ToInquirer, frozen=True):
    """Master to inquirer: what the master and each slave does, and what happened lately."""

    status: Status
    stuck: str
    """Why nothing progresses; empty if something does, or nothing has to."""
    slaves: list[SlaveStatus]
    slaves_left_out: int
    """How many slaves are not in this list."""
    rows: list[AlgorithmAtHost]
    examples: list[FailureExample]
    log: list[LogLine]
    """The newest records, the oldest of them first."""


def plain_status(answer: Message) -> dict[str, Any]:
    """Return a `Status`, or an `Overview`, as a dictionary of texts, numbers, lists and dictionaries."""
    plain = to_plain(answer)
    return {"state": "running", **plain.pop("status", {}), **plain}


class Explanation(ToInquirer, frozen=True):
    """Master to inquirer: why a task waits, or how it ended."""

    task: int
    algorithm: str
    """Empty if the master keeps nothing of the task."""
    fate: str
    """How far the task is: the rest of a sentence about it."""
    is_known: bool = True
    """Whether a task with this id was submitted."""
    reasons: list[str] = field(default_factory=list)
    """Sentences: why it waits, agent by agent, which slave has it, and its last lost attempts, the oldest first."""

    def __str__(self) -> str:
        name = f"task {self.task} ({self.algorithm})" if self.algorithm else f"task {self.task}"
        return "\n  ".join([f"{name} {self.fate}", *self.reasons])


# The message about records of `logging`. `messages.py` describes messages in general.
#
# A record is formatted in the slave, so it travels as texts and numbers, and a receiver builds no objects of the
# sender.


MAX_ROWS = 1000
"""Records in one message."""

MAX_LEVEL = 1000
"""The highest level of a record. The levels of Python end at 50, and a user may define others."""

MAX_PATH = 1000
"""Characters of the path of a source file."""

MAX_CREATED = 10**11
"""The latest time of a record, in seconds since 1970."""

ROW_BYTES = 500
"""About how many bytes a record takes without its texts."""


class LogRow(Struct, frozen=True, array_like=True):
    """A record of `logging`."""

    task: Number
    """The task that ran; 0 if none did."""
    algorithm: Name
    """The name of its algorithm."""
    created: Annotated[float, Meta(ge=0, le=MAX_CREATED)]
    """When, by the clock of the slave, in seconds since 1970."""
    level: Annotated[int, Meta(ge=0, le=MAX_LEVEL)]
    logger: Name
    text: Reason
    path: Annotated[str, Meta(max_length=MAX_PATH)]
    line: Number
    function: Name
    trace: Reason
    """The traceback of an exception, and the stack, as texts; usually empty."""


class Logged(FromSlave, FromAgent, frozen=True):
    """Slave to agent to master: what the tasks of a slave have logged. It comes before their results."""

    slave: Number
    rows: Annotated[list[LogRow], Meta(max_length=MAX_ROWS)]
    left_out: Number = 0
    """How many records were left out since the last message, because there were too many."""


def size_of_records(row: LogRow) -> int:
    """About how many bytes a record takes; at least those of its texts in a message."""
    texts = row.algorithm, row.logger, row.text, row.path, row.function, row.trace
    return ROW_BYTES + sum(len(text) if text.isascii() else len(text.encode()) for text in texts)


# The messages about shared objects. `messages.py` describes messages in general.


PART_BYTES = 2 << 20
"""The size of each part of a shared object, in bytes; the last part may be smaller. Other messages wait at most for the
few parts that are on their way, and heartbeats are sent between the parts."""


OF_RESULT = "result-"
"""How the names of shared buffers of results begin. So no slave can give the name of another shared object."""


class Share(Struct, frozen=True):
    """How messages name a shared object."""

    digest: Name
    """The digest of its content. Of a buffer of a result: a random name that begins with `OF_RESULT`."""
    size: Number
    """The size of its content, in bytes. Zero stands for a buffer of a result that is not shared."""
    location: Name = ""
    """Where processes of the same host find the content; empty if they cannot."""


class ShareWanted(FromAgent, frozen=True):
    """Agent to master: send the part of a shared object that begins at this byte."""

    digest: Name
    start: Number


class SharePart(FromMaster, frozen=True):
    """The answer to `ShareWanted`: a part of a shared object. The part is the payload frame."""

    digest: str
    start: int


class ShareGone(FromMaster, frozen=True):
    """Master to agent: the master sends no part of a shared object, because no task needs it any more."""

    digest: str


class ShareGiven(Message, frozen=True):
    """Agent to slave: a shared object can be used from now on."""

    share: Share
    """Its location is that of the agent's content."""
    reason: str = ""
    """Why its content is not here, so that tasks that need it fail; empty if it is here."""


class ShareForgotten(Message, frozen=True):
    """Agent to slave: no task uses a shared object, unless it is given again."""

    digest: str


PROTOCOL_VERSION = 16
"""The version changes whenever an agent and a master of different versions could misunderstand each other."""


class Hello(FromAgent, frozen=True):
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
    offers: Offers = Offers()
    """What tasks can require of it."""


class SetUp(Struct, frozen=True):
    """What an agent runs once, in a process of its own, before its first slave starts."""

    definition: AlgorithmDefinition
    """How the process finds the function, as a slave finds an algorithm. Its number means nothing."""
    pickle: bytes = b""
    """The function; empty if it travels by name."""
    seconds_max: float | None = None
    """How long it may run, with the start of its process; None for no limit."""
    memory_max: int | None = None
    """How many bytes of memory its processes may use together; None for no limit."""


class OffersWanted(FromMaster, frozen=True):
    """Master to agent: what do you have under these names? Tasks require it."""

    names: list[str]


class Offered(FromAgent, frozen=True):
    """Agent to master: what it has under the names of `OffersWanted`; and what its slaves have that still run tasks of
    an earlier generation of the master."""

    texts: Texts = field(default_factory=dict)
    """For each name a text; an empty one if it has nothing of this name."""
    taken: Annotated[list[Given], Meta(max_length=MAX_SLAVES)] | None = None
    """What such slaves have; None if this has not changed."""


class Welcome(FromMaster, frozen=True):
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
    set_up: SetUp | None = None
    """What the agent runs before its first slave starts, unless it has run the same before; None for nothing."""


class Handled(FromAgent, FromMaster, frozen=True):
    """Agent to master, or master to agent: how many messages of their session the sender has handled.

    `_roles/sessions.py` has the reason.
    """

    count: Number


class Refused(FromMaster, ToInquirer, frozen=True):
    """Master to agent: the agent is refused, or must leave, for this reason."""

    reason: str
    finish: bool = False
    """Whether its running tasks may finish within its grace period."""
    again: bool = False
    """Whether it may join again, although nobody wants the results of its tasks: the session with which it came back is
    over, or the master does not know its generation."""
    generation: Name = ""
    """The name of the master's generation, if the agent was sent to another one; else empty."""


class ModuleCode(Struct, frozen=True):
    """What a task algorithm uses of a module of the user."""

    digest: str
    """Digest of the text of the whole module."""
    parts: dict[str, str]
    """Digests of the functions, classes and variables that it uses."""
    values: dict[str, str] = field(default_factory=dict)
    """Digests of the master's values of variables and classes that it uses, and of which each slave has its own."""


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
    is_portable: bool = False
    """Whether its pickle has no compiled code, as that of an object of an installed class: any version can load it."""


class Algorithms(FromMaster, frozen=True):
    """Master to agent to slave: definitions that later tasks refer to by number."""

    definitions: list[AlgorithmDefinition]
    forgotten: list[int] = field(default_factory=list)
    """The numbers of earlier definitions that no later task refers to, unless they are sent again."""


class Installed(FromAgent, frozen=True):
    """Agent to master: its versions of the packages that definitions named; empty for one that is not installed."""

    packages: Packages


class Tasks(FromMaster, frozen=True):
    """Master to agent to slave: a group of tasks for one slave, in the order in which to run them."""

    slave: int
    tasks: list[int]
    counts: list[Annotated[int, Meta(ge=1)]]
    attempts: list[int]
    algorithms: list[int]
    buffers: list[Annotated[int, Meta(ge=0)]] = field(default_factory=list)
    limits: list[Limits | None] = field(default_factory=list)
    """The limits of each span; empty if no task has any."""
    shares: list[Share] = field(default_factory=list)
    """The shared objects that a slave needs before it starts one of these tasks."""
    portions: list[int] = field(default_factory=list)
    """For each span of a portion what its entries are, see `groups.py`; else 0. Empty if no span is of a portion. The
    arguments have no large buffers, and the tasks may be run as a stretch."""
    given: Given | None = None
    """What the slave is given for these tasks; None if they require nothing."""


class Results(FromSlave, FromAgent, frozen=True):
    """Slave to agent to master: a group of finished tasks of one slave, in the order in which they finished."""

    slave: Number
    tasks: Spans
    counts: Counts
    attempts: Attempts
    seconds: Seconds
    """The compute time of each task; or one entry, the time of all tasks of a stretch."""
    failed: Places
    """The positions in this group of the results that are failures, in ascending order."""
    buffers: Places = field(default_factory=list)
    again: Places = field(default_factory=list)
    """The positions of those failures after which the task is tried again if it has attempts left, in ascending order.
    """
    plain: bool = False
    """Whether all results are values that `decode_plain` reads."""
    shares: Annotated[list[Share], Meta(max_length=MAX_TASKS)] = field(default_factory=list)
    """How each large buffer is shared with later tasks; empty if none is. The agent keeps those that are."""


class Handover(FromAgent, frozen=True):
    """Agent to master: results of tasks that an earlier generation of the master has sent to a slave. Payload frames
    follow as with `Results`."""

    generation: Name
    """The name of that generation."""
    sid: Name
    """The id that the slave had there."""
    results: Results
    """The results, with the ids that the tasks had there."""


class FormerFate(PlainEnum):
    """How far tasks of a former generation are at an agent."""

    RUNNING = "running"
    NOT_STARTED = "not started"
    LOST = "lost"


class FormerTasks(FromAgent, frozen=True):
    """Agent to master: how far tasks are that an earlier generation of the master has sent to its slaves. A slave still
    runs them; or none has started them, and the agent does not keep them; or their slave has ended, and there are no
    results of them.

    Without tasks: the agent has said everything. Tasks of which it has neither brought the result nor said that they
    still run or were not started have no result here.
    """

    generation: Name
    """The name of that generation."""
    fate: FormerFate
    tasks: Spans = field(default_factory=list)
    """The first id of each range of tasks, with the ids that the tasks had there."""
    counts: Counts = field(default_factory=list)


class Checkpoint(FromSlave, FromAgent, frozen=True):
    """Slave to agent to master: the state that a running task leaves for its next attempt.

    The first payload frame is the encoded state. The large buffers of its pickle follow.
    """

    slave: Number
    task: Number
    attempt: Number


class CheckpointRead(FromMaster, frozen=True):
    """Master to agent: it has read a state of a task of this slave. The agent may send the next one."""

    slave: int


class Reported(FromSlave, FromAgent, frozen=True):
    """Slave to agent to master: interim values of a running task. The payload frame is what `dumps_report` encoded."""

    slave: Number
    task: Number
    attempt: Number
    seconds: TimeLeft
    """How long the attempt has run."""


class ReportRead(FromMaster, frozen=True):
    """Master to agent: it has read a report of this slave. The agent may send the next one."""

    slave: int


class Revoke(FromMaster, frozen=True):
    """Master to agent: take back up to `count` tasks that this slave has not started."""

    slave: int
    count: int


class Revoked(FromAgent, frozen=True):
    """Agent to master and to slave: these tasks were not started and will not be started.

    Or, if they are late: they are finished, but their results wait in the slave behind a long task.
    """

    slave: Number
    tasks: Spans
    counts: Counts
    attempts: Spans
    cancelled: bool = False
    """Whether this is the answer to a `Cancel`. Otherwise it is the answer to a `Revoke`."""
    late: bool = False
    """Whether this is no answer, and the tasks are late."""


class Cancel(FromMaster, frozen=True):
    """Master to agent: the master wants no result of these tasks, whichever slaves hold them.

    If `kill` is false, those that have started may finish, and the agent answers which have not started. If it is true,
    they have ended for the master, and there is no answer.
    """

    tasks: list[int]
    """The first id of each range of consecutive ids, in ascending order."""
    counts: list[Annotated[int, Meta(ge=1)]]
    kill: bool


class SlaveReady(FromSlave, FromAgent, frozen=True):
    """Slave to agent to master: this slave process is ready for tasks."""

    slave: Number


class SlaveNamed(FromMaster, frozen=True):
    """Master to agent to slave: the slave's id."""

    slave: int
    sid: SlaveId
    levels: dict[str, int] | None = None
    """The levels of the loggers in the master's process, by name; None if the slave sends no records of `logging`."""


class SlaveWorn(FromSlave, frozen=True):
    """Slave to agent: this slave process ends now, because it has run enough tasks, or has too much memory. All results
    were sent before."""

    slave: Number
    reason: Reason


class PeakMemory(FromSlave, FromAgent, frozen=True):
    """Slave to agent to master: the most memory that this slave process, or a program that it has waited for, has used
    while tasks of an algorithm ran. A slave says this again only when the peak has grown."""

    slave: Number
    algorithm: Number
    peak_bytes: Number


class OtherValues(FromSlave, FromAgent, frozen=True):
    """Slave to agent to master: this slave process has other values than the master of variables that an algorithm
    uses. It comes before the results of the algorithm's tasks."""

    slave: Number
    algorithm: Number
    names: Reason
    """The names of the variables."""


class SlaveDied(FromAgent, frozen=True):
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


class AlgorithmFailed(FromSlave, FromAgent, frozen=True):
    """Slave to agent to master: this slave cannot run an algorithm. The named tasks were not started."""

    slave: Number
    number: Number
    reason: Reason
    tasks: Spans
    counts: Counts
    attempts: Spans
    failure: LoadFailure = LoadFailure.SURE


class NextGeneration(FromSlave, frozen=True):
    """Agent to slave, which has no task: the tasks that follow are those of another generation of the master. Forget
    everything that the former generation has defined.

    Slave to agent: it has forgotten it. All its messages before this one belong to the former generation.
    """

    slave: Number
    edited: Reason = ""
    """A file that was edited after the slave had loaded it, so that the slave must be replaced; empty if there is none.
    """


class Renew(FromMaster, frozen=True):
    """Master to agent: replace slaves after the tasks that they hold: all, because what they import may have changed,
    or one that cannot be given what the next task requires."""

    module_path: Reason = ""
    """Where new slaves find modules (`PYTHONPATH`); empty if this has not changed."""
    slave: int | None = None
    """The slave; None for all."""


class Probe(FromMaster, ToInquirer, frozen=True):
    """Master to agent: no content. If it cannot be sent, the agent is gone."""


class Shutdown(FromMaster, ToInquirer, frozen=True):
    """Master to agent to slave: the computation ends.

    `finished` says whether it is complete: only then does the agent exit with 0.
    """

    finished: bool
    grace_s: float
    """How long a slave has to end by itself, in seconds, before it is killed."""
    unfit: Reason = ""
    """Why the agent can run nothing of the computation, which goes on without it; empty if this is not the reason."""


class Leaving(FromAgent, frozen=True):
    """Agent to master: send no more tasks, for this reason.

    The tasks that were not started follow. Running tasks may still finish.
    """

    reason: Reason
    cause: Cause
    """The cause of the loss of each task that does not finish in time."""


class Goodbye(FromAgent, frozen=True):
    """Agent to master: the agent ends, for this reason."""

    reason: Reason
    cause: Cause
    """The cause of the loss of the tasks that its slaves hold."""


class SetUpEnded(FromSlave, FromAgent, frozen=True):
    """The process of a set-up to its agent: the set-up has ended, well or not.

    Agent to master: it has ended well, so the slaves of this agent start now. The master learns of a failure as of that
    of a slave's start (`SlaveDied`).
    """

    slave: Number
    seconds: TimeLeft = 0.0
    """How long it took; 0 if it was done before for another generation of the master."""
    failure: Reason = ""
    """Why it failed; empty if it did not."""
    is_passing: bool = False
    """Whether the machine or the network may be the reason, so that another attempt may succeed."""
    environment: Environment = field(default_factory=dict)
    """The environment variables that all processes get that are started from now on."""


# Whether a message and its payload frames fit together.


def check(message: Message, frames: Sequence[Buffer]) -> None:
    """Check that a message of a member, whose fields have their types, and its payload frames fit together. Messages of
    a master are not checked, because its agents rely on it.

    Raises:
        ProtocolError: they do not; the sender's fault.
    """
    if not isinstance(message, FromAgent | FromSlave):
        return
    expected = 0
    match message:
        case Results():
            expected = _check_results(message, frames)
        case Handover():
            expected = _check_results(message.results, frames)
            if not all(message.results.attempts):
                raise ProtocolError("Handover: an attempt that no task can have")
        case Revoked() | AlgorithmFailed():
            _num_tasks(message)
        case FormerTasks():
            ends = [1, *map(sum, zip(message.tasks, message.counts, strict=False))]
            in_order = all(first >= end for first, end in zip(message.tasks, ends, strict=False))
            if len(message.tasks) != len(message.counts) or not in_order:
                raise ProtocolError("FormerTasks: its ranges are without counts or not in ascending order")
        case Checkpoint():
            expected = max(1, len(frames))
        case Reported():
            expected = 1
            if frames and len(frames[0]) > MAX_REPORT_BYTES:
                raise ProtocolError(f"Reported: a payload frame of {len(frames[0])} bytes")
    if len(frames) != expected:
        raise ProtocolError(f"{type(message).__name__}: {len(frames)} payload frames, but {expected} are expected")


def _check_results(message: Results, frames: Sequence[Buffer]) -> int:
    """Check a group of results, and return how many payload frames it has."""
    count = _num_tasks(message)
    if len(message.seconds) not in (count, min(count, 1)) or len(message.buffers) not in (0, count):
        raise ProtocolError("Results: its lists are of different lengths")
    failed = message.failed
    if failed and (failed != sorted(set(failed)) or failed[-1] >= count):
        raise ProtocolError("Results: `failed` names positions that the group does not have")
    if message.again and message.again != sorted({*message.again} & {*message.failed}):
        raise ProtocolError("Results: `again` names positions that are not failures")
    if message.plain and (message.failed or message.buffers):
        raise ProtocolError("Results: plain values among which are failures or large buffers")
    if message.shares:
        fits = len(message.shares) == len(frames) - 1 and all(
            not share.size or (share.size == len(frame) and share.digest.startswith(OF_RESULT))
            for share, frame in zip(message.shares, frames[1:], strict=False)
        )
        if not fits:
            raise ProtocolError("Results: `shares` does not describe its large buffers")
    return 1 + sum(message.buffers)


def _num_tasks(group: Results | Revoked | AlgorithmFailed) -> int:
    """Count the tasks of the spans."""
    if not len(group.tasks) == len(group.counts) == len(group.attempts):
        raise ProtocolError(f"{type(group).__name__}: its lists are of different lengths")
    if len(group.tasks) > 1:
        named = sorted(zip(group.attempts, group.tasks, group.counts, strict=True))
        if any(one[:1] == two[:1] and one[1] + one[2] > two[1] for one, two in pairwise(named)):
            raise ProtocolError(f"{type(group).__name__}: a task is named twice")
    return sum(group.counts)


# Checkpoints: a task leaves a state, and its next attempt goes on from there.
#
# The state travels to the master at once, because nobody knows when the attempt will be lost. The master never
# unpickles it.


class Attempt(Struct, frozen=True):
    """An attempt of a task that runs in this thread."""

    task_id: TaskId
    number: int
    """Which attempt of the task it is, counted from 1; 0 for `mwpy.replay`."""


class RunningTask(Protocol):
    """The task that runs, for the functions below."""

    def this_attempt(self) -> Attempt:
        """Return which attempt of which task runs."""

    def leave(self, state: object) -> None:
        """Leave a state for the next attempt."""

    def restored(self, default: object) -> object:
        """Return the state that an earlier attempt left, or a default."""

    def report(self, values: dict[str, object]) -> None:
        """Send interim values to the master."""


class _Running(threading.local):
    """The task that runs in this thread. A thread that a task started may outlive the task, so it has none."""

    task: RunningTask | None = None
    """None if no task runs."""


RUNNING = _Running()
"""It is global for the same reason as `task.RUNNING`."""


def checkpoint(state: object) -> None:
    """Leave the state of the task that calls this, so that its next attempt can go on from there.

    If this attempt is lost, for any reason, the next attempt gets the state from `mwpy.restored()`. A new state
    replaces the one before. The state is pickled at once, so it may change afterwards. The agent sends the newest state
    to the master at most once a second, and before it ends.

    Args:
        state: any object that can be pickled, up to the size of a result (`--mw-max-read-buffer-size`).

    Raises:
        UsageError: no task runs in this thread, or the state is too large; the caller's fault.
        ArgumentNotPicklable: the state cannot be pickled; the caller's fault.

    Examples:
        >>> def count(limit):                                  # doctest: +SKIP
        ...     number = mwpy.restored(0)
        ...     while number < limit:
        ...         number += 1
        ...         mwpy.checkpoint(number)
    """
    running_task("mwpy.checkpoint()").leave(state)


def restored(default: Any = None) -> Any:
    """Return the state that an earlier attempt of the task that calls this left with `mwpy.checkpoint`.

    Args:
        default: what to return if there is none, as in the first attempt.

    Returns:
        The newest state that reached the master. During an attempt, it is always the same object.

    Raises:
        UsageError: no task runs in this thread; the caller's fault.
        Exception: the state cannot be unpickled here, for example because a module is not installed.

    Examples:
        >>> def count(limit):                                  # doctest: +SKIP
        ...     for number in range(mwpy.restored(0), limit):
        ...         mwpy.checkpoint(number)
    """
    return running_task("mwpy.restored()").restored(default)


def this_attempt() -> Attempt | None:
    """Return which attempt of which task calls this: for the names of files that no other attempt may write.

    Returns:
        The attempt; None if no task runs in this thread. A restarted master counts its tasks from 1 again.

    Examples:
        >>> def simulate(x):                                   # doctest: +SKIP
        ...     this = mwpy.this_attempt()
        ...     log = open(f"log-{this.task_id}-{this.number}.txt", "w")
    """
    return None if RUNNING.task is None else RUNNING.task.this_attempt()


def running_task(call: str) -> RunningTask:
    """Return the task that runs in this thread.

    Args:
        call: what the user has called.

    Raises:
        UsageError: no task runs in this thread; the caller's fault.
    """
    if RUNNING.task is None:
        raise UsageError(
            f"{call} works only in a task, in the thread that runs the task: call it in the function that is submitted "
            f"or mapped"
        )
    return RUNNING.task


# Reports: a task sends interim values to the master while it runs.
#
# A report is useful only while its task runs. So nothing waits for it, no record is made of it, and a newer one
# replaces it.


def report(**values: Any) -> None:
    """Send interim values of the task that calls this to the master, which gets them from `mw.reports()`.

    The master algorithm can then cancel the task, or show how far it is. The values are pickled at once, so they may
    change afterwards. The agent sends the newest report to the master at most once a second, and only while the task
    runs. Nothing waits for the master: a call takes less than 0.1 ms.

    Args:
        values: any objects that can be pickled, by name; together at most 64 KiB.

    Raises:
        UsageError: no task runs in this thread, or the values are too large; the caller's fault.
        ArgumentNotPicklable: a value cannot be pickled, and the message names it; the caller's fault.

    Examples:
        >>> def train(rate):                                   # doctest: +SKIP
        ...     for epoch in range(100):
        ...         loss = step(rate)
        ...         mwpy.report(epoch=epoch, loss=loss)
        ...     return loss
    """
    running_task("mwpy.report()").report(values)


class Report(Struct, eq=False):
    """Interim values of a task that runs. `mw.reports()` returns them.

    Examples:
        >>> for report in mw.reports():                        # doctest: +SKIP
        ...     print(report.task_id, report.values["loss"])
    """

    task_id: TaskId
    tag: Any
    """The object given at submission, unchanged; the tag of an item of a map is this item."""
    attempt: int
    """Which attempt of the task reports this."""
    sid: SlaveId
    """The slave that runs the task."""
    host: str
    """The name of the machine of this slave."""
    seconds: float
    """How long the attempt had run when it called `mwpy.report`, in seconds."""
    _entry: Buffer
    """The encoded values; empty if they were read."""
    _values: dict[str, Any] | None = None

    @property
    def values(self) -> dict[str, Any]:
        """The values by name, as the task gave them. They are unpickled when they are first read.

        Raises:
            Exception: a value cannot be unpickled here, for example because a module is not installed.
        """
        if self._values is None:
            try:
                self._values = loaded(decode(self._entry))
            except Exception as error:
                error.add_note(f"(mwpy.report: the values that task {self.task_id} reported cannot be unpickled here)")
                raise
            except (SystemExit, GeneratorExit) as error:  # a pickle can call anything, also sys.exit
                kind = type(error).__name__
                raise ValueError(f"unpickling the values that task {self.task_id} reported raised {kind}") from error
            self._entry = b""
        return self._values

    def __repr__(self) -> str:
        return (
            f"<Report of task {self.task_id}, attempt {self.attempt}, on {self.sid} after {self.seconds:.1f} s, "
            f"tag={self.tag!r}>"
        )
