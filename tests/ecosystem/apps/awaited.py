"""asyncio: calls in an executor, awaited one by one, together, and as they end."""

from __future__ import annotations

import asyncio
import json
from concurrent.futures import Executor

import mwpy


def cube(number: int) -> int:
    return number**3


async def gathered(executor: Executor | None) -> list[object]:
    """Run calls in an executor; None is asyncio's own threads."""
    loop = asyncio.get_running_loop()
    first = await loop.run_in_executor(executor, cube, 2)
    together = await asyncio.gather(*(loop.run_in_executor(executor, cube, number) for number in range(50)))
    ended = [await each for each in asyncio.as_completed([loop.run_in_executor(executor, cube, n) for n in range(50)])]
    try:
        await loop.run_in_executor(executor, pow, 0, -1)
    except ZeroDivisionError as error:
        return [first, together, sorted(ended), str(error)]
    return []


if __name__ == "__main__":
    with mwpy.Executor(slaves=2) as executor:
        parallel = asyncio.run(gathered(executor))
    print(json.dumps({"serial": asyncio.run(gathered(None)), "parallel": parallel}))
