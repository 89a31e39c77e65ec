"""The message about records of `logging`. `messages.py` describes messages in general.

A record is formatted in the slave, so it travels as texts and numbers, and a receiver builds no objects of the sender.
"""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

from mwpy._values.bounds import Name, Number, Reason

__all__ = ["MAX_LEVEL", "MAX_PATH", "MAX_ROWS", "ROW_BYTES", "LogRow", "Logged", "size_of"]

MAX_ROWS = 1000
"""Records in one message."""

MAX_LEVEL = 1000
"""The highest level of a record. The levels of Python end at 50, and a user may define others."""

MAX_PATH = 1000
"""Characters of the path of a source file."""

MAX_CREATED = 10**11
"""The latest time of a record, in seconds since 1970."""

ROW_BYTES = 500
"""About how many bytes a record takes without its texts."""


class LogRow(Struct, frozen=True, array_like=True):
    """A record of `logging`."""

    task: Number
    """The task that ran; 0 if none did."""
    algorithm: Name
    """The name of its algorithm."""
    created: Annotated[float, Meta(ge=0, le=MAX_CREATED)]
    """When, by the clock of the slave, in seconds since 1970."""
    level: Annotated[int, Meta(ge=0, le=MAX_LEVEL)]
    logger: Name
    text: Reason
    path: Annotated[str, Meta(max_length=MAX_PATH)]
    line: Number
    function: Name
    trace: Reason
    """The traceback of an exception, and the stack, as texts; usually empty."""


class Logged(Struct, frozen=True):
    """Slave to agent to master: what the tasks of a slave have logged. It comes before their results."""

    slave: Number
    rows: Annotated[list[LogRow], Meta(max_length=MAX_ROWS)]
    left_out: Number = 0
    """How many records were left out since the last message, because there were too many."""


def size_of(row: LogRow) -> int:
    """About how many bytes a record takes; at least those of its texts in a message."""
    texts = row.algorithm, row.logger, row.text, row.path, row.function, row.trace
    return ROW_BYTES + sum(len(text) if text.isascii() else len(text.encode()) for text in texts)
