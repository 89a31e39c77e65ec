"""Objects that count by what they mean, not by what they say to pickle."""

from __future__ import annotations

import logging
from types import MappingProxyType

import numpy as np
import pytest

from mwpy._values.structure import digest_of

pd = pytest.importorskip("pandas", reason="the oldest packages are tested without pandas")

FRAME = pd.DataFrame({"a": [1, 2], "b": ["x", None], "c": [1.5, np.nan]}, index=["i", "j"])


def test_the_memory_of_a_frame_does_not_count() -> None:
    """Columns that were added one by one lie in other blocks than those that were made together."""
    other = pd.DataFrame(index=["i", "j"])
    for name in FRAME.columns:
        other[name] = FRAME[name]
    assert digest_of(FRAME) == digest_of(other) == digest_of(FRAME.copy())


@pytest.mark.parametrize(
    "other",
    [
        FRAME.rename(columns={"a": "d"}),
        FRAME.rename(index={"i": "k"}),
        FRAME.assign(a=[1, 3]),
        FRAME.assign(a=[1.0, 2.0]),
        FRAME[["b", "a", "c"]],
        FRAME["a"],
        FRAME.index,
    ],
    ids=str,
)
def test_a_frame_differs_from_another_one(other: object) -> None:
    assert digest_of(FRAME) != digest_of(other)


def test_objects_of_pandas_have_digests() -> None:
    values = [
        pd.Series([1, 2]),
        pd.Series([1, 2], name="a"),
        pd.Series([1, 2], index=[1, 0]),
        pd.Series([1, 2], dtype="Int64"),
        pd.Series(["a", "b"], dtype="category"),
        pd.Series(["a", "b"], dtype=pd.CategoricalDtype(["b", "a"])),
        pd.Series(["a", "b"], dtype=pd.CategoricalDtype(["a", "b"], ordered=True)),
        pd.Series(pd.to_datetime(["2026-01-01"])),
        pd.Series(pd.to_datetime(["2026-01-01"]).tz_localize("UTC")),
        pd.Series(pd.to_datetime(["2026-01-02"]).tz_localize("UTC")),
        pd.RangeIndex(3),
        pd.RangeIndex(4),
        pd.Index([0, 1, 2]),
        pd.MultiIndex.from_product([[1, 2], ["a", "b"]]),
        pd.MultiIndex.from_product([[1, 2], ["a", "c"]]),
        pd.interval_range(0, 3),
        pd.Timestamp("2026-01-01"),
        pd.NA,
        pd.NaT,
    ]
    digests = [digest_of(value) for value in values]
    assert digests == [digest_of(value) for value in values]
    assert len({*digests}) == len(values)


def test_the_name_of_a_logger_does_not_count() -> None:
    """It can be that of a module, and this is another one in the script."""
    assert digest_of(logging.getLogger("a")) == digest_of(logging.getLogger("b"))


def test_views_of_dicts_count_by_value() -> None:
    one, other = MappingProxyType({"a": 1, "b": 2}), MappingProxyType({"b": 2, "a": 1})
    assert digest_of(one) == digest_of(other) != digest_of(MappingProxyType({"a": 1}))
