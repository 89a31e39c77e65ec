"""What tests see of `logging`."""

from __future__ import annotations

import logging
from typing import Any


class Seen(logging.Handler):
    """A handler that keeps the records."""

    def __init__(self) -> None:
        super().__init__()
        self.records: list[Any] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.records.append(record)
