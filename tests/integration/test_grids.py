"""Maps over grids of parameters, and other items with keyword arguments, on real slaves."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import mwpy

POINTS = mwpy.grid(mass=[1, 2, 3], charge=range(4))


def energy(mass: int, charge: int, *, shift: int = 0) -> dict[str, int]:
    if charge == 9:
        raise ValueError("too much charge")
    return {"energy": 10 * mass + charge + shift}


def product(mass: int, charge: int) -> int:
    return mass * charge


def seed(mass: int, charge: int) -> int:
    return mwpy.task_seed()


def counted(folder: str, mass: int, charge: int) -> int:
    with Path(folder, "ran").open("a") as file:
        file.write(f"{mass} {charge}\n")
    return mass * charge


@pytest.fixture(scope="module", params=[0, 2], ids=["in this process", "with slaves"])
def mw(request: pytest.FixtureRequest) -> Iterator[mwpy.LocalMaster]:
    with mwpy.local_master(slaves=request.param) as mw:
        yield mw


def test_every_map_calls_with_the_parameters_of_a_grid(mw: mwpy.LocalMaster) -> None:
    expected = [point["mass"] * point["charge"] for point in POINTS]
    assert list(mw.map(product, POINTS)) == expected
    assert sorted(mw.imap_unordered(product, POINTS[2:])) == sorted(expected[2:])
    assert [result.tag for result in mw.map_results(product, POINTS, ordered=True)] == list(POINTS)
    assert list(mw.map(len, list(POINTS))) == [2] * 12, "a list of dicts is a list of single arguments"
    many = mwpy.grid(mass=range(100), charge=range(100))
    assert sum(mw.map(product, many)) == sum(range(100)) ** 2


def test_a_starmap_takes_tuples_and_dicts(mw: mwpy.LocalMaster) -> None:
    """The same dict may be filled again and again, as any item of a map."""
    items: Any = [(1, 2), {"mass": 1, "charge": 5, "shift": 100}, [3, 4], OrderedDict(charge=1, mass=2)]
    assert [value["energy"] for value in mw.starmap(energy, items)] == [12, 115, 34, 21]
    results = list(mw.starmap_results(energy, iter(items), ordered=True))
    assert [result.tag for result in results] == [(1, 2), items[1], (3, 4), items[3]]
    assert results[0].tag.charge == 2
    assert [value["energy"] for value in mw.starmap(energy, again_and_again())] == [10, 11, 12]
    [failed] = mw.starmap_results(energy, [{"mass": 1, "colour": 2}])
    with pytest.raises(mwpy.TaskFailed, match=r"item .*'colour': 2.*unexpected keyword argument 'colour'"):
        failed.value  # noqa: B018


def again_and_again() -> Iterator[dict[str, int]]:
    point = {"mass": 1}
    for point["charge"] in range(3):
        yield point


def test_tags_of_several_iterables_have_names(mw: mwpy.LocalMaster) -> None:
    tags = [result.tag for result in mw.map_results(product, [1, 2], [3, 4], ordered=True)]
    assert tags == [(1, 3), (2, 4)]
    assert [tag.charge for tag in tags] == [3, 4]
    [failed] = mw.map_results(energy, [1], [9])
    assert "item Item(mass=1, charge=9)" in str(failed.error)


def test_a_table_has_a_column_for_each_parameter(mw: mwpy.LocalMaster) -> None:
    pytest.importorskip("pandas")
    first = ["mass", "charge", "energy", "error_type", "error", "task_id"]
    calls: list[Iterator[mwpy.Result[Any]]] = [
        mw.map_results(energy, POINTS, ordered=True),
        mw.map_results(energy, *zip(*(point.values() for point in POINTS), strict=True), ordered=True),
        mw.starmap_results(energy, [(point["mass"], point["charge"]) for point in POINTS], ordered=True),
    ]
    for results in calls:
        table = mwpy.to_frame(results)
        assert list(table.columns)[:6] == first
        assert table[["mass", "charge", "energy"]].to_numpy().tolist()[5] == [2, 1, 21]


def test_a_failure_names_the_point_and_can_be_replayed(mw: mwpy.LocalMaster) -> None:
    with pytest.raises(mwpy.TaskFailed, match=r"item {'charge': 9, 'mass': 1}: ValueError: too much") as caught:
        list(mw.map(energy, mwpy.grid(mass=[1, 2], charge=[9])))
    assert caught.value.item == {"mass": 1, "charge": 9}
    with pytest.raises(ValueError, match="too much charge"):
        mwpy.replay(caught.value.task_id or 0)


def test_a_map_that_stops_early_gives_back_the_points_that_did_not_run(mw: mwpy.LocalMaster) -> None:
    """They can be mapped again as they are."""
    points, got = mwpy.grid(charge=[9, 1], mass=range(2000)), list[mwpy.Result[Any]]()
    with pytest.raises(mwpy.TooManyFailures) as caught:
        got.extend(mw.map_results(energy, points, ordered=True, max_failures=1))
    again: Any = caught.value.remaining
    got += mw.map_results(energy, again)
    masses = sorted((result.tag["charge"], result.tag["mass"]) for result in got)
    assert masses == [(charge, mass) for charge in (1, 9) for mass in range(2000)]


def test_items_whose_parts_are_the_arguments_are_led_to_starmap(mw: mwpy.LocalMaster) -> None:
    items: list[Any] = [(1, 2), [1, 2], {"mass": 1, "charge": 2}]
    for item in items:
        with pytest.raises(mwpy.TaskFailed, match=r"missing 1 required .*mw\.starmap passes its parts as the arg"):
            list(mw.map(product, [item]))  # type: ignore[arg-type]
    [result] = mw.map_results(product, items[:1])  # type: ignore[arg-type]
    assert "mw.starmap_results passes" in str(result.error)
    others = [
        mw.map_results(product, [1]),  # type: ignore[arg-type]
        mw.starmap_results(product, [(1,)]),  # type: ignore[arg-type]
        mw.map_results(int, items[:1]),
    ]
    for other in others:
        assert "starmap" not in str(next(other).error)


def test_the_seed_of_a_point_is_that_of_its_place(mw: mwpy.LocalMaster) -> None:
    masses, charges = zip(*(point.values() for point in POINTS), strict=True)
    seeds = list(mw.map(seed, POINTS, seed=7))
    assert seeds == list(mw.map(seed, masses, charges, seed=7))
    assert len({*seeds}) == len(POINTS)


def test_progress_knows_how_many_points_there_are(mw: mwpy.LocalMaster) -> None:
    shown: list[tuple[int, int | None]] = []
    list(mw.map(product, POINTS, progress=lambda done, total: shown.append((done, total))))
    list(mw.starmap_results(product, [*POINTS], progress=lambda done, total: shown.append((done, total))))
    assert [total for _, total in shown] == [12] * len(shown)
    assert shown[-1] == (12, 12)


@pytest.mark.parametrize("options", [{}, {"retry": False}], ids=["packed", "alone"])
def test_a_restart_finds_the_same_call_with_keywords(tmp_path: Path, options: dict[str, Any]) -> None:
    """In any order of the keywords, in any kind of map, and as a single call."""
    database, folder = tmp_path / "run.db", str(tmp_path)
    points = mwpy.grid(folder=[folder], mass=[1, 2], charge=[3, 4])
    with mwpy.local_master(slaves=2, run_database=database) as mw:
        assert list(mw.map(counted, points, **options)) == [3, 4, 6, 8]
    assert len((tmp_path / "ran").read_text().splitlines()) == 4
    swapped = mwpy.grid(charge=[3, 4], mass=[1, 2], folder=[folder])
    with mwpy.local_master(slaves=2, run_database=database) as mw:
        assert list(mw.map(counted, swapped, **options)) == [3, 6, 4, 8]
    with mwpy.local_master(slaves=2, run_database=database) as mw:
        results = mw.starmap_results(counted, list(points), ordered=True, **options)
        assert [result.value for result in results] == [3, 4, 6, 8]
    with mwpy.local_master(slaves=2, run_database=database) as mw:
        calls = [mwpy.task(counted, folder=folder, charge=3, mass=1)]
        assert [result.value for result in mw.as_completed(calls, **options)] == [3]
    assert len((tmp_path / "ran").read_text().splitlines()) == 4


def test_an_executor_maps_over_a_grid() -> None:
    expected = [point["mass"] * point["charge"] for point in POINTS]
    with mwpy.Executor(slaves=1) as executor:
        assert list(executor.map(product, POINTS)) == expected
        assert list(executor.map(product, POINTS, chunksize=5)) == expected
        assert list(executor.map(product, POINTS, buffersize=2)) == expected
