"""CPython's own tests of executors, run in place from an installed CPython against `mwpy.Executor` and `mw.executor()`.

Debian has them in the package libpython3.11-testsuite, which is installed where batch systems are required, too. Some
installations of CPython lack them; then the file of Debian's installation of the same minor version is used.

The tests share an executor, because each start of slaves costs a second. Tests in which a task sleeps for longer than
the test should take get a task that sleeps until it is killed, so that their margins of seconds do not matter.

Left out, each with its reason:

- `test_map_timeout`, `test_timeout`: results must arrive within 5 s, and the tests take this time. test_executor.py has
  tests of both that depend on no time.
- `test_cancel_futures`: of 50 tasks of 0.1 s, more than 20 must wait when the next line runs. test_executor.py has a
  test that depends on no time.
- `test_free_reference`: a value must be collected at once, also if the thread of the executor is just about to drop it.
  test_executor.py waits for this.
- `test_max_workers_negative`: the argument is `slaves`, and the error is a `mwpy.UsageError`.
- `test_interpreter_shutdown`, `test_submit_after_interpreter_shutdown`, `test_hang_gh83386`: their scripts import the
  executor from `concurrent.futures`. test_executor.py has such a script.
- `FailingInitializerMixin`: it expects a broken executor, and those of mwpy never break. test_executor.py has the same
  case.
- `test_shutdown_deadlock`, `test_shutdown_deadlock_pickle`: they expect a broken executor, and use its private parts.
- Everything that is only for `ThreadPoolExecutor` or `ProcessPoolExecutor`, such as `_processes`, `mp_context` and
  `_RemoteTraceback`.
- `FutureTests` construct futures of the standard library, not of mwpy.
- Where a slave crashes or an object cannot be unpickled, CPython expects `BrokenProcessPool`. Here `_check_crash`
  expects an exception of this future only, and an executor that goes on.
"""

from __future__ import annotations

import importlib
import os
import sys
import sysconfig
import time
import unittest
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, ClassVar, Self
from unittest import mock
from weakref import WeakSet

import pytest
from tests.batch.systems import REQUIRED
from tests.integration.apps import chores
from tests.integration.apps.stage import PATIENCE_S
from tests.systems import debian

import mwpy

MINOR = f"python{sys.version_info.major}.{sys.version_info.minor}"

PACKAGE = f"lib{MINOR}-testsuite"

FOLDERS = (Path(sysconfig.get_path("stdlib")) / "test", Path("/usr/lib") / MINOR / "test")

PLACES = {
    "ExecutorTest": "executor",
    "WaitTests": "test_wait",
    "AsCompletedTests": "test_as_completed",
    "InitializerMixin": "test_init",
    "ExecutorShutdownTest": "test_shutdown",
    "ExecutorDeadlockTest": "test_deadlock",
}
"""The modules of the tests since Python 3.12. Before, all are in one module."""

SLEEPERS = (
    "test_first_completed",
    "test_first_completed_some_already_completed",
    "test_first_exception",
    "test_first_exception_some_already_complete",
    "test_first_exception_one_already_failed",
    "test_zero_timeout",
)
"""The tests whose tasks must not end while they run."""


def standard(name: str) -> ModuleType | None:
    """Return the module with a class of CPython's tests; None if it is not installed."""
    for folder in FOLDERS:
        if (folder / "test_concurrent_futures" / f"{PLACES[name]}.py").is_file():
            return importlib.import_module(f"test.test_concurrent_futures.{PLACES[name]}")
        if (folder / "test_concurrent_futures.py").is_file():
            if str(folder) not in sys.path:
                sys.path.append(str(folder))  # slaves look there, too
            return importlib.import_module("test_concurrent_futures")
    return None


def install() -> str:
    """Install the tests where all systems are required. Return why they are missing."""
    reason = f"install {PACKAGE}"
    if standard("ExecutorTest") is None and REQUIRED in os.environ:
        try:
            debian.install(PACKAGE)
        except debian.Unavailable as error:
            return str(error)
    return reason


MISSING = install()


def class_of(name: str, *left_out: str) -> type[Any]:
    """Return a class of CPython's tests without some of them."""
    module = standard(name)
    if module is None:
        return type(name, (), {"test_nothing": lambda self: self.skipTest(MISSING)})
    return type(name, (getattr(module, name),), {"module": module, **dict.fromkeys(left_out)})


class ForTests(mwpy.Executor):
    """An executor with the arguments that the tests give."""

    def __init__(self, max_workers: int, **options: Any) -> None:
        super().__init__(max_workers, attempts_max=1, **options)
        self.futures: WeakSet[Any] = WeakSet()

    def submit(self, fn: Any, /, *args: Any, **kwargs: Any) -> Any:
        future = super().submit(fn, *args, **kwargs)
        self.futures.add(future)
        return future

    def forget(self) -> None:
        for future in list(self.futures):
            future.cancel(kill=True)
        self.futures.clear()


class OfMaster(ForTests):
    """The same, of a master that is open."""

    mw: ClassVar[mwpy.LocalMaster]

    def __new__(cls, max_workers: int, **options: Any) -> Self:  # those of the master
        executor = cls.mw.executor(attempts_max=1, **options)
        executor.__class__ = cls
        assert isinstance(executor, cls)
        return executor

    def __init__(self, max_workers: int, **options: Any) -> None:
        self.futures = WeakSet()


@pytest.fixture(scope="module", autouse=True)
def shared() -> Iterator[None]:
    for name in PLACES:
        standard(name)  # first, so that the slaves find it
    with mwpy.open(slaves=3) as OfMaster.mw, OfMaster(3) as SharedOfMaster.executor, ForTests(3) as Shared.executor:
        yield


class Shared(unittest.TestCase):
    """Tests that share an executor, and do not shut it down."""

    executor: ClassVar[ForTests]
    worker_count = 3
    module: ModuleType

    def setUp(self) -> None:
        if self._testMethodName in SLEEPERS:
            held = SimpleNamespace(sleep=chores.sleep_until_killed, monotonic=time.monotonic)
            patch = mock.patch.object(self.module, "time", held)
            patch.start()
            self.addCleanup(patch.stop)

    def tearDown(self) -> None:
        self.executor.forget()


class SharedOfMaster(Shared):
    """The same, with an executor of a master."""


class Own(unittest.TestCase):
    """Tests that have an executor each."""

    worker_count = 2
    executor_type = ForTests
    executor_kwargs: ClassVar[dict[str, Any]] = {}

    def setUp(self) -> None:
        self.executor: ForTests | None = self.executor_type(self.worker_count, **self.executor_kwargs)

    def tearDown(self) -> None:
        if self.executor is not None:  # some tests do this themselves
            self.executor.shutdown()


LEFT_OUT_OF_SHUTDOWN = (
    "test_interpreter_shutdown",
    "test_submit_after_interpreter_shutdown",
    "test_hang_gh83386",
    "test_cancel_futures",
)
OF_EXECUTOR = class_of("ExecutorTest", "test_map_timeout", "test_max_workers_negative", "test_free_reference")
OF_WAIT = class_of("WaitTests", "test_timeout")
OF_AS_COMPLETED = class_of("AsCompletedTests")
OF_DEADLOCK = class_of("ExecutorDeadlockTest", "test_shutdown_deadlock", "test_shutdown_deadlock_pickle")
OF_SHUTDOWN = class_of("ExecutorShutdownTest", *LEFT_OUT_OF_SHUTDOWN)
OF_INITIALIZER = class_of("InitializerMixin")


class TestExecutor(OF_EXECUTOR, Shared):  # type: ignore[misc, valid-type]
    def test_shutdown_race_issue12456(self) -> None:
        """This test shuts the executor down."""
        self.executor = ForTests(1)  # type: ignore[misc]
        super().test_shutdown_race_issue12456()


class TestWait(OF_WAIT, Shared):  # type: ignore[misc, valid-type]
    pass


class TestAsCompleted(OF_AS_COMPLETED, Shared):  # type: ignore[misc, valid-type]
    pass


class TestDeadlock(OF_DEADLOCK, Shared):  # type: ignore[misc, valid-type]
    def _check_crash(self, error: type[BaseException], func: Any, *args: Any, ignore_stderr: bool = False) -> None:
        raised = self.executor.submit(func, *args).exception(PATIENCE_S)
        assert raised is not None
        if error in (RuntimeError, SystemExit) and "pickle" not in self._testMethodName:
            assert type(raised) is error
        assert self.executor.submit(abs, -1).result(PATIENCE_S) == 1


class TestShutdown(OF_SHUTDOWN, Own):  # type: ignore[misc, valid-type]
    pass


class TestInitializer(OF_INITIALIZER, Own):  # type: ignore[misc, valid-type]
    pass


class TestExecutorOfMaster(OF_EXECUTOR, SharedOfMaster):  # type: ignore[misc, valid-type]
    def test_shutdown_race_issue12456(self) -> None:
        """This test shuts the executor down."""
        self.executor = OfMaster(1)  # type: ignore[misc]
        super().test_shutdown_race_issue12456()


class TestWaitOfMaster(OF_WAIT, SharedOfMaster):  # type: ignore[misc, valid-type]
    pass


class TestAsCompletedOfMaster(OF_AS_COMPLETED, SharedOfMaster):  # type: ignore[misc, valid-type]
    pass


class TestDeadlockOfMaster(TestDeadlock, SharedOfMaster):
    pass


class TestShutdownOfMaster(OF_SHUTDOWN, Own):  # type: ignore[misc, valid-type]
    executor_type = OfMaster


class TestInitializerOfMaster(OF_INITIALIZER, Own):  # type: ignore[misc, valid-type]
    executor_type = OfMaster
