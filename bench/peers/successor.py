"""A script that imports NumPy and SciPy. Its only slave crashes, and the script prints the process id of the next one.

    python successor.py FILE --mw-local 1

The crashing slave writes the time to the file.
"""

from __future__ import annotations

import sys

import numpy as np  # noqa: F401  # the template of the slaves imports it, too
import scipy.linalg
import scipy.optimize  # noqa: F401
from bench.peers.functions import die, worker

import mwpy


@mwpy.master_algorithm
def master(mw: mwpy.Master, argv: list[str]) -> int:
    [path] = argv
    [first] = [result.value for result in mw.as_completed([mwpy.task(worker)])]
    mw.submit(mwpy.task(die, path), attempts_max=1)
    wanted = mw.submit(mwpy.task(worker))
    while True:
        mw.loop()
        for result in mw.results():
            if result.task_id == wanted:
                assert result.value != first
                print(result.value, flush=True)
                return 0


if __name__ == "__main__":
    sys.exit(mwpy.main())
