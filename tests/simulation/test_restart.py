"""Many generations of a master that crashes: each continues from what the generations before have stored."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from random import Random
from typing import Any

import pytest
from attrs import define, field

from mwpy._core.master.algorithms import Defined
from mwpy._core.master.core import MasterCore
from mwpy._core.master.restart import Reuse
from mwpy._core.master.spans import Span
from mwpy._core.master.state import MasterSettings
from mwpy._values import records
from mwpy._values.bounds import SlaveId, TaskId
from mwpy._values.earlier import Earlier, EarlierAlgorithm, EarlierAnswers, EarlierTasks
from mwpy._values.messagepack import encode
from mwpy._values.messages import AlgorithmDefinition, Results
from mwpy._values.policy import DEFAULT_POLICY
from mwpy._values.records import AlgorithmDefined
from mwpy._values.shares import plain_keys
from mwpy._values.task import encoded_in

Call = tuple[int, int]
"""An argument, and the position among the calls with this argument."""


@define(eq=False)
class Stored:
    """The file, as far as its groups were committed."""

    groups: list[list[Earlier]] = field(factory=list)
    rows: dict[int, list[Call]] = field(factory=dict)
    """Which calls the results of each row answer."""

    def answered(self) -> set[Call]:
        """The calls with an answer in the file."""
        found = [each for group in self.groups for each in group if isinstance(each, EarlierAnswers)]
        return {call for each in found for call in self.rows[each.row]}


@define(eq=False)
class Generation:
    """One life of the master. The algorithm submits the same calls each time, in another order."""

    number: int
    stored: Stored
    random: Random
    core: MasterCore = field(factory=lambda: MasterCore(MasterSettings("m", "g")))
    calls: dict[int, Call] = field(factory=dict)
    """The calls, by task id."""
    ended: Counter[int] = field(factory=Counter)
    ran: list[Call] = field(factory=list)

    def __attrs_post_init__(self) -> None:
        reuse = self.core.reuse = Reuse(
            self.core.state, lambda row, place: ((row, place), ()), lambda *_: [], lambda *_: []
        )
        for group in self.stored.groups:
            for entry in group:
                reuse.apply(entry)
        reuse.begin()

    def run(self, arguments: list[int], crash_after: float) -> None:
        """Submit the calls in portions, and answer tasks. What happens after the crash is not stored."""
        shuffled = self.random.sample(arguments, len(arguments))
        definition = AlgorithmDefinition(0, "work", "app:work", "", "3.11", {})
        defined = Defined(AlgorithmDefined(definition, b"", "code", {}))
        made: Counter[int] = Counter()
        waiting: list[int] = []
        before, start = self.stored.answered(), 0
        groups: list[list[Earlier]] = [[EarlierAlgorithm(self.number, 0, "work", "code", {})]]
        while start < len(shuffled) or waiting:
            if start < len(shuffled) and self.random.random() < 0.6:
                some = shuffled[start : start + self.random.randint(1, 9)]
                for at, argument in enumerate(some, start + 1):
                    self.calls[at] = argument, made[argument]
                    made[argument] += 1
                payloads = tuple(encode((each,)) for each in some)
                keys = plain_keys(payloads)
                tags = (None,) * len(some)
                span = Span(TaskId(start + 1), len(some), defined, DEFAULT_POLICY, payloads, (), tags, keys=keys)
                self.core.submit([span])
                self.core.check()
                start += len(some)
                groups.append([*self._recorded(before, waiting)])
            elif waiting:
                chosen = sorted(self.random.sample(waiting, self.random.randint(1, min(5, len(waiting)))))
                waiting = [task for task in waiting if task not in chosen]
                groups.append([self._answer(chosen)])
        assert self.ended == Counter(self.calls.keys()), "each task ends once"
        self.stored.groups += groups[: max(1, int(len(groups) * crash_after))]

    def _recorded(self, before: set[Call], waiting: list[int]) -> Iterator[Earlier]:
        """What the file gets of a submission. Check the answers that the algorithm gets at once."""
        actions = self.core.take_actions()
        for result in actions.results:
            call = self.calls[result.task_id]
            value: Any = encoded_in(result)[0]
            assert self.stored.rows[value[0]][value[1]] == call, "a task got the value of another one"
            assert call in before
            self.ended[result.task_id] += 1
        for record in actions.records:
            if isinstance(record, records.ResultsReused | records.TasksSubmitted):
                for each in record.tasks:
                    yield EarlierTasks(self.number, each.first, each.count, 0, each.keys)
                    if isinstance(record, records.TasksSubmitted):
                        new = range(each.first, each.first + each.count)
                        assert not before & {self.calls[task] for task in new}, "a stored answer is computed again"
                        waiting += new

    def _answer(self, tasks: list[int]) -> Earlier:
        row, count = len(self.stored.rows) + 1, len(tasks)
        self.stored.rows[row] = [self.calls[task] for task in tasks]
        self.ended.update(tasks)
        self.ran += self.stored.rows[row]
        results = Results(1, tasks, [1] * count, [1] * count, [0.5] * count, [])
        return EarlierAnswers(self.number, row, SlaveId("SLAVE-0"), "host", 1.0, results)


@pytest.mark.parametrize("seed", range(50))
def test_no_stored_answer_is_computed_again_and_no_task_gets_another_value(seed: int) -> None:
    """Whatever part of each generation was stored, and although many calls are equal."""
    random, stored = Random(seed), Stored()
    arguments = [random.randrange(25) for _ in range(60)]
    for number in range(1, 6):
        Generation(number, stored, random).run(arguments, random.choice((0.2, 0.5, 0.9)))
    whole = Generation(6, stored, random)
    whole.run(arguments, 1.0)
    last = Generation(7, stored, random)
    last.run(arguments, 1.0)
    assert last.ran == []
