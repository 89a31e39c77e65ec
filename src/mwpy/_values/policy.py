"""Policies: how and where a task may run, how often it is tried, and when many failures stop a run."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from math import ceil, floor, inf, log10
from operator import index
from sys import float_info
from typing import Any, SupportsIndex, TypedDict, Unpack, cast

from attrs import Factory, define, frozen
from msgspec import Struct

from mwpy._values.bounds import MAX_SECONDS, SlaveId
from mwpy._values.errors import FailureKind, TaskFailed, UsageError
from mwpy._values.requires import SHORT, Requires, check_requirement, check_requires, requires_of, size_in, within
from mwpy._values.spelling import remedy_for

Condition = tuple[type[Exception], ...] | Callable[[Exception], object]
"""After which exceptions a task is tried again: types, or a predicate."""

MAX_BYTES = 10**15
"""The largest limit of memory, in bytes."""

SPARE = 1.2
"""A request is this many times the largest figure that was measured: other tasks may need more."""

MAX_COST = 1e300
MAX_PRIORITY = 10**9

SEED_BITS = 2048
"""How many bits a seed may have. Python always converts such a number to text, whatever its limit is."""

ATTEMPTS_MAX = 3
"""The default of `attempts_max`. The manual names this number."""


class Policies(TypedDict, total=False):
    """The keywords of `submit`, of the maps and of `@task_algorithm` that say how and where a task may run.

    Each keyword may be left out. A keyword of a call overrides that of `@task_algorithm`, which overrides the option
    for all tasks.

    Examples:
        >>> careful: mwpy.Policies = {"attempts_max": 2, "retry": True}
        >>> list(mw.map(square, range(3), **careful))              # doctest: +SKIP
        [0, 1, 4]
    """

    sid: SlaveId | None
    """The slave that must run the task (an ordered task); None, the default, for any slave."""
    retry: bool
    """Whether a task that was lost with its slave may run again; True by default. With False, the task runs at most
    once: if its slave is lost after the task may have started, it becomes unrunnable."""
    do_it_anyway: bool
    """Whether an ordered task may run elsewhere when its slave is gone or cannot run it; False by default."""
    seed: SupportsIndex | None
    """A whole number. `mwpy.task_seed()` in the task returns a number that depends on it and on the position of the
    task; None, the default, for no seed."""
    attempts_max: SupportsIndex
    """After so many attempts that were lost by its own fault (`mwpy.Cause`), the task is unrunnable; 3 by default."""
    seconds_max: float | None
    """How long an attempt may run, in seconds. Then the agent kills its slave, with all processes that the task
    started, and the attempt is lost by the task's own fault. None, the default, for no limit."""
    seconds_expected: float | None
    """How long an attempt takes, in seconds. A task is sent only to an agent that has this much time left. None, the
    default, if it is not known: then the mean time of the algorithm's tasks counts. It is rounded up to two digits."""
    memory_max: int | str | None
    """How much memory the slave and all processes that the task started may use together: a number of bytes, or a text
    such as "4 GB" (a KB has 1024 bytes). A task that uses more is killed as for `seconds_max`. None, the default,
    for no limit."""
    retry_errors: type[Exception] | Sequence[type[Exception]] | Callable[[Exception], bool] | None
    """After which exceptions of the task it is tried again, up to `attempts_max` attempts: a type, several types in a
    tuple or list, or a function that gets the exception and returns whether. The function runs in the slave. None, the
    default, for none. When the attempts are used up, the task has failed with its last exception."""
    after: float
    """How long the task pauses before its next attempt, in seconds, after an attempt that was lost by its own fault; 0,
    the default, for no pause. The pause doubles with each such attempt, up to an hour or to `after` if that is longer.
    """
    speculate: bool
    """Whether a second attempt of the task may run at the same time, at another agent: if slaves are idle, and the task
    has run for far longer than the other tasks of its algorithm. The first value counts, and the other attempt is
    killed. False by default, because the task may then run twice at once."""
    requires: Mapping[str, Any] | None
    """What a task requires of the agent that runs it, by name. `cpus`, `gpus`, `memory`, `disk` and any other name with
    a whole number are amounts: they are taken while the task runs. `"gnuplot": True` requires a program, `"python":
    ">=3.12"`, `"platform": "Linux-x86_64"` and `"host": "node1*"` are conditions. A call requires what its function
    requires, too, unless it names another value; None removes it. None, the default, for nothing."""
    cpus: SupportsIndex | None
    """How many processors it requires: short for `requires={"cpus": ...}`."""
    gpus: SupportsIndex | None
    """How many GPUs it requires: short for `requires={"gpus": ...}`."""
    memory: int | str | None
    """How much memory it requires: a number of bytes, or a text such as "2 GB". It is also `memory_max`, unless that is
    given. Short for `requires={"memory": ...}`."""
    wait_max: float | None
    """For how many seconds a task may wait while no agent offers what it requires. Then it is unrunnable. None, the
    default, for no limit."""
    priority: SupportsIndex
    """Tasks of a higher priority are sent first; 0 by default."""
    cost: float | None
    """How large a task is, in any unit, the same one for all tasks. Of the same priority, the largest tasks are sent
    first. None, the default, for `seconds_expected`. It is rounded up to two digits."""
    key: Any
    """With a run database: what the task is recognised by after a restart, instead of its arguments. It is a value of
    any type, or a function that gets the arguments of the task and returns one; for maps it is such a function. None,
    the default, for the arguments."""


class Limits(Struct, frozen=True, array_like=True):
    """The limits that an agent enforces while a task runs."""

    seconds: float | None = None
    """How long it may run; None for no limit."""
    memory: int | None = None
    """How many bytes of memory it may use, with its slave and all its processes; None for no limit."""
    expected: int | None = None
    """How many of these bytes it may use when its job is short of memory, after it was killed for that; None for an
    equal share."""


class TaskPolicy(Struct, frozen=True):
    """A checked policy. `Policies` explains the fields.

    `seeded` says whether the arguments contain a seed, and `retries_errors` whether they contain a condition.
    """

    sid: SlaveId | None = None
    retry: bool = True
    do_it_anyway: bool = False
    seeded: bool = False
    attempts_max: int = ATTEMPTS_MAX
    seconds_max: float | None = None
    seconds_expected: float | None = None
    memory_max: int | None = None
    retries_errors: bool = False
    after: float = 0.0
    speculate: bool = False
    requires: Requires | None = None
    priority: int = 0
    cost: float | None = None

    @property
    def limits(self) -> Limits | None:
        """The limits that agents enforce; None if there are none."""
        seconds, memory = self.seconds_max, self.memory_max
        return None if seconds is None and memory is None else Limits(seconds, memory)

    @classmethod
    def of(cls, **policy: Unpack[Policies]) -> TaskPolicy:
        """Create a policy from its keywords. Seed and `retry_errors` are not parts of it, only that there are some. A
        key is not part of it either.

        Raises:
            UsageError: a keyword is unknown, or has a wrong value; the caller's fault.
        """
        checked: dict[str, Any] = {}
        wanted = _wanted(policy)
        for name, value in policy.items():
            if name in wanted or name == "requires":
                continue
            if name == "max_failures":
                raise UsageError(
                    "max_failures is no policy of a task: give it to mw.map_results or mw.as_completed, or for all to "
                    "mwpy.open or as --mw-max-failures; other maps end at their first failure"
                )
            if name not in _CHECKS:
                remedy = remedy_for(name, value, _CHECKS) or f"the policies are {', '.join(_CHECKS)} (and tag)"
                raise UsageError(f"unknown task policy {name!r}: {remedy}")
            checked[name] = _CHECKS[name](name, value)
        checked.pop("key", None)  # it is no part of a policy either
        seeded, retries = (checked.pop(name, None) is not None for name in ("seed", "retry_errors"))
        if retries and not checked.get("retry", True):
            raise UsageError(
                "retry=False and retry_errors contradict each other: leave one of them out, or give retry_errors=None"
            )
        if checked.get("speculate") and not checked.get("retry", True):
            raise UsageError(
                "retry=False and speculate=True contradict each other, because a second attempt is another execution: "
                "leave one of them out"
            )
        requires = requires_of(wanted, checked.pop("wait_max", None))
        if requires is not None and checked.get("memory_max") is None:
            checked["memory_max"] = requires.memory
        return cls(seeded=seeded, retries_errors=retries, requires=requires, **checked)


def merged(*levels: Policies) -> Policies:
    """Return what several levels of policies say together, the widest first. Each keyword overrides that of wider
    levels, and each requirement that of the same name.

    Raises:
        UsageError: a requirement is wrong; the caller's fault.
    """
    policy: dict[str, Any] = {}
    wanted: dict[str, int | str | None] = {}
    for level in levels:
        policy |= level
        wanted |= _wanted(level)
    for name in SHORT:
        policy.pop(name, None)
    return cast(Policies, policy | {"requires": wanted} if wanted else policy)


def _wanted(policy: Mapping[str, Any]) -> dict[str, int | str | None]:
    """What a level of policies requires, checked."""
    short = {name: check_requirement(name, policy[name]) for name in SHORT if name in policy}
    return {**check_requires("requires", policy.get("requires")), **short}


def check_keywords(call: str, own: Iterable[str], further: Policies) -> None:
    """Check that the further keywords of a call are policies, and their values.

    Args:
        call: the call, for the error message.
        own: the keywords that the call has besides policies.
        further: the keywords to check.

    Raises:
        UsageError: one is no policy, and the message says which keyword may be meant, or a value is wrong; the
            caller's fault.
    """
    known = [*own, *_CHECKS]
    for name, value in further.items():
        if name not in _CHECKS:
            remedy = remedy_for(name, value, known) or f"its arguments are {', '.join(known)}"
            raise UsageError(f"{call} has no argument {name!r}: {remedy}")
    TaskPolicy.of(**further)


def check_sid(name: str, value: object) -> object:
    """Return a value that can be the id of a slave, or None.

    Raises:
        UsageError: it is no string; the caller's fault.
    """
    if value is not None and not isinstance(value, str):
        raise UsageError(f"{name}={value!r}: give the id of a slave, which is a string such as 'SLAVE-0'")
    return value


def _flag(name: str, value: object) -> bool:
    if value not in (True, False):  # a string such as "no" would count as true
        raise UsageError(f"{name}={value!r}: give True or False")
    return bool(value)


def _real(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError
    return float(value)


ABOVE_ZERO = float_info.min

check_seconds = within(ABOVE_ZERO, MAX_SECONDS, _real, "a number of seconds greater than 0, or None for no limit")
"""Returns a number of seconds that limits something, or None."""

_whole = within(-inf, inf, index, "a whole number")


def _seed(name: str, value: SupportsIndex | None) -> int | None:
    seed: int | None = None if value is None else _whole(name, value)
    if seed is not None and seed.bit_length() > SEED_BITS:  # Python would not write all of them in decimal digits
        raise UsageError(f"{name} has {seed.bit_length()} bits: give a whole number of at most {SEED_BITS} bits")
    return seed


def _rounded(check: Callable[[str, Any], Any]) -> Callable[[str, Any], Any]:
    """Round up to two digits. So tasks with almost the same number wait together."""

    def rounded(name: str, value: object) -> float | None:
        number: float | None = check(name, value)
        if not number:
            return number
        exponent = floor(log10(number)) - 1
        return float(f"{ceil(round(number / 10.0**exponent, 6))}e{exponent}")

    return rounded


def condition_in(policy: Policies) -> Condition | None:
    """Return the condition in `retry_errors`, if there is one.

    Raises:
        UsageError: it is neither types nor callable; the caller's fault.
    """
    return _condition("retry_errors", policy.get("retry_errors"))


def _condition(name: str, value: Any) -> Condition | None:
    if value is None or (callable(value) and not isinstance(value, type)):
        return value
    types = tuple(value) if isinstance(value, tuple | list) else (value,)
    if not types or not all(isinstance(each, type) and issubclass(each, Exception) for each in types):
        raise UsageError(
            f"{name}={value!r}: give a subclass of Exception, several in a tuple, or a function that gets the "
            f"exception and returns whether the task is tried again"
        )
    return types


_CHECKS: dict[str, Callable[[str, Any], Any]] = {
    "sid": check_sid,
    "retry": _flag,
    "do_it_anyway": _flag,
    "seed": _seed,
    "attempts_max": within(1, inf, index, "a whole number from 1 on"),
    "seconds_max": check_seconds,
    "seconds_expected": _rounded(check_seconds),
    "memory_max": within(1, MAX_BYTES, size_in, 'a number of bytes, or a text such as "4 GB", or None for no limit'),
    "retry_errors": _condition,
    "after": within(0, MAX_SECONDS, _real, "a number of seconds from 0 on"),
    "speculate": _flag,
    "requires": check_requires,
    **dict.fromkeys(SHORT, check_requirement),
    "wait_max": check_seconds,
    "priority": within(-MAX_PRIORITY, MAX_PRIORITY, index, f"a whole number from {-MAX_PRIORITY} to {MAX_PRIORITY}"),
    "cost": _rounded(within(0, MAX_COST, _real, "a number from 0 on, or None if it is not known")),
    "key": lambda _, value: value,
}
"""For each policy the function that checks its value."""

DEFAULT_POLICY = TaskPolicy()


# Limits for the number of failures: when a run stops, and what the failures had in common.


FailureLimit = SupportsIndex | str | None
"""How a user gives a limit: `10`, `"10"`, `"5%"`, `"10,finish"`, or None for no limit."""

LEAST_ENDED = 100
"""A percentage counts from this many ended tasks on, because a percentage of a few tasks says little. The manual names
this number."""

KINDS_KEPT = 50
"""How many kinds of failures are counted apart, because an exception class may be made for each task."""

OTHER_KINDS = "other kinds"

_FORM = r"(?P<number>\d+(\.\d+)?)\s*(?P<percent>%)?\s*(?P<finish>,\s*finish)?"  # compiled when it is used


@frozen
class MaxFailures:
    """At how many failures a run stops, and whether its running tasks may finish then."""

    number: float
    is_percentage: bool = False
    finish: bool = False

    @classmethod
    def of(cls, name: str, value: FailureLimit) -> MaxFailures | None:
        """Return the limit that a user gives: `10`, `5%`, `10,finish` or `5%,finish`; None for no limit.

        Raises:
            UsageError: it is none; the caller's fault.
        """
        if value is None:
            return None
        found = re.fullmatch(_FORM, str(value).strip(), re.ASCII)
        if found is not None:
            number, is_percentage = float(found["number"]), found["percent"] is not None
            if 0 < number <= 100 if is_percentage else number >= 1 and number.is_integer():
                return cls(number, is_percentage, found["finish"] is not None)
        raise UsageError(
            f"{name}={value!r}: give a whole number from 1 on or a percentage such as '5%', and end it with "
            f"',finish' if running tasks may finish"
        )

    def is_reached(self, failed: int, ended: int) -> bool:
        """Whether a run stops when this many of its ended tasks have failed."""
        if self.is_percentage:
            return ended >= LEAST_ENDED and 100 * failed >= self.number * ended
        return failed >= self.number

    def __str__(self) -> str:
        return f"{self.number:g}{'%' if self.is_percentage else ''}{',finish' if self.finish else ''}"


@define(eq=False, repr=False)
class FailuresByKind:
    """Counts failures by their kind, and keeps the first one of each."""

    _kinds: dict[str, FailureKind] = Factory(dict)

    def add(self, failure: TaskFailed) -> None:
        """Count a failure."""
        cause = f" ({failure.deaths[-1].cause.value})" if failure.deaths else ""  # of the last loss, if unrunnable
        kind = failure.type_name + cause
        if kind not in self._kinds and len(self._kinds) >= KINDS_KEPT:
            kind = OTHER_KINDS
        known = self._kinds.get(kind)
        count, example = (1, failure) if known is None else (known.count + 1, known.example)
        self._kinds[kind] = FailureKind(kind, count, example)

    def take(self) -> tuple[FailureKind, ...]:
        """Return the kinds, the most frequent one first, and count from zero again."""
        kinds, self._kinds = self._kinds, {}
        return tuple(sorted(kinds.values(), key=lambda kind: -kind.count))
