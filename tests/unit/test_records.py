"""Records: a closed set of immutable facts that can be stored."""

from __future__ import annotations

import pytest

from mwpy._values import messagepack, records
from mwpy._values.bounds import SlaveId
from mwpy._values.groups import payload
from mwpy._values.messages import Results


def test_a_record_survives_storing_with_its_buffers() -> None:
    """Buffers that are views of other memory come back as bytes."""
    group = Results(1, [1], [1], [1], [0.5], [], [1])
    record = records.ResultsReceived(SlaveId("SLAVE-0"), group, [payload(1, [b"\x07"]), memoryview(b"large")])
    restored = records.decoder()(records.encode(record))
    assert restored == records.ResultsReceived(SlaveId("SLAVE-0"), group, [payload(1, [b"\x07"]), b"large"])


def test_bytes_that_are_no_record_are_refused() -> None:
    with pytest.raises(messagepack.MALFORMED):
        records.decoder()(b"\x80")
