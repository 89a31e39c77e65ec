"""The `--mw-*` options and environment variables of one process, and their parser.

`HELP` describes all options, and `OPTIONS` is the table that is read from it.

They are the options of CL-MW, under the same names, and options of mwpy. They can be anywhere on the command line. The
algorithm gets the other arguments, in their order. The argument `--` ends the options.
"""

from __future__ import annotations

import platform
from collections.abc import Callable, Iterator, Mapping, Sequence
from enum import Enum
from typing import Any, ClassVar, Self

from attrs import Factory, evolve, frozen
from msgspec import Struct

from mwpy._values.bounds import MAX_NAME, MAX_SECONDS, MAX_SLAVES
from mwpy._values.errors import UsageError
from mwpy._values.messagepack import MALFORMED, NOT_ENCODABLE, encode_json, json_decoder
from mwpy._values.phrases import bytes_in
from mwpy._values.policy import MaxFailures, Policies
from mwpy._values.requires import offers_in, offers_text, within
from mwpy._values.spelling import close_to

BATCH_SYSTEMS = ("htcondor", "slurm", "sge", "pbs", "ssh", "local")
"""The batch systems that commands and masters accept."""

# The environment variables that mwpy reads, and what a slave process is given through one of them.


AGENT = ("-m", "mwpy", "slave")
"""Makes a Python interpreter run as an agent that does not load the script itself."""

AGENT_VARIABLE = "MWPY_AGENT"
"""Makes a process the agent of a master on this machine. Its value is a JSON list of options. They replace the options
on the command line, which are the master's."""

MASTER_VARIABLE = "MWPY_MASTER"
"""Gives such an agent the stream to its master. Its value is `MasterStream.to_json()`."""

OWN_ADDRESS = "localhost"
"""The address of such an agent, which has a stream and no connection."""

JOB_VARIABLE = "MWPY_JOB"
"""Gives an agent the id of its job in a batch system. The submitter of the job sets it."""

END_VARIABLE = "SLURM_JOB_END_TIME"
"""When this job will be ended, in Unix seconds. Slurm sets it. For other batch systems the submitter of the
job sets it."""

NEAR_THE_END_S = 120.0
"""A batch system that ends a job this many seconds before its time limit, or later, ends it because of the limit. Slurm
sends the signal of `--signal=TERM@60` up to 60 s earlier."""

MEMORY_VARIABLE = "SLURM_MEM_PER_NODE"
"""How much memory this job has, in MiB. Slurm sets it for `--mem`. For other batch systems the submitter of the job
sets it."""

CPU_MEMORY_VARIABLE = "SLURM_MEM_PER_CPU"
"""How much memory this job has for each of its processors, in MiB. Slurm sets it for `--mem-per-cpu`, instead."""

CPUS_VARIABLE = "SLURM_CPUS_ON_NODE"
"""How many processors this job has on this machine. Slurm sets it."""

KEY_VARIABLE = "MWPY_KEY"
"""The key of the computation. `--mw-key-file` names a file with the same text."""

MODULE_PATH = "PYTHONPATH"
"""Where Python finds modules. Slaves of a master without a script get the whole path of the master."""

OWN_MODULE_PATH = "MWPY_PYTHONPATH"
"""What `MODULE_PATH` was for that master; empty if it was not set. Slaves set it again, because another Python that a
task starts must not get the path of this one."""

QUEUED_VARIABLE = "MWPY_QUEUED"
"""The resource file of a master that a queue runs. A script without `mwpy.main`, which opens its master, uses it."""

SCRIPT_VARIABLE = "MWPY_SCRIPT"
"""Gives slaves the script that they load. Its value is `LoadedScript.to_json()`."""

SLAVE_VARIABLE = "MWPY_SLAVE"
"""Makes a process a slave. Its value is `SlaveSettings.to_json()`, `TemplateSettings.to_json()`, or `EXAMINED`."""

EXAMINED = "examined"
"""With this value of `SLAVE_VARIABLE`, a slave prints the packages that its script has imported, as JSON, and exits."""

FAULT_HANDLER = "PYTHONFAULTHANDLER"
"""Makes an interpreter report crashes from its start on. The slave reports them to standard error, and later to the
shared memory."""

BREAKPOINT_VARIABLE = "PYTHONBREAKPOINT"
"""Names the function that `breakpoint()` calls."""

UNREADABLE = (*MALFORMED, *NOT_ENCODABLE)
"""What reading a variable raises that mwpy has not written."""

OPENMP_VARIABLE = "OMP_NUM_THREADS"

THREAD_VARIABLES = (
    OPENMP_VARIABLE,
    "OPENBLAS_NUM_THREADS",
    "MKL_NUM_THREADS",
    "BLIS_NUM_THREADS",
    "NUMEXPR_NUM_THREADS",
    "VECLIB_MAXIMUM_THREADS",
)
"""Each numeric library reads one of them when it is loaded. Without a limit it starts one thread per core."""

JOB_CPUS_VARIABLES = ("PYTHON_CPU_COUNT", CPUS_VARIABLE, "SLURM_CPUS_PER_TASK", "NCPUS", "PBS_NUM_PPN", "NSLOTS")
"""Set by HTCondor, Slurm, PBS, Torque and Grid Engine to the number of processors that a job has on its machine."""


def thread_limits(environment: Mapping[str, str], cores: int, slaves: int) -> dict[str, str]:
    """Return the variables that limit a slave's numeric libraries to the slave's share of the cores.

    The slaves share the cores of the job, if a batch system says how many it has: not every one binds its jobs to them.
    A variable with this number is a limit for the whole job, so the slaves share it, too: HTCondor sets such variables.
    Any other variable that is set keeps its value. If `OMP_NUM_THREADS` is set, nothing is added:
    on Linux, all these libraries read it when their own variable is missing.

    Args:
        environment: the variables that the slave inherits.
        cores: how many cores the agent may use.
        slaves: how many slaves share them.
    """
    of_job = {each for name in JOB_CPUS_VARIABLES if (each := environment.get(name, "")).isdecimal()}
    set_for_job = {name: environment[name] for name in THREAD_VARIABLES if environment.get(name) in of_job}
    divided = {name: str(max(1, int(threads) // slaves)) for name, threads in set_for_job.items()}
    if OPENMP_VARIABLE in environment:
        return divided
    share = str(max(1, job_cpus(environment, cores) // slaves))
    return {name: share for name in THREAD_VARIABLES if name not in environment} | divided


def job_cpus(environment: Mapping[str, str], cores: int) -> int:
    """Return how many processors a job may use, if this process may use so many cores."""
    said = [int(each) for name in JOB_CPUS_VARIABLES if (each := environment.get(name, "")).isdecimal()]
    return min([cores, *filter(None, said)])


class InVariable(Struct, frozen=True):
    """What a process is given through an environment variable."""

    variable: ClassVar[str] = SLAVE_VARIABLE
    """The variable."""
    giver: ClassVar[str] = "an agent"
    """Who sets it."""

    def to_json(self) -> str:
        """Return it as text for the environment."""
        return encode_json(self).decode()

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Read what `to_json` wrote.

        Raises:
            UsageError: the text does not have this form; probably a person set the variable.
        """
        try:
            return json_decoder(cls)(text)
        except UNREADABLE as error:
            raise UsageError(f"{cls.variable} is set, but not by {cls.giver} ({error}): unset it") from error


class SlaveSettings(InVariable, frozen=True):
    """What an agent gives to a slave process at its start, through `SLAVE_VARIABLE`.

    Args:
        fds: the slave's end of its channel; see `SlaveFds`.
        slave: the slave's number within its agent.
        agent_pid: the agent's process id. A slave whose parent has another id has lost its agent.
        result_group: how many results the slave sends in one message; 0 lets the slave choose.
        max_result_bytes: the largest result that the master accepts.
        max_tasks: how many tasks the slave may run; 0 if there is no limit.
        max_memory_bytes: how much memory the slave may have between two tasks; 0 if there is no limit.
        folder: its folder for temporary files; empty if it has none of its own.
        sets_up: the folder in which it runs the set-up of its agent; empty if it runs tasks.
    """

    fds: tuple[int, int, int]
    slave: int
    agent_pid: int
    result_group: int = 0
    max_result_bytes: int = 1 << 30
    max_tasks: int = 0
    max_memory_bytes: int = 0
    folder: str = ""
    sets_up: str = ""


class TemplateSettings(InVariable, frozen=True):
    """What an agent gives to a template, through `SLAVE_VARIABLE`. The template forks slaves.

    Args:
        orders: the file descriptor of a socket, from which the template reads what to fork.
        agent_pid: the agent's process id.
    """

    orders: int
    agent_pid: int


class MasterStream(InVariable, frozen=True):
    """What a master gives to an agent that it starts on its own machine, through `MASTER_VARIABLE`.

    Args:
        fds: the file descriptors of the agent's end of the message stream, and of the passage for large buffers.
        master_pid: the master's process id.
    """

    variable: ClassVar[str] = MASTER_VARIABLE
    giver: ClassVar[str] = "a master"
    fds: tuple[int, int]
    master_pid: int


def slave_or_template(text: str) -> SlaveSettings | TemplateSettings:
    """Read the value of `SLAVE_VARIABLE`.

    Raises:
        UsageError: the text is not such a value; probably a person set the variable.
    """
    try:
        return json_decoder(TemplateSettings)(text)
    except UNREADABLE:
        return SlaveSettings.from_json(text)


# The text of `--mw-help-all`, which is also the table of the `--mw-*` options: parser and manual are made from it.


DEFAULT_MEMBER_ID = "default-member-id"
DEFAULT_CLIENT_TIMEOUT_S = 30.0
DEFAULT_START_TIMEOUT_S = 300.0
DEFAULT_RECONNECT_S = 300.0

HELP = """\
Where tasks run:
  --mw-local N
      Start N slaves on this machine; with --mw-master, in addition to the slaves that connect. With 0 and no role,
      tasks run in this process, for debugging. Default: one a core when no role is given.
  --mw-master
      Be the master. Other processes read the resource file and start slaves.
  --mw-slave
      Be an agent with slaves. It finds the master by a resource file, or by host, port and key.

How slaves find the master:
  --mw-resource-file FILE
      Master: write this file for batch systems and slaves. Slave: read it to find the master.
  --mw-master-host HOST
      Master: the address to bind and to publish. Slave: the address to connect to. Default: every address.
  --mw-master-port PORT
      Master: the port to bind. Slave: the port to connect to. Default: any free port.
  --mw-member-id STRING
      The name of the computation; master and slaves must agree. It is not a secret. Default: default-member-id.
  --mw-key-file FILE
      A file with the key of the computation. The master makes it if it is missing. Or set MWPY_KEY. Default: a
      fresh key, in the resource file.

Slaves:
  --mw-slave-processes N
      How many slave processes one agent supervises. Default: 1.
  --mw-slave-start fork|spawn
      How slave processes start: forked from a process that has loaded the script, or as fresh interpreters.
      Default: fork on Linux, spawn elsewhere.
  --mw-slave-start-timeout SECONDS
      A slave that is not ready for tasks this long after its start is killed. This counts as a failed start.
      Default: 300.
  --mw-offers TEXT
      What tasks can require of an agent, in addition to what it finds or instead of it, such as
      cpus=8,gpus=2,memory=16 GB,licence=1,gnuplot. A text that begins with ! is a command that prints this.
      Default: what is found.
  --mw-run-offers TEXT
      Master: the amounts that the whole run has, such as licence=3. Default: it has no amounts.
  --mw-slave-max-tasks N
      A slave process is replaced by a new one after it has run N tasks. Default: no limit.
  --mw-slave-max-memory BYTES
      A slave process is replaced by a new one when it has more memory than this after a task, for example 4 GB.
      Default: no limit.

Limits of tasks:
  --mw-seconds-max SECONDS
      An attempt of a task is killed after this time, unless its policy says otherwise. Default: no limit.
  --mw-seconds-expected SECONDS
      How long an attempt of a task takes, unless its policy says otherwise. A task is sent only to an agent that
      has this much time left. Default: the mean of the algorithm's tasks.
  --mw-memory-max BYTES
      The memory that a task may use, unless its policy differs. Default: no limit.
  --mw-attempts-max N
      A task is unrunnable after N attempts that were lost by its own fault, unless its policy says otherwise.
      Default: 3.
  --mw-after SECONDS
      How long a task pauses before its next attempt, after an attempt that was lost by its own fault. The pause
      doubles each time. Default: 0.
  --mw-max-failures N|P%
      Stop the computation at the Nth failed task, or when P percent of at least 100 ended tasks failed. This kills
      the tasks that run; with N,finish or P%,finish they may finish. Default: no limit.

Restart:
  --mw-run-database FILE
      Store what happens in this SQLite file. A master that is started again with the same file uses the results
      that are there, and computes the others. Default: nothing is stored.
  --mw-run-database-sync normal|full
      How soon the run database is on the disk: within a second, or before the master algorithm gets a result. It
      matters when the machine loses its power. Default: normal.
  --mw-rerun nothing|failed
      Which tasks in the run database run again: with `failed`, those that failed, those whose attempts are used up,
      and those with `retry=False` that may have run. Default: nothing.
  --mw-reuse-changed-code
      Use results in the run database also if the code of their task algorithm has changed since.

Slow machines:
  --mw-speculate
      If slaves are idle, start a second attempt of a task that runs for far longer than others. The first value
      counts. This holds for all tasks that may run again, unless their policy differs.

Time:
  --mw-lifetime SECONDS
      An agent or a master ends within this time. An agent stops early enough for its running tasks to get the grace
      period, a master early enough for its algorithm to save what it has. Default: until SLURM_JOB_END_TIME, which
      a batch system may set.
  --mw-grace-period SECONDS
      Time that running tasks get to finish after SIGTERM. Default: 5.
  --mw-idle-exit SECONDS
      An agent ends, with exit code 0, when its slaves had no task for this time. The slaves of --mw-local stay.
      Default: it stays.

Network:
  --mw-client-timeout SECONDS
      A peer counts as gone after this silence of the network. Default: 30 s; for a slave, the value of its master.
  --mw-reconnect-seconds SECONDS
      For this time, an agent looks for its master when its connection has ended, and its tasks go on. 0 for not at
      all. The slaves of --mw-local end with their master. A master passes this on to the jobs of an overseer.
      Default: 300.
  --mw-resource-file-update-interval SECONDS
      How often the master rewrites the resource file. Default: 300.

Output:
  --mw-progress
      Show the progress of all tasks on standard error. On a terminal this is a line; in a log file or a pipe, lines
      at growing intervals, the first after 10 s, and one at the end.
  --mw-page [HOST:]PORT
      Show a page in a browser: what the computation does, what failed, and why nothing moves. The master prints its
      address. It needs `pip install 'mwpy-cluster[page]'`. Port 0 is any that is free. Without HOST, only this
      machine can reach it. Default: no page.
  --mw-summary
      At the end, write to standard error what was done and lost, for each task algorithm and each host.
  --mw-on-end COMMAND
      When the computation has ended, in whatever way, run this command of a shell, for at most 60 s. In it, {report}
      is the path of a report of the run database, and {summary} that of the text of --mw-summary. If the command
      fails, the exit code stays. Default: nothing is run.
  --mw-audit-file FILE
      Where the record of what happened is written; `-` is standard output. Default: the events, on standard error;
      nothing when no role is given.
  --mw-audit-level events|groups
      What the audit file shows: the events that a person wants to see, or also a line for each group of tasks.
      Default: groups.
  --mw-audit-file-max-size BYTES
      At this size the audit file is rotated, and four old files are kept. Default: 67108864.
  --mw-help
      Print the options that people need first, and exit.
  --mw-help-all
      Print all options and exit.
  --mw-version-string
      Print the version of mwpy and exit.

Others:
  --mw-slave-task-group N|auto
      How many tasks travel in one message. Default: auto.
  --mw-slave-result-group N|auto
      How many results travel in one message. Default: auto.
  --mw-max-write-buffer-size BYTES
      The largest arguments of one task; a task with larger arguments fails. The master's value is used. Default:
      1073741824.
  --mw-max-read-buffer-size BYTES
      The largest result of one task; a task with a larger result fails. The master's value is used. Default:
      1073741824.
  --mw-max-waiting-results BYTES
      While more bytes of results than this wait for the master algorithm, no more tasks are sent. Default:
      1073741824.
  --mw-slave-executable PATH
      The program that the resource file names for starting a slave. Default: this program.
  --mw-examine
      Do not run an agent. Check whether an agent could run here, for `mwpy doctor`."""
"""Each option in its group. The three options that matter most come first."""


def _text(name: str, value: str) -> str:
    if not value:
        raise UsageError(f"{name} is empty: give a text")
    return value


def _name(name: str, value: str) -> str:
    if len(_text(name, value)) > MAX_NAME:
        raise UsageError(f"{name} has {len(value)} characters: give at most {MAX_NAME}")
    return value


_COUNT = within(1, 1e6, int, "a whole number from 1 to 1,000,000")
_SECONDS = within(0, MAX_SECONDS, float, f"a number of seconds from 0 to {MAX_SECONDS:,}")

LOOPBACK = "127.0.0.1"
"""The interface that only this machine can reach."""


def _offers(name: str, value: str) -> str:
    if not value.startswith("!"):
        offers_in(name, _text(name, value))
    return value


def page_address(name: str, value: str) -> tuple[str, int]:
    """Read where a page listens: `PORT` or `HOST:PORT`. Without a host, it is the loopback interface.

    Raises:
        UsageError: the text has another form; the user's fault.
    """
    host, _, port = value.rpartition(":")
    return host or LOOPBACK, within(0, 65535, int, "a port up to 65,535, or HOST:PORT")(name, port)


def _run_offers(name: str, value: str) -> dict[str, int]:
    offers = offers_in(name, _text(name, value))
    if texts := [each for each, has in offers.items() if isinstance(has, str)]:
        raise UsageError(f"{name} has no amount for {texts[0]!r}: write such as licence=3")
    return {each: has for each, has in offers.items() if isinstance(has, int)}


_CONVERSIONS: dict[str, Callable[[str, str], Any]] = {
    "FILE": _text,
    "HOST": _text,
    "COMMAND": _text,
    "PATH": _text,
    "STRING": _name,
    "PORT": within(1, 65535, int, "a port from 1 to 65,535"),
    "page": page_address,
    "N": _COUNT,
    "N|P%": MaxFailures.of,
    "offers": _offers,
    "run-offers": _run_offers,
    "N|auto": lambda name, value: None if value == "auto" else _COUNT(name, value),
    "BYTES": within(1, 1e15, bytes_in, "a number of bytes from 1 on, such as 4000000000, 512 MB or 4 GB"),
    "SECONDS": within(0.1, 1e9, float, "a number of seconds from 0.1 to 1,000,000,000"),
    "local": within(0, MAX_SLAVES, int, f"a whole number from 0 to {MAX_SLAVES:,}"),
    "slave-processes": within(1, MAX_SLAVES, int, f"a whole number from 1 to {MAX_SLAVES:,}"),
    "after": _SECONDS,
    "reconnect-seconds": _SECONDS,
    "grace-period": _SECONDS,
}
"""How a value is read: by the name of its option, or by the form of the value. Other forms list all values."""


@frozen
class Option:
    """One option: its name without `--mw-`, the form of its value, and the help text."""

    name: str
    metavar: str
    """The form of the value; empty if the option has none."""
    sentence: str
    default: str

    @property
    def field(self) -> str:
        """The field of `Options` that this option sets."""
        return self.name.replace("-", "_")

    def convert(self, name: str, value: str) -> Any:
        """Read a value.

        Args:
            name: how the user calls it.

        Raises:
            UsageError: it has a wrong form; the caller's fault.
        """
        if (known := _CONVERSIONS.get(self.name) or _CONVERSIONS.get(self.metavar)) is not None:
            return known(name, value)
        if value not in (allowed := self.metavar.split("|")):
            raise UsageError(f"{name}={value!r}: give {' or '.join(allowed)}")
        return value


def _read_help() -> Iterator[Option]:
    for entry in HELP.split("\n  --mw-")[1:]:  # the compilation of a regular expression would take longer
        head, text = entry.partition("\n\n")[0].split("\n", 1)
        name, _, metavar = head.partition(" ")
        sentence, _, default = " ".join(text.split()).partition(" Default: ")
        yield Option(name, metavar, sentence, default.removesuffix("."))


OPTIONS = tuple(_read_help())


class Role(Enum):
    """The role of this process."""

    LOCAL = "local"
    MASTER = "master"
    SLAVE = "slave"


_FOR_ALL_AGENTS = ("offers", "slave-max-tasks", "slave-max-memory", "slave-start-timeout", "slave-start")
_FOR_OTHERS = ("idle-exit", "reconnect-seconds")
"""What only agents need that are not the master's own."""


@frozen
class Options:
    """The options of one process; `OPTIONS` has a sentence about each."""

    role: Role = Role.LOCAL
    help: bool = False
    help_all: bool = False
    version_string: bool = False
    master_host: str | None = None
    master_port: int | None = None
    max_read_buffer_size: int = 1 << 30
    max_write_buffer_size: int = 1 << 30
    client_timeout: float | None = None
    audit_file: str | None = None
    audit_level: str | None = None
    audit_file_max_size: int = 64 << 20
    resource_file: str | None = None
    resource_file_update_interval: float = 300.0
    slave_task_group: int | None = None
    slave_result_group: int | None = None
    member_id: str = DEFAULT_MEMBER_ID
    slave_executable: str | None = None
    examine: bool = False
    local: int | None = None
    slave_processes: int = 1
    key_file: str | None = None
    key: str | None = None
    reconnect_seconds: float = DEFAULT_RECONNECT_S
    grace_period: float = 5.0
    lifetime: float | None = None
    max_failures: MaxFailures | None = None
    idle_exit: float | None = None
    offers: str | None = None
    run_offers: dict[str, int] | None = None
    slave_max_tasks: int | None = None
    slave_max_memory: int | None = None
    slave_start_timeout: float = DEFAULT_START_TIMEOUT_S
    slave_start: str | None = None
    max_waiting_results: int = 1 << 30
    progress: bool = False
    page: tuple[str, int] | None = None
    """The interface and the port of the page."""
    summary: bool = False
    on_end: str | None = None
    run_database: str | None = None
    run_database_sync: str = "normal"
    rerun: str = "nothing"
    reuse_changed_code: bool = False
    run_database_notices: bool = True
    """Whether messages say what the run database has. Only `mwpy.local_master` sets it."""
    policies: Policies = Factory(Policies)
    """The policies of all tasks."""
    job_end: float | None = None
    """When the batch system ends this job, in Unix seconds."""
    job_memory: int | None = None
    """How much memory this job has, in bytes; None if this is unknown."""
    after_file: frozenset[str] = Factory(frozenset)
    """Which of master_host, master_port and member_id were given after `--mw-resource-file`. In a slave they override
    the file, as in CL-MW."""

    @classmethod
    def of(cls, **given: object) -> Options:
        """Create options from values that a caller gave in Python; None is the default.

        Raises:
            UsageError: a value is wrong; the caller's fault.
        """
        values: dict[str, Any] = {}
        for name, value in given.items():
            if value is None:
                continue
            if isinstance(getattr(_DEFAULTS, name), bool):
                if not isinstance(value, bool):
                    raise UsageError(f"{name}={value!r}: give True or False")
                values[name] = value
            else:
                text = offers_text(value) if isinstance(value, Mapping) else str(value)
                values[name] = _BY_NAME[name.replace("_", "-")].convert(name, text)
        return cls(**values)

    def seconds_left(self, wall: float) -> float | None:
        """How long this process may run from the Unix time `wall` on, by its lifetime or its job; or None.

        A process that starts after the end of its job is not in this job; see `about_past_end`.
        """
        if self.lifetime is not None:
            return self.lifetime
        return None if self.job_end is None or self.job_end <= wall else self.job_end - wall

    def about_past_end(self, wall: float) -> str:
        """A text for the user if the end of this job had passed at the Unix time `wall`; otherwise empty."""
        if self.lifetime is not None or self.job_end is None or self.job_end > wall:
            return ""
        return (
            f"{END_VARIABLE} says that this job ended {wall - self.job_end:.0f} s ago, so it is from another job, and "
            f"is ignored: unset it in the shell or script that starts this process"
        )

    def is_near_the_end(self, wall: float) -> bool:
        """Whether a signal that arrives at the Unix time `wall` announces the known end of this job."""
        return self.lifetime is None and self.job_end is not None and 0 < self.job_end - wall <= NEAR_THE_END_S

    @property
    def forks(self) -> bool:
        """Whether slaves are forked from a template, and not started as fresh interpreters."""
        return platform.system() == "Linux" and self.slave_start != "spawn"

    def for_agents(self, *, local: bool) -> list[str]:
        """Return the options that a master passes on to agents and that are not the default, as a command line.

        Args:
            local: whether the agent is the master's own. Such an agent stays when it is idle, and ends with its master.
        """
        words: list[str] = []
        for name in (*_FOR_ALL_AGENTS, *(() if local else _FOR_OTHERS)):
            value = getattr(self, _BY_NAME[name].field)
            if value != getattr(_DEFAULTS, _BY_NAME[name].field):
                words += f"--mw-{name}", str(value)
        return words

    def silence_s(self, published: float = DEFAULT_CLIENT_TIMEOUT_S) -> float:
        """Return after which silence of the network a peer is gone: the user's value, or else the master's."""
        return self.client_timeout or published


_BY_NAME = {option.name: option for option in OPTIONS}
_DEFAULTS = Options()
_DIRECTING = ("master_host", "master_port", "member_id")


def parse(argv: Sequence[str], environment: Mapping[str, str] | None = None) -> tuple[Options, list[str]]:
    """Separate the `--mw-*` options from the other arguments of a command line.

    They can stand anywhere before `--`. A slave finds its master by `--mw-resource-file`, or by `--mw-master-host`,
    `--mw-master-port` and `--mw-member-id`: the later option counts.

    Args:
        argv: the arguments, without the program's name.
        environment: for `MWPY_KEY` and `MWPY_AGENT`.

    Returns:
        The options, and the other arguments in their order.

    Raises:
        UsageError: an option is wrong; the caller's fault. The message says in one line what to write instead.
    """
    values: dict[str, Any] = {}
    after_file: dict[str, None] = {}
    rest: list[str] = []
    arguments = iter(argv)
    for argument in arguments:
        if argument == "--":
            rest.extend((argument, *arguments))
        elif not argument.startswith("--mw-"):
            rest.append(argument)
        else:
            option, value = _read(argument, arguments)
            values[option.field] = value
            if option.name == "resource-file":
                after_file.clear()
            elif option.field in _DIRECTING:
                after_file[option.field] = None
    environment = environment or {}
    if (directions := environment.get(AGENT_VARIABLE)) is not None:
        given = _directions(directions)
        kept = KEY_VARIABLE, MEMORY_VARIABLE, CPU_MEMORY_VARIABLE, CPUS_VARIABLE
        directed, _ = parse(given, {name: environment.get(name, "") for name in kept})
        return directed, rest
    return _options(values, frozenset(after_file), environment), rest


def _directions(text: str) -> list[str]:
    try:
        return json_decoder(list[str])(text)
    except UNREADABLE as error:
        raise UsageError(f"{AGENT_VARIABLE} is set, but not by a master: unset it") from error


def _read(argument: str, arguments: Any) -> tuple[Option, Any]:
    name, equals, value = argument.removeprefix("--mw-").partition("=")
    option = _BY_NAME.get(name)
    if option is None:
        close = close_to(name, _BY_NAME)
        hint = f"did you mean --mw-{close[0]}?" if close else "--mw-help-all lists the options"
        raise UsageError(f"unknown option --mw-{name}: {hint}")
    if not option.metavar:
        if equals:
            raise UsageError(f"--mw-{name} takes no value: write just --mw-{name}")
        return option, True
    if not equals:
        given = next(arguments, None)
        if given is None:
            raise UsageError(f"--mw-{name} needs a value: write --mw-{name} {option.metavar}")
        value = given
    return option, option.convert(f"--mw-{name}", value)


def _options(values: dict[str, Any], after_file: frozenset[str], environment: Mapping[str, str]) -> Options:
    master, slave = values.pop("master", False), values.pop("slave", False)
    if master and slave:
        raise UsageError("--mw-master and --mw-slave exclude each other: start two processes")
    if slave and "local" in values:
        raise UsageError("--mw-local is for masters: with --mw-slave, --mw-slave-processes N sets the number of slaves")
    if not slave and "examine" in values:
        raise UsageError("--mw-examine is for agents: write --mw-slave --mw-examine")
    role = Role.MASTER if master else Role.SLAVE if slave else Role.LOCAL
    policies: Any = {name: values.pop(name) for name in Policies.__annotations__ if name in values}
    options = Options(role=role, key=environment.get(KEY_VARIABLE), policies=policies, **values)
    end, memory = job_end(environment), job_memory(environment)
    return evolve(options, after_file=after_file, job_end=end, job_memory=memory)


def job_end(environment: Mapping[str, str]) -> float | None:
    """Return when a batch system ends this job, in Unix seconds. A text that is no number means: there is no limit."""
    text = environment.get(END_VARIABLE, "")
    return float(text) if text.isdecimal() else None


def job_memory(environment: Mapping[str, str]) -> int | None:
    """Return how much memory this job has, in bytes; None if the batch system does not say it, or says 0."""
    of_node, of_cpu, cpus = (
        _number_in(environment, name) for name in (MEMORY_VARIABLE, CPU_MEMORY_VARIABLE, CPUS_VARIABLE)
    )
    return (of_node or of_cpu * cpus) << 20 or None


def _number_in(environment: Mapping[str, str], name: str) -> int:
    """The number in a variable; 0 if it contains none."""
    text = environment.get(name, "")
    return int(text) if text.isdecimal() else 0


NEEDED_FIRST = (
    *("local", "master", "slave", "resource-file", "slave-processes"),
    *("run-database", "max-failures", "progress", "page", "summary"),
)
"""The options that `--mw-help` explains: how to start each role, and what people need in their first days."""


def help_text(program: str, *, every_option: bool) -> str:
    """Return what `--mw-help` prints, or `--mw-help-all`.

    Args:
        program: how it is called.
        every_option: whether all options are explained, or only the first clause about those that people need first.
    """
    without_role = "Without a role: run the computation on this machine, with one slave a core."
    lines = [f"usage: {program} [--mw-OPTION ...] [ARGUMENT ...]", "", without_role]
    if every_option:
        return "\n".join([*lines, "", HELP, ""])
    from textwrap import fill  # only here, because masters and slaves load this module

    for option in map(_BY_NAME.__getitem__, NEEDED_FIRST):
        head = f"  --mw-{option.name} {option.metavar}"
        clause = f"{option.sentence.partition('. ')[0].partition(';')[0].removesuffix('.')}."
        lines.append(fill(clause, 80, initial_indent=f"{head:<27}", subsequent_indent=" " * 27))
    return "\n".join([*lines, "", "--mw-help-all explains all options.", ""])
