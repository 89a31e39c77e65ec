"""What a task starts and leaves behind: it disturbs neither the next tasks nor the processes of the task."""

from __future__ import annotations

import io
import logging
import multiprocessing
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import redirect_stdout, suppress
from multiprocessing.process import BaseProcess

import pytest
from tests.integration.apps.stage import fetched
from tests.seen import Seen

import mwpy

Way = Callable[[mwpy.Master, Callable[[str], object], Sequence[str]], list[object]]

FAR_S = 1000
"""An alarm that goes off after the end of the test."""

SHORT_S = 0.0001
"""A task of this length is not among the shortest ones of a map."""


def one_by_one(mw: mwpy.Master, function: Callable[[str], object], items: Sequence[str]) -> list[object]:
    values: list[object] = []
    for item in items:
        mw.submit(mwpy.task(function, item))
        values += [fetched(mw, 1)[0].value]
    return values


def together(mw: mwpy.Master, function: Callable[[str], object], items: Sequence[str]) -> list[object]:
    tasks = [mw.submit(mwpy.task(function, item)) for item in items]
    return [result.value for result in sorted(fetched(mw, len(tasks)), key=lambda result: tasks.index(result.task_id))]


def as_map(mw: mwpy.Master, function: Callable[[str], object], items: Sequence[str]) -> list[object]:
    return list(mw.map(function, items))


@pytest.fixture(params=[one_by_one, together, as_map])
def way(request: pytest.FixtureRequest) -> Way:
    """How the tasks are sent: the items of a map run together, and cost less."""
    found: Way = request.param
    return found


@pytest.fixture
def seen() -> Iterator[Seen]:
    handler, logger = Seen(), logging.getLogger("left_behind")
    logger.setLevel(logging.INFO)
    logger.addHandler(handler)
    yield handler
    logger.removeHandler(handler)
    logger.setLevel(logging.NOTSET)


def _give_up(*_: object) -> None:
    raise TimeoutError


def _warn_for_ever() -> Iterator[None]:
    with mwpy.warned(1):
        yield


left_open: list[Iterator[None]] = []


def alarm(item: str) -> object:
    """Leave an alarm, or return what is left of one."""
    time.sleep(SHORT_S)
    match item:
        case "alarm":
            signal.alarm(FAR_S)
        case "timer":
            signal.signal(signal.SIGALRM, _give_up)
            signal.setitimer(signal.ITIMER_REAL, FAR_S, FAR_S)
        case "failure":
            signal.alarm(FAR_S)
            raise ValueError
        case "warned":
            left_open.append(_warn_for_ever())
            next(left_open[-1])
    return (
        None if item else (signal.getitimer(signal.ITIMER_REAL)[0], signal.getsignal(signal.SIGALRM) is signal.SIG_DFL)
    )


def test_an_alarm_of_a_task_does_not_reach_the_next_one(way: Way) -> None:
    """The handler that a task had for it is gone, too."""
    with mwpy.local_master(slaves=1) as mw:
        assert way(mw, alarm, ["alarm", "", "timer", ""] * 10) == [None, (0.0, True)] * 20


@pytest.mark.parametrize("item", ["failure", "warned"])
def test_an_alarm_ends_with_a_task_that_fails_or_leaves_a_warning_open(item: str) -> None:
    with mwpy.local_master(slaves=1) as mw:
        for each in (item, ""):
            mw.submit(mwpy.task(alarm, each), seconds_max=FAR_S)
        assert fetched(mw, 2)[1].value == (0.0, True)


def stream(item: str) -> None:
    """Spoil the standard streams as the item says, or print it."""
    match item:
        case "replace":
            sys.stdout = sys.stderr = io.StringIO()
        case "close":
            sys.stdout.close()
            sys.stderr.close()
        case "close the file":
            sys.stdout.buffer.close()
        case "with":
            with sys.stdout:
                pass
        case "wrap":
            sys.stdout = io.TextIOWrapper(sys.stdout.buffer, encoding="utf-8")
        case "none":
            sys.stdout = sys.stderr = None
        case _:
            print(item)
            print(f"error {item}", file=sys.stderr)


def test_a_task_that_spoils_the_standard_streams_spoils_only_its_own(
    way: Way, capfd: pytest.CaptureFixture[str]
) -> None:
    spoils = ["replace", "close", "close the file", "with", "wrap", "none"] * 10
    items = [item for number, spoil in enumerate(spoils) for item in (spoil, f"line {number} after {spoil}")]
    with mwpy.local_master(slaves=1) as mw:
        way(mw, stream, items)
    out, err = capfd.readouterr()
    assert [line for line in out.splitlines() if line.startswith("line")] == items[1::2]
    assert [line for line in err.splitlines() if line.startswith("error")] == [f"error {item}" for item in items[1::2]]


def detach(_: int) -> None:
    sys.stdout = io.TextIOWrapper(sys.stdout.detach(), encoding="utf-8", line_buffering=True)  # type: ignore[union-attr]


def test_a_stream_that_a_task_has_taken_over_goes_on(capfd: pytest.CaptureFixture[str]) -> None:
    """The former one has no file any more, so it cannot be put back."""
    with mwpy.local_master(slaves=1) as mw:
        for number in (1, 2):
            list(mw.map(detach, [number]))
            list(mw.map(print, [f"line {number}"]))
    assert capfd.readouterr().out.splitlines()[-2:] == ["line 1", "line 2"]


def log(item: str) -> None:
    """Spoil `logging` as the item says, or log it."""
    match item:
        case "configure":
            logging.basicConfig(force=True, level=logging.CRITICAL)
        case "clear":
            logging.root.handlers.clear()
        case "assign":
            logging.root.handlers = []
        case "remove":
            for handler in logging.root.handlers[:]:
                logging.root.removeHandler(handler)
                handler.close()
        case _:
            logging.getLogger("left_behind").info(item)


def test_a_task_that_spoils_logging_spoils_only_its_own(
    way: Way, seen: Seen, capfd: pytest.CaptureFixture[str]
) -> None:
    """What later tasks log arrives once: the handlers that such a task has added are gone."""
    spoils = ["configure", "clear", "assign", "remove"] * 10
    items = [item for number, spoil in enumerate(spoils) for item in (spoil, f"record {number} after {spoil}")]
    with mwpy.local_master(slaves=1) as mw:
        way(mw, log, items)
    assert [record.getMessage() for record in seen.records] == items[1::2]
    assert "record" not in capfd.readouterr().err


def add_handler(_: int) -> int:
    logging.root.addHandler(logging.NullHandler())
    return len(logging.root.handlers)


def test_a_handler_that_a_task_adds_stays() -> None:
    with mwpy.local_master(slaves=1) as mw:
        assert list(mw.map(add_handler, range(3))) == [2, 3, 4]


def be_silent() -> None:
    sys.stdout = io.StringIO()


def test_what_an_initializer_sets_up_stays(capfd: pytest.CaptureFixture[str]) -> None:
    with mwpy.local_master(slaves=1) as mw:
        list(mw.executor(initializer=be_silent).map(print, ["from the executor"] * 20))
    assert "from the executor" not in capfd.readouterr().out


def test_a_master_that_runs_tasks_itself_puts_nothing_back() -> None:
    """Its streams and its alarm are those of the user's program."""
    with redirect_stdout(io.StringIO()) as kept, mwpy.local_master(slaves=0) as mw:
        try:
            with suppress(AttributeError):
                list(mw.map(alarm, ["alarm"]))
            assert list(mw.map(alarm, [""])) != [(0.0, True)]
            list(mw.map(stream, ["replace"]))
            assert sys.stdout is not kept
        finally:
            signal.alarm(0)
            sys.stderr = sys.__stderr__


CHILDREN = 100
"""How many children each of two tasks ends."""

FORK = multiprocessing.get_context("fork")


@pytest.fixture(scope="module", params=[2, 0], ids=["slaves", "own process"])
def mw(request: pytest.FixtureRequest) -> Iterator[mwpy.Master]:
    with mwpy.local_master(slaves=request.param) as mw:
        yield mw


def sleep_until_a_signal() -> None:
    """Sleep in short pieces. Python handles a signal that arrives just before a sleep only after it."""
    for _ in range(2000):
        time.sleep(0.05)


def ended(child: BaseProcess) -> int | None:
    child.join(60)
    code = child.exitcode
    child.kill()
    return code


def test_a_child_that_is_terminated_at_once_ends(mw: mwpy.Master) -> None:
    """The signal may come before the child has run a line of Python."""

    def end_children(_: int) -> list[int | None]:
        codes = []
        for _ in range(CHILDREN):
            child = FORK.Process(target=time.sleep, args=(100,))
            child.start()
            child.terminate()
            codes.append(ended(child))
        return codes

    assert list(mw.map(end_children, range(2))) == [[-signal.SIGTERM] * CHILDREN] * 2


def test_a_pool_whose_task_fails_ends(mw: mwpy.Master) -> None:
    def use_a_pool(number: int) -> str:
        try:
            with FORK.Pool(2) as pool:
                return str(pool.map(int, ["1", "two"]))
        except ValueError as error:
            return f"{number} {error}"

    assert list(mw.map(use_a_pool, [1])) == ["1 invalid literal for int() with base 10: 'two'"]


def test_ctrl_c_ends_a_child_as_in_a_plain_script(mw: mwpy.Master) -> None:
    def interrupt(_: int) -> int | None:
        def wait(ready: int) -> None:
            try:
                os.write(ready, b"x")
                sleep_until_a_signal()
            except KeyboardInterrupt:
                os._exit(77)

        reading, writing = os.pipe()
        child = FORK.Process(target=wait, args=(writing,))
        child.start()
        os.read(reading, 1)
        assert child.pid is not None
        os.kill(child.pid, signal.SIGINT)
        return ended(child)

    assert list(mw.map(interrupt, [1])) == [77]


def test_a_program_ignores_and_blocks_no_signal(mw: mwpy.Master) -> None:
    def masks(_: int) -> list[str]:
        done = subprocess.run(["cat", "/proc/self/status"], capture_output=True, text=True, check=True)
        return re.findall(r"^Sig(?:Blk|Ign):\s*(\w+)$", done.stdout, re.MULTILINE)

    assert list(mw.map(masks, [1])) == [masks(1)]


def test_a_handler_that_a_task_has_set_stays_in_its_children(mw: mwpy.Master) -> None:
    def handle(_: int) -> int | None:
        def wait() -> None:
            os.write(writing, b"x")
            sleep_until_a_signal()

        reading, writing = os.pipe()
        before = signal.signal(signal.SIGTERM, lambda *_: os._exit(78))
        try:
            child = FORK.Process(target=wait)
            child.start()
        finally:
            signal.signal(signal.SIGTERM, before)
        os.read(reading, 1)
        child.terminate()
        return ended(child)

    assert list(mw.map(handle, [1])) == [78]
