"""The output files of jobs."""

from __future__ import annotations

import os

END_BYTES = 8192
"""How many bytes of the end of a file are read. They show why a process died."""


def end_of(path: str) -> str:
    """The end of what a process wrote into a file; empty if the file cannot be read."""
    try:
        with open(path, "rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - END_BYTES))
            return file.read().decode(errors="replace")
    except OSError:
        return ""
