"""Enumerations whose members are quick keys of a dict."""

from __future__ import annotations

from enum import Enum

__all__ = ["PlainEnum"]


class PlainEnum(Enum):
    """An enumeration whose members have the hash of plain objects. `Enum` hashes their names, in slow Python code."""

    __hash__ = object.__hash__
