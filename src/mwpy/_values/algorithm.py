"""Task, master and slave algorithms: how they are declared, named and found again.

A task algorithm stays an ordinary function. What mwpy knows about it is an `Algorithm`. It has the reference under
which slaves find the function (`module:qualname`). A lambda, a closure or a function of a notebook has no reference and
travels by value. What slaves need to have of the user's code is found by `_system/own_code.py`.
"""

from __future__ import annotations

import importlib
import inspect
import sys
import types
from collections.abc import Callable
from functools import lru_cache
from typing import Any, Generic, Literal, ParamSpec, Protocol, TypeVar, Unpack, cast, overload

from attrs import Factory, define, frozen
from msgspec import Struct

from mwpy._values.bounds import shortened
from mwpy._values.errors import AlgorithmUnavailable, UsageError
from mwpy._values.policy import Policies, TaskPolicy

P = ParamSpec("P")
R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)

PYTHON = f"{sys.version_info.major}.{sys.version_info.minor}"
"""`major.minor` of this interpreter. A function travels by value only between interpreters with the same one."""


class TaskAlgorithm(Protocol[P, R_co]):
    """A function marked with `@task_algorithm`. It can be called as before, and `.task(...)` makes a call to submit."""

    __name__: str

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R_co: ...

    def task(self, *args: P.args, **kwargs: P.kwargs) -> TaskCall[R_co]: ...


class Algorithm:
    """What the master knows about one task algorithm, compared by identity.

    Each function that can be found by its name has one such object. A function that travels by value has another one at
    each call of `algorithm_of`, and nothing is stored in it: it may refer to large objects, which must not stay here.

    Args:
        function: what a task calls.
        policy: the policy of its tasks, as far as `submit` and `map` do not say otherwise.
    """

    def __init__(self, function: Callable[..., Any], *, policy: Policies | None = None) -> None:
        self.function = function
        self.policy = Policies() if policy is None else policy

    @property
    def name(self) -> str:
        """The name in messages and results: the function's own, unqualified."""
        return str(getattr(self.function, "__qualname__", type(self.function).__qualname__))

    @property
    def reference(self) -> str:
        """`module:qualname`, if the function can be found under this name. Empty if the function travels by value.

        After its module was loaded again, another function may be found under this name.
        """
        module, name = getattr(self.function, "__module__", None), self.name
        if not module or "<" in name:
            return ""
        try:
            found = _look_up(module, name)
        except AlgorithmUnavailable:
            return ""
        return f"{module}:{name}" if found is self.function else ""

    def call(self, /, *args: Any, **kwargs: Any) -> TaskCall[Any]:
        """Make a call to submit. It is the `task` of a marked function."""
        return TaskCall(self, args, kwargs)

    def __reduce__(self) -> tuple[Callable[..., Algorithm], tuple[Callable[..., Any], Policies]]:
        # a marked function refers to this object, and its pickle must not depend on what a subclass adds here
        return _copy_of, (self.function, self.policy)

    def __repr__(self) -> str:
        return f"<Algorithm {self.reference or self.name}>"


def _copy_of(function: Callable[..., Any], policy: Policies) -> Algorithm:
    return Algorithm(function, policy=policy)


class TaskCall(Struct, Generic[R_co], eq=False):
    """A call of a task algorithm that will run later: the algorithm and its arguments."""

    algorithm: Algorithm
    args: tuple[Any, ...]
    kwargs: dict[str, Any]


def find(reference: str) -> Callable[..., Any]:
    """Find a task algorithm by its reference, as a slave does.

    Args:
        reference: `module:qualname`; the module is imported if necessary.

    Raises:
        AlgorithmUnavailable: it is missing; the message says what to do.
        Exception: the module cannot be imported, for another reason.
    """
    module, _, qualname = reference.partition(":")
    return cast(Callable[..., Any], _look_up(module, qualname))


def _look_up(module: str, qualname: str) -> object:
    try:
        found: object = sys.modules.get(module) or importlib.import_module(module)
        for part in qualname.split("."):
            found = getattr(found, part)
    except (ModuleNotFoundError, AttributeError, ValueError) as error:
        hint = (
            "start the slave with the script of the master: `python SCRIPT --mw-slave ...`"
            if module == "__main__"
            else missing_module(module)
        )
        raise AlgorithmUnavailable(f"{module}:{qualname} is not there ({error}): {hint}") from error
    return found


def missing_module(name: str) -> str:
    """What the user can do if slaves do not find a module."""
    return (
        f"install the module {name!r} there. On the master's machine, slaves have the sys.path that the master had at "
        f"its start: if it was changed later, close the master and open it again"
    )


@frozen
class AgentSetup:
    """What the script declares as the set-up of agents; see `agent_setup`."""

    what: Callable[[], object] | str
    """The function, or a command for `/bin/sh`."""
    module: str
    """The module that declares it."""
    policy: TaskPolicy
    """Its limits."""
    stops: bool
    """Whether the run ends if it fails."""

    @property
    def name(self) -> str:
        """How messages name it."""
        return shortened(" ".join(self.what.split()), 60) if isinstance(self.what, str) else Algorithm(self.what).name


@define
class Registry:
    """What is known about the script of this process. `mwpy.main` takes the declared algorithms from here."""

    masters: list[Callable[..., int | None]] = Factory(list)
    slaves: list[Callable[..., int | None]] = Factory(list)
    setups: list[AgentSetup] = Factory(list)
    used: bool = False
    """Whether the script has called `mwpy.main` or `mwpy.local_master`."""
    is_slave: bool = False
    """Whether this process is a slave."""
    unguarded: bool = False
    """Whether the script has opened a master outside a guard. A slave that loads the script would open another one."""

    def master(self) -> Callable[..., int | None]:
        """The one master algorithm.

        Raises:
            UsageError: there is none, or more than one.
        """
        if not self.masters:
            raise UsageError("no master algorithm: mark a function of the script with @mwpy.master_algorithm")
        return _only(self.masters, "master")

    def slave(self) -> Callable[..., int | None] | None:
        """The one slave algorithm, or None if the script declares none.

        Raises:
            UsageError: there is more than one.
        """
        return _only(self.slaves, "slave") if self.slaves else None

    def add_setup(self, setup: AgentSetup) -> None:
        """Add a set-up, instead of an earlier one with the same name: a cell of a notebook may run again."""
        others = [each for each in self.setups if (each.module, each.name) != (setup.module, setup.name)]
        self.setups = [*others, setup]

    def setup(self) -> AgentSetup | None:
        """The set-up of agents, or None if there is none. The script's own one counts more than those of modules.

        Raises:
            UsageError: there is more than one.
        """
        own = [each for each in self.setups if each.module == "__main__"] or self.setups
        if len(own) > 1:
            names = ", ".join(each.name for each in own)
            raise UsageError(f"more than one set-up of agents ({names}): call all of them in one function")
        return own[0] if own else None

    def before_tasks(self) -> list[object]:
        """What agents and slaves run before tasks, as the script declares it: functions, or the command of a set-up."""
        setups: list[object] = [setup.what] if (setup := self.setup()) is not None else []
        return [*setups, *_own(self.slaves)]

    def enter(self, name: str) -> None:
        """Record that the script calls a function which starts a computation.

        Raises:
            UsageError: this process is a slave, so the call is inside a task or in a module that a task imports; or
                multiprocessing imports the script.
        """
        if self.is_slave:
            error = refusal(name, "in a slave, where it would start another computation")
            raise UsageError(f"{error}. A task that needs more tasks returns to the master what to submit next")
        process = sys.modules.get("multiprocessing.process")
        if process is not None and getattr(process.current_process(), "_inheriting", False):
            raise refusal(name, IN_AN_IMPORT)
        self.used = True


IN_AN_IMPORT = "while multiprocessing imported the script"


def refusal(name: str, where: str) -> UsageError:
    """The error for a call that belongs under the guard of the script."""
    return UsageError(
        f'{name} was called {where}: call it only under `if __name__ == "__main__":` in the script, so that importing '
        f"the script does not call it"
    )


def _own(functions: list[Callable[..., int | None]]) -> list[Callable[..., int | None]]:
    """Return the functions of the script itself; those of imported modules if it has none."""
    return [function for function in functions if function.__module__ == "__main__"] or functions


def _only(functions: list[Callable[..., int | None]], role: str) -> Callable[..., int | None]:
    """Choose the function of the script itself, because imported modules may declare functions of their own."""
    own = _own(functions)
    if len(own) > 1:
        names = ", ".join(function.__qualname__ for function in own)
        raise UsageError(f"more than one {role} algorithm ({names}): keep one @mwpy.{role}_algorithm")
    return own[0]


REGISTRY = Registry()
"""The decorators add algorithms to it. It is global because a script declares its algorithms at module level."""


@overload
def task_algorithm(function: Callable[P, R], /) -> TaskAlgorithm[P, R]: ...
@overload
def task_algorithm(**policy: Unpack[Policies]) -> Callable[[Callable[P, R]], TaskAlgorithm[P, R]]: ...
def task_algorithm(
    function: Callable[P, R] | None = None, /, **policy: Unpack[Policies]
) -> TaskAlgorithm[P, R] | Callable[[Callable[P, R]], TaskAlgorithm[P, R]]:
    """Mark a function as a task algorithm; it stays the same function.

    Args:
        policy: the policy of its tasks, as for `Master.submit`: `@task_algorithm(retry=False)`. The keywords of
            `submit`, `map` and the like override it one by one.

    Returns:
        The same function, with a `.task(*args, **kwargs)` that makes a call to submit.

    Raises:
        UsageError: a policy is unknown, and the message names it.

    Examples:
        >>> @task_algorithm
        ... def square(x: int) -> int:
        ...     return x * x
        >>> square(3), square.task(3).args
        (9, (3,))
    """
    if function is None:
        TaskPolicy.of(**policy)
        return lambda function: _marked(function, policy)
    return _marked(function, policy)


def agent_setup(
    what: Any = None,
    /,
    *,
    seconds_max: float | None = None,
    memory_max: int | str | None = None,
    on_failure: Literal["exclude", "stop"] = "exclude",
) -> Any:
    """Mark a function, or name a command, that runs once on each agent before its first task, such as a build.

    It runs in a process of its own, in a new folder that tasks find with `mwpy.agent_folder()`, and that is removed
    when the agent ends. Until it has ended, the slaves of the agent do not start, and `mwpy status` says so. If a dict
    is returned, its items are environment variables of all slaves. Several masters of a process have the same set-up;
    it counts for those that are opened later.

    If an attempt ends by an `OSError`, such as one of the network or of a full disk, or is killed from outside, it is
    tried again, three times at most; then this agent leaves, and others go on. Any other exception, a command that
    fails, and a limit that is exceeded mean that the build is faulty there.

    Args:
        what: the function, without arguments; or a command for `/bin/sh`.
        seconds_max: how long it may run, in seconds; None for no limit.
        memory_max: how much memory its processes may use together, in bytes or as a text such as `"4 GB"`; None for no
            limit.
        on_failure: what follows when the build is faulty on a host: `"exclude"` sends this host no more work, `"stop"`
            ends the run: the calls that wait for tasks raise `CannotRun`. If there are slaves on this machine only, the
            run always ends. What it wrote last is in a message of the master.

    Raises:
        UsageError: an argument is wrong.

    Examples:
        >>> @agent_setup(seconds_max=600)                     # doctest: +SKIP
        ... def build():
        ...     subprocess.run(["make", "-C", "/shared/model", f"OUT={os.getcwd()}"], check=True)
        >>> agent_setup("tar xzf /shared/data.tar.gz")         # doctest: +SKIP
    """
    if on_failure not in ("exclude", "stop"):
        raise UsageError(f"on_failure={on_failure!r}: give 'exclude' or 'stop'")
    caller = sys._getframe(1).f_globals.get("__name__", "")
    policy = TaskPolicy.of(seconds_max=seconds_max, memory_max=memory_max)

    def mark(what: Any) -> Any:
        if not isinstance(what, str) and (not callable(what) or inspect.iscoroutinefunction(what)):
            raise UsageError(f"{what!r} cannot set agents up: give a function without arguments, or a command")
        REGISTRY.add_setup(AgentSetup(what, getattr(what, "__module__", caller), policy, on_failure == "stop"))
        return None if isinstance(what, str) else what

    return mark if what is None else mark(what)


def _marked(function: Callable[P, R], policy: Policies) -> TaskAlgorithm[P, R]:
    algorithm = Algorithm(function, policy=policy)
    function.task = algorithm.call  # type: ignore[attr-defined]
    function._mwpy_algorithm = algorithm  # type: ignore[attr-defined]
    return cast(TaskAlgorithm[P, R], function)


def algorithm_of(function: Callable[..., Any]) -> Algorithm:
    """Return the `Algorithm` of a function, marked or not; for one that is found by its name, always the same object.

    Raises:
        UsageError: it is not callable, or a coroutine function.
    """
    known = getattr(function, "_mwpy_algorithm", None)
    if isinstance(known, Algorithm) and known.function is function:  # not a copy made by functools.wraps
        return known
    if isinstance(function, types.BuiltinFunctionType) and isinstance(function.__self__, types.ModuleType):
        return _algorithm_beside(function)
    if not callable(function):
        raise UsageError(f"{function!r} cannot be a task algorithm: it is not callable")
    if inspect.iscoroutinefunction(function):
        raise UsageError(
            f"{function!r} cannot be a task algorithm: it is a coroutine function; call it with asyncio.run inside one"
        )
    algorithm = Algorithm(function)
    if not algorithm.reference:
        return algorithm
    try:
        function._mwpy_algorithm = algorithm  # type: ignore[attr-defined]
    except (AttributeError, TypeError):  # a builtin class takes no attribute
        return _algorithm_beside(function)
    return algorithm


@lru_cache(maxsize=1000)
def _algorithm_beside(function: Callable[..., Any]) -> Algorithm:
    """Return the algorithm of a function that takes no attribute.

    The cache is limited, because each algorithm keeps its function alive.
    """
    return Algorithm(function)


def task(function: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> TaskCall[R]:
    """Make a task call of any function, whether it is marked as a task algorithm or not.

    Args:
        function: anything callable; a lambda or closure travels by value.

    Examples:
        >>> task(max, 3, 4).args
        (3, 4)
        >>> task(dict, function=1).kwargs
        {'function': 1}
    """
    return TaskCall(algorithm_of(function), args, kwargs)


# What a slave runs for an executor with an initializer.


_done: set[str] = set()
"""The executors whose initializer has run in this process, by their marks."""

AFTER_INITIALIZER: list[Callable[[], None]] = []
"""What this process calls after an initializer."""


class Initialized:
    """A function that first calls an initializer, once in each process.

    Args:
        mark: names the executor. No other executor has the same one, not even in another run. So it does not count
            when the code is compared with that of an earlier run.
        initializer: the initializer, and `initargs` its arguments.
        function: the function of the task.
    """

    def __init__(
        self, mark: str, initializer: Callable[..., object], initargs: tuple[Any, ...], function: Callable[..., Any]
    ) -> None:
        self._mark = mark
        self.initializer = initializer
        self.initargs = initargs
        self.function = function
        self.__qualname__ = str(getattr(function, "__qualname__", type(function).__qualname__))

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if self._mark not in _done:
            self.initializer(*self.initargs)
            _done.add(self._mark)
            for call in AFTER_INITIALIZER:
                call()
        return self.function(*args, **kwargs)
