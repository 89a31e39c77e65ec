"""The environment variables that mwpy reads, and what a slave process is given through one of them."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct

from mwpy._values.errors import UsageError
from mwpy._values.messagepack import MALFORMED, NOT_ENCODABLE, encode_json, json_decoder

__all__ = [
    "AGENT",
    "AGENT_VARIABLE",
    "BREAKPOINT_VARIABLE",
    "CPUS_VARIABLE",
    "CPU_MEMORY_VARIABLE",
    "END_VARIABLE",
    "EXAMINED",
    "FAULT_HANDLER",
    "JOB_VARIABLE",
    "KEY_VARIABLE",
    "MASTER_VARIABLE",
    "MEMORY_VARIABLE",
    "MODULE_PATH",
    "NEAR_THE_END_S",
    "OWN_ADDRESS",
    "OWN_MODULE_PATH",
    "SCRIPT_VARIABLE",
    "SLAVE_VARIABLE",
    "UNREADABLE",
    "MasterStream",
    "SlaveSettings",
    "TemplateSettings",
    "slave_or_template",
    "thread_limits",
]

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

JOB_CPUS_VARIABLES = ("PYTHON_CPU_COUNT", CPUS_VARIABLE, "SLURM_CPUS_PER_TASK", "NCPUS", "NSLOTS")
"""Set by HTCondor, Slurm, PBS and Grid Engine to the number of processors that a job has on its machine."""


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
    share = str(max(1, min([cores, *map(int, of_job)]) // slaves))
    return {name: share for name in THREAD_VARIABLES if name not in environment} | divided


class SlaveSettings(Struct, frozen=True):
    """What an agent gives to a slave process at its start, through `SLAVE_VARIABLE`.

    Args:
        stream: the file descriptor of the slave's end of the message stream; see `SlaveFds`.
        memory: the file descriptor of the memory that slave and agent share.
        passage: the file descriptor of the slave's end of the passage for large buffers.
        slave: the slave's number within its agent.
        agent_pid: the agent's process id. A slave whose parent has another id has lost its agent.
        result_group: how many results the slave sends in one message; 0 lets the slave choose.
        max_result_bytes: the largest result that the master accepts.
        max_memory_bytes: how much memory the slave may have between two tasks; 0 if there is no limit.
        folder: its folder for temporary files; empty if it has none of its own.
    """

    stream: int
    memory: int
    passage: int
    slave: int
    agent_pid: int
    result_group: int = 0
    max_result_bytes: int = 1 << 30
    max_memory_bytes: int = 0
    folder: str = ""

    def to_json(self) -> str:
        """Return the settings as text for the environment."""
        return encode_json(self).decode()

    @classmethod
    def from_json(cls, text: str) -> SlaveSettings:
        """Read what `to_json` wrote.

        Raises:
            UsageError: the text does not have this form; probably a person set the variable.
        """
        try:
            return json_decoder(cls)(text)
        except UNREADABLE as error:
            raise UsageError(f"{SLAVE_VARIABLE} is set, but not by an agent ({error}): unset it") from error


class TemplateSettings(Struct, frozen=True):
    """What an agent gives to a template, through `SLAVE_VARIABLE`. The template forks slaves.

    Args:
        orders: the file descriptor of a socket, from which the template reads what to fork.
        agent_pid: the agent's process id.
    """

    orders: int
    agent_pid: int

    def to_json(self) -> str:
        """Return the settings as text for the environment."""
        return encode_json(self).decode()


class MasterStream(Struct, frozen=True):
    """What a master gives to an agent that it starts on its own machine, through `MASTER_VARIABLE`.

    Args:
        stream: the file descriptor of the agent's end of the message stream.
        passage: the file descriptor of the agent's end of the passage for large buffers.
        master_pid: the master's process id.
    """

    stream: int
    passage: int
    master_pid: int

    def numbers(self) -> tuple[int, int]:
        """Return the descriptors, for the call that starts the agent."""
        return self.stream, self.passage

    def to_json(self) -> str:
        """Return the settings as text for the environment."""
        return encode_json(self).decode()

    @classmethod
    def from_json(cls, text: str) -> MasterStream:
        """Read what `to_json` wrote.

        Raises:
            UsageError: the text does not have this form; probably a person set the variable.
        """
        try:
            return json_decoder(cls)(text)
        except UNREADABLE as error:
            raise UsageError(f"{MASTER_VARIABLE} is set, but not by a master ({error}): unset it") from error


def slave_or_template(text: str) -> SlaveSettings | TemplateSettings:
    """Read the value of `SLAVE_VARIABLE`.

    Raises:
        UsageError: the text is not such a value; probably a person set the variable.
    """
    try:
        return json_decoder(TemplateSettings)(text)
    except UNREADABLE:
        return SlaveSettings.from_json(text)
