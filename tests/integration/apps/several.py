"""Small programs: the first argument of the script is the name of the one that runs. Each prints what came, as JSON."""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import mwpy
from mwpy._roles.runner import GATHER_S
from mwpy._system.memory import resident_bytes

Program = Callable[[mwpy.Master, list[str]], None]

PROGRAMS: dict[str, Program] = {}
"""The programs by their names."""


def program(function: Program) -> Program:
    """Add a program, which gets the other arguments of the script."""
    PROGRAMS[function.__name__] = function
    return function


@mwpy.master_algorithm
def master(mw: mwpy.Master, argv: list[str]) -> int:
    """Run the program."""
    PROGRAMS[argv[0]](mw, argv[1:])
    return 0


# Status: a task fails, one runs until the file `go` exists, and others wait behind it.


@mwpy.task_algorithm
def fail() -> None:
    raise ValueError("no such\x1b[31m setting")


@mwpy.task_algorithm
def wait() -> None:
    while not Path("go").exists():
        time.sleep(0.02)


@program
def asked(mw: mwpy.Master, argv: list[str]) -> None:
    """Wait for all tasks."""
    mw.submit(fail.task())
    for _ in range(3):
        mw.submit(wait.task())
    while mw.num_runnable_tasks():
        mw.loop(1.0)
        mw.results()


# A task ends when a file exists, and others wait behind it.


OTHERS = 19
FOREVER_S = 60.0


@mwpy.task_algorithm
def stay(begun: str, enough: str) -> None:
    """Create one file at the start, and end when the other file exists."""
    Path(begun).touch()
    end = time.monotonic() + FOREVER_S
    while time.monotonic() < end and not Path(enough).exists():
        time.sleep(0.01)


@mwpy.task_algorithm
def pass_by() -> None:
    """Return at once."""


@program
def behind(mw: mwpy.Master, argv: list[str]) -> None:
    """Wait for all tasks. The arguments are the two files of the waiting task."""
    mw.submit(stay.task(*argv), tag="long")
    for number in range(OTHERS):
        mw.submit(pass_by.task(), tag=number)
    finished: list[tuple[object, str | None]] = []
    while len(finished) <= OTHERS:
        mw.loop()
        finished += [(result.tag, result.sid) for result in mw.results() if result.error is None]
    print(json.dumps(finished))


# A slave finishes a quick task right before a long one.


ATTEMPTS = 10

HOUR_S = 3600.0
"""The longest duration of the long task: longer than a test waits. The file ends it earlier."""


@mwpy.task_algorithm
def moment(seconds: float) -> float:
    """Return when the task ended, on the clock that all processes of this machine share."""
    time.sleep(seconds)
    return time.monotonic()


@mwpy.task_algorithm
def stay_until(enough: str) -> None:
    """Run until the file exists."""
    end = time.monotonic() + HOUR_S
    while time.monotonic() < end and not Path(enough).exists():
        time.sleep(0.002)


@program
def hour(mw: mwpy.Master, argv: list[str]) -> None:
    """Repeat until enough quick results were gathered."""
    arrived: list[list[str]] = []
    while len(arrived) < ATTEMPTS:
        enough = Path("enough")
        enough.unlink(missing_ok=True)
        mw.submit(moment.task(2 * GATHER_S), tag="before")
        mw.submit(moment.task(0.0), tag="quick")
        mw.submit(stay_until.task(str(enough)), tag="hour")
        done: dict[str, float] = {}
        while "hour" not in done:
            mw.loop()
            for result in mw.results():
                done[result.tag] = result.value or 0.0
                if result.tag == "quick":
                    enough.touch()
        if done["quick"] - done["before"] < GATHER_S:
            arrived.append([*done])
    print(json.dumps(arrived))


# There is no work.


@program
def idle(mw: mwpy.Master, argv: list[str]) -> None:
    """Return before any slave can connect."""


# A task is longer than any agent lives, and goes on from its last step.


STEP_S = 0.1


@mwpy.task_algorithm
def walk(steps: int, log: str) -> int:
    """Take the steps that are left, one after the other. Write down the first step of this attempt."""
    step: int = mwpy.restored(0)
    with Path(log).open("a") as file:
        file.write(f"{step}\n")
    while step < steps:
        time.sleep(STEP_S)
        step += 1
        mwpy.checkpoint(step)
    return step


@program
def longer(mw: mwpy.Master, argv: list[str]) -> None:
    """Run the task. The arguments are the number of steps and the name of the log."""
    [result] = mw.map_results(walk, [int(argv[0])], [argv[1]])
    print(json.dumps({"value": result.value, "attempts": result.attempts}))


# Tasks write a line when they start, and end when a file exists.


@mwpy.task_algorithm
def stay_in(number: int, folder: str) -> int:
    """Note the start, wait for the file `enough`, and return the process id of the slave."""
    with Path(folder, "starts").open("a") as starts:
        starts.write(f"{number} {os.getpid()}\n")
    while not Path(folder, "enough").exists():
        time.sleep(0.02)
    return os.getpid()


@program
def outage(mw: mwpy.Master, argv: list[str]) -> None:
    """Print the process ids of the slaves that ran the tasks."""
    print(json.dumps(list(mw.map(stay_in, range(int(argv[0])), [str(Path.cwd())] * int(argv[0]), chunksize=1))))


# Tasks fail once with an exception of the script.


class Busy(Exception):
    pass


def is_busy(error: Exception) -> bool:
    return isinstance(error, Busy)


@mwpy.task_algorithm(retry_errors=Busy)
def fail_once(mark: str) -> None:
    if not Path(mark).exists():
        Path(mark).touch()
        raise Busy


@program
def retrying(mw: mwpy.Master, argv: list[str]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        by_type = mw.map_results(fail_once, [f"{folder}/1", f"{folder}/2"])
        by_function = mw.map_results(fail_once, [f"{folder}/3", f"{folder}/4"], retry_errors=is_busy)
        print(json.dumps([[result.attempts for result in results] for results in (by_type, by_function)]))


# Tasks ask how much time is left.


SOON_S = 100.0


@mwpy.task_algorithm
def watch(begun: str) -> list[float]:
    """Create a file, and wait until the end is near. Return how much time was left before and then."""
    first = mwpy.seconds_left()
    Path(begun).touch()
    while (left := mwpy.seconds_left()) > SOON_S:
        time.sleep(0.01)
    return [first, left]


@mwpy.task_algorithm
def step(begun: str, seconds: float) -> list[float]:
    """Sleep until the end is near in the first attempt, leave a state, and give up. Then return this state."""
    before: list[float] = mwpy.restored([])
    if not before:
        Path(begun).touch()
        try:
            with mwpy.warned(seconds):
                time.sleep(1000)
        except mwpy.EndIsNear:
            mwpy.checkpoint([mwpy.seconds_left()])
            raise
    return before


@mwpy.task_algorithm
def ask(_: int) -> bool:
    """Return whether no end is known."""
    return mwpy.seconds_left() == float("inf")


@program
def short_of_time(mw: mwpy.Master, argv: list[str]) -> None:
    """The arguments are the name of the task algorithm and its argument."""
    if argv[0] == "watch":
        print(json.dumps(list(mw.map(watch, [argv[1]]))))
    elif argv[0] == "step":
        [result] = mw.map_results(step, [argv[1]], [float(argv[2])], attempts_max=1)
        print(json.dumps([result.value, result.attempts]))
    else:
        results = mw.map_results(ask, range(3), seconds_expected=float(argv[1]))
        print(json.dumps([[result.value, result.attempts] for result in results]))


# One task of the second of two maps hangs in its first attempt.


HANGS = 7
"""The item whose first attempt hangs."""


@mwpy.task_algorithm
def double(number: int) -> int:
    """Hang in the first attempt of one item, and say in a file which process hangs."""
    if number == HANGS:
        try:
            Path("begun").touch(exist_ok=False)
        except FileExistsError:
            return 2 * number
        Path("pid.new").write_text(str(os.getpid()))
        Path("pid.new").rename("pid")
        while True:
            time.sleep(0.1)
    return 2 * number


@program
def straggling(mw: mwpy.Master, argv: list[str]) -> None:
    """Run the maps, and wait until the test has seen enough."""
    speculate = json.loads(argv[0])
    policy = mwpy.Policies() if speculate is None else mwpy.Policies(speculate=speculate)
    results = [*mw.map_results(double, range(HANGS), ordered=True, **policy)]
    results += mw.map_results(double, range(HANGS, 20), ordered=True, **policy)
    Path("complete").touch()
    while not Path("enough").exists():
        mw.loop(0.1)
    print(json.dumps({"values": [result.value for result in results], "attempts": results[HANGS].attempts}))


# Tasks of one algorithm need little memory, then some need much.


SMALL, LARGE = 5, 150
"""What a task needs, in MiB."""

NUM_SMALL, NUM_LARGE = 40, 6


@mwpy.task_algorithm(memory_max="400 MiB", attempts_max=1)
def hold(size: int) -> int:
    """Use memory for long enough to be measured."""
    kept = b"x" * (size << 20)
    time.sleep(0.6 if size == SMALL else 1.5)
    return len(kept) >> 20


@program
def uneven(mw: mwpy.Master, argv: list[str]) -> None:
    """The small tasks come first, and fit into the memory of the job."""
    small = list(mw.map(hold, [SMALL] * NUM_SMALL))
    results = list(mw.map_results(hold, [LARGE] * NUM_LARGE))
    large = [result.value if result.ok else str(result.error) for result in results]
    print(json.dumps({"small": small, "large": large, "attempts": [result.attempts for result in results]}))


# Each task leaks memory.


LEAK: list[bytes] = []


@mwpy.task_algorithm
def leak(size: int, seconds: float) -> int:
    """Keep some memory. Return how large this process is."""
    LEAK.append(b"x" * size)
    time.sleep(seconds)
    return resident_bytes()


@program
def worn(mw: mwpy.Master, argv: list[str]) -> None:
    """Run tasks. The arguments are their number, how many bytes each leaks, and how many seconds each takes."""
    tasks, size, seconds = int(argv[0]), int(argv[1]), float(argv[2])
    results = list(mw.map_results(leak, [size] * tasks, [seconds] * tasks))
    assert all(result.attempts >= 1 for result in results)
    values = [result.value for result in results]
    report = {
        "tasks": len(values),
        "largest": max(values),
        "slaves": len({result.sid for result in results}),
    }
    print(json.dumps(report))


if __name__ == "__main__":
    sys.exit(mwpy.main())
