"""Decides which entries of a queue run, and how many places each user has. Nothing here reads files or a clock.

Of the entries that may start, the most important ones start first, and of equal ones the oldest. With equal shares,
users with fewer running entries come before that. An entry counts against the limit of running entries only together
with entries that are as important as itself, or more. So an important entry never waits until a less important one has
ended: both run, and the less important one gives its places as its tasks end.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from datetime import datetime, timedelta

from attrs import frozen
from msgspec import Struct

from mwpy._queue.entry import ENDED, PRIORITIES, Entry, State, Turn


class Rules(Struct, frozen=True):
    """The settings of a keeper that the order depends on."""

    max_running: int = 8
    max_entries: int = 1000
    equal_shares: bool = False


def decide(
    entries: Sequence[Entry],
    former: Mapping[str, Turn],
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
    by_number = {each.number: each for each in entries}
    for each in sorted(entries, key=lambda each: each.number):
        before = former.get(str(each.number))
        state, reason = _without_others(each, before, by_number)
        if state is State.WAITING and before is None and present >= rules.max_entries:
            state, reason = State.REFUSED, f"the queue has {present} entries already (--max-entries)"
        present += state in (State.WAITING, State.RUNNING)
        if state is State.RUNNING and each.uid not in users:
            reason = _without_worker(folder)
        has_begun = each.run is not None or (before is not None and before.has_begun)
        turns[each.number] = Turn(state, reason, each.priority, has_begun)
    waiting = []
    while _refuse_dependent(by_number, turns):
        pass
    for number, turn in turns.items():
        each = by_number[number]
        if turn.state is State.WAITING:
            reason = _obstacle(each, turns, now, users, folder)
            turns[number] = Turn(State.WAITING, reason, each.priority)
            if not reason:
                waiting.append(each)
    _start(waiting, by_number, former, turns, rules)
    return turns


def _without_others(each: Entry, before: Turn | None, entries: Mapping[int, Entry]) -> tuple[State, str]:
    """What happens to an entry, as far as other entries do not run, wait or end."""
    if each.run is not None and each.run.state in ENDED:
        return each.run.state, each.run.reason
    if before is not None and before.state in ENDED:
        return before.state, before.reason
    if before is not None and before.has_begun and each.run is None and not each.repeats:
        return State.FAILED, f"{each.run_path} was removed while it ran"
    if each.cancelled_by:
        return State.CANCELLED, f"by {each.cancelled_by}"
    if each.fault:
        return State.REFUSED, each.fault
    if each.repeats:
        return State.REPEATS, f"each day at {each.asked.daily}" if each.asked.daily else f"with {each.asked.watch}"
    for number in each.asked.after:
        if number not in entries:
            return State.REFUSED, f"there is no entry {number}, after which it should run"
        if entries[number].repeats:
            return State.REFUSED, f"entry {number} repeats, so it never ends"
    if _follows(each.number, each.asked.after, entries):
        return State.REFUSED, "it should run after itself (a cycle of --after)"
    return (State.RUNNING if each.is_running else State.WAITING), ""


def _follows(number: int, after: Sequence[int], entries: Mapping[int, Entry]) -> bool:
    """Whether an entry comes, through others, after itself."""
    left, seen = [*after], set[int]()
    while left:
        each = left.pop()
        if each == number:
            return True
        if each not in seen and each in entries:
            seen.add(each)
            left += entries[each].asked.after
    return False


def _refuse_dependent(entries: Mapping[int, Entry], turns: dict[int, Turn]) -> bool:
    """Refuse entries that wait for one that has not succeeded. Return whether there was one."""
    found = False
    for number, turn in turns.items():
        for other in entries[number].asked.after if turn.state is State.WAITING else ():
            end = turns[other].state
            if end in ENDED and end is not State.DONE:
                turns[number] = Turn(State.REFUSED, f"entry {other} is {end.value}", turn.priority)
                found = True
                break
    return found


def _obstacle(each: Entry, turns: Mapping[int, Turn], now: float, users: Collection[int], folder: str) -> str:
    """Why an entry may not start, apart from the limits; empty if it may."""
    pending = [str(number) for number in each.asked.after if turns[number].state is not State.DONE]
    if pending:
        return f"after {', '.join(pending)}"
    if now < each.asked.at:
        return f"until {datetime.fromtimestamp(each.asked.at).isoformat(' ', 'minutes')}"
    if each.uid not in users:
        return _without_worker(folder)
    return ""


def _without_worker(folder: str) -> str:
    return f"its user must start `mwpy queue work {folder}`"


def _start(
    waiting: list[Entry],
    entries: Mapping[int, Entry],
    former: Mapping[str, Turn],
    turns: dict[int, Turn],
    rules: Rules,
) -> None:
    """Start entries, the most important ones first, as far as the limit allows."""
    running = [each for each in entries.values() if turns[each.number].state is State.RUNNING]
    given = {number for number, turn in former.items() if turn.state is State.RUNNING}
    for each in [each for each in waiting if str(each.number) in given]:  # its worker has not begun yet
        waiting.remove(each)
        running.append(each)
        turns[each.number] = Turn(State.RUNNING, "", each.priority)
    while waiting:
        shares = Counter(each.uid for each in running) if rules.equal_shares else Counter[int]()
        first = min(waiting, key=lambda each: (each.priority, shares[each.uid], each.number))
        waiting.remove(first)
        if sum(each.priority <= first.priority for each in running) < rules.max_running:
            running.append(first)
            turns[first.number] = Turn(State.RUNNING, "", first.priority)
        else:
            turns[first.number] = Turn(State.WAITING, "for its turn", first.priority)


# How many places each user has.


@frozen
class Claim:
    """What a running entry wants."""

    user: int
    priority: int
    wants: int
    """How many slaves it could use now."""


def divide(claims: Sequence[Claim], places: int) -> dict[int, int]:
    """Divide the places among users: as many as the most important entries can use, and then the others.

    Users whose entries are equally important get equal numbers.
    """
    order = sorted(claims, key=lambda each: each.priority)
    gets = Counter[int]({each.user: 0 for each in order})
    left = [each.wants for each in order]
    for priority in PRIORITIES:
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
        more = min(targets[user] - granted[user], free + max(0, used.get(user, 0) - granted[user]))
        free -= max(0, more - max(0, used.get(user, 0) - granted[user]))
        granted[user] += more
    return granted


def place(
    granted: Mapping[int, int], slots: Mapping[str, int], former: Mapping[int, Mapping[str, int]]
) -> dict[int, dict[str, int]]:
    """Divide the slots of hosts among users. Each keeps what it has on a host, as far as it may."""
    free = dict(slots)
    placed: dict[int, dict[str, int]] = {user: {} for user in granted}
    for user, count in granted.items():
        for host, had in former.get(user, {}).items():
            some = min(had, count - sum(placed[user].values()), free.get(host, 0))
            if some > 0:
                placed[user][host] = some
                free[host] -= some
    for user, count in granted.items():
        for host in sorted(free, key=lambda host: -free[host]):
            some = min(count - sum(placed[user].values()), free[host])
            if some > 0:
                placed[user][host] = placed[user].get(host, 0) + some
                free[host] -= some
    return placed


@frozen
class Places:
    """The places of all users, by the number of the user."""

    counts: dict[int, int]
    hosts: dict[int, dict[str, int]]
    """With hosts, how many of them on which host."""


def allot(
    claims: Sequence[Claim],
    silent: Collection[int],
    used: Mapping[int, int],
    former: Places,
    slots: Mapping[str, int],
    most: int,
) -> Places:
    """Decide how many places each user has, and where.

    Args:
        claims: what the running entries of the other users want.
        silent: users whose workers say nothing, although their masters live. They keep their places, because their
            agents may run tasks.
        used: how many places the others use.
        former: the places that all had.
        slots: how many places each host has; empty without hosts.
        most: how many places there are.
    """
    kept = {user: former.counts.get(user, 0) for user in silent}
    kept_hosts = {user: former.hosts.get(user, {}) for user in silent}
    taken = Counter[str]()
    for hosts in kept_hosts.values():
        taken.update(hosts)
    free = max(0, (min(most, sum(slots.values())) if slots else most) - sum(kept.values()))
    counts = grant(divide(claims, free), former.counts, used, free)
    left = {host: max(0, count - taken[host]) for host, count in slots.items()}
    placed = place(counts, left, former.hosts) if slots else {}
    return Places(counts | kept, placed | kept_hosts)


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
