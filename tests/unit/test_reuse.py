"""Unit tests of the part of a master that answers tasks from what former generations have stored."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from attrs import define, field
from msgspec.structs import replace
from tests.spans import ids_of

from mwpy._core.master.algorithms import Defined
from mwpy._core.master.core import MasterCore
from mwpy._core.master.restart import MISSES, Reuse
from mwpy._core.master.spans import Span
from mwpy._core.master.state import MasterSettings
from mwpy._values import records
from mwpy._values.bounds import SlaveId, TaskId
from mwpy._values.earlier import EarlierAlgorithm, EarlierAnswers, EarlierSent, EarlierTasks
from mwpy._values.groups import ARGUMENTS, PackedCalls
from mwpy._values.messagepack import encode
from mwpy._values.messages import AlgorithmDefinition, Results
from mwpy._values.policy import DEFAULT_POLICY, TaskPolicy
from mwpy._values.records import AlgorithmDefined
from mwpy._values.shares import NO_KEY, plain_keys

CODE = "code 1"

ONCE = TaskPolicy(retry=False)


def _keys(arguments: Sequence[Any]) -> bytes:
    return plain_keys([encode((each,)) for each in arguments])


def _changes(old: Mapping[str, str], new: Mapping[str, str]) -> list[str]:
    return [f"{part} became {new[part]}" for part in old]


def _captured(old: Mapping[str, str], new: Mapping[str, str]) -> list[str]:
    return [f"k became {new['k']}"] if old.get("k") != new.get("k") else []


def _parts(code: str, k: int) -> dict[str, str]:
    return {"body": code} | ({"k": f"{k}"} if k else {})


def _defined(number: int = 0, name: str = "square", code: str = CODE, k: int = 0) -> Defined:
    definition = AlgorithmDefinition(number, name, f"app:{name}", "", "3.11", {})
    return Defined(AlgorithmDefined(definition, b"", code, _parts(code, k)))


@define
class File:
    """What former generations left, and a core that continues."""

    core: MasterCore = field(factory=lambda: MasterCore(MasterSettings("m", "g")))
    loaded: list[tuple[int, int]] = field(factory=list)
    submitted: int = 0
    any_code: bool = False

    def __attrs_post_init__(self) -> None:
        self.core.reuse = Reuse(self.core.state, self._read, _changes, _captured, any_code=self.any_code)

    @property
    def reuse(self) -> Reuse:
        assert self.core.reuse is not None
        return self.core.reuse

    def _read(self, row: int, place: int) -> tuple[Any, Sequence[Any]]:
        self.loaded.append((row, place))
        return f"value {place} of row {row}", ()

    def generation(
        self, number: int, arguments: Sequence[Any], name: str = "square", code: str = CODE, k: int = 0, first: int = 1
    ) -> None:
        """A former generation submitted calls of an algorithm, by default as its tasks 1 and so on.

        Args:
            k: what the algorithm has captured.
        """
        self.reuse.apply(EarlierAlgorithm(number, first - 1, name, code, _parts(code, k)))
        self.reuse.apply(EarlierTasks(number, first, len(arguments), first - 1, _keys(arguments)))

    def answer(self, generation: int, row: int, tasks: Sequence[int], failed: Sequence[int] = ()) -> None:
        """A slave of it answered tasks."""
        count = len(tasks)
        seconds = [float(task) for task in tasks]
        results = Results(1, [*tasks], [1] * count, [2] * count, seconds, [*failed])
        self.reuse.apply(EarlierAnswers(generation, row, SlaveId("SLAVE-4"), "old host", 77.0, results))

    def sent(self, generation: int, first: int, count: int) -> None:
        """Tasks of it that must not run twice were sent to a slave."""
        self.reuse.apply(EarlierSent(generation, first, count, ""))

    def came_back(self, generation: int, first: int, count: int) -> None:
        """They came back before they started."""
        self.reuse.apply(EarlierSent(generation, first, count, None))

    def used_up(self, generation: int, first: int, count: int, reason: str) -> None:
        """Tasks of it lost all attempts that their policy allows."""
        self.reuse.apply(EarlierSent(generation, first, count, reason))

    def submit(
        self,
        arguments: Sequence[Any],
        defined: Defined | None = None,
        packed: bool = False,
        policy: TaskPolicy = DEFAULT_POLICY,
    ) -> list[int]:
        """Submit calls in this generation. Return the ids of those that must run."""
        payloads = tuple(encode((each,)) for each in arguments)
        calls = PackedCalls.of(ARGUMENTS, arguments) if packed else payloads
        first, count = TaskId(self.submitted + 1), len(arguments)
        tags = tuple(f"tag {each}" for each in arguments)
        span = Span(first, count, defined or _defined(), policy, calls, (), tags, keys=_keys(arguments))
        self.submitted += count
        self.core.submit([span])
        self.core.check()
        return [number for number in ids_of(self.core.state.jar.spans()) if number >= first]

    def notices(self) -> list[str]:
        taken = self.core.take_actions().records
        return [record.text for record in taken if isinstance(record, records.Notice)]


def test_a_task_that_was_answered_ends_at_once_with_its_old_provenance() -> None:
    file = File()
    file.generation(1, [10, 11, 12])
    file.answer(1, 5, [2])
    file.reuse.begin()
    assert file.submit([10, 11, 12]) == [1, 3]
    actions = file.core.take_actions()
    [result] = actions.results
    assert (result.task_id, result.tag, result.sid, result.host) == (2, "tag 11", "SLAVE-4", "old host")
    assert (result.compute_seconds, result.attempts, result.finished, result.algorithm) == (2.0, 2, 77.0, "square")
    assert file.loaded == []
    assert result.value == "value 0 of row 5"
    assert result.value == "value 0 of row 5"
    assert file.loaded == [(5, 0)]
    jar = file.core.state.jar
    assert (jar.ends.reused, jar.ended, jar.away, jar.runnable, jar.failed) == (1, 1, 1, 2, 0)
    [reused] = [record for record in actions.records if isinstance(record, records.ResultsReused)]
    [tasks] = reused.tasks
    assert (tasks.first, tasks.count, tasks.rows, tasks.places, tasks.keys) == (2, 1, [5], [0], _keys([11]))


def test_answers_of_other_code_are_not_used_and_one_notice_says_what_changed() -> None:
    file = File()
    file.generation(1, [7])
    file.answer(1, 5, [1])
    file.reuse.begin()
    changed = _defined(code="code 2")
    assert file.submit([7], changed) == [1]
    assert file.submit([7], changed) == [2]
    [notice] = file.notices()
    assert "square has answers in the run database from other code: body became code 2. They are not used" in notice
    assert "--mw-reuse-changed-code" in notice
    file = File(any_code=True)
    file.generation(1, [7])
    file.answer(1, 5, [1])
    file.reuse.begin()
    assert file.submit([7], _defined(code="code 2")) == []
    assert file.notices() == []


def _with_two_codes() -> File:
    """A file with answers of two functions of one name, which have captured 1 and 2."""
    file = File(any_code=True)
    file.generation(1, [7], code="code 1", k=1)
    file.generation(1, [7], code="code 2", k=2, first=2)
    file.answer(1, 5, [1])
    file.answer(1, 6, [2])
    file.reuse.begin()
    return file


def test_each_code_has_its_own_answers_although_those_of_other_code_are_wanted() -> None:
    """As the functions that one line of a loop makes, whatever their order is now."""
    file = _with_two_codes()
    assert file.submit([7], _defined(0, code="code 2", k=2)) == []
    assert file.submit([7], _defined(1, code="code 1", k=1)) == []
    assert [result.value for result in file.core.take_actions().results] == ["value 0 of row 6", "value 0 of row 5"]
    assert file.submit([8], _defined(0, code="code 2", k=2)) == [3]
    assert file.notices() == []


def test_tasks_run_if_several_other_codes_have_answers_and_one_notice_says_so() -> None:
    file = File(any_code=True)
    file.generation(1, [7], code="code 1")
    file.generation(1, [7], code="code 2", first=2)
    file.answer(1, 5, [1, 2])
    file.reuse.begin()
    assert file.submit([7], _defined(0, code="code 3")) == [1]
    assert file.submit([7], _defined(1, code="code 4")) == [2]
    [notice] = file.notices()
    assert "square has answers in the run database only from other code, and --mw-reuse-changed-code does not" in notice
    assert "several versions of the code, or from several functions of this name. So its tasks run" in notice


def test_code_that_has_captured_other_values_has_no_answers_for_a_task() -> None:
    file = File(any_code=True)
    file.generation(1, [7], code="code 1", k=1)
    file.answer(1, 5, [1])
    file.reuse.begin()
    assert file.submit([7], _defined(code="code 2", k=2)) == [1]
    [notice] = file.notices()
    assert "does not use them: it has captured other values (k became 2). So its tasks run" in notice
    assert file.submit([7], _defined(1, code="code 3", k=1)) == []


def test_of_several_codes_the_one_counts_that_has_captured_the_same() -> None:
    file = _with_two_codes()
    assert file.submit([7], _defined(0, code="code 3", k=2)) == []
    assert file.submit([7], _defined(1, code="code 4", k=1)) == []
    assert [result.value for result in file.core.take_actions().results] == ["value 0 of row 6", "value 0 of row 5"]


def test_other_code_whose_answers_were_used_counts_in_later_generations_too() -> None:
    """The own code has answers of the tasks that the other one did not have. They count first."""
    file = File(any_code=True)
    file.generation(1, [7, 8, 9], code="code 1")
    file.answer(1, 5, [1, 2, 3])
    file.reuse.apply(EarlierAlgorithm(2, 0, "square", "code 2", _parts("code 2", 0)))
    file.reuse.apply(EarlierTasks(2, 1, 1, 0, _keys([7]), reused=True))
    file.reuse.apply(EarlierTasks(2, 2, 2, 0, _keys([8, 10])))
    file.reuse.apply(EarlierTasks(2, 4, 1, 0, _keys([9]), reused=True))
    file.answer(2, 6, [2, 3])
    file.reuse.begin()
    assert file.submit([7, 8, 9, 10, 11], _defined(code="code 2")) == [5]
    values = [result.value for result in file.core.take_actions().results]
    assert values == ["value 0 of row 5", "value 0 of row 6", "value 2 of row 5", "value 1 of row 6"]


def test_what_was_clear_for_a_generation_is_not_asked_again() -> None:
    """The function had no second code when its answers were used; another function of its name has made one since."""
    file = File(any_code=True)
    file.generation(1, [7, 8], code="code 1")
    file.answer(1, 5, [1, 2])
    file.generation(2, [9], code="code 3")
    file.answer(2, 6, [1])
    file.reuse.apply(EarlierAlgorithm(2, 1, "square", "code 2", _parts("code 2", 0)))
    file.reuse.apply(EarlierTasks(2, 2, 1, 1, _keys([7]), reused=True))
    file.reuse.begin()
    assert file.submit([7, 8], _defined(code="code 2")) == []
    assert file.notices() == []


def test_code_that_has_only_its_own_answers_gets_none_of_other_code() -> None:
    file = File(any_code=True)
    file.generation(1, [7, 8], code="code 1")
    file.answer(1, 5, [1, 2])
    file.generation(2, [7], code="code 2")
    file.answer(2, 6, [1])
    file.reuse.begin()
    assert file.submit([7, 8], _defined(code="code 2")) == [2]


def test_tasks_of_the_own_code_without_an_answer_leave_the_choice_open() -> None:
    """Unless one of them must not run twice and has no answer of the other code either."""
    file = File(any_code=True)
    file.generation(1, [7], code="code 1")
    file.answer(1, 5, [1])
    file.generation(2, [7, 8], code="code 2")
    file.sent(2, 1, 2)
    file.reuse.begin()
    assert file.submit([7, 8], _defined(code="code 2"), policy=ONCE) == []
    actions = file.core.take_actions()
    assert (len(actions.results), [each.task_id for each in actions.unrunnable]) == (1, [2])


def test_a_notice_of_changed_code_names_a_few_changes() -> None:
    for count, said in (
        (7, "part 4 became x and 2 more."),
        (5, "part 4 became x."),
        (0, "it is unknown what changed."),
    ):
        file = File()
        parts = {f"part {number}": "x" for number in range(count)}
        file.reuse.apply(EarlierAlgorithm(1, 0, "square", CODE, parts))
        file.reuse.apply(EarlierTasks(1, 1, 1, 0, _keys([7])))
        file.answer(1, 5, [1])
        file.reuse.begin()
        definition = AlgorithmDefinition(0, "square", "app:square", "", "3.11", {})
        file.submit([7], Defined(AlgorithmDefined(definition, b"", "code 2", parts)))
        [notice] = file.notices()
        assert said in notice


def test_code_that_was_changed_back_finds_its_answers() -> None:
    file = File()
    file.generation(1, [7])
    file.answer(1, 5, [1])
    file.generation(2, [7], code="code 2")
    file.answer(2, 6, [1])
    file.reuse.begin()
    assert file.submit([7]) == []
    assert file.notices() == []


def test_first_tasks_of_which_none_has_an_answer_are_reported_once() -> None:
    file = File()
    file.generation(1, [*range(5)])
    file.answer(1, 5, [1, 2, 3, 4, 5])
    file.reuse.begin()
    file.submit([*range(100, 100 + MISSES - 1)])
    assert file.notices() == []
    file.submit([50, 51])
    [notice] = file.notices()
    assert "none of the first 20 tasks of square has an answer" in notice
    assert "answers of 5 tasks of square" in notice
    assert "their arguments are different. If they contain" in notice
    assert file.submit([1]) == []
    file.submit([*range(2000, 2000 + 2 * MISSES)])
    assert file.notices() == []


def test_tasks_without_a_key_or_without_known_code_are_never_matched() -> None:
    file = File()
    file.generation(1, [7], code="")
    file.answer(1, 5, [1])
    file.reuse.apply(EarlierTasks(1, 2, 1, 0, NO_KEY))
    file.reuse.apply(EarlierAlgorithm(1, 1, "cube", CODE, {}))
    file.reuse.apply(EarlierTasks(1, 5, 1, 1, NO_KEY))
    file.reuse.apply(EarlierTasks(1, 6, 1, 1, _keys([3])))
    file.answer(1, 6, [5, 6, 99])
    file.reuse.begin()
    assert file.submit([7], _defined(code="")) == [1]
    cube = _defined(1, "cube")
    span = Span(TaskId(2), 2, cube, DEFAULT_POLICY, (b"x", b"y"), (), (0, 0), keys=NO_KEY + _keys([3]))
    file.core.submit([span])
    assert ids_of(file.core.state.jar.spans()) == [1, 2]
    [result] = file.core.take_actions().results
    assert result.value == "value 1 of row 6"


def test_a_task_whose_arguments_are_too_large_is_answered_from_the_file_all_the_same() -> None:
    file = File()
    file.core.state.settings = replace(file.core.state.settings, max_call_bytes=4)
    file.generation(1, ["long text"])
    file.answer(1, 5, [1])
    file.reuse.begin()
    assert file.submit(["long text", "another text"]) == []
    actions = file.core.take_actions()
    assert [each.ok for each in actions.results] == [True, False]


def test_tasks_without_a_key_are_not_taken_for_others_that_were_sent() -> None:
    file = File()
    file.generation(1, [1])
    file.reuse.apply(EarlierTasks(1, 2, 1, 0, NO_KEY))
    file.sent(1, 2, 1)
    file.reuse.begin()
    assert file.submit([1], policy=ONCE) == [1]
    assert file.notices() == []


LONG = "it ran longer than 1 s"


@pytest.mark.parametrize(
    ("before", "arguments", "policy", "runs", "rows"),
    [
        ([("generation", 1, [1, 2]), ("sent", 1, 1, 2), ("came_back", 1, 2, 1)], [1, 2], ONCE, [2], []),
        ([("generation", 1, [1, 2]), ("answer", 1, 5, [1])], [2, 3], ONCE, [1, 2], []),
        ([("generation", 1, [1, 2]), ("sent", 1, 1, 1)], [1], DEFAULT_POLICY, [1], []),
        ([("generation", 1, [1], "square", ""), ("sent", 1, 1, 1)], [1], ONCE, [1], []),
        ([("generation", 1, [1], "square", ""), ("used_up", 1, 1, 1, LONG)], [1], DEFAULT_POLICY, [1], []),
        (
            [("generation", 1, [1]), ("used_up", 1, 1, 1, LONG), ("generation", 2, [1]), ("answer", 2, 5, [1])],
            *([1], DEFAULT_POLICY, [], [5]),
        ),
        (
            [("generation", 1, [1]), ("answer", 1, 5, [1], [0]), ("generation", 2, [1]), ("sent", 2, 1, 1)],
            *([1], ONCE, [], [5]),
        ),
        (
            [("generation", 1, [7]), ("answer", 1, 5, [1], [0]), ("generation", 2, [7]), ("answer", 2, 6, [1])],
            *([7], DEFAULT_POLICY, [], [6]),
        ),
    ],
    ids=[
        "it came back before it started",
        "no former generation sent it",
        "it may run twice now",
        "it was sent, of unknown code",
        "its attempts were used up, of unknown code",
        "it was answered after its attempts were used up",
        "it was sent once more after it was answered",
        "it was answered twice",
    ],
)
def test_a_task_runs_unless_it_has_an_answer_or_must_not_run_twice(
    before: list[tuple[Any, ...]], arguments: list[int], policy: TaskPolicy, runs: list[int], rows: list[int]
) -> None:
    """The last answer counts, also a failure."""
    file = File()
    for name, *details in before:
        getattr(file, name)(*details)
    file.reuse.begin()
    assert file.submit(arguments, policy=policy) == runs
    taken = file.core.take_actions().records
    reused = [tasks for record in taken if isinstance(record, records.ResultsReused) for tasks in record.tasks]
    assert [row for tasks in reused for row in tasks.rows] == rows
