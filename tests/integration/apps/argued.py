"""Squares on local slaves, and what the algorithms were told on their command line."""

from __future__ import annotations

import argparse
import json
import os
import sys

import mwpy


@mwpy.task_algorithm
def measure(data: bytes) -> tuple[int, list[str]]:
    """How much came, and to whom."""
    return len(data), TOLD


TOLD: list[str] = []


@mwpy.slave_algorithm
def slave(mw: mwpy.Slave, argv: list[str]) -> int:
    """Remember the command line."""
    TOLD[:] = argv
    return mw.loop_simple()


@mwpy.master_algorithm
def master(mw: mwpy.Master, argv: list[str]) -> int | None:
    """Send some data and tell what came of it."""
    size = int(os.environ.get("TEST_BYTES", "10"))
    came = [result.value for result in mw.map(measure, [bytes(size)])]
    print(json.dumps({"argv": argv, "came": came}))
    return None if "TEST_NONE" in os.environ else 0


if __name__ == "__main__":
    if "TEST_OWN_OPTION" in os.environ:
        parser = argparse.ArgumentParser()
        parser.add_argument("--level", type=int, required=True)
        _, rest = parser.parse_known_args()
        sys.exit(mwpy.main(rest))
    fixed = os.environ.get("TEST_ARGV")
    sys.exit(mwpy.main(fixed.split() if fixed else None))
