"""Tasks that fail once with an exception of the script; prints how many attempts they needed."""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path

import mwpy


class Busy(Exception):
    pass


def is_busy(error: Exception) -> bool:
    return isinstance(error, Busy)


@mwpy.task_algorithm(retry_errors=Busy)
def fail_once(mark: str) -> None:
    if not Path(mark).exists():
        Path(mark).touch()
        raise Busy


@mwpy.master_algorithm
def master(mw: mwpy.Master, argv: list[str]) -> int:
    with tempfile.TemporaryDirectory() as folder:
        by_type = mw.map_results(fail_once, [f"{folder}/1", f"{folder}/2"])
        by_function = mw.map_results(fail_once, [f"{folder}/3", f"{folder}/4"], retry_errors=is_busy)
        print(json.dumps([[result.attempts for result in results] for results in (by_type, by_function)]))
    return 0


if __name__ == "__main__":
    sys.exit(mwpy.main())
