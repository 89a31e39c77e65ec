"""How values are shown to people who compare two runs: as they are if they are short, and otherwise as digests."""

from __future__ import annotations

from typing import Any

from mwpy._values.messagepack import PLAIN
from mwpy._values.sameness.graph import shown_digest

__all__ = ["shown_value"]

SHOWN_LENGTH = 60
"""How many characters of a text or bytes are shown at most. Longer values are shown as digests."""

SHOWN_BITS = 128
"""How many bits an integer has at most that is shown."""


def shown_value(value: Any, content: bytes) -> str:
    """Return a plain value as a text, or the text of its digest if it is long or no plain value."""
    kind = type(value)
    long = len(value) > SHOWN_LENGTH if kind in (str, bytes) else kind is int and value.bit_length() > SHOWN_BITS
    return shown_digest(content) if kind not in PLAIN or long else repr(value)
