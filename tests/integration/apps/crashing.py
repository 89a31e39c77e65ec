"""A script with a task algorithm in a module that crashes the interpreter when a slave imports it."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import mwpy

MODULE = """
import ctypes, os
if "OF_THE_MASTER" not in os.environ:
    ctypes.string_at(0)
def run(): ...
"""


@mwpy.master_algorithm
def master(mw: mwpy.Master, argv: list[str]) -> int:
    """Wait for a slave that never starts. The test ends this."""
    Path("native.py").write_text(MODULE, encoding="ascii")
    os.environ["OF_THE_MASTER"] = "yes"
    sys.path.insert(0, "")
    import native  # type: ignore[import-not-found]

    mw.submit(mwpy.task(native.run))
    mw.loop()
    return 0


if __name__ == "__main__":
    sys.path.insert(0, "")
    sys.exit(mwpy.main())
