"""Whether the files of a run database still have their names.

SQLite goes on writing to files that were deleted or renamed, and nothing fails. But a restart would not find them.
"""

from __future__ import annotations

import os
from pathlib import Path

__all__ = ["Presence"]


class Presence:
    """Watches a run database and its log.

    Args:
        database: the file, which is open and has a log.
    """

    def __init__(self, database: Path) -> None:
        self._files = {path: path.stat() for path in (database, Path(f"{database}-wal"))}
        self.missing: Path | None = None
        """A file that was deleted, renamed or replaced."""

    def look(self) -> None:
        """Find out if both files are where they were."""
        self.missing = next((path for path, found in self._files.items() if not _is_at(path, found)), None)


def _is_at(path: Path, found: os.stat_result) -> bool:
    try:
        return os.path.samestat(path.stat(), found)
    except FileNotFoundError:
        return False
