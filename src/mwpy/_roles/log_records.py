"""Gives the records that tasks have logged to the loggers of the master, in the thread of the master algorithm.

A handler of the user may raise or block. This concerns the master algorithm, and not the I/O thread.
"""

from __future__ import annotations

import logging
import sys
import traceback
from typing import Any

from mwpy._core.master.state import LogGroup
from mwpy._roles.master_io import MasterIo
from mwpy._values.messages import LogRow
from mwpy._values.phrases import counted

OWN = "mwpy"
"""The logger of mwpy itself: it says what was left out."""


def give(group: LogGroup, io: MasterIo) -> None:
    """Give the records of a slave to the loggers, and let the I/O thread know."""
    with io.submitting:
        io.handled_log_bytes += group.size
    for row in group.rows:
        _handle(_record(row, group))
    if group.left_out:
        text = f"{counted(group.left_out, 'log record')} of tasks left out, because there were too many"
        own = {"mw_task": None, "mw_algorithm": None, "mw_slave": group.sid, "mw_host": group.host}
        fields = {"name": OWN, "levelno": logging.WARNING, "levelname": "WARNING", "msg": f"{text} ({group.sid})"}
        _handle(logging.makeLogRecord(fields | own))


def _record(row: LogRow, group: LogGroup) -> logging.LogRecord:
    record = logging.LogRecord(row.logger, row.level, row.path, row.line, row.text, None, None, row.function)
    own: dict[str, Any] = {
        "created": row.created,
        "msecs": float(int(row.created % 1 * 1000)),
        "relativeCreated": record.relativeCreated + (row.created - record.created) * 1000,
        "exc_text": row.trace or None,
        "process": None,
        "processName": group.sid,
        "thread": None,
        "threadName": None,
        "mw_task": row.task or None,
        "mw_algorithm": row.algorithm or None,
        "mw_slave": group.sid,
        "mw_host": group.host,
    }
    record.__dict__.update(own)
    return record


def _handle(record: logging.LogRecord) -> None:
    logger = _logger(record.name)
    try:
        if logger.isEnabledFor(record.levelno):
            logger.handle(record)
    except Exception:
        print(f"mwpy: a handler of logging has failed at a record of {record.processName}:", file=sys.stderr)
        traceback.print_exc()


def _logger(name: str) -> logging.Logger:
    """The logger of this name, or the nearest one above it: what a slave sends creates no loggers here."""
    known = logging.root.manager.loggerDict
    while name:
        found = known.get(name)
        if isinstance(found, logging.Logger):
            return found
        name = name.rpartition(".")[0]
    return logging.root
