"""Decides which entries of a queue run, and how many places each user has. Nothing here reads files or a clock.

Of the entries that may start, the most important ones start first, and of equal ones the oldest. With equal shares,
users with fewer running entries come before that. An entry counts against the limit of running entries only together
with entries that are as important as itself, or more. So an important entry never waits until a less important one has
ended: both run, and the less important one gives its places as its tasks end.

An entry can only run after older ones. So what happens to each is decided in the order of their numbers.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from datetime import datetime, timedelta

from attrs import frozen
from msgspec import Struct
from msgspec.structs import replace

from mwpy._queue.entry import ENDED, Entry, State, Turn


class Rules(Struct, frozen=True):
    """How a keeper decides; `mwpy queue --help` describes each of its options."""

    max_running: int = 8
    max_entries: int = 1000
    equal_shares: bool = False
    max: int | None = None
    """How many slaves there are at most; None for the usual number of the batch system."""
    system: str = "local"
    slaves_per_job: int = 1
    interval_s: float = 0.5
    """How often the keeper looks."""


def decide(
    entries: Sequence[Entry],
    former: Mapping[int, Turn],
    rules: Rules,
    now: float,
    users: Collection[int],
    folder: str = "FOLDER",
) -> dict[int, Turn]:
    """Decide what happens to each entry, by its number.

    Args:
        former: what was decided before, by the numbers of the entries.
        now: the time of the queue, in seconds since 1970.
        users: those whose entries can be started, because somebody works for them.
        folder: the folder of the queue, for messages.
    """
    turns, present = dict[int, Turn](), 0
    waiting, running = list[Entry](), list[Entry]()
    for each in sorted(entries, key=lambda each: each.number):
        before = former.get(each.number)
        state, reason = _without_limits(each, before, turns, now)
        if state is State.WAITING and before is None and present >= rules.max_entries:
            state, reason = State.REFUSED, f"the queue has {present} entries already (--max-entries)"
        present += state in (State.WAITING, State.RUNNING)
        if state in (State.WAITING, State.RUNNING) and not reason and each.uid not in users:
            state = State.RUNNING if each.is_running else State.WAITING
            reason = f"its user must start `mwpy queue work {folder}`"
        has_begun = each.run is not None or (before is not None and before.has_begun)
        turns[each.number] = Turn(state, reason, each.priority, has_begun)
        if state is State.RUNNING:
            running.append(each)
        elif state is State.WAITING and not reason:
            waiting.append(each)
    while waiting:
        shares = Counter(each.uid for each in running if rules.equal_shares)
        first = min(waiting, key=lambda each: (each.priority, shares[each.uid], each.number))
        waiting.remove(first)
        if sum(each.priority <= first.priority for each in running) < rules.max_running:
            running.append(first)
            turns[first.number] = replace(turns[first.number], state=State.RUNNING)
        else:
            turns[first.number] = replace(turns[first.number], reason="for its turn")
    return turns


def _without_limits(each: Entry, before: Turn | None, older: Mapping[int, Turn], now: float) -> tuple[State, str]:
    """What happens to an entry, apart from limits, and why. It may start if it waits without a reason."""
    if each.run is not None and each.has_ended:
        return each.run.state, each.run.reason
    if before is not None and before.state in ENDED:
        return before.state, before.reason
    if before is not None and before.has_begun and each.run is None and not each.repeats:
        return State.FAILED, removed(each)
    if each.cancelled_by:
        return State.CANCELLED, f"by {each.cancelled_by}"
    if each.fault:
        return State.REFUSED, each.fault
    if each.repeats:
        return State.REPEATS, f"each day at {each.asked.daily}" if each.asked.daily else f"with {each.asked.watch}"
    if each.is_running:
        return State.RUNNING, ""
    for number in each.asked.after:
        if number not in older:
            return State.REFUSED, f"there is no older entry {number}, after which it should run"
        if older[number].state is State.REPEATS:
            return State.REFUSED, f"entry {number} repeats, so it never ends"
        if older[number].state in ENDED and older[number].state is not State.DONE:
            return State.REFUSED, f"entry {number} is {older[number].state.value}"
    if pending := [str(number) for number in each.asked.after if older[number].state is not State.DONE]:
        return State.WAITING, f"after {', '.join(pending)}"
    if now < each.asked.at:
        return State.WAITING, f"until {datetime.fromtimestamp(each.asked.at).isoformat(' ', 'minutes')}"
    has_turn = before is not None and before.state is State.RUNNING  # its worker has not begun yet
    return State.RUNNING if has_turn else State.WAITING, ""


def removed(entry: Entry) -> str:
    """Why an entry has failed that has begun, and has no folder any more."""
    return f"{entry.run_path} was removed while it ran"


# How many places each user has.


@frozen
class Claim:
    """What a running entry wants."""

    user: int
    priority: int
    wants: int
    """How many slaves it could use now."""


Places = Mapping[int, Mapping[str, int]]
"""How many places each user has on which host. Where there are no hosts to choose from, their name is empty."""


def divide(claims: Sequence[Claim], places: int) -> dict[int, int]:
    """Divide the places among users: as many as the most important entries can use, and then the others.

    Users whose entries are equally important get equal numbers.
    """
    order = sorted(claims, key=lambda each: each.priority)
    gets = Counter[int]({each.user: 0 for each in order})
    left = [each.wants for each in order]
    for priority in sorted({each.priority for each in claims}):
        level = [index for index, each in enumerate(order) if each.priority == priority]
        while gets.total() < places and (able := [index for index in level if left[index] > 0]):
            first = min(able, key=lambda index: (gets[order[index].user], order[index].user))
            gets[order[first].user] += 1
            left[first] -= 1
    while gets and gets.total() < places:  # nobody needs them now
        gets[min(gets, key=lambda user: (gets[user], user))] += 1
    return dict(gets)


def grant(
    targets: Mapping[int, int], former: Mapping[int, int], used: Mapping[int, int], places: int
) -> dict[int, int]:
    """Return how many places each user has now: a user gets more only when others have given theirs.

    Args:
        targets: how many places each should have.
        former: how many each had.
        used: how many slaves each has, of tasks that have not ended.
    """
    granted = {user: min(former.get(user, 0), target) for user, target in targets.items()}
    taken = sum(max(granted.get(user, 0), used.get(user, 0)) for user in {*granted, *used})
    free = max(0, places - taken)
    for user in sorted(targets, key=lambda user: (granted[user], user)):
        still_used = max(0, used.get(user, 0) - granted[user])
        more = min(targets[user] - granted[user], free + still_used)
        free -= max(0, more - still_used)
        granted[user] += more
    return granted


def place(granted: Mapping[int, int], slots: Mapping[str, int], former: Places) -> dict[int, Counter[str]]:
    """Divide the slots of hosts among users. Each keeps what it has on a host, as far as it may."""
    free, placed = Counter(slots), {user: Counter[str]() for user in granted}

    def give(user: int, host: str, most: int) -> None:
        some = min(most, granted[user] - placed[user].total(), free[host])
        if some > 0:
            placed[user][host] += some
            free[host] -= some

    for user in granted:
        for host, had in former.get(user, {}).items():
            give(user, host, had)
    for user in granted:
        for host in sorted(slots, key=lambda host: -free[host]):
            give(user, host, free[host])
    return placed


def allot(
    claims: Sequence[Claim],
    silent: Collection[int],
    used: Mapping[int, int],
    former: Places,
    slots: Mapping[str, int],
    most: int,
) -> dict[int, dict[str, int]]:
    """Decide how many places each user has, and where.

    Args:
        claims: what the running entries of the other users want.
        silent: users whose workers say nothing, although their masters live. They keep their places, because their
            agents may run tasks.
        used: how many places the others use.
        former: the places that all had.
        slots: how many places each host has.
        most: how many places there are.
    """
    kept = {user: dict(former.get(user, {})) for user in silent}
    free = Counter(slots)
    for places in kept.values():
        free.subtract(places)
    had = {user: sum(places.values()) for user, places in former.items()}
    room = max(0, min(most, sum(slots.values())) - sum(had.get(user, 0) for user in kept))
    placed = place(grant(divide(claims, room), had, used, room), free, former)
    return {user: dict(places) for user, places in placed.items()} | kept


# When an entry runs.


def next_time(text: str, now: float) -> float:
    """Return when an entry starts: at the next `HH:MM`, by the local clock, or at a date and time.

    Raises:
        ValueError: it is neither.
    """
    try:
        hours = datetime.strptime(text, "%H:%M").time()
    except ValueError:
        return datetime.fromisoformat(text).timestamp()
    today = datetime.fromtimestamp(now)
    found = datetime.combine(today.date(), hours)
    return (found if found.timestamp() > now else found + timedelta(days=1)).timestamp()


def last_time(text: str, now: float) -> float:
    """Return the last `HH:MM` that was not after `now`."""
    found = datetime.fromtimestamp(next_time(text, now))
    return datetime.combine(found.date() - timedelta(days=1), found.time()).timestamp()
