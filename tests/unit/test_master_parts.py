"""The parts of a `Master`: the inbox, the run of a map, the definitions, and the access that ends."""

from __future__ import annotations

import pickle
import threading
from collections.abc import Callable, Iterator
from itertools import count
from queue import SimpleQueue
from typing import Any, Unpack, cast

import pytest
from attrs import define, field
from tests.spans import MAX

from mwpy._core.master.algorithms import OVERHEAD_BYTES, Defined
from mwpy._core.master.commands import CancelTasks, Command, Running, Waiting
from mwpy._core.master.state import Actions
from mwpy._core.master.submissions import Submissions
from mwpy._core.master.taskjar import Taskjar
from mwpy._roles import map_run
from mwpy._roles.access import Access
from mwpy._roles.definitions import Definitions
from mwpy._roles.inbox import Inbox
from mwpy._roles.map_run import MapRun, MapTag
from mwpy._roles.master_io import MasterIo
from mwpy._transport.codec import Codec, loads_function
from mwpy._values.algorithm import Algorithm, algorithm_of, task_algorithm
from mwpy._values.errors import InternalError, UsageError
from mwpy._values.ids import SlaveId, TaskId
from mwpy._values.last_words import Death, LastWords
from mwpy._values.task import Policies, Result, TaskPolicy, UnrunnableTask

SID = SlaveId("SLAVE-0")
HIGHEST = Defined(MAX)


class _Queue(SimpleQueue[Any]):
    """A queue of outcomes that records how the thread of the algorithm waits for them."""

    def __init__(self, io: _Io) -> None:
        self.io = io
        self.waits: list[tuple[Waiting, float | None]] = []

    def get(self, block: bool = True, timeout: float | None = None) -> Any:
        self.waits.append((self.io.waiting, timeout))
        return super().get(block, 0.0)


class _Io:
    """The parts of an I/O thread that the thread of the algorithm uses."""

    def __init__(self) -> None:
        self.jar = Taskjar()
        self.submissions = Submissions(self.jar)
        self.outcomes = _Queue(self)
        self.waiting = Waiting.NOT
        self.commands: list[Command] = []

    def command(self, command: Command) -> None:
        """Take a command. Answer it after an older one, whose caller was interrupted."""
        self.commands.append(command)
        older = CancelTasks([(1, 1)], Running.KILL)
        if isinstance(command, CancelTasks):
            self.outcomes.put(Actions(cancelled=[(older, [TaskId(1)])]))
            self.outcomes.put(Actions(cancelled=[(older, []), (command, [TaskId(7)])], results=[_result(7)]))


@pytest.fixture
def io() -> _Io:
    return _Io()


@pytest.fixture
def access(io: _Io) -> Access:
    return Access(cast(MasterIo, io), threading.current_thread())


def _result(number: int, tag: object = None) -> Result[Any]:
    return Result(TaskId(number), "max", SID, tag, 0.1, False, number)


def _unrunnable(number: int, tag: object = None) -> UnrunnableTask:
    deaths = (Death(SID, 1, "killed by signal 11", LastWords("", "last words", "", 0)),)
    return UnrunnableTask(TaskId(number), "max", None, tag, "it kills", deaths, b"", ())


# ---- the inbox ----


def test_outcomes_are_sorted_by_kind(io: _Io, access: Access) -> None:
    inbox = Inbox(access)
    assert inbox.counts() == (0, 0, 0, 0)
    results, unrunnable = [_result(1), _result(2)], [_unrunnable(3)]
    io.outcomes.put(Actions(results=results[:1], unrunnable=unrunnable, connected=[SID]))
    io.outcomes.put(Actions(results=results[1:], disconnected=[SID, SID]))
    inbox.receive()
    assert inbox.counts() == (1, 2, 1, 2)
    assert (inbox.results, inbox.unrunnable) == (results, unrunnable)


def test_the_outcomes_of_a_maps_tasks_go_to_that_map(io: _Io, access: Access) -> None:
    """An unrunnable task of a map is a failed result there. Outcomes of other tasks stay in the inbox."""
    inbox = Inbox(access, has_mapped=True)
    run: MapRun[Any] = MapRun(_submit_nothing, access, inbox.wait)
    mine, other = MapTag(run, 0, "a"), MapTag(run, 1, "b")
    io.outcomes.put(Actions(results=[_result(1), _result(2, mine)], unrunnable=[_unrunnable(3), _unrunnable(4, other)]))
    inbox.wait()
    assert inbox.counts() == (1, 1, 0, 0)
    value, failure = run.arrived
    assert (value.value, value.tag) == (2, mine)
    assert failure.error is not None
    assert (failure.task_id, failure.tag, failure.error.type_name) == (4, other, "UnrunnableTask")
    assert [death.sid for death in failure.error.deaths] == [SID]
    assert "last words" in str(failure.error)


def _submit_nothing(*_: object) -> TaskId:
    raise AssertionError("nothing is submitted")


def test_a_cancellation_waits_for_its_own_answer(io: _Io, access: Access) -> None:
    """Answers to other cancellations are dropped. What comes meanwhile can be fetched afterwards."""
    inbox = Inbox(access)
    io.outcomes.put(Actions(cancelled=[(CancelTasks([(5, 1)], Running.DISCARD), [TaskId(5)])]))
    inbox.receive()
    command = CancelTasks([(7, 1)], Running.KILL)
    assert inbox.cancel(command) == [7]
    assert io.commands == [command]
    assert [result.task_id for result in inbox.results] == [7]


@pytest.mark.parametrize(("timeout", "expected"), [(None, Waiting.FOREVER), (0.5, Waiting.FOR_A_WHILE)])
def test_the_core_knows_whether_the_algorithm_waits_with_a_timeout(
    io: _Io, access: Access, timeout: float | None, expected: Waiting
) -> None:
    """A wait also ends without an outcome. There is no wait if an outcome is in the queue already."""
    inbox = Inbox(access)
    inbox.wait(timeout)
    assert io.outcomes.waits == [(expected, timeout)]
    assert io.waiting is Waiting.NOT
    io.outcomes.put(Actions(connected=[SID]))
    inbox.wait(timeout)
    assert (len(io.outcomes.waits), inbox.connected) == (1, [SID])


def test_an_exception_in_the_io_thread_is_an_internal_error(io: _Io, access: Access) -> None:
    cause = ValueError("seven")
    io.outcomes.put(cause)
    with pytest.raises(InternalError, match="seven") as caught:
        Inbox(access).receive()
    assert caught.value.__cause__ is cause


def test_every_use_after_the_end_raises_an_error_at_once(access: Access) -> None:
    inbox = Inbox(access)
    access.close()
    for use in (inbox.receive, inbox.wait, lambda: access.io.submissions):
        with pytest.raises(UsageError, match="over"):
            use()


# ---- a map ----


@define
class _Slaves:
    """Slaves that finish the submitted tasks whenever the map waits. The last submitted task finishes first."""

    io: _Io
    inbox: Inbox
    size: int = 1
    """Bytes of each task's arguments."""
    open: list[tuple[int, MapTag]] = field(factory=list)
    positions: list[int] = field(factory=list)
    most_open: int = 0

    def submit(self, call: Any, tag: Any, **policy: Unpack[Policies]) -> TaskId:
        tag.size = self.size
        number = self.io.submissions.add(HIGHEST, TaskPolicy.of(**policy), b"", (), tag)
        self.positions.append(tag.index)
        self.open.append((call.args[0], tag))
        self.most_open = max(self.most_open, len(self.open))
        return number

    def wait(self) -> None:
        self.io.jar.away += sum(span.count for span in self.io.submissions.take())
        finished = [_result(10 * item, tag) for item, tag in reversed(self.open)]
        self.open.clear()
        self.io.outcomes.put(Actions(results=finished))
        self.inbox.wait()


@pytest.fixture
def slaves(io: _Io, access: Access) -> _Slaves:
    return _Slaves(io, Inbox(access, has_mapped=True))


def _map(slaves: _Slaves, items: Iterator[int], ordered: bool) -> Iterator[Result[int]]:
    run: MapRun[int] = MapRun(slaves.submit, slaves.inbox.access, slaves.wait)
    return run.results(algorithm_of(abs), items, ordered, {})


def test_a_map_yields_results_as_they_arrive_or_in_the_order_of_the_items(slaves: _Slaves) -> None:
    """The tag of each result is its item."""
    assert [(result.tag, result.value) for result in _map(slaves, iter([1, 2, 3]), ordered=False)] == [
        (3, 30),
        (2, 20),
        (1, 10),
    ]
    assert [result.tag for result in _map(slaves, iter([1, 2, 3]), ordered=True)] == [1, 2, 3]
    assert list(_map(slaves, iter([]), ordered=True)) == []
    assert slaves.positions == [0, 1, 2] * 2


@pytest.mark.parametrize(
    ("ordered", "size", "limits", "most"),
    [
        (False, 1, {"MAP_PENDING": 10}, 10),
        (False, 4, {"MAP_BYTES": 10}, 3),
        (True, 1, {"MAP_WINDOW": 7}, 7),
    ],
)
def test_an_endless_map_keeps_a_limited_number_of_items_in_flight(
    slaves: _Slaves, monkeypatch: pytest.MonkeyPatch, ordered: bool, size: int, limits: dict[str, int], most: int
) -> None:
    for name, limit in limits.items():
        monkeypatch.setattr(map_run, name, limit)
    slaves.size = size
    results = _map(slaves, count(), ordered)
    tags = [next(results).tag for _ in range(100)]
    assert len(set(tags)) == 100
    assert slaves.most_open == most


# ---- definitions ----


def _plain() -> None:
    """A function that slaves find under its name."""


def test_an_algorithm_by_name_is_defined_once() -> None:
    """A call that was unpickled has a copy of the algorithm, and gets the same definition."""
    definitions = Definitions(Codec(), main_by_value=False)
    algorithm = algorithm_of(_plain)
    defined = definitions.define(algorithm)
    definition = defined.record.definition
    assert (definition.number, definition.reference) == (0, f"{__name__}:_plain")
    assert (definition.digest, defined.record.packed, defined.size) == (algorithm.digest, b"", 0)
    assert definitions.known == {algorithm: defined}
    assert definitions.prepare(algorithm) is algorithm
    copy = pickle.loads(pickle.dumps(Algorithm(_plain, policy={"retry": False})))
    assert (definitions.define(copy), copy.policy) == (defined, {"retry": False})
    assert definitions.define(algorithm_of(abs)).number == 1


def test_an_algorithm_by_value_is_what_its_pickle_says_at_each_use() -> None:
    """The same pickle is the same algorithm, also that of another function. A changed state is another algorithm."""
    definitions = Definitions(Codec(), main_by_value=False)
    state = [7]

    def make() -> Any:
        return lambda: state[0]

    first, twin = make(), make()
    defined = definitions.define(algorithm_of(first))
    assert (defined.record.definition.reference, len(defined.record.definition.digest)) == ("", 32)
    assert defined.size == OVERHEAD_BYTES + len(defined.record.packed)
    assert definitions.define(algorithm_of(first)) is definitions.define(algorithm_of(twin)) is defined
    prepared = definitions.prepare(Algorithm(first, policy={"retry": False}))
    assert prepared.policy == {"retry": False}
    state[0] = 8
    changed = definitions.define(algorithm_of(first))
    assert (defined.number, changed.number) == (0, 1)
    assert [loads_function(each.record.packed)() for each in (defined, changed)] == [7, 8]
    assert (definitions.define(prepared), prepared.function) == (defined, first)
    assert not definitions.known


def test_an_algorithm_by_value_that_nobody_keeps_gets_another_number() -> None:
    """The core keeps those that are used, and the thread of the algorithm keeps nothing."""
    definitions = Definitions(Codec(), main_by_value=False)
    seen = [definitions.define(algorithm_of(lambda: 7)).number for _ in range(3)]
    assert seen == [0, 1, 2]


@pytest.mark.parametrize("mark", [lambda function: function, task_algorithm])
def test_the_pickle_of_a_function_does_not_depend_on_what_was_asked_of_it(mark: Callable[[Any], Any]) -> None:
    definitions = Definitions(Codec(), main_by_value=False)
    function = mark(lambda: 7)
    defined = definitions.define(algorithm_of(function))
    asked = algorithm_of(function)
    assert (asked.reference, len(asked.digest)) == ("", 16)
    assert definitions.define(algorithm_of(function)) is defined


def test_a_function_of_main_travels_by_value_if_slaves_have_another_main(monkeypatch: pytest.MonkeyPatch) -> None:
    """A notebook is an example."""

    def square(x: int) -> int:
        return x * x

    square.__module__, square.__qualname__ = "__main__", "square"
    import __main__

    monkeypatch.setattr(__main__, "square", square, raising=False)
    by_name, by_value = [
        Definitions(Codec(main_by_value), main_by_value).define(algorithm_of(square)).record
        for main_by_value in (False, True)
    ]
    assert (by_name.definition.reference, by_value.definition.reference) == ("__main__:square", "")
    assert loads_function(by_value.packed)(3) == 9
