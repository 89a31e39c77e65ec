"""A script that imports a module which only the submit machine has."""

from __future__ import annotations

import sys

import mwpy

if "--mw-master" not in sys.argv:
    import module_of_the_submit_machine  # type: ignore[import-not-found]  # noqa: F401


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
