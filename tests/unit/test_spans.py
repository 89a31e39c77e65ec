"""Spans of tasks: what they count, and how they are cut, joined and taken."""

from __future__ import annotations

from collections import deque

from tests.spans import MAX, MIN, span

from mwpy._core.holding import take
from mwpy._core.master.algorithms import Defined
from mwpy._core.master.spans import Span
from mwpy._values.ids import TaskId
from mwpy._values.policy import DEFAULT_POLICY


def test_the_size_of_a_task_counts_its_buffers() -> None:
    """The limit holds for all bytes that travel."""
    assert span(1, MAX, 2, b"1234").sizes() == [4, 4]
    assert span(1, MAX, 3, b"1234").sizes(2) == [4, 4]
    assert span(1, MAX, 2, b"1234", buffers=[b"12", b"3"]).sizes() == [7, 7]


def test_a_span_is_cut_and_joined_without_a_change_to_itself() -> None:
    """Other code may still refer to it."""
    whole = span(5, MAX, 3)
    whole.tags = "a", "b", "c"
    head, rest = whole.cut(1)
    assert (head.first, head.tags, rest.first, rest.tags, whole.count) == (5, ("a",), 6, ("b", "c"), 3)
    assert [each.tags for each in whole.singles()] == [("a",), ("b",), ("c",)]
    assert head.joins(rest)
    assert not rest.joins(head)
    assert head.join(rest).tags == ("a", "b", "c")
    assert head.tags == ("a",)
    assert not head.joins(span(6, MAX, buffers=[b"large"]))
    assert not head.joins(span(6, MIN))


def test_the_spans_of_a_master_are_taken_with_what_is_theirs() -> None:
    """When a span is cut in the middle, each part keeps the arguments and tags of its tasks."""
    span = Span(TaskId(5), 3, Defined(MAX), DEFAULT_POLICY, (b"5", b"6", b"7"), (), ("five", "six", "seven"))
    held = deque([span])
    [taken] = take(held, 6, 1, 0)
    assert (taken.first, taken.payloads, taken.tags) == (6, (b"6",), ("six",))
    assert [(part.first, part.payloads, part.tags) for part in held] == [
        (5, (b"5",), ("five",)),
        (7, (b"7",), ("seven",)),
    ]
