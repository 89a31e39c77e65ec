"""Random results, failures and interrupted ones, in a journal that its agent reads after each of them."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mwpy._transport.channel import AGAIN, FAILED, JOURNAL_BYTES, VALUE, Journal
from mwpy._values import groups
from mwpy._values.messages import check

RESULTS = st.tuples(
    st.integers(1, 6),  # few tasks, so that many follow one another
    st.integers(1, 2),
    st.sampled_from((VALUE, VALUE, VALUE, FAILED, AGAIN)),
    st.booleans(),
)
"""Task, attempt, what the result is, and whether an exception ends the addition."""

Noted = tuple[int, int, bool, bool, int]


class Interrupted:
    """The time of all tasks. A signal arrives when it is read."""

    def __getitem__(self, place: int) -> float:
        raise KeyboardInterrupt


def noted(journal: Journal) -> list[Noted]:
    """What an agent reads: each task, its attempt, whether it failed or is tried again, and its value."""
    found = journal.read(1)
    if found is None:
        return []
    group, frames = found
    check(group, frames)
    values, _ = groups.entries(group, frames)
    each = zip(groups.each_task(group), values, strict=True)
    return [
        (task, attempt, place in group.failed, place in group.again, value)
        for place, ((task, attempt), value) in enumerate(each)
    ]


@settings(max_examples=500)
@given(st.lists(st.lists(RESULTS, max_size=8), max_size=4))
def test_an_agent_reads_exactly_what_was_added(fillings: list[list[tuple[int, int, int, bool]]]) -> None:
    """An attempt ends only once, also if an exception ended the addition of its result."""
    memory = memoryview(bytearray(JOURNAL_BYTES))
    slave, agent = Journal(memory), Journal(memory)
    times = slave._seconds
    for results in fillings:
        expected, ended = list[Noted](), set[tuple[int, int]]()
        for value, (task, attempt, kind, is_interrupted) in enumerate(results):
            if (task, attempt) in ended:
                continue
            ended.add((task, attempt))
            result = task, 1, attempt, 0.5, bytes([value]), kind
            if is_interrupted:
                slave._seconds = Interrupted()  # type: ignore[assignment]
                with pytest.raises(KeyboardInterrupt):
                    slave.add(*result)
                slave._seconds = times
            else:
                assert slave.add(*result)
                expected.append((task, attempt, kind != VALUE, kind == AGAIN, value))
            assert noted(agent) == expected
        slave.clear()
        assert noted(agent) == []
