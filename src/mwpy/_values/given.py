"""What a master gives to its run database at a time."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from attrs import Factory, field, frozen

from mwpy._values import records

__all__ = ["Given"]

RECORD_BYTES = 500
"""About how many bytes a record takes without its frames and keys."""

_WITH_FRAMES = records.ResultsReceived, records.AnswersKept, records.ResultsHandedOver


@frozen(eq=False)
class Given:
    """Records that are written together, and what follows."""

    records: Sequence[records.Record]
    """In their order."""
    wall: float
    """When they were stated, in seconds since 1970."""
    then: Callable[[], None] | None = None
    """Called in the writer's thread when the records are in the file. It must not wait."""
    calls: Mapping[int, bytes] = Factory(dict)
    """The encoded arguments of tasks that failed, by id, as far as they are known."""
    may_wait: bool = False
    """Whether everything that is to be called later may be called a little later."""
    size: int = field(init=False)
    """About how many bytes they take."""

    @size.default
    def _size_of_all(self) -> int:
        size = RECORD_BYTES * len(self.records)
        for record in self.records:
            if isinstance(record, _WITH_FRAMES):
                size += sum(map(len, record.frames))
        return size
