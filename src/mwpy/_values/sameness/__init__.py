"""Sameness of code and arguments: whether a task is the same as a task of an earlier run.

Both are structural. Code counts by its normalised source and by everything of the user that it reaches; arguments count
by value. The bytes of a pickle never count, because they depend on hash seeds, on the order of insertion and on which
objects are shared.

- `structure.py` walks over values, `plain.py` and `kinds.py` know special ones.
- `normal.py` and `sources.py` know source, `names.py` what names code uses, `homes.py` where modules come from.
- `code.py` gathers what a function reaches, `graph.py` makes a digest of it, `changes.py` says what changed.
- `calls.py` has the digests of arguments.
"""

from mwpy._values.sameness.calls import (
    call_digest,
    value_digest,
)
from mwpy._values.sameness.changes import captured_changes, changes
from mwpy._values.sameness.code import Code, NotComparable, code_of

__all__ = [
    "Code",
    "NotComparable",
    "call_digest",
    "captured_changes",
    "changes",
    "code_of",
    "value_digest",
]
