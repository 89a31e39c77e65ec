"""Outlines of calls: a short text for each part of the arguments, so that a person can be shown where two calls differ.

A part has a name such as `argument 2.path` and a text: a short plain value, or a digest. A text that begins with `?`
says why a part cannot be compared. The classes and functions among the arguments add the parts of their code.

An outline has at most `PARTS_MAX` parts. So two outlines may be the same although the calls differ.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from types import FunctionType, ModuleType
from typing import Any

from msgspec import Struct, field

from mwpy._values.messagepack import PLAIN
from mwpy._values.references import Reference
from mwpy._values.sameness import homes
from mwpy._values.sameness.calls import Resolve, argument_digest
from mwpy._values.sameness.code import NotComparable, code_of
from mwpy._values.sameness.graph import UNKNOWN
from mwpy._values.sameness.shown import shown_value
from mwpy._values.sameness.structure import full_name
from mwpy._values.sameness.things import module_of

__all__ = ["call_outline", "unknown_part", "value_outline"]

PARTS_MAX = 100
"""How many parts an outline has at most."""

ITEMS_MAX = 20
"""A list, tuple or dict with more items is one part."""

DEPTH_MAX = 4
"""How many levels of lists, dicts and objects have parts of their own."""


def call_outline(args: Sequence[Any], kwargs: Mapping[str, Any], resolve: Resolve | None = None) -> dict[str, str]:
    """Return the outline of a call. The arguments are those of `call_digest`."""
    outline = _Outline(resolve)
    for place, value in enumerate(args, 1):
        outline.add(f"argument {place}", value, DEPTH_MAX)
    for name, value in kwargs.items():
        outline.add(f"argument {name}", value, DEPTH_MAX)
    return outline.with_code()


def value_outline(name: str, value: Any) -> dict[str, str]:
    """Return the outline of one value."""
    outline = _Outline(None)
    outline.add(name, value, DEPTH_MAX)
    return outline.with_code()


def unknown_part(outline: Mapping[str, str]) -> str:
    """Return the first part that cannot be compared, and why; empty if there is none."""
    return next((f"{part}: {text[len(UNKNOWN) :]}" for part, text in outline.items() if text.startswith(UNKNOWN)), "")


class _Outline(Struct, eq=False):
    """An outline that is made."""

    resolve: Resolve | None
    _parts: dict[str, str] = field(default_factory=dict)
    _named: list[Callable[..., Any]] = field(default_factory=list)
    """Classes and functions of the user."""

    def add(self, part: str, value: Any, depth: int) -> None:
        """Add the parts of a value."""
        if len(self._parts) >= PARTS_MAX:
            return
        kind = type(value)
        own = isinstance(value, type | FunctionType)
        if own or _is_object(value):
            self._named.append(value if own else kind)
        if kind is dict and depth and len(value) <= ITEMS_MAX and PLAIN.issuperset(map(type, value)):
            self._add_parts(part, value, ((f"{part}[{key!r}]", each) for key, each in value.items()), depth)
        elif kind in (list, tuple) and depth and len(value) <= ITEMS_MAX:
            self._add_parts(part, value, ((f"{part}[{place}]", each) for place, each in enumerate(value)), depth)
        elif depth and (state := _state_of(value)):
            self._add_parts(part, value, ((f"{part}.{name}", each) for name, each in state.items()), depth)
        else:
            self._parts[part] = self._text(value)

    def _add_parts(self, part: str, value: Any, parts: Iterable[tuple[str, Any]], depth: int) -> None:
        self._parts[part] = f"a {full_name(type(value))}"
        for name, each in parts:
            self.add(name, each, depth - 1)

    def _text(self, value: Any) -> str:
        try:
            return shown_value(value, argument_digest(value, self.resolve))
        except NotComparable as error:
            return f"{UNKNOWN}{error}"

    def with_code(self) -> dict[str, str]:
        """Add the parts of the code of classes and functions. Return all parts."""
        for each in self._named:
            for part, text in _code_parts(each).items():
                if len(self._parts) < PARTS_MAX:
                    self._parts.setdefault(part, text)
        return self._parts


def _is_object(value: Any) -> bool:
    """Whether a value is an object of a class of the user."""
    if isinstance(value, type | FunctionType | ModuleType | Reference) or type(value) in PLAIN:
        return False
    return homes.home_of(module_of(type(value))) == homes.OWN


def _state_of(value: Any) -> dict[str, Any]:
    """Return the attributes of an object of a class of the user; empty if they are not known."""
    try:
        state = value.__dict__ if _is_object(value) else {}
    except Exception:  # of the user's own method
        return {}
    return {**state} if type(state) is dict else {}


def _code_parts(thing: Callable[..., Any]) -> dict[str, str]:
    """Return the parts of the code of a class or function of the user; none if it cannot be compared."""
    if homes.home_of(module_of(thing)) != homes.OWN:
        return {}
    try:
        return code_of(thing).parts
    except NotComparable:
        return {}
