"""Records of a small computation, for tests of the run database."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from mwpy._database.store import Writer
from mwpy._values import records
from mwpy._values.bounds import SlaveId, TaskId
from mwpy._values.causes import Cause
from mwpy._values.earlier import EarlierAnswers, Given
from mwpy._values.groups import payload, spans_of
from mwpy._values.last_words import NO_WORDS
from mwpy._values.messagepack import FAILURE, as_extension, encode
from mwpy._values.messages import AlgorithmDefinition, Results
from mwpy._values.policy import DEFAULT_POLICY, TaskPolicy
from mwpy._values.records import Charge, Record, SubmittedTasks, TaskRange
from mwpy._values.task import Failure, SlaveKind

SLAVE = SlaveId("SLAVE-0")
NOON = 1_800_000_000.0
"""A time of a record, in seconds since 1970."""


def algorithm(number: int = 1, name: str = "square", code: str = "c0de") -> Record:
    """A task algorithm gets its number."""
    made = AlgorithmDefinition(number, name, f"script:{name}", "d1ge57", "3.11")
    return records.AlgorithmDefined(made, b"", code, {name: code})


def slave(sid: str = "SLAVE-0", agent: str = "AGENT-0", host: str = "node1") -> list[Record]:
    """An agent and its slave connect."""
    return [
        records.AgentConnected(agent, "tcp://10.0.0.1:1", host, 4711, job="17.0", slaves=1, python="3.11"),
        records.SlaveConnected(SlaveId(sid), agent, "tcp://10.0.0.1:1", SlaveKind.UNORDERED),
    ]


def keys(first: int, count: int) -> bytes:
    """The keys of tasks."""
    return b"".join(number.to_bytes(16, "big") for number in range(first, first + count))


def submitted(first: int, count: int, number: int = 1, policy: TaskPolicy = DEFAULT_POLICY) -> Record:
    """Tasks are submitted."""
    calls = [encode((each,)) for each in range(first, first + count)]
    return records.TasksSubmitted(
        [SubmittedTasks(TaskId(first), count, number, policy, calls, (), keys=keys(first, count))]
    )


def named(first: int, count: int = 1, attempt: int = 1) -> TaskRange:
    """How a record names tasks."""
    return TaskRange(first, count, attempt, 1, "square")


def allocated(*tasks: TaskRange, sid: str = "SLAVE-0") -> Record:
    """Tasks are sent to a slave."""
    return records.TasksAllocated(SlaveId(sid), tasks)


def received(
    values: dict[int, Any], *, attempt: int = 1, sid: str = "SLAVE-0", seconds: Sequence[float] | None = None
) -> records.ResultsReceived:
    """Results arrive: the value of each task, which may be a `ValueError`."""
    first_ids, counts, attempts = spans_of([*values], [attempt] * len(values))
    entries = [encode(_failure(value) if isinstance(value, ValueError) else value) for value in values.values()]
    failed = [place for place, value in enumerate(values.values()) if isinstance(value, ValueError)]
    times = [0.5] * len(values) if seconds is None else list(seconds)
    results = Results(0, first_ids, counts, attempts, times, failed, plain=not failed)
    return records.ResultsReceived(SlaveId(sid), results, [payload(len(values), entries)])


def brought(values: dict[int, Any], *, attempt: int = 2) -> records.ResultsHandedOver:
    """An agent brings results of the first generation."""
    record = received(values, attempt=attempt)
    return records.ResultsHandedOver("AGENT-0", "node1", 1, SLAVE, record.results, record.frames)


def _failure(error: ValueError) -> object:
    return as_extension(FAILURE, encode(Failure("ValueError", str(error), "Traceback ...", b"")))


def died(cause: Cause = Cause.CRASH, *, tasks: Sequence[TaskRange], sid: str = "SLAVE-0") -> list[Record]:
    """A slave dies, and its tasks are pending again."""
    reason = "signal 11"
    return [
        records.SlaveEnded(SlaveId(sid), cause, reason, str(tasks[0]), NO_WORDS),
        records.TasksReturned(SlaveId(sid), tasks, reason, (Charge(SlaveId(sid), cause, reason, lost_s=70.0),)),
    ]


class Failures(list[str]):
    """The messages of a writer that cannot write any more."""

    def __init__(self) -> None:
        super().__init__()
        self.happened = threading.Event()

    def __call__(self, text: str) -> None:
        self.append(text)
        self.happened.set()


def opened(path: Path, *, on_failure: Failures | None = None, **options: Any) -> Writer:
    """Open a run database for writing."""
    writer = Writer.open(path, member_id="squares", **options)
    writer.follow(Failures() if on_failure is None else on_failure, lambda record, row: None)
    writer.start()
    writer.begin()
    return writer


def write(writer: Writer, *happened: Record, at: float = NOON, calls: dict[int, bytes] | None = None) -> None:
    """Write records, and wait until they are in the file."""
    done = threading.Event()
    writer.write(Given(happened, at, done.set, calls or {}))
    assert done.wait(30)


def run(path: Path, *happened: Record, at: float = NOON) -> None:
    """Write one generation."""
    with closing(opened(path)) as writer:
        write(writer, *happened, at=at)


def answers(path: Path) -> list[EarlierAnswers]:
    """What a restart would be answered."""
    with closing(opened(path)) as writer:
        return [each for each in writer.stored.earlier() if isinstance(each, EarlierAnswers)]


def sample(path: Path) -> None:
    """Write a computation of two slaves with each kind of end."""
    two, cause = "SLAVE-1", Cause.CRASH
    writer = opened(path)
    write(writer, records.Started("MASTER", "squares", "READY"), algorithm(), *slave(), *slave(two, "AGENT-1", "node2"))
    write(writer, submitted(1, 12), allocated(named(1, 4)), allocated(named(5, 4), sid=two))
    write(writer, received({1: 1, 2: 4}, seconds=[0.25, 2.5]), at=NOON + 10)
    wrong = {5: ValueError("no square of this")}
    write(writer, received(wrong, sid=two, seconds=[1.0]), at=NOON + 20, calls={5: encode((5, "cm"))})
    write(writer, *died(cause, tasks=[named(6, 3)], sid=two), records.Notice("SLAVE-1 died"), at=NOON + 90)
    again = allocated(named(6, 3, 2)), received({6: 36}, attempt=2, seconds=[1.0])
    write(writer, received({3: 9, 4: 16}, seconds=[1.0] * 2), *again, at=NOON + 100)
    cancelled = records.TasksCancelled(None, [named(9)], "before it was sent")
    given_up = records.TasksGivenUp(SLAVE, False, [named(10)], "its slave is gone")
    write(writer, cancelled, given_up, records.Ended("SHUTDOWN", "squares"), at=NOON + 110)
    writer.close()
