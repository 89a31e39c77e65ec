"""The `--mw-*` options of one process, and their parser. `option_table.py` has the table of all options.

They are the options of CL-MW, under the same names, and options of mwpy. They can be anywhere on the command line. The
algorithm gets the other arguments, in their order. The argument `--` ends the options.
"""

from __future__ import annotations

import platform
from collections.abc import Mapping, Sequence
from enum import Enum
from typing import Any

from msgspec import Struct, field
from msgspec.structs import replace

from mwpy._values.environment import (
    AGENT_VARIABLE,
    CPU_MEMORY_VARIABLE,
    CPUS_VARIABLE,
    END_VARIABLE,
    KEY_VARIABLE,
    MEMORY_VARIABLE,
    NEAR_THE_END_S,
    UNREADABLE,
)
from mwpy._values.errors import UsageError
from mwpy._values.max_failures import MaxFailures
from mwpy._values.messagepack import json_decoder
from mwpy._values.option_table import (
    DEFAULT_CLIENT_TIMEOUT_S,
    DEFAULT_MEMBER_ID,
    DEFAULT_RECONNECT_S,
    DEFAULT_START_TIMEOUT_S,
    OPTIONS,
    Option,
)
from mwpy._values.policy import Policies

__all__ = [
    "Options",
    "Role",
    "help_text",
    "job_end",
    "parse",
]


class Role(Enum):
    """The role of this process."""

    LOCAL = "local"
    MASTER = "master"
    SLAVE = "slave"


_FOR_AGENTS = ("slave-max-tasks", "slave-max-memory", "slave-start-timeout", "slave-start", "idle-exit")


class Options(Struct, frozen=True):
    """The options of one process; `OPTIONS` has a sentence about each."""

    role: Role = Role.LOCAL
    help: bool = False
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
    slave_max_tasks: int | None = None
    slave_max_memory: int | None = None
    slave_start_timeout: float = DEFAULT_START_TIMEOUT_S
    slave_start: str | None = None
    max_waiting_results: int = 1 << 30
    progress: bool = False
    summary: bool = False
    run_database: str | None = None
    run_database_sync: str = "normal"
    rerun: str = "nothing"
    reuse_changed_code: bool = False
    policies: Policies = field(default_factory=Policies)
    """The policies of all tasks."""
    job_end: float | None = None
    """When the batch system ends this job, in Unix seconds."""
    job_memory: int | None = None
    """How much memory this job has, in bytes; None if this is unknown."""
    after_file: frozenset[str] = field(default_factory=frozenset)
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
            convert = _BY_NAME[name.replace("_", "-")].convert
            if value is not None and convert is not None:
                try:
                    values[name] = convert(str(value))
                except ValueError as error:
                    raise UsageError(f"{name}={value!r}: the value {error}") from None
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
            local: whether the agent is the master's own. Such an agent stays when it is idle.
        """
        words: list[str] = []
        for name in _FOR_AGENTS[:-1] if local else _FOR_AGENTS:
            value = getattr(self, _BY_NAME[name].field)
            if value != getattr(_DEFAULTS, _BY_NAME[name].field):
                words += f"--mw-{name}", str(value)
        return words

    def silence_s(self, published: float = DEFAULT_CLIENT_TIMEOUT_S) -> float:
        """Return after which silence of the network a peer is gone: the user's value, or else the master's."""
        return self.client_timeout or published


GROUPS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("Where tasks run", ("local", "master", "slave")),
    ("How slaves find the master", ("resource-file", "master-host", "master-port", "member-id", "key-file")),
    ("Slaves", ("slave-processes", "slave-start", "slave-start-timeout", "slave-max-tasks", "slave-max-memory")),
    ("Limits of tasks", ("seconds-max", "seconds-expected", "memory-max", "attempts-max", "after", "max-failures")),
    ("Restart", ("run-database", "run-database-sync", "rerun", "reuse-changed-code")),
    ("Slow machines", ("speculate",)),
    ("Time", ("lifetime", "grace-period", "idle-exit")),
    ("Network", ("client-timeout", "reconnect-seconds", "resource-file-update-interval")),
    ("Output", ("progress", "summary", "audit-file", "audit-level", "audit-file-max-size", "help", "version-string")),
)
"""The groups of `--mw-help`, and the options in each. The three options that matter most come first. All options that
are in no group are the last group."""

_BY_NAME = {option.name: option for option in OPTIONS}
_DEFAULTS = Options()
_DIRECTING = ("master_host", "master_port", "member_id")


def parse(argv: Sequence[str], environment: Mapping[str, str] | None = None) -> tuple[Options, list[str]]:
    """Separate the `--mw-*` options from the other arguments of a command line.

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
        import difflib

        close = difflib.get_close_matches(name, _BY_NAME, 1)
        hint = f"did you mean --mw-{close[0]}?" if close else "--mw-help lists the options"
        raise UsageError(f"unknown option --mw-{name}: {hint}")
    if option.convert is None:
        if equals:
            raise UsageError(f"--mw-{name} takes no value: write just --mw-{name}")
        return option, True
    if not equals:
        given = next(arguments, None)
        if given is None:
            raise UsageError(f"--mw-{name} needs a value: write --mw-{name} {option.metavar}")
        value = given
    try:
        return option, option.convert(value)
    except ValueError as error:
        raise UsageError(f"--mw-{name} {value}: the value {error}") from None


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
    return replace(options, after_file=after_file, job_end=end, job_memory=memory)


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


def help_text(program: str) -> str:
    """Return what `--mw-help` prints."""
    lines = [
        f"usage: {program} [--mw-OPTION ...] [ARGUMENT ...]",
        "",
        "Without a role: run the computation on this machine, with one slave a core.",
        "",
    ]
    left = dict(_BY_NAME)
    for title, names in (*GROUPS, ("Others", ())):
        lines.append(f"{title}:")
        for option in [left.pop(name) for name in names] or [*left.values()]:
            head = f"--mw-{option.name} {option.metavar}".rstrip()
            default = f" Default: {option.default}." if option.default else ""
            lines.append(f"  {head}\n      {option.sentence}{default}")
        lines.append("")
    return "\n".join(lines[:-1])
