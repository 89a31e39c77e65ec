"""The ids of tasks and slaves, and the type of bytes that are passed on."""

from __future__ import annotations

from typing import NewType

TaskId = NewType("TaskId", int)
"""The number of a task within one life of the master, starting at 1; never used twice."""

SlaveId = NewType("SlaveId", str)
"""The name of a slave process, such as `SLAVE-0`; never used twice within one life of the master."""

Buffer = bytes | bytearray | memoryview
"""Bytes that are passed on without being changed."""
