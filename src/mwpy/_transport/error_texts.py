"""What an exception says, as texts, even if its own methods raise errors."""

from __future__ import annotations

import os
import traceback
import types

__all__ = ["MAX_TEXT", "describe_error", "encodable", "text_of", "users_traceback"]

MAX_TEXT = 64 * 1024
"""How many characters are kept of an error's text (its beginning) and of its traceback (its end)."""

_OWN_FILES = os.path.dirname(os.path.dirname(__file__)) + os.sep


def describe_error(error: BaseException) -> tuple[str, str, str]:
    """Return the type, the text and the traceback of an exception as texts, even if its own methods raise errors."""
    return _type_name(error), text_of(error), _traceback(error)


def _type_name(error: BaseException) -> str:
    kind = type(error)
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"


def text_of(error: BaseException) -> str:
    """Return the text of an exception."""
    try:
        return str(error)[:MAX_TEXT]
    except KeyboardInterrupt:  # by Ctrl-C
        raise
    except BaseException as second:
        return f"(its text is not available: __str__ raised {type(second).__qualname__})"


def encodable(text: str) -> str:
    """Replace the halves of surrogate pairs in a text."""
    return text.encode(errors="backslashreplace").decode()


def users_traceback(error: BaseException) -> types.TracebackType | None:
    """Return the traceback of an exception from the first frame on that is not mwpy's."""
    frames = error.__traceback__
    while frames is not None and frames.tb_frame.f_code.co_filename.startswith(_OWN_FILES):
        frames = frames.tb_next
    return frames


def _traceback(error: BaseException) -> str:
    try:
        return "".join(traceback.format_exception(type(error), error, users_traceback(error)))[-MAX_TEXT:]
    except Exception as second:
        return f"(its traceback is not available: {type(second).__qualname__})"
