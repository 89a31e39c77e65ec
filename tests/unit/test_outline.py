"""Outlines of calls, which show in what two calls differ."""

from __future__ import annotations

import json
import math
import sys
from typing import Any

import pytest
from attrs import define

from mwpy._values.ids import TaskId
from mwpy._values.references import result
from mwpy._values.sameness import NotComparable, call_outline, changes, unknown_part, value_outline
from mwpy._values.sameness.outline import ITEMS_MAX, PARTS_MAX

HERE = __name__


@define(slots=False)
class Point:
    """A class of the user."""

    x: int
    y: object = None


@define
class Slotted:
    """A class without `__dict__`."""

    x: object


class Hidden:
    """A class whose attributes cannot be read."""

    @property
    def __dict__(self) -> Any:  # type: ignore[override]
        raise ValueError("hidden")


def _scaled(x: int) -> int:
    return 3 * x


def test_each_argument_has_a_short_text() -> None:
    outline = call_outline((1, "a", 2.5, None), {"name": b"b"})
    assert outline == {
        "argument 1": "1",
        "argument 2": "'a'",
        "argument 3": "2.5",
        "argument 4": "None",
        "argument name": "b'b'",
    }


@pytest.mark.parametrize("value", ["x" * 61, 1 << 200, {1, 2}, {(1, 2): 3}, [*range(ITEMS_MAX + 1)], math, max])
def test_a_long_value_is_a_digest_or_says_why_it_has_none(value: object) -> None:
    [text] = value_outline("it", value).values()
    assert text[0] == ("?" if value is math else "#")


def test_lists_dicts_and_objects_of_the_user_have_parts() -> None:
    outline = call_outline(([1, {"a": (2,)}], Point(3, Slotted(4))), {})
    assert {part: text for part, text in outline.items() if part.startswith("argument") and text[0] != "#"} == {
        "argument 1": "a list",
        "argument 1[0]": "1",
        "argument 1[1]": "a dict",
        "argument 1[1]['a']": "a tuple",
        "argument 1[1]['a'][0]": "2",
        "argument 2": f"a {HERE}.Point",
        "argument 2.x": "3",
    }
    assert outline["argument 2.y"][0] == "#"
    assert outline[f"class {HERE}.Point"][0] == outline[f"class {HERE}.Slotted"][0] == "#"


def test_functions_and_classes_add_the_parts_of_their_code() -> None:
    assert {*call_outline((_scaled,), {})} == {"argument 1", f"function {HERE}._scaled"}
    assert f"class {HERE}.Point" in call_outline((), {"kind": Point})


def test_what_differs_between_two_calls_is_said_in_a_sentence() -> None:
    one, other = call_outline((Point(1, ["a"]),), {}), call_outline((Point(1, ["b"]),), {})
    assert changes(one, other) == ["argument 1.y[0] changed from 'a' to 'b'"]


def test_a_part_without_structure_is_named() -> None:
    outline = call_outline((1, Point(1, [sys.stdout])), {})
    assert unknown_part(outline).startswith("argument 2.y[0]: an object of the type ")
    assert unknown_part(call_outline((1,), {})) == ""


def test_an_object_whose_attributes_cannot_be_read_is_one_part() -> None:
    outline = value_outline("it", Hidden())
    assert outline["it"][0] in "?#"


def test_a_reference_is_the_task_to_which_it_refers() -> None:
    texts = [call_outline((result(TaskId(1)),), {}, {1: own * 16}.__getitem__) for own in (b"a", b"b", b"a")]
    assert texts[0] == texts[2] != texts[1]
    assert unknown_part(call_outline((result(TaskId(1)),), {})).startswith("argument 1: ")


def test_an_outline_has_a_limit() -> None:
    deep: Any = []
    deep.append(deep)
    assert len(call_outline((deep,), {})) == 5
    many = call_outline([[0] * 10] * PARTS_MAX, {})
    assert len(many) == PARTS_MAX
    assert len(call_outline([0] * PARTS_MAX, {"f": _scaled})) == PARTS_MAX
    assert len(call_outline([0] * (PARTS_MAX - 1), {"f": _scaled})) == PARTS_MAX


def test_what_has_no_own_code_adds_no_parts_of_code(monkeypatch: pytest.MonkeyPatch) -> None:
    assert {*value_outline("it", json.dumps)} == {"it"}

    def fail(_: object) -> None:
        raise NotComparable("a part is hidden")

    monkeypatch.setattr("mwpy._values.sameness.outline.code_of", fail)
    assert {*value_outline("it", Slotted)} == {"it"}
