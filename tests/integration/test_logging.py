"""What tasks log reaches the loggers of the master: with real slaves."""

from __future__ import annotations

import logging
import platform
import warnings
from collections.abc import Iterator

import pytest
from tests.integration.apps.stage import until
from tests.seen import Seen

import mwpy

RECORDS = 100_000


@pytest.fixture
def seen() -> Iterator[Seen]:
    """A handler of the loggers that are used."""
    handler = Seen()
    used = [logging.getLogger(name) for name in ("mw_tasks", "py.warnings", "mwpy")]
    used[0].setLevel(logging.INFO)
    for logger in used:
        logger.addHandler(handler)
        logger.propagate = False
    yield handler
    used[0].setLevel(logging.NOTSET)
    for logger in used:
        logger.removeHandler(handler)
        logger.propagate = True


def say(number: int) -> int:
    logger = logging.getLogger("mw_tasks.part")
    logger.info("item %d", number)
    logger.debug("below the level of the master")
    if number == 3:
        warnings.warn("careful", stacklevel=1)
    return number


def flood(count: int) -> None:
    logger = logging.getLogger("mw_tasks")
    for number in range(count):
        logger.info("line %d", number)


def test_a_record_is_there_before_the_result_of_its_task(seen: Seen) -> None:
    """It names the task, the algorithm, the slave and the host. A warning is a record, too."""
    with mwpy.local_master(slaves=2) as mw:
        for number in range(5):
            task = mw.submit(mwpy.task(say, number))
            while not (results := mw.results()):
                mw.loop()
            texts = {record.getMessage() for record in seen.records if record.mw_task == task}
            assert f"item {number}" in texts
            record = next(record for record in seen.records if record.mw_task == task)
            assert (record.mw_algorithm, record.mw_slave) == ("say", results[0].sid)
            assert (record.mw_host, record.name) == (platform.node(), "mw_tasks.part")
        assert sorted(mw.map(say, range(5, 50))) == [*range(5, 50)]
        said = {record.getMessage() for record in seen.records if record.levelno == logging.INFO}
        assert said == {f"item {number}" for number in range(50)}
    [warning] = [record for record in seen.records if record.name == "py.warnings"]
    assert "UserWarning: careful" in warning.getMessage()


def test_a_task_that_logs_without_end_does_not_fill_the_master(seen: Seen) -> None:
    """What is missing is counted."""
    with mwpy.local_master(slaves=1) as mw:
        mw.submit(mwpy.task(flood, RECORDS))

        def all_are_here() -> bool:
            mw.loop_iterate()
            lines = sum(record.name == "mw_tasks" for record in seen.records)
            missing = [int(record.getMessage().split()[0]) for record in seen.records if record.name == "mwpy"]
            return lines > 0 and missing != [] and lines + sum(missing) == RECORDS

        until(all_are_here, "the records, and the count of the others")
