"""Keeps a queue: decides again and again which entries run, and with how many places, and logs what happens."""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from attrs import Factory, define
from msgspec.structs import replace

from mwpy._batch.ssh import HostsFile
from mwpy._queue.entry import Entry, State, Turn
from mwpy._queue.folder import Decision, Folder, Work, beat, changed, user_name
from mwpy._queue.order import Claim, Rules, allot, decide
from mwpy._queue.service import locked, loop, say
from mwpy._queue.worker import MASTER_S, Worker
from mwpy._system import clock
from mwpy._values.errors import UsageError
from mwpy._values.messagepack import to_plain
from mwpy._values.options import page_address

MANY = 1000
"""How many slaves a batch system may have, by default."""


@define(eq=False)
class Keeper:
    """Decides for a queue, and works for its own user."""

    _folder: Folder
    _rules: Rules
    _worker: Worker
    _hosts: HostsFile | None = None
    _decision: Decision | None = None
    view: dict[str, Any] = Factory(lambda: {"state": "queue", "entries": [], "users": [], "hosts": []})
    """What the page shows."""

    def look(self) -> float:
        """Look at the folder once, decide, and do it. Return after how many seconds to look again.

        Raises:
            OSError: the folder cannot be used now.
        """
        former = self._decision or self._folder.decision() or Decision()
        entries = self._folder.entries()
        now = self._worker.beat()
        works = self._folder.workers(now)
        users = {each.uid for each in entries if self._worker.is_mine(each)} | {*works}
        turns = decide(entries, former.turns, self._rules, now, users, str(self._folder.path))
        made = Decision(
            turns,
            max([former.last, *turns]),
            self._rules.system,
            self._rules.slaves_per_job,
        )
        for work in works.values():
            for number in work.wants:
                turn = made.turns.get(number)
                if turn is not None and turn.state is State.RUNNING and (reason := _obstacle(work, number)):
                    made.turns[number] = replace(turn, reason=reason)
        self._share(made, former, entries, works, now)
        for line in self._news(entries, former, made):
            self._folder.log({"time": clock.date(now), **line})
        beat(self._folder.path / "turn.json", made, self._decision)
        self._decision = made
        self._worker.step(entries, made, now)
        self.view = {
            "state": "queue",
            "folder": str(self._folder.path),
            "keeper": f"process {os.getpid()} on {platform.node()}",
            "entries": [self._folder.described(each, made) for each in entries],
            "users": [self._use(user, made, works) for user in sorted({*works, os.geteuid()})],
            "hosts": [to_plain(each) for each in self._folder.hosts(now)],
        }
        return self._rules.interval_s

    def _use(self, user: int, made: Decision, works: Mapping[int, Work]) -> dict[str, Any]:
        """Return what a user uses."""
        work = works.get(user, Work())
        return {
            "user": user_name(user),
            "places": sum(made.places.get(user, {}).values()),
            "used": work.used,
            "wants": sum(work.wants.values()),
            "hosts": {host: count for host, count in made.places.get(user, {}).items() if host},
        }

    def _share(
        self, made: Decision, former: Decision, entries: Sequence[Entry], works: dict[int, Work], now: float
    ) -> None:
        """Decide how many places each user has, and where."""
        claims, silent = [], set[int]()
        for each in entries:
            if made.turns[each.number].state is State.RUNNING:
                user = os.geteuid() if self._worker.is_mine(each) else each.uid
                if user in works and works[user].is_known:
                    claims.append(Claim(user, each.priority, works[user].wants.get(each.number, 1)))
                elif now < changed(each.resource) + MASTER_S:
                    silent.add(user)
        if self._hosts is not None:
            self._hosts.read_again()
        lines = [] if self._hosts is None else self._hosts.lines
        usual = (os.cpu_count() or 1) if made.system == "local" else MANY
        most = (usual if self._rules.max is None else self._rules.max) // made.slaves_per_job
        slots = {each.name: (each.slots or 0) // made.slaves_per_job for each in lines} or {"": most}
        used = {user: work.used for user, work in works.items() if user not in silent}
        made.places = allot(claims, silent, used, former.places, slots, most)
        made.pythons = {each.name: each.python or "" for each in lines}

    def _news(self, entries: Sequence[Entry], former: Decision, made: Decision) -> list[dict[str, object]]:
        """Return what has happened since the last decision, for the log."""
        found: list[dict[str, object]] = []
        for each in entries:
            before = former.turns.get(each.number)
            now = made.turns[each.number]
            about = {"entry": each.number, "user": user_name(each.uid), "name": each.asked.name}
            if before is None:
                found.append({**about, "what": "added", "words": each.asked.words, "priority": each.priority})
            elif before.priority != now.priority:
                found.append({**about, "what": "moved", "priority": now.priority})
            if now.state is not (before or Turn(State.WAITING)).state:
                found.append({**about, "what": now.state.value, "reason": now.reason})
        return [*found, *({"entry": number, "what": "removed"} for number in former.turns.keys() - made.turns.keys())]


def _obstacle(work: Work, number: int) -> str:
    """Why a running entry has no slaves; empty if it has some, or wants none."""
    if work.fault:
        return f"no slaves can be started now: {work.fault}"
    return "waits for a place" if work.wants[number] and not work.has.get(number) else ""


def run(
    folder: Folder, rules: Rules, hosts: Path | None, oversee: Sequence[str], page: str | None, *, run_as_keeper: bool
) -> int:
    """Keep a queue until this process is stopped. Return the exit code.

    Args:
        hosts: the hosts file.
        oversee: more options of `mwpy oversee`.
        page: where the page of the queue is; None for no page.
        run_as_keeper: whether this user runs the entries of all users.

    Raises:
        UsageError: another keeper runs, or an option is wrong.
    """
    if rules.system == "ssh" and hosts is None:
        raise UsageError("--with ssh needs --hosts FILE, with a line `HOST slots=N` for each machine")
    if rules.system != "ssh" and hosts is not None:
        raise UsageError("--hosts has no effect without --with ssh")
    file = None if hosts is None else HostsFile(hosts, say, needs_slots=True)
    if folder.keeper_uid != os.geteuid():
        raise UsageError(f"{folder.path} belongs to {user_name(folder.keeper_uid)}: only this user can keep the queue")
    lock = locked(folder.path / "keeper.lock", "a keeper of this queue")
    worker = Worker(folder, oversee, run_as_keeper)
    say(f"keeps {folder.path}")
    made = Keeper(folder, rules, worker, file)
    if page is not None:
        say(str(_page(made, page)))
    return loop(lock, made.look, worker.leave)


def _page(keeper: Keeper, where: str) -> object:
    """Start the page of a queue. It ends with this process.

    Raises:
        UsageError: the address is wrong or in use, or what it needs is not installed.
    """
    try:
        from mwpy.page.server import Page  # only here, because it needs more packages
    except ImportError as error:
        raise UsageError(f"--page needs `pip install 'mwpy-cluster[page]'` ({error})") from None
    host, port = page_address("--page", where)
    return Page(lambda: keeper.view, host=host, port=port, of="queue")
