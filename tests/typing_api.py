"""A script that uses mwpy, with the faults that a type checker must find. It is never run.

Each `type: ignore[...]` marks a fault that mypy must find. An unused ignore is also an error. If mypy misses a fault,
`make lint` therefore fails.
"""

from __future__ import annotations

from typing import Any, assert_type

import mwpy


@mwpy.task_algorithm
def ping(word: str, times: int = 1, *, loud: bool = False) -> str:
    return word * times


@mwpy.task_algorithm
def square(number: int) -> int:
    return number * number


@mwpy.task_algorithm(seed=1, retry=False)
def cube(number: int) -> int:
    return number**3 + mwpy.task_seed()


mwpy.task_algorithm(seeds=1)  # type: ignore[call-overload]


def plain(number: int) -> float:
    return number / 2


def calls_hold_their_result_type() -> None:
    assert_type(ping("ping"), str)
    assert_type(ping.task("ping", 2, loud=True), mwpy.TaskCall[str])
    assert_type(square.task(3), mwpy.TaskCall[int])
    assert_type(cube.task(3), mwpy.TaskCall[int])
    assert_type(cube.task(mwpy.result(mwpy.TaskId(1))), mwpy.TaskCall[int])
    mwpy.result("1")  # type: ignore[arg-type]
    assert_type(mwpy.task(plain, 3), mwpy.TaskCall[float])


def wrong_arguments_of_a_call() -> None:
    ping.task(3)  # type: ignore[arg-type]
    ping.task()  # type: ignore[call-arg]
    ping.task("ping", 1, True)  # type: ignore[call-arg]
    ping.task("ping", noisy=True)  # type: ignore[call-arg]
    mwpy.task(plain, "three")  # type: ignore[arg-type]
    mwpy.task(plain)  # type: ignore[call-arg]


def wrong_uses_of_a_value(text: mwpy.Result[str], number: mwpy.Result[int]) -> None:
    assert_type(text.value, str)
    text.value + 1  # type: ignore[operator]
    text.value.bit_length()  # type: ignore[attr-defined]
    wrong: int = text.value  # type: ignore[assignment]
    right: int = number.value
    assert_type(text.error, mwpy.TaskFailed | None)
    text.error.remote_traceback  # type: ignore[union-attr]
    print(wrong, right)


@mwpy.master_algorithm
def master(mw: mwpy.Master, argv: list[str]) -> int:
    assert_type(mw.submit(ping.task("ping"), tag=object(), retry=False), mwpy.TaskId)
    mw.submit(ping.task("ping"), seeds=1)  # type: ignore[call-arg]
    mw.submit(ping)  # type: ignore[arg-type]
    mw.submit("ping")  # type: ignore[arg-type]
    submit_loudly = mw.with_task_policy(ping, tag="loud", retry=False)
    assert_type(submit_loudly("ping", loud=True), mwpy.TaskId)
    submit_loudly(3)  # type: ignore[arg-type]
    for sid in mw.connected_ordered_slaves():
        mw.submit(square.task(2), sid=sid)
    ids = [mw.submit(square.task(number)) for number in range(3)]
    assert_type(mw.cancel(ids, running="finish"), list[mwpy.TaskId])
    mw.cancel(ids, running="later")  # type: ignore[arg-type]
    mw.cancel(ids[0])  # type: ignore[arg-type]
    mw.cancel(["1"])  # type: ignore[list-item]
    mw.allocate_slaves(2, kind="ordered")
    mw.allocate_slaves(2, kind="orderly")  # type: ignore[arg-type]
    return 0


def add(one: int, other: float) -> float:
    return one + other


def volume(width: int, depth: int, height: float) -> float:
    return width * depth * height


def maps_have_the_types_of_the_function(mw: mwpy.Master) -> None:
    assert_type(list(mw.map(ping, ["a", "b"])), list[str])
    assert_type(list(mw.map(square, range(3), chunksize=10, retry=False)), list[int])
    assert_type(list(mw.map(add, [1, 2], [0.5, 0.5], progress=True, total=2)), list[float])
    assert_type(list(mw.map(volume, [1], [2], [3.0])), list[float])
    assert_type(list(mw.starmap(add, [(1, 0.5), (2, 0.5)])), list[float])
    assert_type(list(mw.imap_unordered(plain, [1, 2], 10)), list[float])
    points = mwpy.grid(one=[1, 2], other=[0.5])
    assert_type(points[0], dict[str, Any])
    assert_type(list(mw.map(add, points)), list[float])
    assert_type(list(mw.imap_unordered(add, points[:1])), list[float])
    assert_type(list(mw.starmap(add, [{"one": 1, "other": 0.5}])), list[float])
    for point in mw.map_results(add, points, progress=True):
        assert_type(point.value, float)
    for row in mw.starmap_results(add, [(1, 0.5)], ordered=True):
        assert_type(row.value, float)
    for text in mw.map_results(ping, ["a", "b"]):
        assert_type(text.value, str)
    for number in mw.map_results(square, range(3), ordered=True):
        assert_type(number.value, int)
    list(mw.map(square, range(3), retry_errors=(OSError, KeyError), after=2, speculate=True))
    mw.submit(square.task(3), retry_errors=lambda error: "busy" in str(error))
    for result in mw.as_completed([square.task(3), mwpy.task(square, 4)]):
        assert_type(result.value, int)


def wrong_items_and_policies_of_a_map(mw: mwpy.Master) -> None:
    mw.map(square, ["a"])  # type: ignore[arg-type]
    mw.map(add, [1], ["a"])  # type: ignore[arg-type]
    mw.map(square, 3)  # type: ignore[call-overload]
    mw.map(square)  # type: ignore[call-overload]
    mw.map(square, [1], retries=False)  # type: ignore[call-overload]
    mw.map(square, [1], retry="no")  # type: ignore[call-overload]
    mw.map(square, [1], after="a while")  # type: ignore[call-overload]
    mw.map(square, [1], retry_errors="OSError")  # type: ignore[arg-type]
    mw.map_results(square, [1], retry_error=OSError)  # type: ignore[call-overload]
    mw.submit(square.task(1), retry_errors=KeyboardInterrupt)  # type: ignore[arg-type]
    mw.submit(square.task(1), retry_errors=lambda: True)  # type: ignore[arg-type, misc]
    mw.map(square, [1], progress=square)  # type: ignore[arg-type]
    mw.starmap(add, [(1, "a")])  # type: ignore[arg-type]
    mw.starmap(add, [(1, 0.5)], retries=False)  # type: ignore[call-overload]
    mw.imap_unordered(square, ["a"])  # type: ignore[arg-type]
    mw.imap_unordered(square, [1], retries=False)  # type: ignore[call-overload]
    mw.map_results(square, ["a"])  # type: ignore[arg-type]
    mw.map_results(square, [1], retries=False)  # type: ignore[call-overload]
    mw.as_completed([square])  # type: ignore[arg-type]
    mw.as_completed([square.task(3)], retries=False)  # type: ignore[call-arg]
    mw.with_task_policy(square, retries=False)  # type: ignore[call-arg]


@mwpy.master_algorithm  # type: ignore[type-var]
def takes_no_arguments(mw: mwpy.Master) -> int:
    return 0


@mwpy.master_algorithm  # type: ignore[type-var]
def takes_a_slave(mw: mwpy.Slave, argv: list[str]) -> int:
    return 0


@mwpy.slave_algorithm  # type: ignore[type-var]
def slave_with_a_master(mw: mwpy.Master, argv: list[str]) -> int:
    return 0


@mwpy.master_algorithm  # type: ignore[type-var]
def returns_no_exit_code(mw: mwpy.Master, argv: list[str]) -> str:
    return "done"


@mwpy.master_algorithm
def returns_nothing(mw: mwpy.Master, argv: list[str]) -> None:
    print(mw.summary())


@mwpy.master_algorithm
def returns_no_code_if_all_is_well(mw: mwpy.Master, argv: list[str]) -> int | None:
    return None if argv else 2


@mwpy.slave_algorithm
def slave_that_returns_nothing(mw: mwpy.Slave, argv: list[str]) -> None:
    mw.loop_simple()


@mwpy.slave_algorithm
def slave(mw: mwpy.Slave, argv: list[str]) -> int:
    return mw.loop_simple()
