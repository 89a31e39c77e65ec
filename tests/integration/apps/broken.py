"""A script that a slave cannot import."""

from __future__ import annotations

import os
import sys

import mwpy

if "MWPY_SLAVE" in os.environ:
    raise RuntimeError("no licence for slaves")


@mwpy.task_algorithm
def nothing() -> None:
    """Never run."""


@mwpy.master_algorithm
def master(mw: mwpy.Master, argv: list[str]) -> int:
    """Wait for a slave that never starts."""
    mw.submit(nothing.task())
    mw.loop(60.0)
    return 0


if __name__ == "__main__":
    sys.exit(mwpy.main())
