"""The levels of the loggers of this process."""

from __future__ import annotations

import sys
from itertools import islice

__all__ = ["LEVELS_SENT", "log_levels"]

LEVELS_SENT = 1000
"""How many levels are sent to each slave. Loggers beyond that have the levels of the loggers above them."""

LONGEST_NAME = 255

WARNING = 30
"""The level of the root logger in a process that has not imported `logging`."""


def log_levels() -> dict[str, int]:
    """Return the levels that were set, by the names of the loggers. The name of the root logger is empty."""
    logging = sys.modules.get("logging")
    if logging is None:
        return {"": WARNING}
    known = logging.root.manager.loggerDict.copy().items()
    named = ((name, each.level) for name, each in known if isinstance(each, logging.Logger) and each.level)
    short = ((name, level) for name, level in named if len(name) <= LONGEST_NAME)
    return {"": logging.root.level} | dict(islice(short, LEVELS_SENT))
