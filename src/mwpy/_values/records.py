"""Records: the facts that the cores of master, agent and overseer state.

A record is one thing that happened, to a group of tasks, to a slave or to an agent. It is immutable and complete:
applying the records of a master in their order to an empty `MasterState` gives the same tasks, attempts, slaves and
counts. Tags are the exception: a tag is any object and never leaves the master. The audit file shows records as text.
Every other part that needs to know what happened also reads records.

Each class is a subclass of `Record` and tagged with its name, so the simulator can encode a stream of records.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import sha256
from typing import Any

from msgspec import Struct

from mwpy._values.bounds import SlaveId, TaskId
from mwpy._values.causes import Cause
from mwpy._values.last_words import LastWords
from mwpy._values.messages import AlgorithmDefinition, Results
from mwpy._values.policy import TaskPolicy
from mwpy._values.requires import Offers
from mwpy._values.task import SlaveKind, SlaveState


class Record(Struct, frozen=True, tag=True):
    """The base of all records."""


# Records about agents, their hosts and their slaves. `records.py` says what records are, and has all others.


class AgentConnected(Record, frozen=True):
    """The master accepted an agent."""

    agent: str
    address: str
    host: str
    pid: int
    job: str = ""
    """The id of the agent's job in a batch system; empty if unknown."""
    slaves: int = 0
    """How many slaves the agent announced."""
    python: str = ""
    """`major.minor` of its interpreter."""
    seconds_left: float | None = None
    """How long from then on a task could run at most, because then the agent's time is over; None if unknown."""
    returns_s: float = 0.0
    """For how long it looks for its master when its connection has ended; 0 if it ends then."""
    offers: Offers = Offers()
    """What tasks can require of it."""


class AgentOffered(Record, frozen=True):
    """An agent said what it has under names that tasks require."""

    agent: str
    texts: dict[str, str]
    """For each name a text; an empty one if it has nothing of this name."""


class AgentSetUp(Record, frozen=True):
    """The set-up of an agent has ended well, and its slaves start."""

    agent: str
    seconds: float
    """How long it took; 0 if it was done before for another generation of the master."""


class AgentRefused(Record, frozen=True):
    """The master refused a peer."""

    address: str
    reason: str


class AgentAway(Record, frozen=True):
    """Nothing is heard from an agent. It may come back with its running tasks."""

    agent: str
    reason: str


class AgentBack(Record, frozen=True):
    """An agent that was away came back, from this address."""

    agent: str
    address: str


class AgentLost(Record, frozen=True):
    """The connection to an agent broke before the agent said goodbye."""

    agent: str
    reason: str
    cause: Cause


class LossesExplained(Record, frozen=True):
    """The master learned why it had heard nothing from an agent: the tasks of these slaves were lost for this cause."""

    agent: str
    sids: Sequence[SlaveId]
    cause: Cause
    reason: str


class AgentLeft(Record, frozen=True):
    """An agent said goodbye; it is gone."""

    agent: str
    reason: str


class HostExcluded(Record, frozen=True):
    """A host gets no more work, because tasks fail there that succeed elsewhere."""

    host: str
    reason: str
    """The host, for how long it is excluded, and how many attempts failed there and elsewhere."""


class HostReadmitted(Record, frozen=True):
    """A host that was excluded may get work again."""

    host: str


class PeerDropped(Record, frozen=True):
    """A peer sent something that no correct peer sends. The master ignores it from now on."""

    peer: str
    reason: str


class AgentLeaving(Record, frozen=True):
    """An agent announced that it must leave: it gets no more tasks and starts no more slaves."""

    agent: str
    reason: str
    cause: Cause


class SlaveConnected(Record, frozen=True):
    """A slave is ready for tasks."""

    sid: SlaveId
    agent: str
    address: str
    kind: SlaveKind
    number: int = 0
    """The number that the agent gave this slave."""


class SlaveChanged(Record, frozen=True):
    """A slave changed its state or its kind."""

    sid: SlaveId
    state: SlaveState
    kind: SlaveKind


class SlaveEnded(Record, frozen=True):
    """A slave is gone. `running` names the task that it ran, `words` are its last words."""

    sid: SlaveId
    cause: Cause
    reason: str
    running: str
    words: LastWords


class AlgorithmRefused(Record, frozen=True):
    """The slaves of an agent, or one of them, cannot run a task algorithm."""

    agent: str
    algorithm: str
    reason: str
    number: int = 0
    """The number of the algorithm's definition."""
    sid: SlaveId | None = None
    """The slave, if the others of its agent may run it."""


class PackagesCompared(Record, frozen=True):
    """An agent reported the versions of packages that task algorithms import."""

    agent: str
    same: Sequence[str]
    """Name and version of each package that is the same on the master."""
    different: Sequence[str]
    """Each package that differs: its name, the version on the agent, and the version on the master."""


class SlaveStarted(Record, frozen=True):
    """An agent started a slave process."""

    slave: int
    pid: int


class SlaveNamed(Record, frozen=True):
    """The master gave an agent's slave its id."""

    slave: int
    sid: SlaveId


# What records consist of: how they name tasks, what was submitted, and what a task is charged with.


class TaskRange(Struct, frozen=True):
    """How a record names tasks: `count` consecutive ids from `first` on, in one attempt, of one algorithm."""

    first: int
    count: int
    attempt: int
    """The number of times that these tasks were sent to a slave, this time included."""
    algorithm: int
    """The number of the algorithm's definition."""
    name: str
    """The name of the algorithm."""
    once: bool = False
    """Whether the policy forbids a second execution."""

    def __str__(self) -> str:
        last = f" to {self.first + self.count - 1}" if self.count > 1 else ""
        return f"task{'s' if last else ''} {self.first}{last} ({self.name})"


class SubmittedTasks(Struct, frozen=True):
    """Tasks as they were submitted: consecutive ids, one algorithm, one policy, and the arguments of each task."""

    first: TaskId
    count: int
    algorithm: int
    """The number of the algorithm's definition."""
    policy: TaskPolicy
    payloads: Sequence[bytes]
    """The encoded arguments of each task; if they are packed, one entry with all of them."""
    buffers: Sequence[Any]
    """The large buffers of each task's arguments; empty if no task has any."""
    refers: Sequence[int] = ()
    """If it is one task: the ids of the tasks to whose results its arguments refer, each once."""
    packed: int = 0
    """If they are a portion of a map: how their arguments are packed, see `groups.py`; else 0."""
    keys: bytes = b""
    """The key of each task, one after the other; empty if there is no run database."""


class ReusedTasks(Struct, frozen=True):
    """Tasks that ended at their submission, because the run database has their results."""

    first: int
    count: int
    algorithm: int
    """The number of the algorithm's definition."""
    name: str
    """The name of the algorithm."""
    keys: bytes
    """The key of each task, one after the other."""
    rows: Sequence[int]
    """For each task: the name of the row of the run database with its result."""
    places: Sequence[int]
    """For each task: the place of its result in the row."""
    failed: Sequence[int] = ()
    """Which of the tasks failed: their places here, in ascending order."""


class Charge(Struct, frozen=True):
    """The loss of an attempt: an entry for the history of the task. If a slave ended, its `SlaveEnded` has its last
    words."""

    sid: SlaveId
    cause: Cause
    reason: str
    more_memory: int = 0
    """As in `Death`."""
    lost_s: float = 0.0
    """For how long the slave had sent neither a result nor a sign of the tasks, in seconds; together, not of each."""

    @property
    def is_charged(self) -> bool:
        """Whether the task is charged with the loss, so that it counts for `attempts_max`."""
        return self.cause.is_charged and not self.more_memory


# Records about tasks that a former generation has answered.


class ResultsReused(Record, frozen=True):
    """The master algorithm submitted tasks, and they ended at once: former generations have stored their results."""

    tasks: Sequence[ReusedTasks]


class ResultsHandedOver(Record, frozen=True):
    """An agent brought results of tasks that a former generation had sent to its slaves. They are stored as those of
    that generation."""

    agent: str
    host: str
    """The machine of the agent."""
    generation: int
    """The number of that generation."""
    sid: SlaveId
    """The id that the slave had there."""
    results: Results
    """The results, with the ids that the tasks had there. Those that do not count are left out."""
    frames: Sequence[Any]


class TasksAnswered(Record, frozen=True):
    """Tasks that had not ended got their results from a former generation, because an agent has brought these."""

    sid: SlaveId | None
    """The slave that held the tasks; None if none did."""
    tasks: Sequence[TaskRange]
    results: Results
    """The results of these tasks, in their order."""
    frames: Sequence[Any]


class TasksAwaited(Record, frozen=True):
    """Pending tasks wait for agents that have outlived the former master, and may bring their results."""

    tasks: Sequence[TaskRange]


class AlgorithmDefined(Record, frozen=True):
    """A task algorithm got its number. `packed` is the pickled function if it travels by value, else empty."""

    definition: AlgorithmDefinition
    packed: bytes
    code: str = ""
    """The structural digest of its code; empty if it has none, or there is no run database."""
    parts: dict[str, str] = {}
    """What the code consists of, and the digest of each part."""

    @property
    def code_of_slaves(self) -> str:
        """The code that counts if slaves have other values, which depend on the files of the modules."""
        files = "".join(self.definition.code[name].digest for name in sorted(self.definition.code))
        return f"{self.code}-{sha256(files.encode()).hexdigest()[:16]}"


class OtherValues(Record, frozen=True):
    """Slaves have other values than the master of variables that a task algorithm uses. So the results of this
    generation are those of another code."""

    algorithm: int
    code: str
    """Its `code_of_slaves`."""
    names: str
    """The variables."""


class AlgorithmsForgotten(Record, frozen=True):
    """The master forgot task algorithms that travel by value and have no runnable tasks."""

    numbers: Sequence[int]


class Started(Record, frozen=True):
    """A process began its role. `role` is `MASTER` or `AGENT`; `detail` names the addresses."""

    role: str
    member_id: str
    detail: str


class Ended(Record, frozen=True):
    """A process ends its role: `why` is `SHUTDOWN`, `INTERRUPTED`, or the fault that ended it."""

    why: str
    member_id: str


class Notice(Record, frozen=True):
    """A message for the user, also shown on standard error. It says what happened and what to do next."""

    text: str


class TasksSubmitted(Record, frozen=True):
    """The master algorithm submitted tasks. They are pending, or blocked if they refer to results."""

    tasks: Sequence[SubmittedTasks]


class TasksAllocated(Record, frozen=True):
    """Pending tasks were sent to a slave. Each range has the number of the new attempt."""

    sid: SlaveId
    tasks: Sequence[TaskRange]


class TasksReclaimed(Record, frozen=True):
    """The slave `sid` has answered tasks that were taken from it and given to others: it has them again, in this
    attempt, and its results follow."""

    sid: SlaveId
    tasks: Sequence[TaskRange]
    """The tasks, in the attempts that end now."""
    attempt: int
    holder: SlaveId | None
    """The slave that had the tasks; None if none had."""


class ResultsReceived(Record, frozen=True):
    """Results of tasks arrived from the slave that held them.

    `results` names the tasks and has their compute times and failures; `frames` are the encoded values, as they
    arrived. Results that do not count are left out of both.
    """

    sid: SlaveId
    results: Results
    frames: Sequence[Any]


class TaskCheckpointed(Record, frozen=True):
    """A task that a slave holds left a state for its next attempt. The state replaces an earlier one."""

    sid: SlaveId
    task: TaskRange
    frames: Sequence[Any]
    """The encoded state and the large buffers of its pickle, as they arrived."""


class TasksFailed(Record, frozen=True):
    """Tasks failed before they were sent: at their submission, or while they were blocked."""

    tasks: Sequence[TaskRange]
    reason: str
    dependency: int = 0
    """The id of the task that did not end well, if they were blocked and failed for this reason; otherwise 0."""
    cause: str = ""
    """What happened to that task."""


class TasksUnblocked(Record, frozen=True):
    """Blocked tasks have the values of all results to which they refer; they are pending."""

    tasks: Sequence[TaskRange]


class ResultsHeld(Record, frozen=True):
    """Later tasks may refer to the results of these tasks, which have not ended. So the master will keep them."""

    numbers: Sequence[int]


class ResultGiven(Record, frozen=True):
    """The algorithm gave back the result of a task, because a later task refers to it. So the master keeps it."""

    number: int
    frames: Sequence[Any]
    """The encoded value and its large buffers; empty if there is no value."""
    cause: str
    """Why there is no value."""
    root: int
    """The id of the task that did not end well."""


class ResultsReleased(Record, frozen=True):
    """The algorithm has fetched the results of these tasks, so no later task refers to them."""

    numbers: Sequence[int]


class TasksReturned(Record, frozen=True):
    """Tasks that a slave held came back unfinished and are pending again. `charges` are added to their histories."""

    sid: SlaveId
    tasks: Sequence[TaskRange]
    reason: str
    charges: tuple[Charge, ...] = ()
    pause_s: float = 0.0
    """How long they are delayed before they are pending again, in seconds; 0 for no pause."""


class TasksDue(Record, frozen=True):
    """The pauses of tasks are over; the tasks are pending again."""

    tasks: Sequence[TaskRange]
    not_started: bool = False
    """Whether a former generation sent them to slaves, which have not started them."""


class TasksGivenUp(Record, frozen=True):
    """Tasks became unrunnable. `charges` are added to their histories."""

    sid: SlaveId
    """The slave that held the tasks, or that they were addressed to."""
    held: bool
    """Whether that slave held the tasks; otherwise they were pending."""
    tasks: Sequence[TaskRange]
    reason: str
    charges: tuple[Charge, ...] = ()
    used_up: bool = False
    """Whether the tasks lost these attempts by their own fault. Then they do not run again at a restart either."""


class TasksCancelled(Record, frozen=True):
    """Tasks were cancelled. No task is charged with anything. If a task ran again to compute a value that was lost,
    only this ends."""

    sid: SlaveId | None
    """The slave that held the tasks; None if they were pending."""
    tasks: Sequence[TaskRange]
    when: str
    """How far the tasks were, as the end of a sentence."""


class TasksCancelling(Record, frozen=True):
    """Tasks that a slave holds are cancelled unless they have started. They are not sent to a slave again."""

    sid: SlaveId
    tasks: Sequence[TaskRange]


class TasksUnaddressed(Record, frozen=True):
    """Pending tasks were addressed to a slave that cannot run them. Now any slave may run them."""

    sid: SlaveId
    tasks: Sequence[TaskRange]


class Total(Record, frozen=True):
    """What the tasks of one algorithm did on one host since the master started."""

    algorithm: str
    host: str
    tasks: int = 0
    """How many tasks have results."""
    failed: int = 0
    """How many of these results are failures."""
    seconds: float = 0.0
    """How long these tasks ran, together."""
    longest_s: float = 0.0
    """How long the longest of them ran."""
    lost: dict[str, int] = {}
    """How many attempts were lost, by the value of their `Cause`."""
    lost_s: float = 0.0
    """How long the lost attempts had run at most."""
    seconds_max: float = 0.0
    """The largest `seconds_max` of these tasks; 0 if none had one."""
    memory_max: int = 0
    """The largest `memory_max` of these tasks, in bytes; 0 if none had one."""
    memory_used: int = 0
    """The most memory that was measured while a task with `memory_max` ran, in bytes; 0 if nothing was measured."""
    seconds_expected: float = 0.0
    """The largest `seconds_expected` of these tasks; 0 if none had it."""


class TasksReceived(Record, frozen=True):
    """An agent forwarded tasks to a slave."""

    sid: SlaveId
    count: int


class ResultsSent(Record, frozen=True):
    """An agent forwarded results of a slave to the master."""

    sid: SlaveId
    count: int
