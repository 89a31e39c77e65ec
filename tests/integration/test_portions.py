"""Maps of short items with real slaves: which items travel in portions, and what the master makes of their values."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import mwpy

ITEMS = 600
DEADLY = 300
"""The item that kills its slave."""


@pytest.fixture
def mw() -> Iterator[mwpy.Master]:
    """A master with one slave that has run short items, so that many of them are sent together."""
    with mwpy.local_master(slaves=1) as mw:
        assert len(list(mw.map(abs, range(2000)))) == 2000
        yield mw


def run_once(log: Path, number: int) -> int:
    """Append the number to a file, and kill the slave at one number."""
    with log.open("a") as file:
        file.write(f"{number}\n")
    if number == DEADLY:
        os.kill(os.getpid(), signal.SIGKILL)
    return number


def test_items_that_run_once_keep_their_results_when_their_slave_is_killed(mw: mwpy.Master, tmp_path: Path) -> None:
    """The results that were not sent are in the journal. Only the running item fails; those behind it run elsewhere."""
    log = tmp_path / "log"
    results = [*mw.map_results(lambda number: run_once(log, number), range(ITEMS), ordered=True, retry=False)]
    others = [number for number in range(ITEMS) if number != DEADLY]
    assert [result.value for result in results if result.ok] == others
    [failed] = [result for result in results if not result.ok]
    assert failed.tag == DEADLY
    assert isinstance(failed.error, mwpy.TaskUnrunnable)
    assert "its policy says retry=False" in str(failed.error)
    assert len({result.sid for result in results}) == 2
    assert sorted(map(int, log.read_text().split())) == [*range(ITEMS)]


BUFFER = bytearray(200_000)


def grow(number: int) -> object:
    """Resize a buffer of the process, and return its memory."""
    BUFFER.append(number)
    return np.frombuffer(BUFFER, np.uint8)


@pytest.mark.parametrize("in_portions", [True, False])
def test_a_value_that_was_sent_is_released_before_the_next_task(mw: mwpy.Master, in_portions: bool) -> None:
    """A task can resize the bytearray whose memory an earlier task has returned."""
    if in_portions:
        found = [*mw.map(grow, range(4), chunksize=4)]
    else:
        found = [result.value for result in mw.as_completed(mwpy.task(grow, number) for number in range(4))]
    assert sorted(map(len, found)) == [200_001 + number for number in range(4)]  # type: ignore[arg-type]


def test_a_map_of_items_that_run_once_gives_the_values_before_the_item_that_is_lost(
    mw: mwpy.Master, tmp_path: Path
) -> None:
    log = tmp_path / "log"
    values = mw.map(lambda number: run_once(log, number), range(ITEMS), retry=False)
    assert [next(values) for _ in range(DEADLY)] == [*range(DEADLY)]
    with pytest.raises(mwpy.TaskUnrunnable, match="its policy says retry=False"):
        next(values)
    ran = log.read_text().split()
    assert len(ran) == len({*ran})
