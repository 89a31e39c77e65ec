"""Bounds of everything that a member controls, and the ids of tasks and slaves.

Bounds of everything that a member controls: texts, numbers, and how many of them a message has.

An agent may run anywhere, and a task may overwrite any memory of its slave. So a receiver relies on no size. The fields
of messages have the types below. Decoding compares each length with its bound before it builds the list or dict.
A message that exceeds a bound is a `ProtocolError`, and the master drops the member that sent it. Therefore mwpy itself
keeps the bounds when it sends: `shortened` cuts texts that come from user code.
"""

from __future__ import annotations

from typing import Annotated, NewType

from msgspec import Meta

MAX_NAME = 255
"""Characters of a name: of a host, a computation, a job or a package, or a version. The longest host name has 253."""

MAX_REASON = 8000
"""Characters of a reason. It may contain a traceback."""

MAX_REPORT_BYTES = 64 * 1024
"""The encoded values of one report of a task. The manual names this number."""

MAX_STREAM = 64 * 1024
"""Characters of the end of a stream of a slave."""

MAX_TASKS = 4096
"""Results in one message of a slave or agent, and spans of tasks in it. The journal of a slave has as many rows."""

MAX_PACKAGES = 1000
"""Packages in one message."""

MAX_VARIABLES = 100
"""Environment variables that a set-up may return."""

MAX_SLAVES = 10_000
"""Slaves of one agent. No machine has as many cores."""

MAX_SECONDS = 10**9
"""The longest compute time, in seconds: 30 years."""

MAX_WAITING_BYTES = 256 << 20
"""What waits for a peer, in bytes, beside its two largest messages: what it was sent and has not confirmed. A peer for
which more waits is dropped. An agent is sent no tasks while a quarter of this waits for it."""

LARGE_BYTES = 64 * 1024
"""Buffers of this size and larger travel as frames of their own, and within a host in files that processes share.
Smaller ones travel faster with the other values of their group."""

Name = Annotated[str, Meta(max_length=MAX_NAME)]
Reason = Annotated[str, Meta(max_length=MAX_REASON)]
Stream = Annotated[str, Meta(max_length=MAX_STREAM)]
Number = Annotated[int, Meta(ge=0, le=(1 << 53) - 1)]
"""A number of a slave, of an algorithm or of bytes, or a process id."""
SlaveCount = Annotated[int, Meta(ge=0, le=MAX_SLAVES)]
Seconds = Annotated[list[Annotated[float, Meta(ge=0, le=MAX_SECONDS)]], Meta(max_length=MAX_TASKS)]
TimeLeft = Annotated[float, Meta(ge=0, le=MAX_SECONDS)]
Spans = Annotated[list[int], Meta(max_length=MAX_TASKS)]
"""A column of a table of spans or results."""
Counts = Annotated[list[Annotated[int, Meta(ge=1)]], Meta(max_length=MAX_TASKS)]
"""How many tasks each span has."""
Attempts = Annotated[list[Annotated[int, Meta(ge=0, le=(1 << 31) - 1)]], Meta(max_length=MAX_TASKS)]
"""The attempt of each span; 0 in a record about tasks that were never sent. It is stored as it arrives."""
Places = Annotated[list[Annotated[int, Meta(ge=0)]], Meta(max_length=MAX_TASKS)]
"""Positions of results in their group, or how many buffers each result has."""
Environment = Annotated[dict[Name, Stream], Meta(max_length=MAX_VARIABLES)]
LostSpans = Annotated[list[tuple[int, int, int]], Meta(max_length=MAX_TASKS)]
Packages = Annotated[dict[Name, Name], Meta(max_length=MAX_PACKAGES)]


def shortened(text: str, most: int = MAX_REASON) -> str:
    """Return a text with at most `most` characters: of a longer text, the beginning and the end."""
    if len(text) <= most:
        return text
    gap = f" [... {len(text)} characters ...] "
    kept = most - len(gap)
    return text[: kept - kept // 2] + gap + text[len(text) - kept // 2 :]


# The ids of tasks and slaves, and the type of bytes that are passed on.


TaskId = NewType("TaskId", int)
"""The number of a task within one life of the master, starting at 1; never used twice."""

SlaveId = NewType("SlaveId", str)
"""The name of a slave process, such as `SLAVE-0`; never used twice within one life of the master."""

Buffer = bytes | bytearray | memoryview
"""Bytes that are passed on without being changed."""
