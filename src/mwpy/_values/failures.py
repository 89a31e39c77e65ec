"""Failures: what a failed task sends instead of a value.

Type, text and traceback of the exception are texts, so everybody can read them, without its class and without
unpickling. The exception itself is a pickle, which may be missing.
"""

from __future__ import annotations

from msgspec import Struct

from mwpy._values.bounds import shortened
from mwpy._values.ids import Buffer
from mwpy._values.messagepack import MALFORMED, decoder

__all__ = ["Failure", "headline", "in_one_line", "kind_of", "read_failure"]

HEADLINE_CHARACTERS = 200

KIND_CHARACTERS = 60


class Failure(Struct, frozen=True, array_like=True):
    """An exception that a task raised."""

    type_name: str
    text: str
    traceback: str
    cause: bytes
    """The pickled exception; empty if it cannot be pickled."""


class _Head(Struct, frozen=True, array_like=True):
    """The first fields of a `Failure`; the others are not read."""

    type_name: str
    text: str


read_failure = decoder(Failure)
"""Read an encoded `Failure`. Raises one of `messagepack.MALFORMED` for everything else."""

_read_head = decoder(_Head)


def headline(data: Buffer) -> str:
    """Return type and text of an encoded failure as one short line."""
    try:
        head = _read_head(bytes(data))
    except MALFORMED:
        return "a failure that cannot be read"
    return in_one_line(head.type_name, head.text)


def kind_of(data: Buffer) -> str:
    """Return the type of an encoded failure."""
    try:
        return " ".join(shortened(_read_head(bytes(data)).type_name, KIND_CHARACTERS).split())
    except MALFORMED:
        return "unreadable"


def in_one_line(type_name: str, text: str) -> str:
    """Return type and text of an exception as one short line."""
    line = f"{type_name}: {text}" if text else type_name
    return " ".join(shortened(line, HEADLINE_CHARACTERS).split())
