"""Texts with placeholders, such as `simulate --alpha {alpha}`: which ones there are, and how values take their place.

`{alpha}` is a placeholder, and `{alpha:.3f}` has a format as in `str.format`. `{{alpha}}` is the text `{alpha}`. All
other braces are text, so that programs of awk, JSON and the like need no escapes. `{}` and `{1}` stand for unnamed
values, and may end in an operator of GNU parallel: `{.}`, `{/}`, `{//}` and `{/.}`. `{#}` is the number of the run.

A line is divided into words before the values take their places. So a value with spaces or quotes stays one word. A
line for a shell gets quoted values. How they are quoted depends on the quotes in which the placeholder stands.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from attrs import frozen

from mwpy import UsageError

OPERATORS: dict[str, Callable[[str], str]] = {
    "": lambda text: text,
    ".": lambda text: os.path.splitext(text)[0],
    "/": os.path.basename,
    "//": lambda text: os.path.dirname(text) or ".",
    "/.": lambda text: os.path.splitext(os.path.basename(text))[0],
}
"""What the operators of GNU parallel make of a value: without extension, its file name, its folder, and its file name
without extension."""

_FIELD = re.compile(
    r"\{\{(?P<literal>[^\W\d]\w*)\}\}|\{(?:(?P<name>[^\W\d]\w*|#)(?::(?P<format>[^{}\n]*))?|(?P<number>\d*)(?P<operator>\.|//|/\.|/|))\}"
)

_IN_DOUBLE_QUOTES = re.compile(r'(["\\$`])')


@frozen
class Field:
    """A placeholder in a text."""

    name: str
    """The name of its parameter. Of an unnamed value its number, counted from 1; empty for all unnamed values."""
    format: str = ""
    operator: str = ""

    def __str__(self) -> str:
        return f"{{{self.name}{self.operator}{f':{self.format}' if self.format else ''}}}"


@frozen
class Template:
    """A text with placeholders."""

    parts: tuple[str | Field, ...]

    @classmethod
    def of(cls, text: str) -> Template:
        """Find the placeholders in a text.

        Examples:
            >>> Template.of("a {x:.1f} {{y}} { z }").filled({"x": 0.25})
            'a 0.2 {y} { z }'
        """
        parts: list[str | Field] = []
        end = 0
        for found in _FIELD.finditer(text):
            parts.append(text[end : found.start()])
            if found["literal"] is not None:
                parts.append(f"{{{found['literal']}}}")
            else:
                name = found["name"] or found["number"] or ""
                parts.append(Field(name, found["format"] or "", found["operator"] or ""))
            end = found.end()
        return cls((*parts, text[end:]))

    @property
    def text(self) -> str:
        """The text as it was written."""
        return "".join(map(str, self.parts))

    @property
    def names(self) -> list[str]:
        """The names of the placeholders, each once, in the order in which they first appear."""
        return [*dict.fromkeys(part.name for part in self.parts if isinstance(part, Field))]

    def filled(self, values: Mapping[str, Any]) -> str:
        """Return the text with values in the places of its placeholders."""
        return "".join(part if isinstance(part, str) else _text(part, values) for part in self.parts)

    def words(self, values: Mapping[str, Any]) -> list[str]:
        """Return the words that stand here: several, if the only part is a placeholder whose value is a list."""
        match [part for part in self.parts if part != ""]:
            case [Field(name) as field] if isinstance(values[name], list | tuple):
                return [_text(field, {name: each}) for each in values[name]]
        return [self.filled(values)]

    def for_shell(self, values: Mapping[str, Any]) -> str:
        """Return the text for a shell, with quoted values."""
        text, quotes = "", [""]
        for part in self.parts:
            if isinstance(part, str):
                text += part
                _read_quotes(part, quotes)
            else:
                value = values[part.name]
                each = [
                    _text(part, {part.name: one}) for one in (value if isinstance(value, list | tuple) else [value])
                ]
                text += " ".join(_quoted(one, quotes[-1]) for one in each)
        return text


def _text(field: Field, values: Mapping[str, Any]) -> str:
    value = values[field.name]
    if value is None or isinstance(value, list | tuple | dict | set):
        raise UsageError(f"the value of {field} is {value!r}: give a text, a number or a path")
    try:
        text = format(value, field.format) if field.format else os.fsdecode(value) if _is_path(value) else str(value)
    except (TypeError, ValueError) as error:
        raise UsageError(f"the value {value!r} cannot be written as {field}: {error}") from error
    if "\0" in text:
        raise UsageError(f"the value of {field} contains a zero byte, which no program can be given: {text!r}")
    return OPERATORS[field.operator](text)


def _is_path(value: object) -> bool:
    return isinstance(value, bytes | os.PathLike)


def _read_quotes(text: str, quotes: list[str]) -> None:
    """Read text of a shell's line, and keep in `quotes` in which quotes its end stands.

    Args:
        quotes: the innermost one is the last: `'`, `"`, or nothing at the beginning and in `$(...)`.
    """
    place = 0
    while place < len(text):
        sign, inner = text[place], quotes[-1]
        if inner == "'":
            if sign == "'":
                quotes.pop()
        elif sign == "\\":
            place += 1
        elif text.startswith("$(", place):
            quotes.append("")
            place += 1
        elif inner == '"':
            if sign == '"':
                quotes.pop()
        elif sign in "'\"":
            quotes.append(sign)
        elif sign == ")" and len(quotes) > 1:
            quotes.pop()
        place += 1


def _quoted(text: str, quote: str) -> str:
    """Quote a value that stands in quotes of this kind."""
    if quote == "'":
        return text.replace("'", "'\\''")
    return _IN_DOUBLE_QUOTES.sub(r"\\\1", text) if quote == '"' else shlex.quote(text)


_QUOTED = re.compile(r"""\\.|'[^']*'|"(?:\\.|[^"\\])*\"""", re.DOTALL)

_SIGN_OF_SHELLS = re.compile(r"[|<>&;]+|\$\(|`")


def _sign_of_shells(line: str) -> str:
    """Return a pipe, a redirection or the like that stands outside of quotes, if there is one."""
    found = _SIGN_OF_SHELLS.search(_QUOTED.sub("", line))
    return found[0] if found else ""


@frozen
class Line:
    """The command line of a program, with placeholders."""

    words: tuple[Template, ...]
    shell: bool = False
    """Whether a shell runs it. It is one text then."""

    @classmethod
    def of(cls, line: str | Sequence[str], shell: bool = False) -> Line:
        """Read a command line.

        Args:
            line: a text, or its words in a list.

        Raises:
            UsageError: it is empty, or a quote is not closed; the caller's fault.
        """
        try:
            words = line if not isinstance(line, str) else [line] if shell else shlex.split(line)
        except ValueError as error:
            raise UsageError(f"the command line {line!r} cannot be read: {error}") from error
        if isinstance(line, str) and not shell and (sign := _sign_of_shells(line)):
            raise UsageError(
                f"the command line {line!r} has {sign}, which only a shell understands: let a shell run it "
                f"(shell=True, --shell), or put it into quotes"
            )
        if not words or not words[0].strip():
            raise UsageError(f"the command line {line!r} names no program")
        if shell and not isinstance(line, str):
            raise UsageError(f"a shell runs one text: join the words of {line!r}, or give no shell=True")
        return cls(tuple(map(Template.of, words)), shell)

    @property
    def names(self) -> list[str]:
        """The names of the placeholders, each once, in the order in which they first appear."""
        return [*dict.fromkeys(name for word in self.words for name in word.names)]

    def filled(self, values: Mapping[str, Any]) -> list[str]:
        """Return the words of the line for these values. For a shell, these are the shell and its text."""
        if self.shell:
            return ["/bin/sh", "-c", self.words[0].for_shell(values)]
        return [word for template in self.words for word in template.words(values)]


def refuse_unknown(names: Sequence[str], values: Mapping[str, Any], where: str) -> None:
    """Refuse a placeholder without a value.

    Raises:
        UsageError: there is one.
    """
    for name in names:
        if name not in values:
            known = ", ".join(f"{{{each}}}" for each in values) or "none"
            raise UsageError(
                f"{where} has the placeholder {{{name}}}, and there is no value for it (there are: {known}). If it is "
                f"meant as text, write {{{{{name}}}}}"
            )


def is_unnamed(name: str) -> bool:
    """Whether a value has no name of its own."""
    return not name or name.isdigit()


def numbered(values: Sequence[Any]) -> dict[str, Any]:
    """Return values without names by their places: the empty name has all of them, and `1` the first."""
    all_of_them = values[0] if len(values) == 1 else [*values]
    return {"": all_of_them, **{str(place): value for place, value in enumerate(values, 1)}}


def refuse_twice(names: Sequence[str], text: str) -> None:
    """Refuse a name that is given twice.

    Args:
        text: the message, with `{}` for the name.

    Raises:
        UsageError: there is one.
    """
    for name in names:
        if names.count(name) > 1:
            raise UsageError(text.format(name))
