"""Slaves that hang in their start: while the script is loaded, or in the slave algorithm."""

from __future__ import annotations

import os
import sys
import time

import mwpy


def hang_while_loading() -> None:
    """Wait for nothing."""
    time.sleep(1000)


if "MWPY_SLAVE" in os.environ and "loading" in sys.argv:
    hang_while_loading()


@mwpy.slave_algorithm
def slave(mw: mwpy.Slave, argv: list[str]) -> int:
    """Wait for nothing before the loop, if asked to."""
    if "algorithm" in argv:
        time.sleep(1000)
    return mw.loop_simple()


@mwpy.master_algorithm
def master(mw: mwpy.Master, argv: list[str]) -> int:
    """Run a task, if a slave is ever ready."""
    print(sum(mw.map(abs, range(3))))
    return 0


if __name__ == "__main__":
    sys.exit(mwpy.main())
