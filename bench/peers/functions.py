"""The functions that the tasks call. They are in a module that all workers can import, so they travel by name.

The module imports no package and few modules, so that a worker which runs `nothing` starts as quickly as its library
allows.
"""

from __future__ import annotations

import os
import signal
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np

LOOK_S = 0.01
"""Seconds between two looks for a file."""


def nothing(number: int) -> int:
    return number


def same(array: np.ndarray) -> np.ndarray:
    return array


def busy(seconds: float) -> float:
    """Use a core for some time, and return this time."""
    until = time.perf_counter() + seconds
    while time.perf_counter() < until:
        pass
    return seconds


def sum_of_part(array: np.ndarray, part: int, parts: int) -> float:
    """Return the sum of one of equal parts of an array."""
    length = len(array) // parts
    return float(array[part * length : (part + 1) * length].sum())


def wait_for(path: str) -> None:
    """Return when a file exists."""
    from pathlib import Path  # only here, because it takes longer to load than this module

    while not Path(path).exists():
        time.sleep(LOOK_S)


def worker() -> int:
    """Use what a scientific task imports, and return the id of this process."""
    import numpy as np
    import scipy.linalg
    import scipy.optimize

    root = scipy.optimize.brentq(np.cos, 0.0, 3.0)
    assert np.isclose(scipy.linalg.norm([root, root]), root * np.sqrt(2.0))
    return os.getpid()


def die(path: str) -> None:
    """Write the time to a file, and end this process as a crash of C code does."""
    from pathlib import Path  # only here, as above

    Path(path).write_text(str(time.monotonic()), encoding="ascii")
    os.kill(os.getpid(), signal.SIGSEGV)
