"""Records: a closed set of immutable facts that can be stored."""

from __future__ import annotations

import pytest

from mwpy._values import messagepack, records
from mwpy._values.bounds import SlaveId
from mwpy._values.groups import payload
from mwpy._values.messages import Results


def test_a_record_cannot_be_changed_and_equals_its_like() -> None:
    notice = records.Notice("words")
    assert notice == records.Notice("words")
    with pytest.raises(AttributeError):
        notice.text = "other words"  # type: ignore[misc]


def test_a_record_survives_storing_with_its_buffers() -> None:
    """Buffers that are views of other memory come back as bytes."""
    group = Results(1, [1], [1], [1], [0.5], [], [1])
    record = records.ResultsReceived(SlaveId("SLAVE-0"), group, [payload(1, [b"\x07"]), memoryview(b"large")])
    restored = records.decoder()(records.encode(record))
    assert restored == records.ResultsReceived(SlaveId("SLAVE-0"), group, [payload(1, [b"\x07"]), b"large"])


def test_bytes_that_are_no_record_are_refused() -> None:
    with pytest.raises(messagepack.MALFORMED):
        records.decoder()(b"\x80")


def test_a_range_of_tasks_is_named_by_its_ids_and_its_algorithm() -> None:
    assert str(records.TaskRange(3, 1, 1, 0, "f")) == "task 3 (f)"
    assert str(records.TaskRange(3, 4, 1, 0, "f")) == "tasks 3 to 6 (f)"
