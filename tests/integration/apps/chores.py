"""What executors run in tests."""

from __future__ import annotations

import logging
import os
import threading
import time
from pathlib import Path
from typing import Any, NoReturn

import mwpy

PATIENCE_S = 120.0

ran: list[int] = []
"""What the initializer was given in this process."""


def initialize(number: int) -> None:
    ran.append(number)


def initialized() -> tuple[int, list[int]]:
    return os.getpid(), ran


class TooHot(Exception):
    """Its constructor takes something else than its text."""

    def __init__(self, oven: int, *, degrees: float) -> None:
        super().__init__(f"oven {oven} is too hot")
        self.degrees = degrees


def overheat(oven: int) -> NoReturn:
    """Fail with an exception of an own class."""
    raise TooHot(oven, degrees=300)


def fail_to_initialize() -> NoReturn:
    raise LookupError("no licence")


def wait_for(path: str, value: Any = None) -> Any:
    """Report that this task runs, in a file beside `path`, and wait until `path` exists."""
    Path(f"{path}.{value}.runs").touch()
    until = time.monotonic() + PATIENCE_S
    while not Path(path).exists():
        assert time.monotonic() < until
        time.sleep(0.01)
    return value


def append(path: str, text: str) -> None:
    with Path(path).open("a") as file:
        file.write(text)


def make_an_executor() -> str:
    """Return what happens."""
    try:
        mwpy.Executor(slaves=1)
    except mwpy.UsageError as error:
        return str(error)
    return "it started"


def make_an_executor_in_a_fork() -> str:
    """Return what happens in a process that is forked from this one."""
    ours, theirs = os.pipe()
    if os.fork() == 0:
        os.write(theirs, make_an_executor().encode())
        os._exit(0)
    os.wait()
    return os.read(ours, 10_000).decode()


class LeavesWhenRead:
    """An object that raises SystemExit where it is unpickled."""

    def __reduce__(self) -> Any:
        return leave, ()


def leave() -> NoReturn:
    raise SystemExit(3)


def give_what_leaves() -> LeavesWhenRead:
    return LeavesWhenRead()


def hold_a_lock() -> Any:
    return threading.Lock()


def sleep_until_killed(seconds: float) -> None:
    time.sleep(PATIENCE_S)


class Plain:
    """An object."""

    def __init__(self, number: int) -> None:
        self.number = number


def meet(folder: str, number: int, count: int) -> int:
    """Wait until this number of tasks run at the same time."""
    (Path(folder) / f"here.{number}").touch()
    until = time.monotonic() + PATIENCE_S
    while len([*Path(folder).glob("here.*")]) < count:
        assert time.monotonic() < until
        time.sleep(0.01)
    return number


def pid(_: object = None) -> int:
    return os.getpid()


def warn(text: str) -> None:
    logging.getLogger("chores").warning(text)
