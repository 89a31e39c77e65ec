"""joblib in joblib: nested calls run serially in the slaves, whether they name a backend or not."""

from __future__ import annotations

import json
import os

import joblib

import mwpy.joblib


def leaf(number: int) -> tuple[int, int]:
    return number**2, os.getpid()


def branch(number: int, backend: str | None) -> tuple[int, bool]:
    """Call joblib twice below each other. Return a sum, and whether all calls ran in this process."""
    values = joblib.Parallel(n_jobs=2, backend=backend)(joblib.delayed(twig)(each, backend) for each in range(number))
    return sum(value for value, _ in values), all(alone for _, alone in values)


def twig(number: int, backend: str | None) -> tuple[int, bool]:
    values = joblib.Parallel(n_jobs=-1, backend=backend)(joblib.delayed(leaf)(each) for each in range(number))
    return sum(value for value, _ in values), all(process == os.getpid() for _, process in values)


if __name__ == "__main__":
    mwpy.joblib.register()
    numbers = range(1, 9)
    with joblib.parallel_config(backend="mwpy", slaves=2):
        calls = [(number, backend) for number in numbers for backend in (None, "mwpy")]
        parallel = joblib.Parallel()(joblib.delayed(branch)(*call) for call in calls)
    serial = [branch(number, "sequential") for number in numbers for _ in range(2)]
    print(json.dumps({"serial": serial, "parallel": parallel}))
