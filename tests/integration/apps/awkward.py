"""Submits tasks whose results or exceptions cannot be sent, and prints the outcome of each task."""

from __future__ import annotations

import json
import os
import sys
import threading
import types
from typing import Any

import mwpy


class Locked(Exception):
    """Cannot be pickled."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.lock = threading.Lock()


class Stubborn(Exception):
    """Can be pickled but not unpickled."""

    def __init__(self, what: str, why: str) -> None:
        super().__init__(f"{what}, {why}")


class Mute(Exception):
    """Raises when it is printed."""

    def __str__(self) -> str:
        raise ValueError("no text")

    __repr__ = __str__


class Poison:
    """Raises while it is pickled."""

    def __reduce__(self) -> Any:
        raise RuntimeError("poisoned")


class Bomb:
    """Raises while it is unpickled."""

    def __reduce__(self) -> Any:
        return int, ("no number",)


@mwpy.task_algorithm
def awkward(what: str) -> Any:
    """Return or raise an object that cannot be sent."""
    match what:
        case "pid":
            return os.getpid()
        case "lock":
            return threading.Lock()
        case "poison":
            return Poison()
        case "bomb":
            return Bomb()
        case "large":
            return bytes(2_000_000)
        case "locked":
            raise Locked("it is locked")
        case "stubborn":
            raise Stubborn("it is", "stubborn")
        case "mute":
            raise Mute
        case "exit":
            sys.exit("task wants out")
        case "interrupt":
            raise KeyboardInterrupt("task was bored")
        case "unknown class":
            module = types.ModuleType("only_here")
            sys.modules["only_here"] = module
            exec("class Odd(Exception): pass", module.__dict__)
            raise module.Odd("odd indeed")
    return None


@mwpy.task_algorithm
def swallow(argument: bytes) -> int:
    """Return the size of the argument."""
    return len(argument)


WHAT = (
    "lock",
    "poison",
    "bomb",
    "large",
    "locked",
    "stubborn",
    "mute",
    "exit",
    "interrupt",
    "unknown class",
)


def outcome(result: mwpy.Result[Any]) -> Any:
    """Return the value, or a description of the error. Like most applications, this looks at `error` first."""
    error = result.error
    if error is not None:
        return [error.type_name, error.text, error.remote_traceback]
    try:
        return result.value
    except mwpy.TaskFailed as failure:
        return f"error was None, but value raises: {failure.text}"


@mwpy.master_algorithm
def master(mw: mwpy.Master, argv: list[str]) -> int:
    """Submit each kind of task. A task before and a task after them show that the slave is alive."""
    for tag in ("pid before", *WHAT, "pid after"):
        mw.submit(awkward.task(tag.split()[0] if tag.startswith("pid") else tag), tag=tag)
    mw.submit(swallow.task(bytes(3_000_000)), tag="large argument")
    outcomes: dict[str, Any] = {}
    while len(outcomes) < len(WHAT) + 3:
        mw.loop()
        for result in mw.results(unrunnable=False):
            outcomes[result.tag] = outcome(result)
        for task in mw.unrunnable_tasks():
            outcomes[task.tag] = f"unrunnable: {task.reason}"
    print(json.dumps(outcomes))
    return 0


if __name__ == "__main__":
    sys.exit(mwpy.main())
