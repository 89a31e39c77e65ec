"""The disk of the run database: a file system in memory, whose size can be changed."""

from __future__ import annotations

import os
from contextlib import ExitStack
from pathlib import Path

from tests.chaos.machines import must, run

ROOM = 4 << 30
"""The size of the disk while it is not full, in bytes. Only its files take memory."""


def mount(folder: Path, stack: ExitStack) -> None:
    """Mount the disk until the end of the stack."""
    must("mount", "-t", "tmpfs", "-o", f"size={ROOM}", "tmpfs", folder)
    stack.callback(run, "umount", "--lazy", folder)


def resize(folder: Path, size: int) -> str:
    """Change the size of the disk. Return why this is not possible, such as files that are larger together."""
    return run("mount", "-o", f"remount,size={size}", folder)


def shrink(folder: Path) -> None:
    """Make the disk as small as its files."""
    found = os.statvfs(folder)
    resize(folder, (found.f_blocks - found.f_bfree) * found.f_frsize)
