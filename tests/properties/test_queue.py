"""Random queues: no entry is lost or runs twice, and all rules of the order hold at each moment."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from mwpy._queue.entry import ENDED, Asked, Entry, Run, State, Turn
from mwpy._queue.order import Claim, Rules, decide, divide, grant, place

USERS = (1, 2, 3)

ENTRIES = st.lists(
    st.fixed_dictionaries(
        {
            "user": st.sampled_from(USERS),
            "priority": st.integers(0, 2),
            "at": st.integers(0, 12),
            "after": st.lists(st.integers(1, 14), max_size=2),
            "lasts": st.integers(1, 4),
            "fails": st.booleans(),
            "cancelled_at": st.none() | st.integers(0, 12),
            "added_at": st.integers(0, 8),
        }
    ),
    max_size=12,
)


@settings(max_examples=300)
@given(ENTRIES, st.integers(1, 4), st.integers(1, 12), st.booleans(), st.integers(0, 5))
def test_each_entry_ends_once_and_in_the_right_order(
    asked: list[dict[str, Any]], max_running: int, max_entries: int, equal_shares: bool, no_worker_until: int
) -> None:
    """Entries come, run for a while, fail or are cancelled. Workers of one user start late."""
    rules = Rules(max_running, max_entries, equal_shares)
    entries: dict[int, Entry] = {}
    former: dict[int, Turn] = {}
    began: dict[int, int] = {}
    for now in range(60):
        for number, each in enumerate(asked, 1):
            if each["added_at"] == now:
                wants = Asked("a", ["a.py"], "python", at=float(each["at"]), after=each["after"])
                entries[number] = Entry(number, Path("a"), each["user"], wants, priority=each["priority"])
            if number in entries and each["cancelled_at"] is not None and now >= each["cancelled_at"]:
                entries[number].cancelled_by = "somebody"
        users = USERS if now >= no_worker_until else USERS[:2]
        turns = decide([*entries.values()], former, rules, float(now), users)
        assert turns.keys() == entries.keys(), "an entry is lost"
        for number, turn in turns.items():
            before = former.get(number)
            assert before is None or before.state not in ENDED or turn.state is before.state, "an entry comes back"
            if turn.state is State.REFUSED:
                assert number not in began, "an entry is refused after its start"
            if turn.state is State.RUNNING and number not in began:
                began[number] = now
                check_start(entries[number], entries, turns, rules, float(now), users)
        for number, turn in turns.items():
            if turn.state in ENDED:
                entries[number].run = Run(turn.state, turn.reason)
            elif number in began and now >= began[number] + asked[number - 1]["lasts"]:
                entries[number].run = Run(State.FAILED if asked[number - 1]["fails"] else State.DONE)
            elif number in began:
                entries[number].run = Run(State.RUNNING)
        former = turns
    ends = [each.run.state if each.run else None for each in entries.values()]
    assert all(end in ENDED for end in ends), "an entry never ends"


def check_start(
    entry: Entry, entries: dict[int, Entry], turns: dict[int, Turn], rules: Rules, now: float, users: tuple[int, ...]
) -> None:
    """Check the rules for an entry that starts now."""
    assert not entry.cancelled_by
    assert now >= entry.asked.at
    assert entry.uid in users
    assert all(turns[other].state is State.DONE for other in entry.asked.after)
    running = [each for each in entries.values() if turns[each.number].state is State.RUNNING]
    assert sum(each.priority <= entry.priority for each in running) <= rules.max_running
    shares = Counter(each.uid for each in running)
    for other in entries.values():
        if turns[other.number].reason == "for its turn":
            assert other.priority >= entry.priority
            if other.priority == entry.priority and rules.equal_shares:
                assert shares[entry.uid] <= shares[other.uid] + 1
            elif other.priority == entry.priority:
                assert other.number > entry.number


CLAIMS = st.lists(
    st.builds(Claim, st.sampled_from(USERS), st.integers(0, 2), st.integers(0, 20)), min_size=1, max_size=8
)


@given(CLAIMS, st.integers(1, 20), st.dictionaries(st.sampled_from(USERS), st.integers(0, 20)))
def test_places_are_divided_completely_and_never_given_twice(
    claims: list[Claim], places: int, had: dict[int, int]
) -> None:
    """When all tasks of others end, each user has what was decided for it."""
    targets = divide(claims, places)
    assert sum(targets.values()) == places
    used = {user: min(count, places // len(had)) for user, count in had.items()}
    former = dict(used)
    for _ in range(3):
        granted = grant(targets, former, used, places)
        more = {user: count for user, count in granted.items() if count > used.get(user, 0)}
        assert sum(max(granted.get(user, 0), used.get(user, 0)) for user in {*granted, *used}) <= places or not more
        used = {user: min(used.get(user, 0), count) if user not in more else count for user, count in granted.items()}
        former = granted
    assert granted == targets


@given(
    st.dictionaries(st.sampled_from(USERS), st.integers(0, 8)),
    st.dictionaries(st.sampled_from("abcd"), st.integers(1, 4), min_size=1),
    st.dictionaries(st.sampled_from(USERS), st.dictionaries(st.sampled_from("abcd"), st.integers(1, 4))),
)
def test_no_slot_of_a_host_is_given_twice(
    granted: dict[int, int], slots: dict[str, int], former: dict[int, dict[str, int]]
) -> None:
    placed = place(granted, slots, former)
    for host, count in slots.items():
        assert sum(hosts.get(host, 0) for hosts in placed.values()) <= count
    total = sum(sum(hosts.values()) for hosts in placed.values())
    assert total == min(sum(granted.values()), sum(slots.values()))
    assert all(sum(placed[user].values()) <= count for user, count in granted.items())
