"""What is left of a slave when it is gone: the ends of its standard streams, its fault handler's traceback, its memory.

The agent keeps so much of each stream, the master cuts what arrives to the same length (a member may send anything),
and the whole of it is written to the audit file. What a task's history keeps in memory is bounded besides: see
`KeptDeaths` in `_core/master/deaths.py`.
"""

from __future__ import annotations

from collections.abc import Sequence

from attrs import define, frozen

from mwpy._values.ids import SlaveId

__all__ = ["LAST_WORDS_BYTES", "NO_WORDS", "Death", "LastWords", "amount", "story_of"]

LAST_WORDS_BYTES = 64 * 1024
"""So much of the end of each stream of a slave is kept."""

LINES_SHOWN = 20
"""Lines of each stream that are shown where nobody asked for the whole."""

HEADLINE_CHARACTERS = 200


@frozen
class LastWords:
    """What one slave left; each text is the end of what it wrote there."""

    stdout: str = ""
    stderr: str = ""
    fault: str = ""
    """Where a crash in native code struck, as Python's fault handler tells it; most recent call first."""
    peak_bytes: int = 0
    """The most memory that it held at a time (resident), or a program that it ran and waited for; 0 if not known."""

    @property
    def streams(self) -> list[tuple[str, str]]:
        """Name and text of each stream that has something, in the order of telling."""
        named = [("fault", self.fault), ("stderr", self.stderr), ("stdout", self.stdout)]
        return [(name, text) for name, text in named if text]

    @property
    def size(self) -> int:
        """Characters in all."""
        return len(self.stdout) + len(self.stderr) + len(self.fault)

    @property
    def headline(self) -> str:
        """The one line that says most: what the fault handler says first, or what standard error says last."""
        line = (self.fault.strip().splitlines() or self.stderr.strip().splitlines()[-1:] or [""])[0]
        return line[:HEADLINE_CHARACTERS]

    def cut(self, most: int) -> LastWords:
        """The same with no more than `most` characters of the end of each text, and no negative memory."""
        return LastWords(self.stdout[-most:], self.stderr[-most:], self.fault[-most:], max(0, self.peak_bytes))

    def shown(self, lines: int | None = LINES_SHOWN) -> str:
        """For a reader: each stream under its name, no more than so many lines of its end."""
        told: list[str] = []
        for name, text in self.streams:
            split = text.splitlines(keepends=True)
            left_out = 0 if lines is None else max(0, len(split) - lines)
            which = f", the last {lines} of {len(split)} lines" if left_out else ""
            told.append(f"{name}{which}:\n{''.join(split[left_out:])}".removesuffix("\n"))
        return "\n".join(told)


NO_WORDS = LastWords()
"""Of a slave of which nothing is known."""


def amount(count: int) -> str:
    """A number of bytes for a reader."""
    size, units = float(count), ["bytes", "KiB", "MiB", "GiB", "TiB"]
    while size >= 1024 and len(units) > 1:
        size /= 1024
        del units[0]
    return f"{size:.0f} {units[0]}" if units[0] == "bytes" else f"{size:.1f} {units[0]}"


@define(slots=True)
class Death:
    """A slave that died while it ran a task: one entry of the task's history."""

    sid: SlaveId
    attempt: int
    cause: str
    words: LastWords = NO_WORDS
    """Its last words; of an old death no more than their ends, when there were very many since (see the manual)."""

    def __str__(self) -> str:
        peak = f" (peak memory {amount(self.words.peak_bytes)})" if self.words.peak_bytes else ""
        return f"attempt {self.attempt} on {self.sid}{peak}: {self.cause}"


def story_of(deaths: Sequence[Death]) -> str:
    """What the last slave that died of a task wrote last, for a reader; empty if it wrote nothing."""
    if not deaths or not deaths[-1].words.size:
        return ""
    return f"The last words of {deaths[-1].sid}:\n{deaths[-1].words.shown()}"
