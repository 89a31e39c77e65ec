"""What a master shows of itself in a notebook, and when it is printed."""

from __future__ import annotations

import re

import mwpy


def invert(x: float) -> float:
    return 1 / x


def test_open_is_another_name_of_local_master() -> None:
    """It replaces no builtin for a user of `from mwpy import *`."""
    assert mwpy.open is mwpy.local_master
    assert "open" not in mwpy.__all__
    assert "open" in dir(mwpy)


def test_a_master_shows_how_many_tasks_ended_how() -> None:
    """A cancelled task is neither done nor failed."""
    with mwpy.open(slaves=0) as mw:
        list(mw.map_results(invert, [1.0, 0.0, 2.0]))
        cancelled = [mw.submit(mwpy.task(invert, 1.0)) for _ in range(5)]
        mw.cancel(cancelled)
        numbers = "0 waiting, 0 running, 2 done, 1 failed, 5 cancelled"
        assert f"<mwpy: 1 slave; tasks: {numbers}" in repr(mw)
    assert repr(mw).startswith(f"<mwpy: closed; tasks: {numbers}")


def test_a_master_shows_its_last_failure_and_its_rate() -> None:
    """After the end, nothing has a rate."""
    with mwpy.open(slaves=0) as mw:
        list(mw.map_results(int, ["1", "<b>", "2"], ordered=True))
        assert re.search(r"cancelled, \d\S* per second; last failure: task 2 \(int\) on \S+: ValueError: ", repr(mw))
    assert "cancelled, 0 per second; last failure: task 2" in repr(mw)
