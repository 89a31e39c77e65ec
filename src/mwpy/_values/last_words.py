"""The last output of a slave: the end of its standard output and error, a crash report, and its peak memory.

The agent keeps `LAST_WORDS_BYTES` of each stream, and a message with more is malformed. All of it is written to the
audit file. `WHOLE_KEPT` in `_core/master/tasks.py` limits what the histories of all tasks keep in memory.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from mwpy._values.bounds import MAX_STREAM, Number, SlaveId, Stream
from mwpy._values.causes import Cause
from mwpy._values.phrases import amount

LAST_WORDS_BYTES = MAX_STREAM
"""How much of the end of each stream of a slave is kept."""

LINES_SHOWN = 20
"""How many lines of each stream are shown, unless all lines are requested."""

HEADLINE_CHARACTERS = 200


class LastWords(Struct, frozen=True):
    """The last output of one slave; each text is the end of a stream."""

    stdout: Stream = ""
    stderr: Stream = ""
    fault: Stream = ""
    """The traceback of a crash in native code, from Python's fault handler; most recent call first."""
    peak_bytes: Number = 0
    """Peak resident memory of the slave, or of a program that it ran and waited for; 0 if unknown."""

    @property
    def streams(self) -> list[tuple[str, str]]:
        """The name and text of each stream that is not empty, in the order in which they are shown."""
        named = [("fault", self.fault), ("stderr", self.stderr), ("stdout", self.stdout)]
        return [(name, text) for name, text in named if text]

    @property
    def size(self) -> int:
        """The number of characters of all texts."""
        return len(self.stdout) + len(self.stderr) + len(self.fault)

    @property
    def headline(self) -> str:
        """The most useful line: the first line of the crash report, or else the last line of standard error."""
        line = (self.fault.strip().splitlines() or self.stderr.strip().splitlines()[-1:] or [""])[0]
        return line[:HEADLINE_CHARACTERS]

    def cut(self, most: int) -> LastWords:
        """Return the last words with at most `most` characters of the end of each text."""
        return LastWords(self.stdout[-most:], self.stderr[-most:], self.fault[-most:], self.peak_bytes)

    def shown(self, lines: int | None = LINES_SHOWN) -> str:
        """Return a text for people: each stream under its name, with at most `lines` lines of its end."""
        shown: list[str] = []
        for name, text in self.streams:
            split = text.splitlines(keepends=True)
            left_out = 0 if lines is None else max(0, len(split) - lines)
            which = f", the last {lines} of {len(split)} lines" if left_out else ""
            shown.append(f"{name}{which}:\n{''.join(split[left_out:])}".removesuffix("\n"))
        return "\n".join(shown)


NO_WORDS = LastWords()
"""The last words of a slave about which nothing is known."""


class Death(Struct):
    """The loss of an attempt of a task: one entry of the task's history."""

    sid: SlaveId
    attempt: int
    cause: Cause
    reason: str
    """What happened, in words."""
    words: LastWords = NO_WORDS
    """Its last words. If many deaths followed, only the ends of the texts are kept."""
    more_memory: int = 0
    """If its job was short of memory because of other tasks, too: how many bytes the next attempt may use then. The
    task is not charged. Otherwise 0."""

    @property
    def is_charged(self) -> bool:
        """Whether the task is charged with it, so that it counts for `attempts_max`."""
        return self.cause.is_charged and not self.more_memory

    @property
    def is_blameless(self) -> bool:
        """Whether the task is not to blame (see `Cause.is_blameless`)."""
        return self.cause.is_blameless or bool(self.more_memory)

    def __str__(self) -> str:
        peak = f" (peak memory {amount(self.words.peak_bytes)})" if self.words.peak_bytes else ""
        return f"attempt {self.attempt} on {self.sid}{peak}: {self.cause.value}: {self.reason}"


def story_of(deaths: Sequence[Death]) -> str:
    """Return the last words of the last slave that died while it ran a task; empty if it wrote nothing."""
    died = [death for death in deaths if death.cause.is_charged and death.cause is not Cause.ERROR]
    if not died or not died[-1].words.size:
        return ""
    return f"The last words of {died[-1].sid}:\n{died[-1].words.shown()}"
