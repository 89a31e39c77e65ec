"""Phrases about numbers and lists, which several parts write in the same way."""

from __future__ import annotations

import re
from collections.abc import Iterable
from itertools import islice

__all__ = ["ASK_OWNER", "amount", "bytes_in", "counted", "first_of"]

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


def amount(count: int) -> str:
    """Return a number of bytes as a text for people."""
    size, units = float(count), ["bytes", "KiB", "MiB", "GiB", "TiB"]
    while size >= 1024 and len(units) > 1:
        size /= 1024
        del units[0]
    return f"{size:.0f} {units[0]}" if units[0] == "bytes" else f"{size:.1f} {units[0]}"


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
