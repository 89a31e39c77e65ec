"""Grids of parameters, and the names of the parts of a tag."""

from __future__ import annotations

import pickle
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

import mwpy
from mwpy._values.code import value_digest
from mwpy._values.items import namer_of


def test_a_grid_has_every_combination_and_the_last_parameter_varies_fastest() -> None:
    points = mwpy.grid(mass=[1, 2], charge=range(3), name=iter(["a"]))
    expected = [{"mass": mass, "charge": charge, "name": "a"} for mass in (1, 2) for charge in range(3)]
    assert [*points] == expected == [points[place] for place in range(6)]
    assert (len(points), points[-1], [*reversed(points)]) == (6, expected[-1], expected[::-1])
    assert [list(point) for point in points] == [["mass", "charge", "name"]] * 6
    assert repr(points) == "<grid of 6 points (mass: 2, charge: 3, name: 1)>"
    for place in (6, -7):
        with pytest.raises(IndexError, match=f"no point {place}: the grid has 6"):
            points[place]


def test_a_slice_of_a_grid_is_a_grid() -> None:
    points = mwpy.grid(x=range(1000), y=range(1000))
    assert [*points[1002:1004]] == [{"x": 1, "y": 2}, {"x": 1, "y": 3}]
    assert [*points[::-1][:1]] == [points[-1]] == [{"x": 999, "y": 999}]
    assert (len(points[5:]), [*points[:0]]) == (999_995, [])


def test_a_grid_is_lazy() -> None:
    """It takes the memory of its values only, and each point is a dict of its own."""
    points = mwpy.grid(x=range(10**6), y=range(10**6))
    assert points[123_456_789_012] == {"x": 123_456, "y": 789_012}
    first = points[0]
    first["x"] = 5
    assert next(iter(points)) == {"x": 0, "y": 0}


def test_arrays_give_numbers_of_numpy() -> None:
    numpy = pytest.importorskip("numpy")
    points = mwpy.grid(x=numpy.linspace(0, 1, 3), y=[1])
    assert isinstance(points[1]["x"], numpy.float64)
    assert [point["x"] for point in points] == [0.0, 0.5, 1.0]
    with pytest.raises(mwpy.UsageError, match="is one value: write x="):
        mwpy.grid(x=numpy.array(3))


@pytest.mark.parametrize(
    ("values", "story"),
    [
        ({}, r"at least one parameter: mwpy.grid\(mass="),
        ({"name": "abc"}, r"name='abc' is one value: write name=\['abc'\]"),
        ({"name": b"abc"}, r"write name=\[b'abc'\]"),
        ({"x": 5}, r"x=5 is one value: write x=\[5\]"),
        ({"x": [1], "y": []}, "y has no values, so the grid has no points"),
        (dict.fromkeys("abcdefgh", range(1000)), f"would have {10**24} points, and a map can have {sys.maxsize}"),
    ],
)
def test_wrong_values_say_what_to_write(values: dict[str, Any], story: str) -> None:
    with pytest.raises(mwpy.UsageError, match=story):
        mwpy.grid(**values)


def simulate(mass: int, charge: int, shift: int = 0) -> int:
    return mass + charge + shift


def hidden(_mass: int, charge: int) -> int:
    return charge


def many(*values: int) -> int:
    return sum(values)


class Model:
    def run(self, mass: int, charge: int) -> int:
        return mass + charge


def test_tags_have_the_names_of_the_parameters() -> None:
    tag = namer_of(simulate, 2)((1, 2))
    assert (tag, tag.mass, tag.charge, repr(tag)) == ((1, 2), 1, 2, "Item(mass=1, charge=2)")
    assert namer_of(Model().run, 2)((1, 2)).mass == 1
    assert namer_of(partial(simulate, 5), 2)((1, 2))._fields == ("charge", "shift")
    name = namer_of(simulate)
    assert [name(item)._fields for item in ((1,), [1, 2])] == [("mass",), ("mass", "charge")]
    assert name({"mass": 1}) == {"mass": 1}


@pytest.mark.parametrize("function", [hidden, many, max, dict])
def test_a_function_without_names_for_fields_has_plain_tuples(function: Callable[..., Any]) -> None:
    for count in (2, None):
        assert type(namer_of(function, count)((1, 2))) is tuple
    assert type(namer_of(simulate)((1, 2, 3, 4))) is tuple, "too many arguments"


def test_a_named_tag_can_be_pickled_and_compared() -> None:
    """Also in the arguments of a later task, and after a restart."""
    tag = namer_of(simulate, 2)((1, 2))
    for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
        assert pickle.loads(pickle.dumps(tag, protocol)).charge == 2
    digests = {value_digest(namer_of(function, 2)(item)) for function in (simulate, Model().run) for item in ((1, 2),)}
    digests.add(value_digest(namer_of(simulate, 2)((1, 3))))
    assert len(digests) == 2
