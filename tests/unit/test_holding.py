"""Taking tasks out of those that a slave holds, compared with a model that has no spans."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from random import Random

import pytest
from attrs import frozen
from hypothesis import given
from hypothesis import strategies as st

from mwpy._core.holding import take


@frozen
class Piece:
    """Tasks that know the position that each of them had at the beginning."""

    first: int
    attempt: int
    places: Sequence[int]

    @property
    def count(self) -> int:
        return len(self.places)

    def cut(self, count: int) -> tuple[Piece, Piece]:
        assert 0 < count < self.count, "a piece without tasks"
        rest = Piece(self.first + count, self.attempt, self.places[count:])
        return Piece(self.first, self.attempt, self.places[:count]), rest


Task = tuple[int, int, int]


def hold(*spans: tuple[int, int, int]) -> deque[Piece]:
    """Make spans of a first id, a count and an attempt."""
    held: deque[Piece] = deque()
    passed_on = 0
    for first, count, attempt in spans:
        held.append(Piece(first, attempt, range(passed_on, passed_on + count)))
        passed_on += count
    return held


def each(pieces: Sequence[Piece] | deque[Piece]) -> list[Task]:
    """Return the id, the attempt and the position of each task, in their order."""
    return [(piece.first + at, piece.attempt, place) for piece in pieces for at, place in enumerate(piece.places)]


def ids(pieces: Sequence[Piece] | deque[Piece]) -> list[list[int]]:
    """Return the ids in each piece."""
    return [list(range(piece.first, piece.first + piece.count)) for piece in pieces]


@pytest.mark.parametrize(
    ("first", "count", "attempt", "taken", "left"),
    [
        (1, 5, 1, [[1, 2, 3, 4, 5]], [[20, 21, 22], [10, 11]]),
        (1, 2, 1, [[1, 2]], [[3, 4, 5], [20, 21, 22], [10, 11]]),
        (3, 1, 1, [[3]], [[1, 2], [4, 5], [20, 21, 22], [10, 11]]),
        (4, 6, 1, [[4, 5]], [[1, 2, 3], [20, 21, 22], [10, 11]]),
        (0, 3, 1, [[1, 2]], [[3, 4, 5], [20, 21, 22], [10, 11]]),
        (11, 1, 1, [[11]], [[1, 2, 3, 4, 5], [20, 21, 22], [10]]),
        (5, 20, 1, [[5], [20, 21, 22], [10, 11]], [[1, 2, 3, 4]]),
        (21, 1, 2, [], [[1, 2, 3, 4, 5], [20, 21, 22], [10, 11]]),
        (6, 4, 1, [], [[1, 2, 3, 4, 5], [20, 21, 22], [10, 11]]),
        (1, 10**18, 1, [[1, 2, 3, 4, 5], [20, 21, 22], [10, 11]], []),
    ],
    ids=[
        "a whole one",
        "its front",
        "its middle",
        "its end",
        "more before it",
        "behind others",
        "pieces of several",
        "another attempt",
        "between",
        "all and more",
    ],
)
def test_the_requested_tasks_are_taken_and_the_others_stay_in_order(
    first: int, count: int, attempt: int, taken: list[list[int]], left: list[list[int]]
) -> None:
    """They may be any part of a span, and only some of them may be held."""
    held = hold((1, 5, 1), (20, 3, 1), (10, 2, 1))
    assert ids(take(held, first, count, attempt)) == taken
    assert ids(held) == left


def test_nothing_is_taken_from_a_slave_that_holds_nothing() -> None:
    """A request for any tasks takes nothing and raises no error."""
    assert take(hold(), 1, 3, 1) == []


def test_the_requested_attempt_is_found_behind_another_attempt() -> None:
    """A slave should hold a task in one attempt only. If not, nothing goes wrong."""
    held = hold((1, 3, 1), (2, 1, 2))
    assert each(take(held, 1, 3, 2)) == [(2, 2, 3)]
    assert each(held) == [(1, 1, 0), (2, 1, 1), (3, 1, 2)]


@given(
    st.lists(st.tuples(st.integers(1, 5), st.integers(1, 2), st.integers(0, 2)), max_size=6), st.randoms(), st.data()
)
def test_taking_spans_is_the_same_as_taking_task_by_task(
    shapes: list[tuple[int, int, int]], random: Random, data: st.DataObject
) -> None:
    """No task is lost, doubled, reordered or changed, however often tasks are taken. No piece is empty."""
    spans: list[tuple[int, int, int]] = []
    end = 1
    for count, attempt, gap in shapes:
        spans.append((end + gap, count, attempt))
        end += gap + count
    random.shuffle(spans)
    held = hold(*spans)
    for _ in range(3):
        asked = st.tuples(st.integers(-1, end + 1), st.integers(0, end + 2), st.integers(0, 2))
        first, count, attempt = data.draw(asked)
        before = each(held)
        wanted = [task for task in before if first <= task[0] < first + count and task[1] == attempt]
        taken = take(held, first, count, attempt)
        assert each(taken) == wanted
        assert each(held) == [task for task in before if task not in wanted]
        assert all(piece.count for piece in [*taken, *held])
