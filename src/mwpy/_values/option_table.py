"""The table of the `--mw-*` options, from which the parser, the help text and the manual are made."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from msgspec import Struct

from mwpy._values.bounds import MAX_NAME, MAX_SECONDS, MAX_SLAVES
from mwpy._values.environment import END_VARIABLE, KEY_VARIABLE
from mwpy._values.max_failures import MaxFailures
from mwpy._values.phrases import bytes_in
from mwpy._values.policy import ATTEMPTS_MAX

__all__ = [
    "DEFAULT_CLIENT_TIMEOUT_S",
    "DEFAULT_MEMBER_ID",
    "DEFAULT_RECONNECT_S",
    "DEFAULT_START_TIMEOUT_S",
    "OPTIONS",
    "Option",
]

DEFAULT_MEMBER_ID = "default-member-id"
DEFAULT_CLIENT_TIMEOUT_S = 30.0
DEFAULT_START_TIMEOUT_S = 300.0
DEFAULT_RECONNECT_S = 300.0


def _text(value: str) -> str:
    if not value:
        raise ValueError("must not be empty")
    return value


def _name(value: str) -> str:
    if len(_text(value)) > MAX_NAME:
        raise ValueError(f"must have at most {MAX_NAME} characters")
    return value


_KINDS = {
    int: "a whole number",
    float: "a number",
    bytes_in: "a number of bytes, such as 4000000000, 512 MB or 4 GB",
}
"""What each conversion of a number expects."""


def _number(least: float, most: float, unit: Callable[[str], Any]) -> Callable[[str], Any]:
    def convert(value: str) -> Any:
        try:
            number = unit(value)
        except ValueError:
            raise ValueError(f"must be {_KINDS[unit]}") from None
        if not least <= number <= most:
            raise ValueError(f"must be {least:g} or more and at most {most:,.0f}")
        return number

    return convert


def _group(value: str) -> int | None:
    return None if value == "auto" else _COUNT(value)


def _one_of(*texts: str) -> Callable[[str], str]:
    def convert(value: str) -> str:
        if value not in texts:
            raise ValueError(f"must be {' or '.join(texts)}")
        return value

    return convert


_COUNT = _number(1, 1e6, int)
_SLAVES = _number(1, MAX_SLAVES, int)
_BYTES = _number(1, 1e15, bytes_in)
_SECONDS = _number(0.1, 1e9, float)


class Option(Struct, frozen=True):
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
        "reconnect-seconds",
        "SECONDS",
        _number(0, MAX_SECONDS, float),
        "For this time, an agent looks for its master when its connection has ended, and its tasks go on. 0 for not at "
        "all. The slaves of --mw-local end with their master.",
        f"{DEFAULT_RECONNECT_S:.0f}",
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
        _BYTES,
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
        "slave-start",
        "fork|spawn",
        _one_of("fork", "spawn"),
        "How slave processes start: forked from a process that has loaded the script, or as fresh interpreters.",
        "fork on Linux, spawn elsewhere",
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
    Option(
        "seconds-expected",
        "SECONDS",
        _SECONDS,
        "How long an attempt of a task takes, unless its policy says otherwise. A task is sent only to an agent that "
        "has this much time left.",
        "the mean of the algorithm's tasks",
    ),
    Option("memory-max", "BYTES", _BYTES, "The memory that a task may use, unless its policy differs.", "no limit"),
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
    Option(
        "speculate",
        "",
        None,
        "If slaves are idle, start a second attempt of a task that runs for far longer than others. The first answer "
        "counts. This holds for all tasks that may run again, unless their policy differs.",
    ),
    Option(
        "progress",
        "",
        None,
        "Show the progress of all tasks on standard error: a line on a terminal, lines at growing intervals in a log "
        "file, nothing in a pipe.",
    ),
    Option(
        "summary",
        "",
        None,
        "At the end, write to standard error what was done and lost, for each task algorithm and each host.",
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
        _one_of("events", "groups"),
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
    Option(
        "run-database",
        "FILE",
        _text,
        "Store what happens in this SQLite file. A master that is started again with the same file uses the results "
        "that are there, and computes the others.",
        "nothing is stored",
    ),
    Option(
        "run-database-sync",
        "normal|full",
        _one_of("normal", "full"),
        "How soon the run database is on the disk: within a second, or before the master algorithm gets a result. It "
        "matters when the machine loses its power.",
        "normal",
    ),
    Option(
        "rerun",
        "nothing|failed",
        _one_of("nothing", "failed"),
        "Which tasks in the run database run again: with `failed`, those that failed, those whose attempts are used "
        "up, and those with `retry=False` that may have run.",
        "nothing",
    ),
    Option(
        "reuse-changed-code",
        "",
        None,
        "Use results in the run database also if the code of their task algorithm has changed since.",
    ),
    Option("examine", "", None, "Do not run an agent. Check whether an agent could run here, for `mwpy doctor`."),
)
