"""Sameness of code and arguments: whether a task is the same as a task of an earlier run.

Both are structural. Code counts by its normalised source and by everything of the user that it reaches; arguments count
by value. The bytes of a pickle never count, because they depend on hash seeds, on the order of insertion and on which
objects are shared.

- `structure.py` walks over values, and knows those that need a rule of their own.
- `sources.py` knows the source of code, and makes it normal.
- `code.py` gathers what a function reaches, makes digests of it and of the arguments of calls, and says what changed.
"""

from mwpy._values.sameness.code import (
    Code,
    NotComparable,
    call_digest,
    captured_changes,
    changes,
    code_of,
    value_digest,
)

__all__ = [
    "Code",
    "NotComparable",
    "call_digest",
    "captured_changes",
    "changes",
    "code_of",
    "value_digest",
]
