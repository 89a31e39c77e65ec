"""The `--mw-*` options: one table for the parser, the help text and the manual.

They are the options of CL-MW, under the same names, and options of mwpy. They can be anywhere on the command line. The
algorithm gets the other arguments, in their order. The argument `--` ends the options.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from typing import Any

from attrs import evolve, field, frozen

from mwpy._values.bounds import MAX_NAME, MAX_SECONDS, MAX_SLAVES
from mwpy._values.environment import AGENT_VARIABLE, END_VARIABLE, KEY_VARIABLE
from mwpy._values.errors import UsageError
from mwpy._values.max_failures import MaxFailures
from mwpy._values.phrases import bytes_in
from mwpy._values.policy import ATTEMPTS_MAX, Policies

__all__ = [
    "DEFAULT_CLIENT_TIMEOUT_S",
    "DEFAULT_START_TIMEOUT_S",
    "OPTIONS",
    "Option",
    "Options",
    "Role",
    "help_text",
    "job_end",
    "parse",
]

DEFAULT_MEMBER_ID = "default-member-id"
DEFAULT_CLIENT_TIMEOUT_S = 30.0
DEFAULT_START_TIMEOUT_S = 300.0


class Role(Enum):
    """The role of this process."""

    LOCAL = "local"
    MASTER = "master"
    SLAVE = "slave"


_FOR_AGENTS = ("slave-max-tasks", "slave-max-memory", "slave-start-timeout", "idle-exit")


@frozen
class Options:
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
    grace_period: float = 5.0
    lifetime: float | None = None
    max_failures: MaxFailures | None = None
    idle_exit: float | None = None
    slave_max_tasks: int | None = None
    slave_max_memory: int | None = None
    slave_start_timeout: float = DEFAULT_START_TIMEOUT_S
    max_waiting_results: int = 1 << 30
    policies: Policies = field(factory=Policies)
    """The policies of all tasks."""
    job_end: float | None = None
    """When the batch system ends this job, in Unix seconds."""
    after_file: frozenset[str] = field(factory=frozenset)
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
        """How long this process may run from the Unix time `wall` on, by its lifetime or its job; or None."""
        if self.lifetime is not None:
            return self.lifetime
        return None if self.job_end is None else self.job_end - wall

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


def _text(value: str) -> str:
    if not value:
        raise ValueError("must not be empty")
    return value


def _name(value: str) -> str:
    if len(_text(value)) > MAX_NAME:
        raise ValueError(f"must have at most {MAX_NAME} characters")
    return value


def _number(least: float, most: float, unit: Callable[[str], Any]) -> Callable[[str], Any]:
    def convert(value: str) -> Any:
        try:
            number = unit(value)
        except ValueError:
            raise ValueError(f"must be a {'whole ' if unit is int else ''}number") from None
        if not least <= number <= most:
            raise ValueError(f"must be {least:g} or more and at most {most:,.0f}")
        return number

    return convert


def _amount(value: str) -> int:
    number = bytes_in(value)
    return int(_BYTES(str(number)))


def _group(value: str) -> int | None:
    return None if value == "auto" else _COUNT(value)


def _level(value: str) -> str:
    if value not in ("events", "groups"):
        raise ValueError("must be events or groups")
    return value


_COUNT = _number(1, 1e6, int)
_SLAVES = _number(1, MAX_SLAVES, int)
_BYTES = _number(1, 1e15, int)
_SECONDS = _number(0.1, 1e9, float)


@frozen
class Option:
    """One option: its name without `--mw-`, the form of its value, and the help text."""

    name: str
    metavar: str
    convert: Callable[[str], Any] | None
    sentence: str
    default: str = ""

    @property
    def field(self) -> str:
        """The field of `Options` that this option sets."""
        return self.name.replace("-", "_")


OPTIONS: tuple[Option, ...] = (
    Option("help", "", None, "Print this help and exit."),
    Option("version-string", "", None, "Print the version of mwpy and exit."),
    Option("master", "", None, "Be the master. Other processes read the resource file and start slaves."),
    Option(
        "slave", "", None, "Be an agent with slaves. It finds the master by a resource file, or by host, port and key."
    ),
    Option(
        "local",
        "N",
        _number(0, MAX_SLAVES, int),
        "Start N slaves on this machine; with --mw-master, in addition to the slaves that connect. With 0 and no role, "
        "tasks run in this process, for debugging.",
        "one a core when no role is given",
    ),
    Option("slave-processes", "N", _SLAVES, "How many slave processes one agent supervises.", "1"),
    Option(
        "resource-file",
        "FILE",
        _text,
        "Master: write this file for batch systems and slaves. Slave: read it to find the master.",
    ),
    Option(
        "resource-file-update-interval",
        "SECONDS",
        _SECONDS,
        "How often the master rewrites the resource file.",
        "300",
    ),
    Option(
        "master-host",
        "HOST",
        _text,
        "Master: the address to bind and to publish. Slave: the address to connect to.",
        "every address",
    ),
    Option(
        "master-port",
        "PORT",
        _number(1, 65535, int),
        "Master: the port to bind. Slave: the port to connect to.",
        "any free port",
    ),
    Option(
        "member-id",
        "STRING",
        _name,
        "The name of the computation; master and slaves must agree. It is not a secret.",
        DEFAULT_MEMBER_ID,
    ),
    Option(
        "key-file",
        "FILE",
        _text,
        f"A file with the key of the computation. The master makes it if it is missing. Or set {KEY_VARIABLE}.",
        "a fresh key, in the resource file",
    ),
    Option(
        "client-timeout",
        "SECONDS",
        _SECONDS,
        "A peer counts as gone after this silence of the network.",
        f"{DEFAULT_CLIENT_TIMEOUT_S:.0f} s; for a slave, the value of its master",
    ),
    Option(
        "grace-period",
        "SECONDS",
        _number(0, 1e9, float),
        "Time that running tasks get to finish after SIGTERM.",
        "5",
    ),
    Option(
        "lifetime",
        "SECONDS",
        _SECONDS,
        "An agent or a master ends within this time. An agent stops early enough for its running tasks to get the "
        "grace period, a master early enough for its algorithm to save what it has.",
        f"until {END_VARIABLE}, which a batch system may set",
    ),
    Option(
        "idle-exit",
        "SECONDS",
        _SECONDS,
        "An agent ends, with exit code 0, when its slaves had no task for this time. The slaves of --mw-local stay.",
        "it stays",
    ),
    Option(
        "slave-max-tasks",
        "N",
        _COUNT,
        "A slave process is replaced by a new one after it has run N tasks.",
        "no limit",
    ),
    Option(
        "slave-max-memory",
        "BYTES",
        _amount,
        "A slave process is replaced by a new one when it has more memory than this after a task, for example 4 GB.",
        "no limit",
    ),
    Option(
        "slave-start-timeout",
        "SECONDS",
        _SECONDS,
        "A slave that is not ready for tasks this long after its start is killed. This counts as a failed start.",
        f"{DEFAULT_START_TIMEOUT_S:.0f}",
    ),
    Option(
        "attempts-max",
        "N",
        _COUNT,
        "A task is unrunnable after N attempts that were lost by its own fault, unless its policy says otherwise.",
        str(ATTEMPTS_MAX),
    ),
    Option(
        "seconds-max",
        "SECONDS",
        _SECONDS,
        "An attempt of a task is killed after this time, unless its policy says otherwise.",
        "no limit",
    ),
    Option("memory-max", "SIZE", bytes_in, "The memory that a task may use, unless its policy differs.", "no limit"),
    Option(
        "max-failures",
        "N|P%",
        MaxFailures.read,
        "Stop the computation at the Nth failed task, or when P percent of at least 100 ended tasks failed. This kills "
        "the tasks that run; with N,finish or P%,finish they may finish.",
        "no limit",
    ),
    Option(
        "after",
        "SECONDS",
        _number(0, MAX_SECONDS, float),
        "How long a task pauses before its next attempt, after an attempt that was lost by its own fault. The pause "
        "doubles each time.",
        "0",
    ),
    Option("slave-task-group", "N|auto", _group, "How many tasks travel in one message.", "auto"),
    Option("slave-result-group", "N|auto", _group, "How many results travel in one message.", "auto"),
    Option(
        "max-write-buffer-size",
        "BYTES",
        _BYTES,
        "The largest arguments of one task; a task with larger arguments fails. The master's value is used.",
        str(1 << 30),
    ),
    Option(
        "max-read-buffer-size",
        "BYTES",
        _BYTES,
        "The largest result of one task; a task with a larger result fails. The master's value is used.",
        str(1 << 30),
    ),
    Option(
        "max-waiting-results",
        "BYTES",
        _BYTES,
        "While more bytes of results than this wait for the master algorithm, no more tasks are sent.",
        str(1 << 30),
    ),
    Option(
        "audit-file",
        "FILE",
        _text,
        "Where the record of what happened is written; `-` is standard output.",
        "the events, on standard error; nothing when no role is given",
    ),
    Option(
        "audit-level",
        "events|groups",
        _level,
        "What the audit file shows: the events that a person wants to see, or also a line for each group of tasks.",
        "groups",
    ),
    Option(
        "audit-file-max-size",
        "BYTES",
        _BYTES,
        "At this size the audit file is rotated, and four old files are kept.",
        str(64 << 20),
    ),
    Option(
        "slave-executable",
        "PATH",
        _text,
        "The program that the resource file names for starting a slave.",
        "this program",
    ),
    Option("examine", "", None, "Do not run an agent. Check whether an agent could run here, for `mwpy doctor`."),
)

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
        directed, _ = parse(given, {KEY_VARIABLE: environment.get(KEY_VARIABLE, "")})
        return directed, rest
    return _options(values, frozenset(after_file), environment), rest


def _directions(text: str) -> list[str]:
    try:
        words = json.loads(text)
    except ValueError:
        words = None
    if not isinstance(words, list) or not all(isinstance(word, str) for word in words):
        raise UsageError(f"{AGENT_VARIABLE} is set, but not by a master: unset it")
    return words


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
    return evolve(options, after_file=after_file, job_end=job_end(environment))


def job_end(environment: Mapping[str, str]) -> float | None:
    """Return when a batch system ends this job, in Unix seconds. A text that is no number means: there is no limit."""
    text = environment.get(END_VARIABLE, "")
    return float(text) if text.isdecimal() else None


def help_text(program: str) -> str:
    """Return what `--mw-help` prints."""
    lines = [
        f"usage: {program} [--mw-OPTION ...] [ARGUMENT ...]",
        "",
        "Without a role: run the computation on this machine, with one slave a core.",
        "",
    ]
    for option in OPTIONS:
        head = f"--mw-{option.name} {option.metavar}".rstrip()
        default = f" Default: {option.default}." if option.default else ""
        lines.append(f"  {head}\n      {option.sentence}{default}")
    return "\n".join(lines)
