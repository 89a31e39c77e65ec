"""A slave in its own process. The test is its agent, and uses the channel of an agent."""

from __future__ import annotations

import os
import select
import signal
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pytest

from mwpy._system.process import start
from mwpy._transport import wire
from mwpy._transport.channel import PAYLOAD_BYTES, SETTLE_S, open_channel
from mwpy._transport.codec import Codec, loads
from mwpy._values import groups, messages
from mwpy._values.algorithm import PYTHON
from mwpy._values.bounds import Buffer, SlaveId
from mwpy._values.messages import check
from mwpy._values.options import SLAVE_VARIABLE, SlaveSettings

SOURCE = str(Path(__file__).parents[2] / "src")
PATIENCE_S = 30.0
"""The test fails after this time."""

PLAIN = "import os, sys\nfrom mwpy import slave\nsys.exit(slave.run(os.environ['MWPY_SLAVE'], None, ['x']))"

M = TypeVar("M", bound=messages.Message)
Value = tuple[bool, Any]


def with_algorithm(body: str) -> str:
    """Return a script with a slave algorithm that has this body. Its arguments are `mw` and `argv`."""
    indented = body.replace("\n", "\n    ")
    return f"def algorithm(mw, argv):\n    {indented}\n{PLAIN.replace('None', 'algorithm')}"


class Agent:
    """The agent of one slave, controlled by a test."""

    def __init__(self, script: str = PLAIN, **settings: Any) -> None:
        self.end, fds = open_channel()
        described = SlaveSettings(fds, **{"slave": 7, "agent_pid": os.getpid(), **settings}).to_json()
        self.child = start(
            [sys.executable, "-c", script],
            environment={SLAVE_VARIABLE: described, "PYTHONPATH": SOURCE},
            pass_fds=fds,
            keep_output=True,
        )
        for fd in fds:
            os.close(fd)
        self.codec = Codec()
        self.heard: deque[tuple[messages.Message, Sequence[Buffer]]] = deque()

    def send(self, message: messages.Message, frames: Sequence[Buffer] = ()) -> None:
        self.end.send(wire.encode(message, frames))

    def define(self, number: int, function: Callable[..., Any], python: str = PYTHON) -> None:
        code = self.codec.dumps_function(function, "function")
        self.send(messages.Algorithms([messages.AlgorithmDefinition(number, f"f{number}", "", "", python)]), [code])

    def refer(self, number: int, reference: str) -> None:
        self.send(messages.Algorithms([messages.AlgorithmDefinition(number, f"f{number}", reference, "", PYTHON)]))

    def give(self, task_ids: Sequence[int], *args: Any, number: int = 1, attempt: int = 2) -> None:
        """Send tasks, all with the same arguments."""
        payload, buffers = self.codec.dumps_call(args, {}, "f")
        count = len(task_ids)
        firsts, counts, attempts = groups.spans_of(task_ids, [attempt] * count)
        group = messages.Tasks(
            slave=7,
            tasks=firsts,
            counts=counts,
            attempts=attempts,
            algorithms=[number] * len(firsts),
            buffers=[len(buffers)] * count if buffers else [],
        )
        self.send(group, [groups.payload(count, [payload] * count), *list(buffers) * count])

    def take_back(self, task_ids: Sequence[int], attempt: int = 2) -> int:
        """Take tasks back, whether they were started or not. Return the position of the last started task."""
        self.end.recall()
        time.sleep(SETTLE_S)
        started = self.end.started
        self.send(messages.Revoked(7, *groups.spans_of(task_ids, [attempt] * len(task_ids))))
        return started

    def _take_heard(self) -> None:
        """Take the messages that have arrived, except those about memory, which may come at any time."""
        heard = (wire.decode(frames) for frames in self.end.receive())
        self.heard.extend(each for each in heard if not isinstance(each[0], messages.PeakMemory))

    def hear(self, kind: type[M]) -> tuple[M, Sequence[Buffer]]:
        """Wait for the next message, which must be of this kind."""
        deadline = time.monotonic() + PATIENCE_S
        while not self.heard:
            assert not self.end.eof, f"the slave is gone: {self.stderr()}"
            assert time.monotonic() < deadline, "the slave is silent"
            select.select([self.end], [self.end] if self.end.wants_write else [], [], 1.0)
            self.end.flush()
            self._take_heard()
        message, frames = self.heard.popleft()
        assert isinstance(message, kind)
        return message, frames

    def results(self, count: int) -> dict[int, Value]:
        """Wait for the next results. Return for each task, in order of arrival, whether it failed, and its value."""
        found: dict[int, Value] = {}
        while len(found) < count:
            group, frames = self.hear(messages.Results)
            assert set(group.attempts) == {2}
            cut = zip(*groups.entries(group, frames), strict=True)
            named = zip(groups.each_task(group), cut, strict=True)
            for position, ((task_id, _), (payload, buffers)) in enumerate(named):
                found[task_id] = (position in group.failed, loads(payload, buffers))
        return found

    @staticmethod
    def finished(message: messages.Message, frames: Sequence[Buffer]) -> dict[int, Any]:
        """Return the values of a group of results."""
        assert isinstance(message, messages.Results)
        check(message, frames)
        values = [loads(payload, buffers) for payload, buffers in zip(*groups.entries(message, frames), strict=True)]
        return {task: value for (task, _), value in zip(groups.each_task(message), values, strict=True)}

    def ready(self) -> Agent:
        self.hear(messages.SlaveReady)
        return self

    def shut_down(self) -> int:
        self.send(messages.Shutdown(finished=True, grace_s=1.0))
        return self.exit_code()

    def exit_code(self) -> int:
        os.waitid(os.P_PID, self.child.pid, os.WEXITED | os.WNOWAIT)
        self._take_heard()
        code = self.child.poll()
        assert code is not None
        return code

    def stderr(self) -> str:
        return self.written(2)

    def written(self, number: int) -> str:
        """Read its standard output (1) or standard error (2) to the end."""
        fd = self.child.outputs[number]
        data = b""
        while select.select([fd], [], [], PATIENCE_S)[0]:
            chunk = os.read(fd, 65536)
            if not chunk:
                break
            data += chunk
        return data.decode()


@pytest.fixture
def agents() -> Iterator[Callable[..., Agent]]:
    made: list[Agent] = []

    def make(script: str = PLAIN, **settings: int) -> Agent:
        made.append(Agent(script, **settings))
        return made[-1]

    yield make
    for agent in made:
        agent.child.kill()
        if agent.child.poll() is None:
            os.waitid(os.P_PID, agent.child.pid, os.WEXITED | os.WNOWAIT)
            agent.child.poll()
        agent.child.close()
        if agent.end.fileno() >= 0:
            agent.end.close()


Agents = Callable[..., Agent]


class Gate:
    """A task that reports its start, and ends when the test allows it."""

    def __init__(self, folder: Path) -> None:
        self.begun, self.open = folder / "begun", folder / "open"
        os.mkfifo(self.begun)
        os.mkfifo(self.open)

    def task(self) -> Callable[[], int]:
        begun, opened = str(self.begun), str(self.open)

        def wait() -> int:
            Path(begun).write_text("begun")
            Path(opened).read_text()
            return 0

        return wait

    def wait_until_begun(self) -> None:
        assert self.begun.read_text() == "begun"

    def let_go(self) -> None:
        self.open.write_text("go")


@pytest.fixture
def gate(tmp_path: Path) -> Gate:
    return Gate(tmp_path)


# ---- running tasks ----


def test_each_task_of_a_group_is_run_with_its_own_arguments_algorithm_and_attempt(agents: Agents) -> None:
    """The group has spans of several algorithms and attempts. Only some of its tasks have large buffers."""
    agent = agents(result_group=6).ready()
    agent.define(1, lambda x: ("one", float(np.sum(x))))
    agent.define(2, lambda x: ("two", float(np.sum(x))))
    calls = [agent.codec.dumps_call((value,), {}, "f") for value in (1, np.full(20_000, 0.5), 3, 4, np.ones(10_000), 6)]
    payloads, buffers = zip(*calls, strict=True)
    large = list(map(len, buffers))
    assert large == [0, 1, 0, 0, 1, 0]
    group = messages.Tasks(7, [4, 9, 7], [3, 1, 2], [1, 3, 1], [1, 2, 2], large)
    agent.send(group, [groups.payload(6, payloads), *(buffer for own in buffers for buffer in own)])
    heard, frames = agent.hear(messages.Results)
    assert (heard.tasks, heard.counts, heard.attempts) == ([4, 9, 7], [3, 1, 2], [1, 3, 1])
    values = [loads(payload) for payload in groups.entries(heard, frames)[0]]
    assert values == [("one", 1), ("one", 10_000), ("one", 3), ("two", 4), ("two", 10_000), ("two", 6)]
    assert agent.end.started == 6


def test_tasks_are_taken_back_from_a_slave_that_is_busy(agents: Agents, gate: Gate) -> None:
    agent = agents().ready()
    agent.define(1, lambda: None)
    agent.define(2, gate.task())
    agent.give([1], number=2)
    agent.give([2, 3, 4, 5])
    gate.wait_until_begun()
    assert agent.take_back([4, 5]) == 1
    gate.let_go()
    assert list(agent.results(3)) == [1, 2, 3]
    agent.give([6])
    assert list(agent.results(1)) == [6]


def test_large_arrays_travel_out_of_band_and_can_be_changed_in_the_task(agents: Agents) -> None:
    agent = agents().ready()

    def add_one(array: Any) -> Any:
        array += 1
        return array

    agent.define(1, add_one)
    agent.give([1, 2], np.zeros(300_000))
    for _ in range(2):
        group, frames = agent.hear(messages.Results)
        assert (group.buffers[-1], len(frames[-1])) == (1, 2_400_000)
        (payload,), (buffers,) = groups.entries(group, frames)
        assert loads(payload, buffers).sum() == 300_000


def test_the_memory_of_a_task_is_free_before_the_next_task_gets_its_arguments(agents: Agents) -> None:
    """A task may use more than half of the memory of its slave. A failed task keeps no memory, either."""
    agent = agents().ready()

    def look_back(array: Any) -> Any:
        import sys
        import weakref

        before = vars(sys).get("seen", lambda: None)()
        vars(sys)["seen"] = weakref.ref(array)
        if before is not None:
            os._exit(3)
        return array if array[0] else 1 / 0

    agent.define(1, look_back)
    for first, array in ((1, np.zeros(1000)), (4, np.ones(1000)), (7, np.ones(100_000))):
        agent.give(range(first, first + 3), array)
    assert [failed for failed, _ in agent.results(9).values()] == [True] * 3 + [False] * 6


# ---- results that are not sent yet ----


def test_a_result_is_gathered_only_while_the_agent_would_read_the_journal(agents: Agents, gate: Gate) -> None:
    """A slave that woke up late sends its first result before it starts the next task, which may never end."""
    agent = agents().ready()
    agent.define(1, lambda: None)
    agent.define(2, gate.task())
    for task, fed_s in ((1, -1.0), (3, 1000.0)):
        agent.end.feed(time.monotonic() + fed_s)
        call, _ = agent.codec.dumps_call((), {}, "f")
        group = messages.Tasks(7, [task, task + 1], [1, 1], [2, 2], [1, 2])
        agent.send(group, [groups.payload(2, [call, call])])
        gate.wait_until_begun()
        noted = agent.end.journal.read(7)
        assert ([] if noted is None else [*groups.each_task(noted[0])]) == ([] if fed_s < 0 else [(task, 2)])
        gate.let_go()
        assert list(agent.results(2)) == [task, task + 1]


def test_a_result_that_does_not_fit_into_the_journal_is_sent_before_the_next_task(agents: Agents, gate: Gate) -> None:
    """Earlier results are sent to make room. A result that is too large for an empty journal is sent alone."""
    agent = agents(result_group=100).ready()
    agent.define(1, lambda size: "x" * size)
    agent.define(2, gate.task())
    agent.give([1, 2], PAYLOAD_BYTES // 3 * 2)
    agent.give([3], PAYLOAD_BYTES)
    calls = [agent.codec.dumps_call(args, {}, "f")[0] for args in ((1,), ())]
    agent.send(messages.Tasks(7, [4, 5], [1, 1], [2, 2], [1, 2]), [groups.payload(2, calls)])  # at once: no idle time
    for task_id in (1, 2, 3):
        assert list(agent.results(1)) == [task_id]
    gate.wait_until_begun()
    noted = agent.end.journal.read(7)
    assert noted is not None
    assert list(groups.each_task(noted[0])) == [(4, 2)]
    gate.let_go()
    assert list(agent.results(2)) == [4, 5]


@pytest.mark.parametrize(
    ("end", "code"),
    [(lambda: os._exit(3), 3), (lambda: os.kill(os.getpid(), signal.SIGKILL), -9), (lambda: os.abort(), -6)],
    ids=["exit", "kill", "abort"],
)
def test_a_slave_that_dies_leaves_its_finished_results_and_its_unstarted_tasks(
    agents: Agents, gate: Gate, end: Callable[[], None], code: int
) -> None:
    agent = agents(result_group=100).ready()
    agent.define(1, lambda: "done")
    agent.define(2, end)
    agent.define(3, gate.task())
    agent.give([9], number=3)
    gate.wait_until_begun()
    agent.give([1, 2])
    agent.give([3], number=2)
    agent.give([4])
    gate.let_go()
    assert agent.exit_code() == code
    noted = agent.end.journal.read(7)
    assert noted is not None
    check(*noted)
    assert list(groups.each_task(noted[0])) == [(9, 2), (1, 2), (2, 2)]
    assert list(map(loads, groups.entries(*noted)[0])) == [0, "done", "done"]
    assert agent.end.started == 4


# ---- failures ----


@pytest.mark.parametrize(
    ("task", "type_name"),
    [
        (lambda: sys.exit("enough"), "SystemExit"),
        (lambda: (_ for _ in ()).throw(KeyboardInterrupt), "KeyboardInterrupt"),
        (lambda: next(iter([sys._getframe()])), "mwpy.slave.ResultNotPicklable"),
        (lambda x: x, "TypeError"),
    ],
    ids=["SystemExit", "KeyboardInterrupt", "a result that cannot be pickled", "missing argument"],
)
def test_whatever_a_task_raises_ends_the_task_and_not_the_slave(
    agents: Agents, task: Callable[..., Any], type_name: str
) -> None:
    agent = agents().ready()
    agent.define(1, task)
    agent.define(2, lambda: "alive")
    agent.give([1])
    agent.give([2], number=2)
    found = agent.results(2)
    assert (found[1][0], found[1][1][0]) == (True, type_name)
    assert found[2] == (False, "alive")


def test_arguments_that_cannot_be_unpickled_are_a_failed_result(agents: Agents) -> None:
    agent = agents().ready()

    class Elsewhere:
        def __reduce__(self) -> Any:
            return __import__, ("module_that_only_the_master_has",)

    sys.modules["module_that_only_the_master_has"] = sys
    try:
        agent.define(1, lambda x: x)
        agent.give([1], Elsewhere())
    finally:
        del sys.modules["module_that_only_the_master_has"]
    failed, (type_name, text, _, _) = agent.results(1)[1]
    assert (failed, type_name) == (True, "ModuleNotFoundError")
    assert "module_that_only_the_master_has" in text


@pytest.mark.parametrize("make", [lambda: "x" * 5000, lambda: np.zeros(50_000)], ids=["in band", "out of band"])
def test_a_result_over_the_limit_fails_and_names_both_sizes(agents: Agents, make: Callable[[], Any]) -> None:
    agent = agents(max_result_bytes=1000).ready()
    agent.define(1, make)
    agent.give([1])
    failed, (_, text, _, _) = agent.results(1)[1]
    text = text.replace(",", "")
    assert failed
    assert "1000" in text
    assert any(size in text for size in ("50", "4001"))
    assert "--mw-max-read-buffer-size" in text


def test_a_missing_algorithm_is_reported_with_its_tasks_and_other_tasks_run(agents: Agents) -> None:
    agent = agents().ready()
    agent.refer(1, "no_such_module:f")
    agent.define(2, lambda: "fine")
    agent.give([1, 2], number=1)
    agent.give([3], number=2)
    agent.give([4], number=1)
    refused: list[int] = []
    while len(refused) < 2:
        message, _ = agent.hear(messages.AlgorithmFailed)
        assert (message.slave, message.number, set(message.attempts)) == (7, 1, {2})
        assert "no_such_module" in message.reason
        refused += [task for task, _ in groups.each_task(message)]
    assert refused == [1, 2]
    rest = {type(agent.hear(messages.Results | messages.AlgorithmFailed)[0]).__name__ for _ in range(2)}  # type: ignore[arg-type]
    assert rest == {"Results", "AlgorithmFailed"}


def test_a_function_of_another_python_version_is_refused(agents: Agents) -> None:
    agent = agents().ready()
    agent.define(1, lambda: None, python="2.7")
    agent.give([1])
    message, _ = agent.hear(messages.AlgorithmFailed)
    assert "2.7" in message.reason
    assert PYTHON in message.reason


# ---- start and end ----


def test_a_slave_algorithm_decides_when_the_slave_is_ready_and_how_it_ends(agents: Agents) -> None:
    agent = agents(with_algorithm("assert argv == ['x']\nreturn 3"))
    assert agent.exit_code() == 3
    assert not agent.heard
    assert agents(with_algorithm("return 1000")).exit_code() == 255


def test_a_slave_algorithm_wraps_the_loop(agents: Agents) -> None:
    body = "code = mw.loop_simple()\nprint('torn down', mw.sid, file=sys.stderr)\nreturn code + 5"
    agent = agents(with_algorithm(body)).ready()
    agent.send(messages.SlaveNamed(7, SlaveId("SLAVE-3")))
    agent.define(1, lambda: None)
    agent.give([1])
    agent.results(1)
    assert agent.shut_down() == 5
    assert agent.stderr() == "torn down SLAVE-3\n"


def test_loop_iterate_runs_one_task_at_a_time(agents: Agents) -> None:
    body = (
        "seen = [0]\n"
        "while not (state := mw.loop_iterate(0.01)).explicit_shutdown:\n"
        "    seen.append(state.total_results_completed)\n"
        "assert sorted(set(seen)) == [0, 1, 2, 3] and seen == sorted(seen), seen  # never two at a time\n"
        "assert state.result_grouping == 5 and state.num_tasks == 0 and state.num_results == 0\n"
        "return 0"
    )
    agent = agents(with_algorithm(body), result_group=5).ready()
    agent.define(1, lambda: time.sleep(0.02))
    agent.give([1, 2, 3])
    agent.results(3)
    code = agent.shut_down()
    assert code == 0, agent.stderr()


@pytest.mark.parametrize(("end", "explicit"), [("shutdown", True), ("hang up", False)])
def test_a_loop_until_the_master_disconnects_ends_after_any_end(agents: Agents, end: str, explicit: bool) -> None:
    """CL-MW's own loop does the same: it waits for the shutdown, and then checks whether it was explicit."""
    body = "while not (state := mw.loop(10.0)).master_disconnect:\n    pass\nreturn 17 + state.explicit_shutdown"
    agent = agents(with_algorithm(body)).ready()
    if end == "shutdown":
        agent.send(messages.Shutdown(finished=True, grace_s=1.0))
    else:
        agent.end.close()
    os.waitid(os.P_PID, agent.child.pid, os.WEXITED | os.WNOWAIT)
    assert agent.child.poll() == 17 + explicit


def test_a_forked_child_that_returns_from_its_task_ends_with_a_message(agents: Agents) -> None:
    """The result of the slave counts, and the slave continues."""
    agent = agents().ready()
    agent.define(1, lambda: os.fork() and os.getpid())
    agent.give([1])
    [(failed, pid)] = agent.results(1).values()
    assert (failed, pid) == (False, agent.child.pid)
    agent.give([2])
    agent.results(1)
    assert agent.shut_down() == 0
    assert agent.stderr().count("came back from the task, and ends here") == 2


@pytest.mark.parametrize(("given", "code"), [(None, 0), (0, 0), (3, 3), (True, 1), ("text", 1), ([], 1), (-1, 255)])
def test_a_forked_child_that_leaves_by_exit_ends_with_its_code(agents: Agents, given: object, code: int) -> None:
    def work() -> int:
        if pid := os.fork():
            return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        sys.exit(given)  # type: ignore[arg-type]

    agent = agents().ready()
    agent.define(1, work)
    agent.give([1])
    assert agent.results(1) == {1: (False, code)}
    assert agent.shut_down() == 0
    assert agent.stderr() == ("text\n" if given == "text" else "")


def test_a_shutdown_ends_the_slave_with_0(agents: Agents) -> None:
    assert agents().ready().shut_down() == 0


def test_a_slave_whose_agent_disconnects_cleans_up_and_ends_with_255(agents: Agents) -> None:
    agent = agents(with_algorithm("code = mw.loop_simple()\nprint('torn down', file=sys.stderr)\nreturn code"))
    agent.ready().end.close()
    os.waitid(os.P_PID, agent.child.pid, os.WEXITED | os.WNOWAIT)
    assert agent.child.poll() == 255, agent.stderr()
    assert agent.stderr() == "torn down\n"


def test_a_slave_dies_with_its_agent_whatever_it_is_doing() -> None:
    """A child of the test is the agent here. A slave that outlived it would keep the pipe open."""
    reading, writing = os.pipe()
    agent_pid = os.fork()
    if agent_pid == 0:
        os.close(reading)
        _end, fds = open_channel()
        described = SlaveSettings(fds, slave=1, agent_pid=os.getpid()).to_json()
        body = f"os.write({writing}, b'busy')\nimport signal\nwhile True: signal.pause()"
        start(
            [sys.executable, "-c", with_algorithm(body)],
            environment={SLAVE_VARIABLE: described, "PYTHONPATH": SOURCE},
            pass_fds=(*fds, writing),
        )
        os.close(writing)
        signal.pause()
    os.close(writing)
    assert os.read(reading, 4) == b"busy"
    os.kill(agent_pid, signal.SIGKILL)
    os.waitpid(agent_pid, 0)
    assert os.read(reading, 1) == b""
    os.close(reading)


def test_a_slave_whose_parent_is_not_its_agent_ends_at_once(agents: Agents) -> None:
    assert agents(agent_pid=1).exit_code() == 255


def test_a_program_that_a_task_starts_does_not_become_a_slave(agents: Agents) -> None:
    agent = agents().ready()
    variable = SLAVE_VARIABLE
    agent.define(1, lambda: os.system(f'test -z "${variable}"'))
    agent.give([1])
    assert agent.results(1) == {1: (False, 0)}


def test_a_child_that_a_task_forks_keeps_no_channel_open(agents: Agents) -> None:
    """The child outlives its slave. The agent notices the end of the slave in spite of this."""
    agent = agents().ready()

    def fork() -> int:
        if os.fork() == 0:
            signal.pause()
        return 1

    agent.define(1, fork)
    agent.define(2, lambda: os._exit(9))
    agent.give([1])
    assert agent.results(1) == {1: (False, 1)}
    agent.give([2], number=2)
    select.select([agent.end], [], [], PATIENCE_S)
    assert agent.end.receive() == []
    assert agent.end.eof
    assert agent.exit_code() == 9
