"""The simulator finds mistakes: one is put into a master, an agent or a slave, and a checker must say what is wrong.

Each row names what is changed, how, and what a checker says then. There is a row for each promise.
"""

from __future__ import annotations

import pkgutil
import re
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any

import pytest
from msgspec.structs import replace

from mwpy._core.agent.child import DropShare
from mwpy._core.master.core import MasterCore
from mwpy._values import messages, records
from mwpy._values.earlier import EarlierSent, Given
from mwpy._values.messages import LoadFailure
from mwpy.testing import Cluster, SimulationFailure

Change = Callable[[Any], Any]
"""Makes of a function or a value what stands there instead."""

CORE, AGENT = "mwpy._core.master.", "mwpy._core.agent."


def value(instead: object) -> Change:
    """Another value stands there."""
    return lambda _: instead


def gives(instead: object) -> Change:
    """The function does nothing, and returns this."""
    return lambda _: lambda *_, **__: instead


def first_of(kind: str, change: Callable[[list[Any]], object]) -> Change:
    """The first actions with anything of a kind are changed."""

    def changed(take: Any) -> Any:
        done: dict[int, None] = {}

        def take_changed(state: Any) -> Any:
            actions = take(state)
            if getattr(actions, kind) and id(state) not in done:
                done[id(state)] = None
                change(getattr(actions, kind))
            return actions

        return take_changed

    return changed


def again(items: list[Any]) -> None:
    items.append(items[-1])


def swap_tags(items: list[Any]) -> None:
    items[0] = replace(items[0], tag=object())


def charge_all(handle: Any) -> Any:
    """Each slave that ends has been ended by its task."""

    def changed(core: MasterCore, event: Any, now: float) -> None:
        message = getattr(event, "message", None)
        if isinstance(message, messages.SlaveDied):
            event = replace(event, message=replace(message, running=message.running or 1))
        handle(core, event, now)

    return changed


def keep_the_first(_: Any) -> Any:
    """A slave confuses its algorithms: it keeps what was defined first under any number."""

    def changed(self: Any, number: int, algorithm: object) -> None:
        self.algorithms[number] = next(iter(self.algorithms.values()), algorithm)

    return changed


def bar(decide: Any) -> Any:
    """Each failure to load an algorithm counts as one that is sure to happen again."""
    return lambda self, slave, message: decide(self, slave, replace(message, failure=LoadFailure.SURE))


def end_in_silence(reclaim: Any) -> Any:
    """The agents of those that have a task do not hear that a former slave has answered it."""

    def changed(self: Any, *arguments: Any) -> None:
        before = len(self.state.actions.sends)
        reclaim(self, *arguments)
        del self.state.actions.sends[before:]

    return changed


def charge_the_first(_: Any) -> Any:
    """The first task that a slave holds counts as the one that it runs."""
    return lambda self, _: (self.held[0].first, self.held[0].attempt) if self.held else (0, 0)


def move_failures(select: Any) -> Any:
    """Late results are dropped, and the failures of the others stay at their former positions."""

    def changed(group: Any, frames: Any, kept: Any) -> Any:
        smaller, payload = select(group, frames, kept)
        return replace(smaller, failed=[place for place in group.failed if place < len(kept)]), payload

    return changed


def drop_in_silence(_: Any) -> Any:
    """The slaves do not hear that a shared object is dropped."""

    def changed(self: Any, kept: Any) -> None:
        del self._kept[kept.share.digest]
        self._state.actions.share_files.append(DropShare(kept.share.digest))

    return changed


def pass_on_twice(pass_on: Any) -> Any:
    """An agent gives its slaves, too, what another slave has already run."""
    given: dict[Any, Any] = {}

    def changed(core: Any, child: Any, group: Any, frames: Any, now: float) -> None:
        pass_on(core, child, group, frames, now)
        for other in core.children.values():
            if other in given and other is not child and not other.held:
                pass_on(core, child, *given.pop(other), now)
        given[child] = group, frames

    return changed


def running_since_its_report(running: Any) -> Any:
    """An attempt that has ended may still report."""

    def changed(slave: Any, task: int, attempt: int) -> object:
        reported = slave.report is not None and slave.report[2].task_id == task
        return running(slave, task, attempt) or reported

    return changed


MISTAKES: dict[str, tuple[str, Change, str]] = {
    "a result is lost": (f"{CORE}state.MasterState.take_actions", first_of("results", list.pop), "it hangs"),
    "a result is given twice": (f"{CORE}state.MasterState.take_actions", first_of("results", again), "ended twice"),
    "a tag is lost": (f"{CORE}state.MasterState.take_actions", first_of("results", swap_tags), "has another's tag"),
    "an eviction is charged": (f"{CORE}core.MasterCore.handle", charge_all, "said to have run at a death|is charged"),
    "functions are confused": (
        "mwpy._simulation.machines.SimulatedSlave.define",
        keep_the_first,
        "runs another function",
    ),
    "old slaves stay": (f"{CORE}admission.Admission.renew_slaves", gives(None), "with a module from before an edit"),
    "a SIGKILL is charged at once": (f"{AGENT}limits.KILLED_TOO_S", value(0.0), "for a slave that it did not kill"),
    "results wait": (f"{AGENT}limits.SILENT_S", value(0.2), "waits in slave"),
    "hanging slaves stay": (f"{AGENT}limits.EXIT_S", value(60.0), "hangs and was not killed"),
    "output comes twice": (f"{AGENT}traffic.HELD_BACK_BYTES", value(-1), "was printed . times"),
    "cancelled tasks run on": (f"{AGENT}traffic.SPARED_S", value(60.0), "ran on although it was cancelled"),
    "time limits are late": (f"{AGENT}limits.LOOK_S", value(60.0), "although it was over its limit"),
    "memory limits are late": (f"{AGENT}limits.MEASURE_S", value(60.0), "although it was over its limit"),
    "an agent is barred for one slave": (
        f"{CORE}admission.Admission.algorithm_failed",
        bar,
        "but a new slave can run it",
    ),
    "suspects have company": (f"{CORE}spans.Span.runs_alone", value(False), "must be alone"),
    "too long a start": (f"{AGENT}starts.Starts.end_start", gives(None), "hangs and was not killed"),
    "not idle": (f"{AGENT}starts.Departure._is_idle", value(True), "it left, but slaves"),
    "the end is too late": (
        "mwpy._simulation.slaves.SimulatedChannel.end_at",
        value(lambda channel, moment: setattr(channel, "tasks_end_at", moment + 1)),
        "but it has time until",
    ),
    "too little time is left": (
        f"{CORE}spans.Span.needed_s",
        value(None),
        r"task \d+ takes .* has .* s'",
    ),
    "late results are not looked for": (
        f"{AGENT}limits.SILENT_S",
        value(60.0),
        r"waits in slave \d+ behind a long task",
    ),
    "pauses are longer": (f"{CORE}spans.Span.next_pause_s", value(30.0), "pauses for 30.0 s, not"),
    "another task is charged": (f"{AGENT}child.Child.running", charge_the_first, "is said to have run at a death, not"),
    "another task fails": (
        "mwpy._values.groups.select",
        move_failures,
        "has the value .*OSError|positions that are not failures|the result of another attempt",
    ),
    "tasks that must not run twice are packed": (
        "mwpy._simulation.algorithm.can_be_packed",
        value(lambda _, settings: settings.task_group is None),
        "ran twice despite retry=False",
    ),
    "a failed fork is waited for": (f"{AGENT}starts.Starts.ended", gives(None), "was not replaced"),
    "slaves do not hear of a dropped object": (
        f"{AGENT}traffic.Shares._drop",
        drop_in_silence,
        "which its agent has dropped",
    ),
    "a task starts again after its result": (
        f"{AGENT}core.AgentCore._pass_on",
        pass_on_twice,
        "starts again after its result has arrived",
    ),
    "an ended attempt reports": (f"{CORE}results._running", running_since_its_report, "this attempt does not live"),
}

OF_HOSTS: dict[str, tuple[str, Change, str]] = {
    "it joins again": (f"{CORE}admission.Admission._why_not", gives(""), "joins, but host . is excluded"),
    "all are excluded": (f"{CORE}hosts.Hosts._why_not", gives(""), "too many of"),
}

OF_STRAGGLERS: dict[str, tuple[str, Change, str]] = {
    "not killed": (f"{CORE}results.Results._reclaim", end_in_silence, "ran on although"),
}


def write_later(write: Any) -> Any:
    """Outcomes are handed over before they are in the file."""

    def changed(store: Any, given: Given) -> None:
        if given.then is not None:
            given.then()
        write(store, Given(given.records, given.wall, None, given.calls))

    return changed


def try_all_again(apply: Any) -> Any:
    """Tasks run again whose attempts are used up."""
    return lambda reuse, entry: None if isinstance(entry, EarlierSent) and entry.barred else apply(reuse, entry)


def release_all(_: Any) -> Any:
    """Tasks run that may have run and must not run twice."""

    def changed(self: Any, numbers: Iterable[int], reason: str) -> None:
        for number in numbers:
            span = self.state.jar.delayed.get(self._held.pop(number, 0))
            if span is not None:
                self.state.record(records.TasksDue([span.whole]))

    return changed


def mix_generations(joined: Any) -> Any:
    """All slaves serve the next generation at once."""

    def changed(self: Any, welcome: messages.Welcome) -> None:
        joined(self, welcome)
        for child in self._state.living():
            child.former = None

    return changed


OF_CRASHES: dict[str, tuple[str, Change, str]] = {
    "handed over too early": (
        "mwpy._simulation.lives.SimulatedRunStore.write",
        write_later,
        "in an earlier life|computed again",
    ),
    "nothing is used again": (
        f"{CORE}restart.Reuse.without_answered",
        value(lambda _, spans: [*spans]),
        "in an earlier life|computed again|again in life",
    ),
    "used-up attempts are forgotten": (
        f"{CORE}restart.Reuse.apply",
        try_all_again,
        "its attempts were used up in an earlier life",
    ),
    "a task runs twice": (f"{CORE}restart.Succession._end", release_all, "again in life"),
    "generations are mixed": (
        f"{AGENT}contact.Succession.joined",
        mix_generations,
        "another function|never sent|without the object",
    ),
}


def without(kind: type[records.Record]) -> Change:
    """The records of a kind are missing."""
    return lambda take: lambda self, record: None if isinstance(record, kind) else take(self, record)


OF_RECORDS: dict[str, tuple[str, Change, str]] = {
    kind.__name__: ("mwpy._simulation.lives.Replay.recorded", without(kind), "")
    for kind in (records.TasksReturned, records.SlaveChanged, records.AgentLeaving)
}


QUICK = ("a result is given twice", "a tag is lost")
"""What is found in the first histories."""

LATER_FIRST = [*range(25, 150), *range(25)]
"""In this order, rare mistakes about portions and templates are found soon."""

HASTY = {f"{CORE}hosts.{name}": instead for name, instead in (("NEEDED", 3), ("MOST", 6), ("WITNESSED", 3))}
"""Hosts are judged after a few attempts."""

HISTORIES: tuple[tuple[dict[str, tuple[str, Change, str]], Iterable[int], dict[str, Any], dict[str, object]], ...] = (
    (MISTAKES, LATER_FIRST, {"crashes": False}, {}),
    (
        OF_HOSTS,
        range(100),
        {"agents": 4, "tasks": 200, "bad": "slave", "crashes": False},
        {**HASTY, f"{CORE}hosts.EXCLUDED_S": 10.0},
    ),
    (OF_STRAGGLERS, range(600), {"crashes": False}, {f"{CORE}dispatch.KNOWN": 1}),
    (OF_CRASHES, range(80), {"crashes": True}, {}),
    (OF_RECORDS, range(200), {}, {}),
)
"""Mistakes, and in which histories they are found: seeds, what `Cluster` gets, and what is different in mwpy."""


def test_each_mistake_changes_something_that_exists() -> None:
    paths = [path for rows, *_, different in HISTORIES for path in (*(row[0] for row in rows.values()), *different)]
    assert all(pkgutil.resolve_name(path) is not None for path in paths)


@pytest.mark.timeout(0)
@pytest.mark.parametrize(
    ("path", "change", "found", "seeds", "settings", "different"),
    [
        pytest.param(*row, seeds, settings, different, id=name, marks=() if name in QUICK else pytest.mark.long)
        for rows, seeds, settings, different in HISTORIES
        for name, row in rows.items()
    ],
)
def test_the_simulation_finds_a_mistake(
    monkeypatch: pytest.MonkeyPatch,
    path: str,
    change: Change,
    found: str,
    seeds: Iterable[int],
    settings: dict[str, Any],
    different: dict[str, object],
) -> None:
    for name, instead in different.items():
        monkeypatch.setattr(name, instead)
    monkeypatch.setattr(path, change(pkgutil.resolve_name(path)))
    reasons = []
    for seed in seeds:
        try:
            Cluster(seed, **settings).run()
        except SimulationFailure as failure:
            reasons.append(str(failure))
            if re.search(rf"seed {seed}: .*(?:{found})", reasons[-1]) and failure.transcript:
                return
    pytest.fail(f"not found; what was found: {Counter(reasons).most_common(3)}")


@pytest.mark.long
def test_a_record_that_is_changed_later_is_noticed() -> None:
    """In this test, a list in a record grows later."""
    cluster = Cluster(1)
    cluster.run()
    [first, *_] = [record for record in cluster.checker.replay.taken if isinstance(record, records.TasksAllocated)]
    assert isinstance(first.tasks, list)
    first.tasks.append(first.tasks[0])
    with pytest.raises(AssertionError, match="a record was changed later"):
        cluster.checker.replay.check_end(cluster.core.state)
