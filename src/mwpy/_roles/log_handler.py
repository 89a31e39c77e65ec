"""The handler of `logging` in a slave. Only slaves and their template import this module."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping

from mwpy._transport.error_texts import describe_error

__all__ = ["install", "text_of", "trace_of"]

_FORMATTER = logging.Formatter()


class _ToMaster(logging.Handler):
    """Passes all records on."""

    def __init__(self, note: Callable[[logging.LogRecord], None]) -> None:
        super().__init__()
        self._note = note

    def emit(self, record: logging.LogRecord) -> None:
        """Pass a record on."""
        try:
            self._note(record)
        except Exception:
            self.handleError(record)


def install(levels: Mapping[str, int], note: Callable[[logging.LogRecord], None]) -> logging.Handler:
    """Let all loggers pass their records on, and `warnings`, too.

    The handlers that the script has added are those of the master, too. They would write each record twice, so they are
    removed. A handler that a task adds later stays.

    Args:
        levels: the levels of loggers by their names; that of the root logger has an empty name.
        note: receives the records.
    """
    handler = _ToMaster(note)
    root = logging.getLogger()
    known = [each for each in root.manager.loggerDict.values() if isinstance(each, logging.Logger)]
    for logger in (root, *known):
        for own in logger.handlers[:]:
            logger.removeHandler(own)
        if logger is root or not logger.propagate:
            logger.addHandler(handler)
    for name, level in levels.items():
        logging.getLogger(name or None).setLevel(level)
    logging.captureWarnings(True)
    return handler


def text_of(record: logging.LogRecord) -> str:
    """Return the text of a record. The arguments may be objects whose text cannot be made."""
    try:
        return record.getMessage()
    except Exception as error:
        name, text, _ = describe_error(error)
        return f"{record.msg!r} % {type(record.args).__name__}: {name}: {text}"


def trace_of(record: logging.LogRecord) -> str:
    """Return the traceback and the stack of a record; empty if it has none."""
    trace = record.exc_text or ""
    if not trace and record.exc_info and record.exc_info[0] is not None:
        trace = _FORMATTER.formatException(record.exc_info)
    return "\n".join(filter(None, (trace, record.stack_info)))
