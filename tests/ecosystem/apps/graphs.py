"""dask with an executor of mwpy as its scheduler: delayed calls, an array and a bag."""

from __future__ import annotations

import json
from typing import Any

import dask
import dask.array
import dask.bag

import mwpy


def computed(scheduler: Any) -> list[object]:
    """Compute three graphs."""
    increment, add = dask.delayed(lambda x: x + 1), dask.delayed(lambda x, y: x + y)
    total = increment(0)
    for number in range(5):
        total = add(total, increment(number))
    numbers = dask.array.arange(200_000, chunks=50_000)
    words = dask.bag.from_sequence(["one", "two", "three", "four"], npartitions=2).map(len)
    results = dask.compute(
        total,
        (numbers**2).sum(),
        numbers.reshape(400, 500).mean(axis=0).std(),
        words.frequencies(),
        scheduler=scheduler,
    )
    return [int(results[0]), int(results[1]), float(results[2]), sorted(results[3])]


if __name__ == "__main__":
    with mwpy.Executor(slaves=2) as executor:
        parallel = computed(executor)
    print(json.dumps({"serial": computed("synchronous"), "parallel": parallel}))
