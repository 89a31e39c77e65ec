"""What is kept of the failure of a task, so that people can search for it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from reprlib import Repr
from typing import Any

from mwpy._values.bounds import shortened
from mwpy._values.failures import Failure, read_failure
from mwpy._values.groups import each_task
from mwpy._values.ids import Buffer
from mwpy._values.messagepack import FAILURE, MALFORMED, Pickled, decode, split_list
from mwpy._values.messages import Results

__all__ = ["failure_rows"]

MESSAGE_CHARACTERS = 2000
"""The longest message of an exception that is kept, in characters. Of a longer one, the middle is left out."""

TRACEBACK_CHARACTERS = 10_000
"""The longest traceback that is kept."""

ARGUMENTS_CHARACTERS = 1000
"""The longest text with the arguments of a task that is kept."""

_shown = Repr()
_shown.maxstring = _shown.maxother = _shown.maxlong = 200
_shown.maxlist = _shown.maxtuple = _shown.maxdict = 20


def failure_rows(
    group: Results, frames: Sequence[Buffer], calls: Mapping[int, bytes]
) -> Iterator[tuple[int, int, str, str, str, str | None]]:
    """Yield the task, the attempt, the type, the message, the traceback and the arguments of each failure in a group.

    Args:
        calls: the encoded arguments of tasks, by id, as far as they are known.
    """
    raw, named = split_list(frames[0]), list(each_task(group))
    for place in group.failed:
        task, attempt = named[place]
        failure = _read(raw[place])
        message = shortened(failure.text, MESSAGE_CHARACTERS)
        traceback = shortened(failure.traceback, TRACEBACK_CHARACTERS)
        yield task, attempt, failure.type_name, message, traceback, _arguments(calls.get(task))


def _read(entry: Buffer) -> Failure:
    try:
        value = decode(entry)
        if isinstance(value, Pickled) and value.kind == FAILURE:
            return read_failure(bytes(value.pickle))
    except MALFORMED:
        pass
    return Failure("unknown", "a failure that cannot be read", "", b"")


def _arguments(call: bytes | None) -> str | None:
    """The arguments as a text; None if they are unknown, or are a pickle, which is not loaded for this."""
    if call is None:
        return None
    try:
        value: Any = decode(call)
    except MALFORMED:
        return None
    if isinstance(value, Pickled):
        return None
    return shortened(", ".join(map(_shown.repr, value)), ARGUMENTS_CHARACTERS)
