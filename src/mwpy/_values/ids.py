"""What names tasks and slaves, and what bytes travel as."""

from __future__ import annotations

from typing import NewType

__all__ = ["Buffer", "SlaveId", "TaskId"]

TaskId = NewType("TaskId", int)
"""Number of a task within one life of the master, from 1; never used twice."""

SlaveId = NewType("SlaveId", str)
"""Name of a slave process, `SLAVE-0` and up; never used twice within one life of the master."""

Buffer = bytes | bytearray | memoryview
"""Bytes that travel untouched."""
