"""Measure data on a slave. Report the command lines of the slave and master algorithms."""

from __future__ import annotations

import argparse
import json
import os
import sys

import mwpy


@mwpy.task_algorithm
def measure(data: bytes) -> tuple[int, list[str]]:
    """Return the size of the data and the command line of the slave algorithm."""
    return len(data), slave_argv


slave_argv: list[str] = []


@mwpy.slave_algorithm
def slave(mw: mwpy.Slave, argv: list[str]) -> int:
    """Remember the command line."""
    slave_argv[:] = argv
    return mw.loop_simple()


@mwpy.master_algorithm
def master(mw: mwpy.Master, argv: list[str]) -> int:
    """Send some data, and print the command line and the returned values."""
    size = int(os.environ.get("TEST_BYTES", "10"))
    returned = [*mw.map(measure, [bytes(size)])]
    print(json.dumps({"argv": argv, "came": returned}))
    return 0


if __name__ == "__main__":
    if "TEST_OWN_OPTION" in os.environ:
        parser = argparse.ArgumentParser()
        parser.add_argument("--level", type=int, required=True)
        _, rest = parser.parse_known_args()
        sys.exit(mwpy.main(rest))
    fixed = os.environ.get("TEST_ARGV")
    sys.exit(mwpy.main(fixed.split() if fixed else None))
