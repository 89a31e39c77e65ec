"""A script that imports a module which is missing in all jobs of a batch system except the master."""

from __future__ import annotations

import os
import sys

import mwpy

if "MWPY_JOB" in os.environ:
    import module_of_the_submit_machine  # type: ignore[import-not-found]  # noqa: F401


@mwpy.task_algorithm
def nothing() -> None:
    """Never run."""


@mwpy.master_algorithm
def master(mw: mwpy.Master, argv: list[str]) -> int:
    mw.submit(nothing.task())
    mw.loop()
    return 0


if __name__ == "__main__":
    sys.exit(mwpy.main())
