"""What a task requires, what an agent offers, and what a slave is given: their forms, and how they are compared."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from fnmatch import fnmatchcase
from math import nan
from operator import eq, ge, gt, index, le, lt, ne
from typing import Annotated, Any

from msgspec import Meta, Struct, field

from mwpy._values.bounds import MAX_NAME
from mwpy._values.errors import UsageError
from mwpy._values.phrases import amount, bytes_in
from mwpy._values.spelling import close_to

CPUS, GPUS, MEMORY, DISK = "cpus", "gpus", "memory", "disk"

SHORT = CPUS, GPUS, MEMORY
"""The amounts that are keywords of their own: `cpus=4` is short for `requires={"cpus": 4}`."""

IN_BYTES = MEMORY, DISK
"""The amounts that are numbers of bytes."""

PYTHON, PLATFORM, HOST = "python", "platform", "host"
FACTS = PYTHON, PLATFORM, HOST
"""What each agent has a text for, and no amount."""

MAX_AMOUNT = 10**15
"""The largest amount of anything."""

MAX_NAMES = 100
"""How many amounts, and how many texts, an agent may offer, and a task may require."""

BYTES_DIGITS = 5
"""Numbers of bytes are rounded up to so many binary digits, which is at most 3 % more. So tasks with almost the same
requirements wait together."""

MAX_POSITIONS = 10_000
"""How many processors, or GPUs, a message names at most."""

NAME_FORM = r"[A-Za-z_][A-Za-z0-9_.+-]*"

Amount = Annotated[int, Meta(ge=0, le=MAX_AMOUNT)]
Text = Annotated[str, Meta(max_length=MAX_NAME)]
Amounts = Annotated[dict[Text, Amount], Meta(max_length=MAX_NAMES)]
Texts = Annotated[dict[Text, Text], Meta(max_length=MAX_NAMES)]


Positions = Annotated[list[Annotated[int, Meta(ge=0)]], Meta(max_length=MAX_POSITIONS)]


class Requires(Struct, frozen=True):
    """What a task requires of the agent that runs it: a checked `requires`."""

    amounts: tuple[tuple[str, int], ...] = ()
    """What is taken while it runs, by name, in alphabetical order. None is zero."""
    conditions: tuple[tuple[str, str], ...] = ()
    """What must be true of the agent, by name: a pattern, versions such as `>=3.12,<4`, or `ANYTHING`."""
    wait_s: float | None = None
    """For how long it may wait for an agent that offers it; None for no limit."""

    @property
    def memory(self) -> int | None:
        """How much memory it requires, in bytes; None if it does not say so."""
        return dict(self.amounts).get(MEMORY)

    def __str__(self) -> str:
        return ", ".join([*map(_amount_text, self.amounts), *map(_condition_text, self.conditions)])


ANYTHING = "*"
"""The condition that an agent has something, whatever it is."""


class Offers(Struct, frozen=True):
    """What an agent offers."""

    amounts: Amounts = field(default_factory=dict)
    """How much it has, by name."""
    texts: Texts = field(default_factory=dict)
    """What else it has: `python`, `platform`, `host`, and the programs that it was asked for. An empty text means that
    it was asked, and does not have it."""
    stated: Annotated[list[Text], Meta(max_length=MAX_NAMES)] = field(default_factory=list)
    """The names that its user has stated, and that it has not found itself."""
    pins: bool = False
    """Whether these are processors that it really has, so that each task can be pinned to its own."""


class Given(Struct, frozen=True, omit_defaults=True):
    """What a slave is given for the tasks that it holds."""

    amounts: Amounts = field(default_factory=dict)
    """How much of each, by name."""
    cpus: Positions = field(default_factory=list)
    """Which of the processors of its agent, counted from 0; empty if its tasks are not pinned."""
    gpus: Positions = field(default_factory=list)
    """Which of its GPUs, counted from 0."""


# What users write.


def within(least: float, most: float, read: Callable[[Any], Any], wanted: str) -> Callable[[str, Any], Any]:
    """Return what checks a named number: it returns what `read` makes of it, from `least` to `most`.

    Args:
        wanted: what the message about any other value asks for. If it names None, None is returned as it is.
    """

    def check(name: str, value: Any) -> Any:
        if value is None and "None" in wanted:
            return None
        try:
            number = read(value)
        except (TypeError, ValueError, OverflowError):
            number = nan
        if least <= number <= most:
            return number
        raise UsageError(f"{name}={value!r}: give {wanted}")

    return check


def size_in(value: Any) -> int:
    """Return a number of bytes, which may be a text such as "2 GB".

    Raises:
        TypeError, ValueError: it is none.
    """
    return bytes_in(value) if isinstance(value, str) else index(value)


_WHOLE = "a whole number from 0 on"
_POSITIONS = within(0, MAX_POSITIONS, index, _WHOLE)
_SIZE = within(0, MAX_AMOUNT, size_in, 'a number of bytes from 0 on, or a text such as "2 GB"')
_AMOUNTS = {CPUS: _POSITIONS, GPUS: _POSITIONS, MEMORY: _SIZE, DISK: _SIZE}
_AMOUNT = within(0, MAX_AMOUNT, index, _WHOLE)


def check_requires(name: str, value: object) -> dict[str, int | str | None]:
    """Return a checked `requires` as the user wrote it: amounts are numbers, conditions are texts, and None removes
    what a wider policy requires.

    Raises:
        UsageError: it is no mapping, or one of its values is wrong; the caller's fault.
    """
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise UsageError(f'{name}={value!r}: give a dictionary, such as {{"cpus": 4, "python": ">=3.12"}}')
    if len(value) > MAX_NAMES:
        raise UsageError(f"{name} has {len(value)} entries: give at most {MAX_NAMES}")
    return {_checked_name(name, each): check_requirement(each, wanted) for each, wanted in value.items()}


def _checked_name(name: str, each: object) -> str:
    if not isinstance(each, str) or len(each) > MAX_NAME or re.fullmatch(NAME_FORM, each) is None:
        raise UsageError(f"{name} has the entry {each!r}: give a name of letters and digits, such as licence")
    known = *_AMOUNTS, *FACTS
    if each not in known and (close := close_to(each, known, 0.8)):
        raise UsageError(f"{name} has the entry {each!r}: write {close[0]!r}")
    return each


def check_requirement(name: str, value: object) -> int | str | None:
    """Return a checked requirement: an amount as a number, a condition as a text, or None for nothing.

    Raises:
        UsageError: it is wrong; the caller's fault.
    """
    if value is None:
        return None
    if name in FACTS or isinstance(value, bool) or (isinstance(value, str) and name not in _AMOUNTS):
        return _condition(name, value)
    number = _AMOUNTS.get(name, _AMOUNT)(name, value)
    return _rounded_up(number) if name in IN_BYTES else int(number)


def _condition(name: str, value: object) -> str:
    if value is True and name not in FACTS:
        return ANYTHING
    example = {PYTHON: '">=3.12"', PLATFORM: '"Linux-x86_64"', HOST: '"node1*"'}
    if not isinstance(value, str) or not value.strip() or len(value) > MAX_NAME:
        raise UsageError(f"{name}={value!r}: give {example.get(name, 'True, or a text')}")
    text = value.strip()
    if text[0] in "<>=!":
        try:
            [*_comparisons(text)]
        except ValueError:
            raise UsageError(f'{name}={value!r}: give versions such as ">=3.12" or ">=3.10,<4"') from None
    return text


def _rounded_up(number: int) -> int:
    shift = max(0, number.bit_length() - BYTES_DIGITS - 1)
    return -(-number >> shift) << shift


def requires_of(wanted: Mapping[str, int | str | None], wait_s: float | None = None) -> Requires | None:
    """Return what checked requirements say together; None if they say nothing. Who requires anything takes a processor,
    unless `cpus` is 0."""
    if not any(each is not None for each in wanted.values()):
        return None
    numbers = {CPUS: 1} | {name: each for name, each in wanted.items() if isinstance(each, int)}
    amounts = tuple(sorted((name, number) for name, number in numbers.items() if number))
    conditions = tuple(sorted((name, each) for name, each in wanted.items() if isinstance(each, str)))
    return Requires(amounts, conditions, wait_s) if amounts or conditions else None


# How they are compared.


def lacking(requires: Requires, offers: Offers) -> str:
    """Why an agent can never run a task that requires this; empty if it can, or if it is not asked yet."""
    for name, wanted in requires.amounts:
        offered = offers.amounts.get(name, 0)
        if offered < wanted:
            return f"{_amount_text((name, wanted))} required, and it offers {_number_text(name, offered)}"
    for name, condition in requires.conditions:
        has = offers.texts.get(name)
        if has is not None and not is_true(condition, has):
            return f"{_condition_text((name, condition))} required, and it has {has or 'none'}"
    return ""


def num_lacking(requires: Requires, offers: Offers) -> int:
    """How many of its requirements an agent does not meet."""
    each = [Requires((amount,)) for amount in requires.amounts]
    each += [Requires((), (condition,)) for condition in requires.conditions]
    return sum(bool(lacking(one, offers)) for one in each)


def unasked(requires: Requires, offers: Offers) -> Iterator[str]:
    """Yield the names of the conditions about which an agent has said nothing."""
    return (name for name, _ in requires.conditions if name not in offers.texts and name not in offers.amounts)


def is_true(condition: str, has: str) -> bool:
    """Whether a condition is true of what an agent has; an empty text is nothing."""
    if not has:
        return False
    if condition[0] in "<>=!":
        mine = _version(has)
        return all(compare(mine, _version(other)) for compare, other in _comparisons(condition))
    return fnmatchcase(has, condition)


_COMPARE = {">=": ge, "<=": le, "==": eq, "!=": ne, ">": gt, "<": lt}


def _comparisons(text: str) -> Iterator[tuple[Any, str]]:
    for each in text.split(","):
        found = re.fullmatch(r"\s*(>=|<=|==|!=|>|<)\s*(\d+(?:\.\d+)*)\s*", each)
        if found is None:
            raise ValueError(each)
        yield _COMPARE[found[1]], found[2]


def _version(text: str) -> list[int]:
    """The numbers of a version, without zeros at the end."""
    numbers = [int(each) for each in re.findall(r"\d+", text)[:10]]
    while numbers and not numbers[-1]:
        numbers.pop()
    return numbers


def _amount_text(entry: tuple[str, int]) -> str:
    name, number = entry
    return f"{name} {_number_text(name, number)}"


def _number_text(name: str, number: int) -> str:
    return amount(number) if name in IN_BYTES else str(number)


def _condition_text(entry: tuple[str, str]) -> str:
    name, condition = entry
    if condition == ANYTHING:
        return name
    return f"{name} {condition}"


# What users and batch systems state.


def offers_text(offers: Mapping[str, Any]) -> str:
    """Return offers that a caller gave in Python in the form that `offers_in` reads."""
    return ",".join(name if has is True else f"{name}={has}" for name, has in offers.items())


def offers_in(where: str, text: str) -> dict[str, int | str]:
    """Read offers such as `cpus=8,memory=16 GB,licence=3,gnuplot`: amounts as numbers, texts, and `ANYTHING` for a
    name alone. Lines are separated like commas, so a command may print one offer a line.

    Raises:
        UsageError: an entry has a wrong form; the message begins with `where`.
    """
    found: dict[str, int | str] = {}
    for entry in re.split(r"[,\n]", text):
        name, equals, value = (part.strip() for part in entry.partition("="))
        if not name:
            continue
        _checked_name(where, name)
        has: int | str | None = value if equals else ANYTHING
        try:
            if name in _AMOUNTS or value.isdecimal():
                has = check_requirement(name, value if name in IN_BYTES else int(value))
        except (UsageError, ValueError):
            has = None
        if has is None or has == "" or name in (PYTHON, PLATFORM):
            raise UsageError(f"{where} has the entry {entry.strip()!r}: write such as cpus=8,memory=16 GB,licence=3")
        found[name] = has
    if len(found) > MAX_NAMES:
        raise UsageError(f"{where} has {len(found)} entries: state at most {MAX_NAMES}")
    return found
