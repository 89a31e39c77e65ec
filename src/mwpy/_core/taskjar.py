"""The jar of all tasks that the master holds, and the one place where a task changes its state.

A task's way is the table `WAYS`. `Taskjar.apply` walks it, a group at a time, as records say; a pair
that the table does not have is an internal error. Finished and unrunnable tasks leave the jar at once:
what it holds is pending or allocated.

Pending tasks wait in queues: one for each slave that has tasks addressed to it, in the order of their
submission, and one for each algorithm for all others. One queue an algorithm, because a group of tasks of
one algorithm can be sized by arithmetic, and because a slave that cannot run an algorithm then passes over
its queue and not over each of its tasks. The algorithms take turns. A task that comes back goes to the head of
its queue: it is the oldest. One that was running when its slave died goes to the tail: if it killed, the others come
before the next slave that it kills, and if not, it does not meet one bad moment three times over.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Sequence
from enum import Enum

from attrs import define, evolve, field

from mwpy import records
from mwpy.algorithm import Algorithm
from mwpy.errors import InternalError
from mwpy.task import Death, SlaveId, Task, TaskId, TaskState

__all__ = ["WAYS", "TaskEvent", "Taskjar"]


class TaskEvent(Enum):
    """What can happen to a task."""

    SUBMIT = "submit"
    FAIL = "fail before it is sent"
    ALLOCATE = "allocate"
    FINISH = "finish"
    RETURN = "return"
    GIVE_UP = "give up"


_NEW, _PENDING, _ALLOCATED = TaskState.NEW, TaskState.PENDING, TaskState.ALLOCATED
_FINISHED, _UNRUNNABLE = TaskState.FINISHED, TaskState.UNRUNNABLE

WAYS: dict[TaskEvent, dict[TaskState, TaskState]] = {
    TaskEvent.SUBMIT: {_NEW: _PENDING},
    TaskEvent.FAIL: {_NEW: _FINISHED},
    TaskEvent.ALLOCATE: {_PENDING: _ALLOCATED},
    TaskEvent.FINISH: {_ALLOCATED: _FINISHED},
    TaskEvent.RETURN: {_ALLOCATED: _PENDING},
    TaskEvent.GIVE_UP: {_NEW: _UNRUNNABLE, _PENDING: _UNRUNNABLE, _ALLOCATED: _UNRUNNABLE},
}


@define(eq=False)
class Taskjar:
    """All pending and allocated tasks."""

    tasks: dict[TaskId, Task] = field(factory=dict)
    """Every task in the jar by its id."""
    queues: dict[Algorithm, deque[Task]] = field(factory=dict)
    """Pending tasks that any slave may run, by algorithm; no empty queue. The first has its turn next."""
    addressed: dict[SlaveId, deque[Task]] = field(factory=dict)
    """Pending tasks addressed to a slave; no empty queue."""
    num_addressed: Counter[Algorithm] = field(factory=Counter)
    """How many tasks of each algorithm are in those queues; no zero."""

    @property
    def pending(self) -> dict[Algorithm, int]:
        """How many tasks of each algorithm are pending; no zero."""
        counts: dict[Algorithm, int] = dict(self.num_addressed)
        for algorithm, queue in self.queues.items():
            counts[algorithm] = counts.get(algorithm, 0) + len(queue)
        return counts

    @property
    def num_pending(self) -> int:
        """How many tasks are pending, of all algorithms."""
        return self.num_unaddressed + self.num_addressed.total()

    @property
    def num_unaddressed(self) -> int:
        """How many pending tasks any slave may run."""
        return sum(map(len, self.queues.values()))

    def apply(self, record: records.Record) -> None:
        """Change the tasks as a record says; the only place where a task's state changes.

        Raises:
            InternalError: the record contradicts the tasks' states; mwpy's own fault.
        """
        match record:
            case records.TasksSubmitted(tasks):
                self._walk(tasks, TaskEvent.SUBMIT)
                self.tasks.update(zip([task.task_id for task in tasks], tasks, strict=True))
                self._enqueue(tasks)
            case records.TasksFailed(tasks):
                self._walk(tasks, TaskEvent.FAIL)
            case records.TasksAllocated(sid, tasks):
                self._dequeue(tasks)
                self._walk(tasks, TaskEvent.ALLOCATE)
                for task in tasks:
                    task.attempt += 1
                    task.sid = sid
            case records.ResultsReceived(_, tasks):
                self._walk(tasks, TaskEvent.FINISH)
                for task in tasks:
                    del self.tasks[task.task_id]
            case records.TasksReturned(_, tasks, _, deaths):
                self._walk(tasks, TaskEvent.RETURN)
                for task in tasks:
                    task.sid = None
                if deaths:
                    _charge(tasks, deaths)
                    self._enqueue(tasks)
                else:
                    self._enqueue_first(tasks)
            case records.TasksGivenUp(tasks, _, deaths):
                self._dequeue([task for task in tasks if task.state is _PENDING])
                self._walk(tasks, TaskEvent.GIVE_UP)
                _charge(tasks, deaths)
                for task in tasks:
                    self.tasks.pop(task.task_id, None)
            case records.TasksUnaddressed(_, tasks):
                self._dequeue(tasks)
                for task in tasks:
                    task.policy = evolve(task.policy, sid=None)
                self._enqueue(tasks)
            case _:
                pass

    def next_turn(self, algorithm: Algorithm) -> None:
        """Let an algorithm wait for its next turn behind all others."""
        queue = self.queues.pop(algorithm, None)
        if queue:
            self.queues[algorithm] = queue

    def _walk(self, tasks: Sequence[Task], event: TaskEvent) -> None:
        ways = WAYS[event]
        try:
            for task in tasks:
                task.state = ways[task.state]
        except KeyError:
            raise InternalError(
                f"{task} is {task.state.name} (attempt {task.attempt} on {task.sid}), which cannot {event.value}"
            ) from None

    def _enqueue(self, tasks: Iterable[Task]) -> None:
        queue: deque[Task] = deque()
        algorithm = sid = None
        for task in tasks:
            if task.algorithm is not algorithm or task.policy.sid is not sid:
                algorithm, sid = task.algorithm, task.policy.sid
                queue = self._queue_of(task)
            queue.append(task)
            if sid is not None:
                self.num_addressed[algorithm] += 1

    def _enqueue_first(self, tasks: Sequence[Task]) -> None:
        for task in reversed(tasks):
            self._queue_of(task).appendleft(task)
            if task.policy.sid is not None:
                self.num_addressed[task.algorithm] += 1

    def _queue_of(self, task: Task) -> deque[Task]:
        sid = task.policy.sid
        if sid is None:
            queue = self.queues.get(task.algorithm)
            if queue is None:
                queue = self.queues[task.algorithm] = deque()
            return queue
        return self.addressed.setdefault(sid, deque())

    def _dequeue(self, tasks: Sequence[Task]) -> None:
        """Take tasks from the head of a queue; those of one call are of one queue."""
        if not tasks:
            return
        queue = self._queue_of(tasks[0])
        for task in tasks:
            if not queue or queue.popleft() is not task:
                raise InternalError(f"{task} is not at the head of its queue")
        sid = tasks[0].policy.sid
        if sid is not None:
            self.num_addressed -= Counter([task.algorithm for task in tasks])
            if not queue:
                del self.addressed[sid]
        elif not queue:
            del self.queues[tasks[0].algorithm]

    def check(self) -> None:
        """Recompute what is derived and hold the queues against the tasks' states."""
        addressed = [task.algorithm for queue in self.addressed.values() for task in queue]
        assert Counter(addressed) == self.num_addressed, "the addressed tasks were miscounted"
        for queue in (*self.queues.values(), *self.addressed.values()):
            assert queue, "an empty queue was kept"
            for task in queue:
                assert task.state is _PENDING, f"{task} waits in a queue but is {task.state.name}"
                assert self.tasks[task.task_id] is task, f"{task} waits in a queue but is not in the jar"
        for task in self.tasks.values():
            assert task.state in (_PENDING, _ALLOCATED), f"{task} is in the jar but {task.state.name}"
            assert (task.state is _ALLOCATED) == (task.sid is not None), f"{task} has a wrong slave"
        num_pending = sum(task.state is _PENDING for task in self.tasks.values())
        assert num_pending == self.num_pending, "a pending task waits in no queue"


def _charge(tasks: Sequence[Task], deaths: tuple[Death, ...]) -> None:
    for task in tasks:
        task.deaths += deaths
