"""Records: the closed set of facts."""

from __future__ import annotations

from typing import get_args

import pytest

from mwpy._values import records


def test_the_set_of_records_is_the_set_of_exported_classes() -> None:
    kinds = {kind.__name__ for kind in get_args(records.Record)}
    assert kinds == set(records.__all__) - {"Record", "SlaveKind", "SlaveState"}


def test_a_record_cannot_be_changed_and_equals_its_like() -> None:
    notice = records.Notice("words")
    assert notice == records.Notice("words")
    with pytest.raises(AttributeError):
        notice.text = "other words"  # type: ignore[misc]
