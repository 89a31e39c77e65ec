"""How large the portions of a map are, and which items can be packed."""

from __future__ import annotations

from typing import Any

import pytest
from tests.spans import MAX

from mwpy._core.master.algorithms import Defined
from mwpy._core.master.state import MasterSettings
from mwpy._roles.maps import FIRST_ITEMS, MOST_ITEMS, MapItems, PortionSizes, items_of
from mwpy._roles.submission import Extras
from mwpy._values.errors import UsageError
from mwpy._values.groups import ARGUMENTS, ROWS
from mwpy._values.policy import TaskPolicy

SETTINGS = MasterSettings("m", "g")
MUCH = 1 << 30


def items(
    *iterables: Any, settings: MasterSettings = SETTINGS, extras: Extras | None = None, **policy: Any
) -> MapItems:
    return items_of((Defined(MAX), TaskPolicy.of(**policy), extras), max, iterables, settings)


def grown(sizes: PortionSizes, portions: int, seconds: float = 0.0, size: int = 2) -> list[int]:
    """Read some portions, each in this time, with items of this size. Return their sizes."""
    found = []
    for _ in range(portions):
        found.append(sizes.next(None, MUCH, 2))
        sizes.read(found[-1], found[-1] * size, seconds, 0.01)
    return found


def test_portions_are_small_until_a_result_has_arrived() -> None:
    assert grown(PortionSizes(), 5) == [1, 4, 16, FIRST_ITEMS, FIRST_ITEMS]


def test_portions_grow_to_some_milliseconds_of_work() -> None:
    sizes = PortionSizes()
    sizes.ended(1, 100e-6)
    assert grown(sizes, 6)[-1] == 400, "0.04 s / (100 µs + 0.2 µs)"
    for _ in range(100):
        sizes.ended(100, 100e-9)
    assert grown(sizes, 6)[-1] == MOST_ITEMS
    sizes.ended(1, 100.0)
    assert sizes.next(None, MUCH, 2) == 1


def test_a_slow_iterable_gives_small_portions() -> None:
    sizes = PortionSizes()
    assert grown(sizes, 3, seconds=1.0) == [1, 1, 1]
    assert grown(sizes, 3) == [1, 4, 16]
    sizes.read(16, 32, 0.04, 0.01)
    assert sizes.next(None, MUCH, 2) == 2


def test_large_items_make_small_portions() -> None:
    sizes = PortionSizes()
    grown(sizes, 4, size=64 * 1024)
    assert sizes.next(None, MUCH, 2) == 4
    assert sizes.next(None, 1, 2) == 1


def test_the_last_portions_of_a_known_number_of_items_are_smaller() -> None:
    """All slaves end at about the same time. The last portions still have 2 ms of work."""
    sizes = PortionSizes()
    sizes.ended(1, 10e-6)
    grown(sizes, 6)
    assert [sizes.next(left, MUCH, 2) for left in (100_000, 4000, 400, 4)] == [3922, 1000, 196, 196]


def test_a_caller_can_allow_fewer_items() -> None:
    assert max(grown(PortionSizes(most=3), 5)) == 3


@pytest.mark.parametrize(
    ("iterables", "kind", "data"),
    [(([1, None],), ARGUMENTS, b"\x01\xc0"), (([1, 2], "ab"), ROWS, b"\x92\x01\xa1a\x92\x02\xa1b")],
)
def test_plain_items_are_packed(iterables: tuple[Any, ...], kind: int, data: bytes) -> None:
    source = items(*iterables)
    calls = source.packed([*source.items])
    assert calls is not None
    assert (calls.kind, calls.data) == (kind, data)


def test_the_items_of_a_starmap_are_rows() -> None:
    terms = Defined(MAX), TaskPolicy(), None
    source = items_of(terms, max, (iter([[1, 2]]),), SETTINGS, star=True)
    calls = source.packed([*source.items])
    assert calls is not None
    assert calls.data == b"\x92\x01\x02"


@pytest.mark.parametrize("item", [[1], {1: 2}, object(), 1 << 70, "\ud800", True.__class__])
def test_other_items_are_not_packed(item: object) -> None:
    assert items([5, item]).packed([5, item]) is None


def test_a_map_needs_an_iterable() -> None:
    with pytest.raises(UsageError, match="at least one iterable"):
        items()


@pytest.mark.parametrize(
    "policy", [{"retry": False}, {"seconds_max": 5}, {"memory_max": 100}, {"sid": "SLAVE-1"}, {"speculate": True}]
)
def test_items_about_which_more_is_said_are_not_packed(policy: dict[str, Any]) -> None:
    """Those with `retry=False` are journalled one by one."""
    assert items([1], **policy).packed([1]) is None


def test_items_with_fixed_groups_or_seeds_or_conditions_are_not_packed() -> None:
    for settings in (MasterSettings("m", "g", task_group=5), MasterSettings("m", "g", result_group=5)):
        assert items([1], settings=settings).packed([1]) is None
    seeded = items([1], extras=Extras(5, b""))
    assert seeded.packed([1]) is None
    terms, args, kwargs = seeded.call_of(1)
    assert (terms[2], args, kwargs) == (Extras(5, b""), (1,), {})
