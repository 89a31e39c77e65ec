"""Phrases and figures of messages, what makes a file stale, and how sources are parsed."""

from __future__ import annotations

import ast
import gc
import re
import threading
import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import islice

MAX_TEXT = 64 * 1024
"""How many characters are kept of an error's text (its beginning) and of its traceback (its end)."""

GAP = ".."
"""What replaces the middle of a text that is too long for its column."""

LEAST_NAME = 5
"""A name in a table has room for at least this many characters."""

NAMED = 5
"""How many members of a long list are named."""


ASK_OWNER = "run this as the user who owns the file, or ask that user for the right to read it"
"""What to do about a file that this user may not read."""


def counted(count: int, noun: str) -> str:
    """Return a number and its noun: `1 job`, `2 jobs`."""
    return f"{count} {noun}{'' if count == 1 else 's'}"


def first_of(names: Iterable[str], count: int) -> str:
    """Return the names of `count` things; of a long list, the first few and how many more there are."""
    more = f" and {count - NAMED} more" if count > NAMED else ""
    return ", ".join(islice(names, NAMED)) + more


def squeezed(text: str, most: int) -> str:
    """Return a text with at most `most` characters: of a longer one, the beginning and the end."""
    if len(text) <= most:
        return text
    kept = max(0, most - len(GAP))
    return f"{text[: kept - kept // 2]}{GAP[:most]}{text[len(text) - kept // 2 :]}"


def laid_out(rows: Sequence[Sequence[str]], names: int, width: int | None) -> Iterator[str]:
    """Yield the lines of a table, which are at most so long if there is room for all numbers.

    Args:
        rows: the texts of each row; the first row has the heads.
        names: how many columns have names. They are on the left, and the longest ones are shortened in the middle.
        width: how many characters a line has; None for any number.
    """
    sizes = [max(map(len, column)) for column in zip(*rows, strict=True)]
    while width is not None and sum(sizes) + 2 * len(sizes) - 2 > width and max(sizes[:names]) > LEAST_NAME:
        sizes[sizes.index(max(sizes[:names]))] -= 1
    for row in rows:
        texts = [f"{squeezed(text, size):<{size}}" for text, size in zip(row[:names], sizes, strict=False)]
        texts += [f"{text:>{size}}" for text, size in zip(row[names:], sizes[names:], strict=True)]
        yield "  ".join(texts)


def amount(count: int) -> str:
    """Return a number of bytes as a text for people."""
    size, units = float(count), ["bytes", "KiB", "MiB", "GiB", "TiB"]
    while size >= 1024 and len(units) > 1:
        size /= 1024
        del units[0]
    return f"{size:.0f} {units[0]}" if units[0] == "bytes" else f"{size:.1f} {units[0]}"


def duration(seconds: float | None) -> str:
    """Return a time as a text for people: `35 ms`, `12.5 s`, `5 min 20 s`, `17 min`, `2 h 05 min` or `3 days 4 h`.

    Args:
        seconds: round it for a text that needs no parts of a second. None is a time that is not known.
    """
    if seconds is None:
        return "-"
    if seconds <= 0:
        return "0 s"
    for unit, size in (("µs", 1e-6), ("ms", 1e-3)):
        if seconds < 999.5 * size:
            return f"{seconds / size:.3g} {unit}"
    if seconds < 119.5:
        return f"{seconds:.3g} s"
    if seconds < 599.5:
        minutes, rest = divmod(round(seconds), 60)
        return f"{minutes} min {rest:02} s" if rest else f"{minutes} min"
    minutes, hours = round(seconds / 60), round(seconds / 3600)
    if hours >= 240:
        return f"{round(seconds / 86400)} days"
    if hours >= 48:
        return "{} days {} h".format(*divmod(hours, 24))
    return "{} h {:02} min".format(*divmod(minutes, 60)) if minutes >= 60 else f"{minutes} min"


def text_of(error: BaseException) -> str:
    """Return the text of an exception."""
    try:
        return str(error)[:MAX_TEXT]
    except KeyboardInterrupt:  # by Ctrl-C
        raise
    except BaseException as second:
        return f"(its text is not available: __str__ raised {type(second).__qualname__})"


_AMOUNT = r"(\d+(?:\.\d+)?) ?(?:([KMGT])i?B?|B|bytes)?"  # compiled when it is used, because few processes use it


def bytes_in(text: str) -> int:
    """Return the number of bytes that a text such as `4000000000`, `512 MB` or `4 GB` names. A KB has 1024 bytes.

    Raises:
        ValueError: the text does not name a number of bytes.
    """
    found = re.fullmatch(_AMOUNT, text.strip(), re.IGNORECASE)
    if found is None:
        raise ValueError("must be a number of bytes, such as 4000000000, 512 MB or 4 GB")
    number, unit = found.groups()
    return int(float(number) * 1024 ** " KMGT".index((unit or " ").upper()))


def text_of_other_values(name: str, variables: str) -> str:
    """Say that slaves do not have the master's values of variables that a function uses.

    Args:
        name: the function.
        variables: their names, with commas.
    """
    values, them = ("other values", "them") if "," in variables else ("another value", "it")
    return (
        f"{name} uses {variables}, and slaves have {values} of {them} than the master: each process loads the script "
        f"and its modules itself, and later changes of the master do not count. If tasks need what the master has, "
        f"pass it as an argument"
    )


# When a resource file counts as stale. Readers, overseers and the doctor share this one rule.


STALE_INTERVALS = 3
"""A file that missed this many updates was left by a master that is dead or stuck."""


def is_stale(age_s: float, interval_s: float) -> bool:
    """Whether a file of this age is stale, if its master should write it once per interval."""
    return age_s > STALE_INTERVALS * interval_s


# How Python sources are parsed while other threads parse, too.


_COMPILING = threading.RLock()


@contextmanager
def compiling() -> Iterator[None]:
    """Compile without warnings, which the source gave when it was loaded, and without garbage collection.

    Python 3.11 counts the depth of all syntax trees in one place. A finalizer that runs while a tree is built lets
    other threads run. If one of them builds a tree, too, Python raises SystemError, "AST constructor recursion depth
    mismatch" (python/cpython issue 106905). Without garbage collection no finalizer runs. The filters of warnings and
    the collector belong to the process, therefore only one thread at a time changes them.
    """
    with _COMPILING, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        collects = gc.isenabled()
        gc.disable()
        try:
            yield
        finally:
            if collects:
                gc.enable()


def parsed(source: str | bytes, name: str = "<unknown>") -> ast.Module:
    """Parse a source.

    Raises:
        SyntaxError, ValueError, RecursionError: it cannot be parsed.
    """
    with compiling():
        return ast.parse(source, name)


def literals_in(tree: ast.Module) -> Iterator[tuple[str, object]]:
    """Yield the variables to which a module assigns a literal, with its value."""
    for each in tree.body:
        if isinstance(each, ast.Assign | ast.AnnAssign) and each.value is not None:
            targets = each.targets if isinstance(each, ast.Assign) else [each.target]
            with suppress(ValueError):
                literal = ast.literal_eval(each.value)
                yield from ((target.id, literal) for target in targets if isinstance(target, ast.Name))
