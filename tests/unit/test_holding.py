"""Finding and removing tasks that a slave holds, compared with a model that has no spans."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from random import Random

import pytest
from attrs import frozen
from hypothesis import given
from hypothesis import strategies as st

from mwpy._core.holding import TaskIds, divided, places_of, take, take_newest, take_out
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


SHAPES = st.lists(st.tuples(st.integers(1, 5), st.integers(1, 2), st.integers(0, 2)), max_size=6)
"""The count and the attempt of each span, and the gap before it."""


def scattered(shapes: list[Task], random: Random) -> list[Task]:
    """Make spans that do not overlap, in any order: the first id, the count and the attempt of each."""
    spans: list[Task] = []
    end = 1
    for count, attempt, gap in shapes:
        spans.append((end + gap, count, attempt))
        end += gap + count
    random.shuffle(spans)
    return spans


@pytest.mark.parametrize("remove", [take_out, take_newest])
@given(SHAPES, st.lists(st.tuples(st.integers(1, 4), st.integers(1, 1), st.integers(0, 3))), st.randoms())
def test_tasks_with_certain_ids_are_taken_out_wherever_they_are(
    remove: Callable[..., list[Piece]], shapes: list[Task], ranges_of: list[Task], random: Random
) -> None:
    """The order of spans and ranges does not matter. No task is lost, doubled, reordered or changed."""
    spans, ranges = scattered(shapes, random), [each[:2] for each in scattered(ranges_of, random)]
    wanted = {first + at for first, count in ranges for at in range(count)}
    held = hold(*spans)
    before = each(held)
    marked = [(task, named) for piece, named in divided(held, TaskIds(ranges)) for task in each([piece])]
    assert marked == [(task, task[0] in wanted) for task in before]
    taken = remove(held, TaskIds(ranges))
    assert each(taken) == [task for task in before if task[0] in wanted]
    assert each(held) == [task for task in before if task[0] not in wanted]
    assert all(piece.count for piece in [*taken, *held])


@given(SHAPES, st.lists(st.tuples(st.integers(1, 4), st.integers(1, 3), st.integers(0, 3)), max_size=6), st.randoms())
def test_taking_several_ranges_takes_each_of_their_tasks_and_says_where_it_was_named(
    shapes: list[Task], ranges: list[Task], random: Random
) -> None:
    """The ranges are in any order, and are held in parts or not at all."""
    spans, named = scattered(shapes, random), scattered(ranges, random)
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
