"""Finding and removing tasks that a slave holds, compared with a model that has no spans."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from random import Random

import pytest
from attrs import frozen
from hypothesis import given
from hypothesis import strategies as st

from mwpy._core.holding import TaskIds, divided, places_of, take, take_out
from mwpy._values.messages import Revoked


@frozen
class Piece:
    """A span of tasks. It also has the position that each task had at the beginning."""

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


def scattered(shapes: list[tuple[int, int, int]], random: Random) -> tuple[list[tuple[int, int, int]], int]:
    """Make spans that do not overlap, in any order. A shape is a count, an attempt, and the gap before the span.

    Returns:
        The spans, and the id behind all of them.
    """
    spans: list[tuple[int, int, int]] = []
    end = 1
    for count, attempt, gap in shapes:
        spans.append((end + gap, count, attempt))
        end += gap + count
    random.shuffle(spans)
    return spans, end


@given(
    st.lists(st.tuples(st.integers(1, 5), st.integers(1, 2), st.integers(0, 2)), max_size=6), st.randoms(), st.data()
)
def test_taking_spans_is_the_same_as_taking_task_by_task(
    shapes: list[tuple[int, int, int]], random: Random, data: st.DataObject
) -> None:
    """It can be done many times: it does not lose, double, reorder or change a task, and no piece is empty."""
    spans, end = scattered(shapes, random)
    held = hold(*spans)
    for _ in range(3):
        asked = st.tuples(st.integers(-1, end + 1), st.integers(0, end + 2), st.integers(0, 2))
        first, count, attempt = data.draw(asked)
        before = each(held)
        wanted = [task for task in before if first <= task[0] < first + count and task[1] == attempt]
        taken = take(held, [(first, count, attempt)])
        assert each(taken) == wanted
        assert each(held) == [task for task in before if task not in wanted]
        assert all(piece.count for piece in [*taken, *held])


@given(
    st.lists(st.tuples(st.integers(1, 5), st.integers(0, 2)), max_size=6),
    st.lists(st.tuples(st.integers(0, 3), st.integers(1, 4))),
    st.randoms(),
)
def test_tasks_with_certain_ids_are_taken_out_wherever_they_are(
    shapes: list[tuple[int, int]], gaps: list[tuple[int, int]], random: Random
) -> None:
    """The order of spans and ranges does not matter. No task is lost, doubled, reordered or changed."""
    spans: list[tuple[int, int, int]] = []
    end = 1
    for count, gap in shapes:
        spans.append((end + gap, count, 1))
        end += gap + count
    ranges: list[tuple[int, int]] = []
    end = 1
    for gap, count in gaps:
        ranges.append((end + gap, count))
        end += gap + count
    random.shuffle(spans)
    random.shuffle(ranges)
    wanted = {first + at for first, count in ranges for at in range(count)}
    held = hold(*spans)
    before = each(held)
    marked = [(task, named) for piece, named in divided(held, TaskIds(ranges)) for task in each([piece])]
    assert marked == [(task, task[0] in wanted) for task in before]
    taken = take_out(held, TaskIds(ranges))
    assert each(taken) == [task for task in before if task[0] in wanted]
    assert each(held) == [task for task in before if task[0] not in wanted]
    assert all(piece.count for piece in [*taken, *held])


@given(
    st.lists(st.tuples(st.integers(1, 5), st.integers(1, 2), st.integers(0, 2)), max_size=6),
    st.lists(st.tuples(st.integers(1, 4), st.integers(1, 3), st.integers(0, 3)), max_size=6),
    st.randoms(),
)
def test_taking_several_ranges_takes_each_of_their_tasks_and_says_where_it_was_named(
    shapes: list[tuple[int, int, int]], ranges: list[tuple[int, int, int]], random: Random
) -> None:
    """The ranges are in any order, and are held in parts or not at all."""
    (spans, _), (named, _) = scattered(shapes, random), scattered(ranges, random)
    held = hold(*spans)
    before = each(held)
    places = [(first + at, attempt) for first, count, attempt in named for at in range(count)]
    taken = take(held, named)
    assert sorted(each(taken)) == sorted(task for task in before if task[:2] in places)
    assert each(held) == [task for task in before if task[:2] not in places]
    assert all(piece.count for piece in [*taken, *held])
    firsts, counts, attempts = ([entry[at] for entry in named] for at in range(3))
    for piece, place in zip(taken, places_of(taken, Revoked(1, firsts, counts, attempts)), strict=True):
        assert places[place : place + piece.count] == [task[:2] for task in each([piece])]


@pytest.mark.parametrize(
    "names", [[(2 * n, 2, 1) for n in range(1000)], [(n, 1, 2) for n in range(1000)], [(0, 1 << 64, 2)]]
)
def test_the_work_is_limited_by_the_number_of_spans_and_not_by_its_square(names: list[Task]) -> None:
    """A member that names a thousand spans of a thousand, in any way, does not stall the master."""
    looked_at = 0

    class Counted(Piece):
        @property
        def count(self) -> int:
            nonlocal looked_at
            looked_at += 1
            return len(self.places)

        def cut(self, count: int) -> tuple[Piece, Piece]:
            raise AssertionError("every span has one task")

    held: deque[Piece] = deque(Counted(2 * n, 1, range(n, n + 1)) for n in range(1000))
    take(held, names)
    assert looked_at < 10 * (1000 + len(names))
