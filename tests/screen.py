"""A terminal for tests: what a person sees after everything was written."""

from __future__ import annotations

import re
from typing import Self

_PARTS = re.compile(r"\r|\n|\x1b\[K|[^\r\n\x1b]+")


class Screen:
    """A terminal that knows carriage return, line feed and the sequence that erases the rest of a line.

    Like a terminal in its usual mode, it takes a line feed as the start of the next line.
    """

    def __init__(self) -> None:
        self._lines = [""]
        self._column = 0

    @property
    def lines(self) -> list[str]:
        """The lines, without an empty last one."""
        return self._lines if self._lines[-1] else self._lines[:-1]

    def feed(self, text: str) -> Self:
        """Show a text."""
        assert "".join(_PARTS.findall(text)) == text, f"something that this terminal does not know: {text!r}"
        for part in _PARTS.findall(text):
            line = self._lines[-1]
            if part == "\r":
                self._column = 0
            elif part == "\n":
                self._lines.append("")
                self._column = 0
            elif part == "\x1b[K":
                self._lines[-1] = line[: self._column]
            else:
                self._lines[-1] = line[: self._column].ljust(self._column) + part + line[self._column + len(part) :]
                self._column += len(part)
        return self
