"""Writes the log of the run database to the disk, once a second, in a thread of its own."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from pathlib import Path

__all__ = ["SYNC_S", "LogSync"]

SYNC_S = 1.0
"""How often the log is written to the disk, in seconds. A power failure loses at most what was committed meanwhile."""


class LogSync:
    """Writes the write-ahead log to the disk when it has changed, at most once a second.

    This opens the log itself. Closing a file ends all locks that the process has on it, but SQLite has none on the log.

    Args:
        log: the write-ahead log, which SQLite has made.
        on_failure: called once, with the error, if the disk refuses.
    """

    def __init__(self, log: Path, on_failure: Callable[[Exception], None]) -> None:
        self._fd = os.open(log, os.O_RDONLY)
        self._on_failure = on_failure
        self._changed = False
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._run, name="mwpy-sync", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def changed(self) -> None:
        """The log has changed."""
        self._changed = True

    def sync(self) -> None:
        """Write the log to the disk now. Raises OSError: the disk refuses."""
        os.fdatasync(self._fd)

    def close(self) -> None:
        """End the thread, if it was started."""
        self._end.set()
        if self._thread.ident is not None:
            self._thread.join()
        os.close(self._fd)

    def _run(self) -> None:
        try:
            while not self._end.wait(SYNC_S):
                if self._changed:
                    self._changed = False
                    os.fdatasync(self._fd)
        except Exception as error:
            self._on_failure(error)
