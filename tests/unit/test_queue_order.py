"""The order of a queue: which entries run, which are refused, and how many places each user has."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest

from mwpy._queue.entry import Asked, Entry, Run, State, Turn
from mwpy._queue.order import (
    Claim,
    Rules,
    allot,
    decide,
    divide,
    grant,
    last_time,
    next_time,
    place,
)

ANNA, BERTA, CLARA = 1001, 1002, 1003


def entry(
    number: int,
    priority: int = 1,
    user: int = ANNA,
    *,
    state: State | None = None,
    cancelled_by: str = "",
    fault: str = "",
    repeats: bool = False,
    at: float = 0.0,
    after: Sequence[int] = (),
) -> Entry:
    asked = Asked("app", ["app.py"], "python", at=at, after=[*after], daily="02:00" if repeats else "")
    run = None if state is None else Run(state)
    return Entry(number, Path(f"{number:04d}"), user, asked, fault, run, priority, cancelled_by)


def turns(
    *entries: Entry,
    former: Mapping[int, Turn] = MappingProxyType({}),
    now: float = 100.0,
    users: tuple[int, ...] = (ANNA, BERTA),
    **rules: Any,
) -> dict[int, Turn]:
    return decide(entries, former, Rules(**rules), now, users, "/q")


def states(*entries: Entry, **settings: Any) -> dict[int, str]:
    return {number: turn.state.value for number, turn in turns(*entries, **settings).items()}


def running(*entries: Entry, **settings: Any) -> list[int]:
    return [number for number, state in states(*entries, **settings).items() if state == "running"]


def test_the_most_important_entries_start_first_and_of_equal_ones_the_oldest() -> None:
    entries = [entry(1, 2), entry(2, 1), entry(3, 0), entry(4, 1)]
    assert running(*entries, max_running=1) == [3]
    assert running(*entries, max_running=2) == [2, 3]
    assert running(*entries, max_running=3) == [2, 3, 4]
    assert turns(*entries, max_running=1)[1] == Turn(State.WAITING, "for its turn", 2)


def test_an_important_entry_does_not_wait_for_less_important_ones_that_run() -> None:
    busy = entry(1, 2, state=State.RUNNING)
    assert running(busy, entry(2, 0), entry(3, 0), entry(4, 2), max_running=1) == [1, 2]


def test_an_entry_keeps_its_turn_until_its_worker_begins() -> None:
    former = {2: Turn(State.RUNNING)}
    assert running(entry(1, 2), entry(2, 2), former=former, max_running=1) == [2]
    assert running(entry(1, 2), entry(2, 2), former=former, max_running=1, users=()) == []


def test_equal_shares_prefer_users_with_fewer_running_entries() -> None:
    entries = [entry(1, state=State.RUNNING), entry(2), entry(3, user=BERTA), entry(4, user=BERTA)]
    assert running(*entries, max_running=2) == [1, 2]
    assert running(*entries, max_running=2, equal_shares=True) == [1, 3]
    assert running(*entries, max_running=3, equal_shares=True) == [1, 2, 3]


def test_an_entry_waits_until_its_time() -> None:
    assert running(entry(1, at=101.0)) == []
    assert turns(entry(1, at=101.0))[1].reason.startswith("until 19")
    assert running(entry(1, at=100.0)) == [1]


def test_an_entry_runs_after_others_have_succeeded() -> None:
    assert turns(entry(1, state=State.RUNNING), entry(2, after=(1,)))[2] == Turn(State.WAITING, "after 1")
    assert running(entry(1, state=State.DONE), entry(2, after=(1,))) == [2]


@pytest.mark.parametrize("end", [State.FAILED, State.CANCELLED])
def test_what_should_run_after_a_failure_is_refused_in_turn(end: State) -> None:
    found = turns(entry(1, state=end), entry(2, after=(1,)), entry(3, after=(2,)), entry(4))
    assert found[2] == Turn(State.REFUSED, f"entry 1 is {end.value}")
    assert found[3] == Turn(State.REFUSED, "entry 2 is refused")
    assert found[4].state is State.RUNNING


def test_an_entry_after_one_that_is_not_older_or_repeats_is_refused() -> None:
    """So there is no cycle."""
    found = turns(entry(1, after=(7,)), entry(2, repeats=True), entry(3, after=(2,)), entry(4, after=(5,)), entry(5))
    assert found[1] == Turn(State.REFUSED, "there is no older entry 7, after which it should run")
    assert found[2].state is State.REPEATS
    assert found[3].reason == "entry 2 repeats, so it never ends"
    assert found[4] == Turn(State.REFUSED, "there is no older entry 5, after which it should run")
    assert found[5].state is State.RUNNING


def test_an_entry_that_runs_goes_on_although_the_one_before_it_was_removed() -> None:
    assert running(entry(2, after=(1,), state=State.RUNNING)) == [2]


def test_a_damaged_entry_is_refused_with_its_reason() -> None:
    assert turns(entry(1, fault="damaged: no JSON"))[1] == Turn(State.REFUSED, "damaged: no JSON")


def test_too_many_entries_are_refused_and_stay_refused() -> None:
    found = turns(entry(1), entry(2), entry(3), max_entries=2)
    reason = "the queue has 2 entries already (--max-entries)"
    assert found[3] == Turn(State.REFUSED, reason)
    done = [entry(number, state=State.DONE) for number in (1, 2)]
    assert turns(*done, entry(3), former=found, max_entries=2)[3] == found[3]
    known = {number: Turn(State.WAITING) for number in (1, 2, 3)}
    assert "refused" not in states(*map(entry, known), former=known, max_entries=2).values(), "they wait already"


def test_a_cancelled_entry_ends_whether_it_runs_or_not() -> None:
    found = turns(entry(1, cancelled_by="anna"), entry(2, cancelled_by="berta", state=State.RUNNING), max_running=1)
    assert found == {
        1: Turn(State.CANCELLED, "by anna"),
        2: Turn(State.CANCELLED, "by berta", has_begun=True),
    }
    assert turns(entry(1, cancelled_by="anna", state=State.DONE))[1].state is State.DONE


def test_an_entry_whose_user_has_no_worker_waits_and_harms_nobody() -> None:
    found = turns(entry(1, 0, CLARA), entry(2, 2), max_running=1)
    assert found[1] == Turn(State.WAITING, "its user must start `mwpy queue work /q`", 0)
    assert found[2].state is State.RUNNING


def test_an_end_stays_although_its_folder_is_removed() -> None:
    """What was removed while it ran has failed. Nothing runs again."""
    former = {1: Turn(State.DONE, has_begun=True), 2: Turn(State.RUNNING, has_begun=True), 3: Turn(State.RUNNING)}
    found = turns(entry(1), entry(2), entry(3), former=former)
    assert [found[number].state for number in (1, 2, 3)] == [State.DONE, State.FAILED, State.RUNNING]
    assert found[2].reason.endswith("was removed while it ran")
    assert states(entry(1), entry(2), former=found)[2] == "failed"


def test_places_go_to_important_entries_first() -> None:
    assert divide([Claim(ANNA, 2, 100)], 4) == {ANNA: 4}
    assert divide([Claim(ANNA, 2, 100), Claim(BERTA, 0, 100)], 4) == {BERTA: 4, ANNA: 0}
    assert divide([Claim(ANNA, 1, 100), Claim(BERTA, 1, 100)], 4) == {ANNA: 2, BERTA: 2}
    assert divide([Claim(ANNA, 1, 100), Claim(ANNA, 1, 100), Claim(BERTA, 1, 100)], 4) == {ANNA: 2, BERTA: 2}
    assert divide([Claim(ANNA, 2, 100), Claim(BERTA, 0, 1)], 4) == {BERTA: 1, ANNA: 3}
    assert divide([Claim(ANNA, 2, 0), Claim(BERTA, 0, 1)], 4) == {BERTA: 2, ANNA: 2}
    assert divide([], 4) == {}


def test_a_user_gets_places_when_others_have_given_theirs() -> None:
    assert grant({ANNA: 1, BERTA: 3}, {ANNA: 4}, {ANNA: 4}, 4) == {ANNA: 1, BERTA: 0}
    assert grant({ANNA: 1, BERTA: 3}, {ANNA: 1}, {ANNA: 3}, 4) == {ANNA: 1, BERTA: 1}
    assert grant({ANNA: 1, BERTA: 3}, {ANNA: 1, BERTA: 1}, {ANNA: 1, BERTA: 1}, 4) == {ANNA: 1, BERTA: 3}
    assert grant({BERTA: 4}, {ANNA: 1, BERTA: 3}, {BERTA: 3}, 4) == {BERTA: 4}


def test_the_places_of_users_whose_workers_are_silent_stay_theirs() -> None:
    """Their agents may run tasks there. Others share what is left, also on the same hosts."""
    former, slots = {ANNA: {"b": 1}, BERTA: {"a": 2}}, {"a": 3, "b": 1}
    found = allot([Claim(ANNA, 0, 9)], [BERTA], {ANNA: 1}, former, slots, 99)
    assert found == {ANNA: {"a": 1, "b": 1}, BERTA: {"a": 2}}
    found = allot([Claim(ANNA, 0, 9)], [BERTA], {}, {BERTA: {"": 3}}, {"": 2}, 2)
    assert found == {ANNA: {}, BERTA: {"": 3}}
    found = allot([Claim(ANNA, 0, 9), Claim(BERTA, 0, 1)], [], {ANNA: 1, BERTA: 2}, former, slots, 99)
    assert {user: sum(places.values()) for user, places in found.items()} == {ANNA: 2, BERTA: 1}, (
        "it gives one, and two of the others are free"
    )


def test_slots_of_hosts_stay_with_their_users() -> None:
    slots = {"one": 2, "two": 2}
    assert place({ANNA: 4}, slots, {}) == {ANNA: slots}
    assert place({ANNA: 1, BERTA: 3}, slots, {ANNA: slots}) == {ANNA: {"one": 1}, BERTA: {"two": 2, "one": 1}}
    assert place({ANNA: 1, BERTA: 1}, {"one": 2}, {ANNA: {"gone": 3}}) == {ANNA: {"one": 1}, BERTA: {"one": 1}}


def test_times_of_day_are_those_of_the_local_clock() -> None:
    noon = datetime(2026, 11, 29, 12, 0).timestamp()
    assert datetime.fromtimestamp(next_time("13:30", noon)) == datetime(2026, 11, 29, 13, 30)
    assert datetime.fromtimestamp(next_time("12:00", noon)) == datetime(2026, 11, 30, 12, 0)
    assert datetime.fromtimestamp(last_time("12:00", noon)) == datetime(2026, 11, 29, 12, 0)
    assert datetime.fromtimestamp(last_time("13:30", noon)) == datetime(2026, 11, 28, 13, 30)
    assert datetime.fromtimestamp(next_time("2026-12-24 18:00", noon)) == datetime(2026, 12, 24, 18, 0)
    for text in ("25:00", "noon", "02:00 often"):
        with pytest.raises(ValueError, match=r"."):
            next_time(text, noon)


def test_what_is_decided_does_not_depend_on_the_order_in_which_entries_are_found() -> None:
    entries = [entry(1, 2), entry(2, 1, after=(1,)), entry(3, 0), entry(4, 1, cancelled_by="anna")]
    assert turns(*entries, max_running=1) == turns(*reversed(entries), max_running=1)
