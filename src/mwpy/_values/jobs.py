"""What an overseer sees: the content of resource files, and the jobs of a batch system; each job is one agent."""

from __future__ import annotations

from enum import Enum

from attrs import frozen
from msgspec import Struct, field

from mwpy._values.errors import describe_exit

IN_PROGRESS = "in-progress"
FINISHED = "finished"


class MemberKeys(Struct, frozen=True, rename="kebab"):
    """The keys of a member, as Z85 text."""

    server_public: str
    member_public: str
    member_secret: str


Amounts = tuple[tuple[str, int], ...]
"""What each slave of a job needs for its tasks, by name: `cpus`, `gpus`, `memory` and `disk` in bytes, and others.
Empty for a job of any kind."""


class Kind(Struct, frozen=True, rename="kebab"):
    """Slaves that are missing, and what their tasks require of an agent."""

    requires: dict[str, int | str]
    """Amounts and conditions, by name."""
    slaves_needed: int

    @property
    def amounts(self) -> Amounts:
        """What a job can be asked for."""
        return tuple(sorted((name, has) for name, has in self.requires.items() if isinstance(has, int)))


class ResourceFile(Struct, frozen=True, rename="kebab"):
    """The content of a resource file. Older masters do not write the fields that have defaults."""

    computation_status: str
    timestamp: float
    """When the file was written, in Unix seconds."""
    update_interval: float
    """Seconds until the file is written again."""
    member_id: str
    generation: str
    master_addresses: tuple[str, ...]
    """The addresses of the master, `tcp://HOST:PORT`, best first."""
    keys: MemberKeys
    slaves_wanted: int
    slaves_connected: int
    slaves_needed: int
    """How many slaves are missing. It is never more than the unfinished tasks can use."""
    slave_executable: str
    slave_arguments: tuple[str, ...]
    shortest_task: float = 0.0
    """How many seconds each waiting task needs at least; 0 if this is not known of all of them."""
    client_timeout: float = 30.0
    """After this silence of the network, in seconds, an agent counts its master as gone."""
    connected_jobs: dict[str, int] = field(default_factory=dict)
    """The connected jobs of a batch system. The value is the number of slaves of the job that hold tasks, are reserved
    for tasks, or are still starting."""
    excluded_hosts: dict[str, list[str]] = field(default_factory=dict)
    """The hosts that get no more work, because tasks fail there that succeed elsewhere. Each has the ids of its last
    jobs, because a batch system may use another name for the host."""
    kinds: tuple[Kind, ...] = ()
    """Those of the missing slaves whose tasks require something, by what they require. Any agent can have the others.
    """


class JobState(Enum):
    """The state of a job in its queue."""

    QUEUED = "queued"
    RUNNING = "running"
    HELD = "held"
    """It does not start until a person releases it."""
    LEAVING = "leaving"
    """It was removed and is still in the list. It does not count as a job, and is not removed again."""


class Job(Struct, frozen=True):
    """A job in the queue."""

    job_id: str
    """The id that the batch system uses (`17.3`, `42_5`). The agent reads the same id from `MWPY_JOB`."""
    mark: str
    """The mark of the computation that the job was submitted for; see `Launch`."""
    state: JobState
    running_s: float = 0.0
    """Seconds since its start, if it runs."""
    note: str = ""
    """Why it is held, or why it cannot start, as the batch system says it."""
    host: str = ""
    """The name of its machine as the batch system uses it; empty if it waits, or if the name is of no use."""
    slaves: int = 1
    """How many places it takes, if its batch system has no queue."""
    is_surplus: bool = False
    """Whether it runs on a machine that may have fewer jobs now."""


class End(Enum):
    """Why a job is no longer in the queue."""

    EXITED = "exited"
    """It ended with an exit code."""
    KILLED = "killed"
    """A signal or a limit of memory killed it, although it was not asked to end."""
    REMOVED = "removed"
    """It was removed, cancelled or evicted, or its time was over."""
    LOST = "lost"
    """Its processes are gone, or its machine does not answer. Nothing more is known."""


@frozen
class Outcome:
    """The end of a job that has left the queue."""

    end: End
    description: str
    """A text for people: `exit code 4`, `killed by signal 9 (SIGKILL): ...`, or what the batch system says."""
    exit_code: int | None
    """The exit code; None unless the end is `EXITED`."""
    ran_s: float
    """Seconds from its last start to its end; 0 if it never started."""
    stderr: str = ""
    """The end of its standard error; empty if that is not known."""
    host: str = ""
    """The name of its machine as the batch system uses it; empty if it is not known, or of no use."""

    @classmethod
    def of_process(cls, returncode: int, ran_s: float, stderr: str, host: str = "") -> Outcome:
        """The outcome of a job whose process ended with this exit code, or the negative number of a signal."""
        end, exit_code = (End.EXITED, returncode) if returncode >= 0 else (End.KILLED, None)
        return cls(end, describe_exit(returncode), exit_code, ran_s, stderr, host)
