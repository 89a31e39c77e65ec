"""Structural digests: the same values have the same digest everywhere, and each difference changes it."""

from __future__ import annotations

import copy
import itertools
import json
import logging
import os
import pickle
import subprocess
import sys
from collections import Counter
from math import nan
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mwpy._values import structure
from mwpy._values.shares import DIGEST_BYTES
from mwpy._values.structure import NoStructure, digest_of

PLAIN = st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary() | st.complex_numbers()
VALUES = st.recursive(
    PLAIN,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.lists(inner, max_size=4).map(tuple)
        | st.dictionaries(st.text() | st.integers(), inner, max_size=4)
        | st.frozensets(st.text() | st.integers(), max_size=4)
    ),
    max_leaves=12,
)


class Node:
    """An ordinary class."""

    def __init__(self, parent: Node | None = None) -> None:
        self.parent = parent
        self.children: list[Node] = []
        if parent is not None:
            parent.children.append(self)


def _reordered(value: Any) -> Any:
    """An equal value: each dict is filled in another order, and each set in another way."""
    if isinstance(value, list | tuple):
        return type(value)(map(_reordered, value))
    if isinstance(value, dict):
        return {key: _reordered(value[key]) for key in reversed(value)}
    if isinstance(value, frozenset):
        return frozenset(sorted(value, key=repr, reverse=True))
    return value


def _changes(value: Any) -> list[Any]:
    """Values that differ from a value in one place."""
    changed: list[Any] = [[value], "other" if value != "other" else "another"]
    if isinstance(value, list | tuple):
        changed.append((*value, None) if isinstance(value, list) else [*value])
        changed += [
            type(value)([*value[:at], each, *value[at + 1 :]])
            for at in range(len(value))
            for each in _changes(value[at])
        ]
    if isinstance(value, dict):
        changed += [{**value, key: each} for key in value for each in _changes(value[key])]
        changed += [{each: value[each] for each in value if each != key} for key in value]
    if isinstance(value, frozenset):
        changed += [value - {each} for each in value] + [{*value}]
    return changed


@given(VALUES)
def test_equal_values_have_the_same_digest(value: object) -> None:
    found = digest_of(value)
    assert len(found) == DIGEST_BYTES
    assert found == digest_of(_reordered(value)) == digest_of(copy.deepcopy(value))
    assert found == digest_of(pickle.loads(pickle.dumps(value)))


@given(VALUES)
@settings(deadline=None)
def test_a_change_anywhere_changes_the_digest(value: object) -> None:
    found = digest_of(value)
    for other in _changes(value):
        assert digest_of(other) != found, other


IN_ANOTHER_PROCESS = """
import json, pickle, sys
from mwpy._values.structure import digest_of
values = pickle.load(sys.stdin.buffer)
print(json.dumps([digest_of(value).hex() for value in values]))
"""


@given(st.lists(VALUES, min_size=20, max_size=20))
@settings(max_examples=3, deadline=None)
def test_another_process_with_another_hash_seed_finds_the_same_digests(values: list[object]) -> None:
    values += [
        {"a", "b", "c", "d"},
        {"d": frozenset("xyz"), "a": 1},
        Counter("hello"),
        ValueError(1),
        {"k": {b"1", b"2"}},
    ]
    expected = [digest_of(value).hex() for value in values]
    for seed in ("1", "2"):
        command = [sys.executable, "-c", IN_ANOTHER_PROCESS]
        environment = os.environ | {"PYTHONHASHSEED": seed}
        done = subprocess.run(command, input=pickle.dumps(values), env=environment, capture_output=True, check=True)
        assert json.loads(done.stdout) == expected


def test_the_digest_of_a_value_never_changes() -> None:
    """Digests may be stored: a change of the rules needs another name for them."""
    assert digest_of([1, 2.5, "x", None, {"a": (b"", True)}, {3}]).hex() == "70c3987623ecf55c9447a2f7cd462b6b"


def test_many_shared_parts_take_no_longer_than_one() -> None:
    value: object = 1
    for _ in range(200):
        value = [value, value]
    assert digest_of(value) != digest_of([value])


def test_any_depth_is_possible() -> None:
    value: list[Any] = []
    for _ in range(5_000):
        value = [value]
    assert len(digest_of(value)) == DIGEST_BYTES


def _tree(leaves: int) -> Node:
    root = Node()
    for _ in range(leaves):
        Node(Node(root))
    return root


def test_cycles_have_a_digest() -> None:
    one: list[Any] = []
    one.append(one)
    other: list[Any] = []
    other.append(other)
    assert digest_of(one) == digest_of(other) != digest_of([[]])
    assert digest_of(_tree(3)) == digest_of(_tree(3)) != digest_of(_tree(4))
    assert digest_of([_tree(3), one, one]) == digest_of([_tree(3), other, one])
    inner = _tree(1)
    assert digest_of([inner, inner]) == digest_of([_tree(1), _tree(1)])


def test_a_dense_graph_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(structure, "REVISITS_ALLOWED", 1000)
    nodes: list[list[Any]] = [[] for _ in range(30)]
    for node in nodes:
        node.extend(nodes)
    with pytest.raises(NoStructure, match=r"refer to each other in too many ways \(list\)"):
        digest_of(nodes)


def test_an_array_counts_by_its_elements_and_not_by_its_memory() -> None:
    array = np.arange(12.0).reshape(3, 4)
    assert digest_of(array) == digest_of(np.asfortranarray(array)) == digest_of(array.copy())
    assert digest_of(array[:, ::2]) == digest_of(array[:, ::2].copy())
    others = [array.reshape(4, 3), array.astype("f4"), array.astype(">f8"), array + 1, array.tolist(), array[0]]
    digests = {digest_of(other) for other in [array, *others]}
    assert len(digests) == 1 + len(others)


def test_arrays_of_every_kind_have_digests() -> None:
    padded = np.dtype([("a", "i1"), ("b", "f8")], align=True)
    one, other = np.zeros(2, padded), np.frombuffer(bytes([0, *[7] * 7, *[0] * 8] * 2), padded)
    assert digest_of(one) == digest_of(other)
    assert digest_of(np.array([[1, "a"], [None, 2]], object)) == digest_of(np.array([[1, "a"], [None, 2]], object))
    third = np.longdouble(1) / 3
    assert digest_of(np.array([third])) == digest_of(np.array([third]))
    values = [
        np.array([1 + 2j, nan]),
        np.array(["a", "bc"]),
        np.array(["2026-01-01"], "M8[s]"),
        np.array([True]),
        np.zeros((0, 3)),
        np.zeros(3, "U0"),
        np.array(1.0),
        np.float64(1.0),
        np.array([b"x"], "V1"),
        np.array([None]),
        third,
        one,
        one[0],
    ]
    assert len({digest_of(value) for value in values}) == len(values)


def test_numpy_is_not_imported_and_not_needed() -> None:
    code = (
        "import sys; from mwpy._values.structure import digest_of; digest_of([range(3)]); "
        "sys.exit('numpy' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


class Endless:
    """Says that it has items without an end."""

    def __reduce_ex__(self, protocol: object) -> Any:
        return Endless, (), None, itertools.count()


def test_a_value_with_too_many_objects_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(structure, "OBJECTS_ALLOWED", 1000)
    values: list[object] = [[[[]] for _ in range(1100)], Endless()]
    for value in values:
        with pytest.raises(NoStructure, match="more than 1,000 objects"):
            digest_of(value)


def test_numbers_and_texts_that_messagepack_cannot_encode_have_digests() -> None:
    values: list[object] = [2**64, -(2**64), "\ud800", [2**64], (2**64,), {"a": 2**64}, {"\ud800": 1}, {"a": nan}]
    assert len({digest_of(value) for value in values}) == len(values)
    assert digest_of({"a": nan}) == digest_of({"a": -nan})


def test_functions_of_cython_count_by_their_names() -> None:
    rng = np.random.default_rng(1)
    assert digest_of(type(rng).integers) == digest_of(type(rng).integers)


def test_objects_of_pandas_have_digests() -> None:
    """As far as what they say to pickle is the same: frames whose columns lie together in another way differ, too."""
    pd: Any = pytest.importorskip("pandas", reason="the oldest packages are tested without pandas")
    frame = pd.DataFrame({"a": [1, 2], "b": ["x", None], "c": [1.5, np.nan]}, index=["i", "j"])
    values = [
        frame,
        frame.rename(columns={"a": "d"}),
        frame.assign(a=[1, 3]),
        frame[["b", "a", "c"]],
        frame["a"],
        pd.Series([1, 2], dtype="Int64"),
        pd.Series(["a", "b"], dtype=pd.CategoricalDtype(["a", "b"], ordered=True)),
        pd.Series(pd.to_datetime(["2026-01-01"]).tz_localize("UTC")),
        pd.MultiIndex.from_product([[1, 2], ["a", "b"]]),
        pd.MultiIndex.from_product([[1, 2], ["a", "c"]]),
        pd.Timestamp("2026-01-01"),
        pd.NA,
    ]
    digests = [digest_of(value) for value in values]
    frame.groupby("a").sum()
    assert digests == [digest_of(value) for value in values]
    assert len({*digests}) == len(values)


def test_loggers_and_views_of_dicts_count_by_what_they_mean() -> None:
    """The name of a logger can be that of a module, and this is another one in the script."""
    assert digest_of(logging.getLogger("a")) == digest_of(logging.getLogger("b"))
    one, other = MappingProxyType({"a": 1, "b": 2}), MappingProxyType({"b": 2, "a": 1})
    assert digest_of(one) == digest_of(other) != digest_of(MappingProxyType({"a": 1}))
