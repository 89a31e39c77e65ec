"""A master algorithm without work."""

from __future__ import annotations

import sys

import mwpy


@mwpy.master_algorithm
def master(mw: mwpy.Master, argv: list[str]) -> int:
    """Return before any slave can connect."""
    return 0


if __name__ == "__main__":
    sys.exit(mwpy.main())
