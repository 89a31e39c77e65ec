"""The ids of tasks that were answered from the run database."""

from __future__ import annotations

import pytest

from mwpy._core.master import reused_ids
from mwpy._core.master.reused_ids import ReusedIds


def test_the_ids_of_ranges_are_known() -> None:
    ids = ReusedIds()
    assert not ids.has(1)
    for first, count in ((2, 1), (3, 2), (7, 1)):
        ids.add(first, count, 1)
    assert [number for number in range(10) if ids.has(number)] == [2, 3, 4, 7]
    assert (ids.count, ids.failed) == (4, 3)


def test_not_more_ranges_are_kept_than_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reused_ids, "RANGES_MAX", 1)
    ids = ReusedIds()
    for first in (2, 5, 6):
        ids.add(first, 1, 0)
    assert [number for number in range(10) if ids.has(number)] == [2]
