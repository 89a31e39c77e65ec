"""What a master gives to its run database at a time."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from mwpy._values import records

__all__ = ["Given"]

RECORD_BYTES = 500
"""About how many bytes a record takes without its frames and keys."""

_WITH_FRAMES = records.ResultsReceived, records.ResultsHandedOver


class Given:
    """Records that are written together, and what follows.

    Args:
        records: in their order.
        wall: when they were stated, in seconds since 1970.
        then: called in the writer's thread when the records are in the file. It must not wait.
        calls: the encoded arguments of tasks that failed, by id, as far as they are known.
        may_wait: whether everything that is to be called later may be called a little later.
    """

    def __init__(
        self,
        records: Sequence[records.Record],
        wall: float,
        then: Callable[[], None] | None = None,
        calls: Mapping[int, bytes] | None = None,
        may_wait: bool = False,
    ) -> None:
        self.records = records
        self.wall = wall
        self.then = then
        self.calls = {} if calls is None else calls
        self.may_wait = may_wait
        self.size = self._size_of_all()
        """About how many bytes they take."""

    def _size_of_all(self) -> int:
        size = RECORD_BYTES * len(self.records)
        for record in self.records:
            if isinstance(record, _WITH_FRAMES):
                size += sum(map(len, record.frames))
        return size
