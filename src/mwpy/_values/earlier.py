"""What former generations of a computation left in its run database, and the records on their way into it.

The entries come in the order in which the generations stored their records: an algorithm before its tasks, tasks in the
order of their submission, and what happened to a task after it. A generation is named by its number: 1 for the first.

A million of tasks must be read within seconds. So an entry stands for many tasks, and the parts of it that differ from
task to task are packed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from attrs import Factory, define
from msgspec import Struct

from mwpy._values import records
from mwpy._values.bounds import SlaveId
from mwpy._values.messages import Results

KEY_BYTES = 16
"""The size of the key of a task. Tasks of the same algorithm and code with the same key are equal calls."""


def each_key(keys: bytes) -> Iterator[bytes]:
    """Divide keys that are one after the other."""
    return (keys[at : at + KEY_BYTES] for at in range(0, len(keys), KEY_BYTES))


class EarlierAlgorithm(Struct, frozen=True):
    """A task algorithm of a former generation got its number there."""

    generation: int
    number: int
    name: str
    code: str
    """The structural digest of its code; empty if the code has none."""
    parts: dict[str, str]
    """What the code consists of, and the digest of each part, so that a change can be named."""


class EarlierTasks(Struct, frozen=True):
    """A former generation got tasks with consecutive ids. It may have answered some of them from the file."""

    generation: int
    first: int
    count: int
    algorithm: int
    """The number of their algorithm in that generation."""
    keys: bytes
    """The key of each task, one after the other."""
    reused: bool = False
    """Whether it has answered them at once from the file."""


class EarlierAnswers(Struct, frozen=True):
    """Results of tasks of a former generation are in a row of the file."""

    generation: int
    row: int
    """Names the results in the file."""
    sid: SlaveId
    host: str
    """The machine of the slave; empty if it is unknown."""
    wall: float
    """When the results arrived, in seconds since 1970."""
    results: Results
    """The tasks, their attempts and compute times, and which of them failed. The values stay in the file."""


class EarlierSent(Struct, frozen=True):
    """Tasks that must not run again left a former generation, or came back to it, or used up their attempts."""

    generation: int
    first: int
    count: int
    barred: str | None
    """Why they became unrunnable, if they lost by their own fault all attempts that their policy allows. Empty if they
    were sent to a slave; None if they came back from it and had not started."""


class FormerAgent(Struct, frozen=True):
    """An agent of a former generation."""

    generation: int
    host: str
    pid: int
    returns_s: float
    """For how long it looks for the next generation, in seconds."""
    has_ended: bool
    """Whether the master of that generation has seen its end."""


Earlier = EarlierAlgorithm | EarlierTasks | EarlierAnswers | EarlierSent
"""An entry of the stream."""


# What a master gives to its run database at a time.


RECORD_BYTES = 500
"""About how many bytes a record takes without its frames and keys."""

_WITH_FRAMES = records.ResultsReceived, records.ResultsHandedOver


@define(eq=False, repr=False)
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

    size: int = 0
    """About how many bytes they take. It is found out here."""

    def __attrs_post_init__(self) -> None:
        framed = (record for record in self.records if isinstance(record, _WITH_FRAMES))
        self.size = RECORD_BYTES * len(self.records) + sum(len(frame) for record in framed for frame in record.frames)
