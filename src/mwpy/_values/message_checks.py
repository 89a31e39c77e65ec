"""Whether a message and its payload frames fit together."""

from __future__ import annotations

from collections.abc import Sequence
from math import isfinite

from mwpy._values.bounds import MAX_REPORT_BYTES, MAX_TASKS
from mwpy._values.errors import ProtocolError
from mwpy._values.ids import Buffer
from mwpy._values.messages import (
    AlgorithmFailed,
    Algorithms,
    Cancel,
    Checkpoint,
    Handover,
    Message,
    NotStarted,
    Reported,
    Results,
    Revoked,
    StillRunning,
    Tasks,
)
from mwpy._values.share_messages import SharePart

__all__ = ["check"]

MAX_ATTEMPT = (1 << 31) - 1
"""The number of an attempt is at most this. It is stored as it arrives."""


def check(message: Message, frames: Sequence[Buffer]) -> None:
    """Check that a message and its payload frames fit together.

    Raises:
        ProtocolError: they do not; the sender's fault.
    """
    match message:
        case Tasks():
            count = _num_tasks(message)
            spans = len(message.tasks)
            fits = len(message.algorithms) == spans and {len(message.limits), len(message.portions)} <= {0, spans}
            _check_group(message, frames, count, fits)
        case Results():
            _check_results(message, frames)
        case Handover():
            _check_results(message.results, frames)
            attempts = message.results.attempts
            if not all(0 < attempt <= MAX_ATTEMPT for attempt in attempts):
                raise ProtocolError("Handover: an attempt that no task can have")
        case Revoked() | AlgorithmFailed():
            _num_tasks(message)
            _no_frames(message, len(frames))
        case Cancel() | StillRunning() | NotStarted():
            _check_ranges(message)
            if isinstance(message, StillRunning) and sum(message.counts) > MAX_TASKS:
                raise ProtocolError("StillRunning: more tasks than a slave can have started")
            _no_frames(message, len(frames))
        case Checkpoint():
            if not frames:
                raise ProtocolError("Checkpoint: no payload frame")
        case Reported():
            if len(frames) != 1 or len(frames[0]) > MAX_REPORT_BYTES:
                sizes = ", ".join(str(len(frame)) for frame in frames[:3])
                raise ProtocolError(
                    f"Reported: {len(frames)} payload frames ({sizes} bytes), but a small one is expected"
                )
        case SharePart():
            if len(frames) != 1:
                raise ProtocolError(f"SharePart: {len(frames)} payload frames, but one is expected")
        case Algorithms():
            by_value = sum(not definition.reference for definition in message.definitions)
            if len(frames) != by_value:
                raise ProtocolError(f"Algorithms: {by_value} travel by value, but it has {len(frames)} payload frames")
        case _:
            _no_frames(message, len(frames))


def _check_results(message: Results, frames: Sequence[Buffer]) -> None:
    count = _num_tasks(message)
    _check_group(message, frames, count, len(message.seconds) in (count, min(count, 1)))
    if message.failed:
        _check_places("Results: `failed`", message.failed, count)
    if message.again and message.again != sorted({*message.again} & {*message.failed}):
        raise ProtocolError("Results: `again` names positions that are not failures")
    if message.plain and (message.failed or message.buffers):
        raise ProtocolError("Results: plain values among which are failures or large buffers")
    if count and not (min(message.seconds) >= 0 and isfinite(sum(message.seconds))):
        raise ProtocolError("Results: a compute time is negative or no number")


def _num_tasks(group: Tasks | Results | Revoked | AlgorithmFailed) -> int:
    """Count the tasks of the spans."""
    if not len(group.tasks) == len(group.counts) == len(group.attempts):
        raise ProtocolError(f"{type(group).__name__}: its lists are of different lengths")
    if group.counts and min(group.counts) < 1:
        raise ProtocolError(f"{type(group).__name__}: a span without tasks")
    return sum(group.counts)


def _check_ranges(message: Cancel | StillRunning | NotStarted) -> None:
    ends = [1, *map(sum, zip(message.tasks, message.counts, strict=False))]
    fits = len(message.tasks) == len(message.counts) and min(message.counts, default=1) >= 1
    if not fits or any(first < end for first, end in zip(message.tasks, ends, strict=False)):
        raise ProtocolError(f"{type(message).__name__}: its ranges are empty, without counts or not in ascending order")


def _check_group(group: Tasks | Results, frames: Sequence[Buffer], count: int, fits: bool) -> None:
    buffers = group.buffers
    if not fits or len(buffers) not in (0, count):
        raise ProtocolError(f"{type(group).__name__}: its lists are of different lengths")
    if len(frames) != 1 + sum(buffers) or (buffers and min(buffers) < 0):
        raise ProtocolError(f"{type(group).__name__}: {len(frames)} payload frames do not match its lists")


def _check_places(what: str, places: Sequence[int], count: int) -> None:
    if places != sorted(set(places)) or not 0 <= places[0] <= places[-1] < count:
        raise ProtocolError(f"{what} names positions that the group does not have")


def _no_frames(message: Message, count: int) -> None:
    if count:
        raise ProtocolError(f"{type(message).__name__}: {count} payload frames, but none are expected")
