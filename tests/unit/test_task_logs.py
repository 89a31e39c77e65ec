"""What tasks log: how a slave gathers it, how much of it the master takes, and which loggers get it."""

from __future__ import annotations

import logging
import threading
import warnings
from collections.abc import Iterator
from typing import Any, cast

import pytest
from tests.master_state import Books, sid
from tests.seen import Seen

from mwpy._core.master import logs
from mwpy._core.master.logs import GROUP_BYTES, Logs
from mwpy._core.master.state import LogGroup
from mwpy._roles import log_handler, log_records, task_logs
from mwpy._roles.checkpoints import RunningTasks
from mwpy._roles.task_logs import MOST_A_SECOND, MOST_AT_ONCE, SENDS_AT_ONCE, Allowance, TaskLogs
from mwpy._system.log_levels import log_levels
from mwpy._transport import wire
from mwpy._values.bounds import MAX_REASON
from mwpy._values.errors import ProtocolError
from mwpy._values.log_messages import MAX_LEVEL, Logged, LogRow, size_of

ROW = LogRow(7, "f", 5.25, logging.INFO, "mw_test.part", "text", "/src/app.py", 12, "work", "")


class End:
    """The channel of a slave, as far as logging uses it."""

    forked = False


class Tasks:
    """The tasks of a slave, as far as logging uses them."""

    running = 7


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The time, in its only entry."""
    now = [100.0]
    monkeypatch.setattr(task_logs, "monotonic", lambda: now[0])
    return now


@pytest.fixture
def sent() -> list[Logged]:
    return []


@pytest.fixture
def kept(sent: list[Logged], clock: list[float]) -> TaskLogs:  # it must be replaced
    made = TaskLogs(cast(Any, End()), 3, cast(RunningTasks, Tasks()), sent.append)
    made.algorithm = "f"
    return made


@pytest.fixture
def loggers() -> Iterator[logging.Logger]:
    """The root logger, which is as it was at the end."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    shown = warnings.showwarning
    yield root
    logging.captureWarnings(False)
    warnings.showwarning = shown
    root.handlers[:] = handlers
    root.setLevel(level)


def record(text: str = "text %d", *args: object, level: int = logging.INFO, **more: Any) -> logging.LogRecord:
    return logging.makeLogRecord({"name": "mw_test", "levelno": level, "msg": text, "args": args or (1,), **more})


def test_the_first_records_are_sent_at_once_and_the_others_together(kept: TaskLogs, sent: list[Logged]) -> None:
    for _ in range(SENDS_AT_ONCE + 5):
        kept.note(record())
    assert [len(logged.rows) for logged in sent] == [1] * SENDS_AT_ONCE
    waited = kept.waiting
    kept.send()
    assert len(sent[-1].rows) == 5
    assert (waited, kept.waiting) == (True, False)
    row = sent[0].rows[0]
    assert (row.task, row.algorithm, row.logger, row.text, row.level) == (7, "f", "mw_test", "text 1", logging.INFO)


class Counted:
    """Its text is made when a record is formatted."""

    texts = 0

    def __str__(self) -> str:
        self.texts += 1
        return ""


def test_records_beyond_the_rate_are_counted(kept: TaskLogs, sent: list[Logged], clock: list[float]) -> None:
    """They are not even formatted."""
    counted = Counted()
    for _ in range(10_000):
        kept.note(record("%s", counted))
    kept.send()
    first = counted.texts
    assert sum(len(logged.rows) for logged in sent) == first <= MOST_AT_ONCE
    assert first + sum(logged.left_out for logged in sent) == 10_000
    clock[0] += 1.0
    for _ in range(10_000):
        kept.note(record("%s", counted))
    assert 0 < counted.texts - first <= MOST_A_SECOND


def test_a_message_is_never_larger_than_the_agent_accepts(kept: TaskLogs, sent: list[Logged]) -> None:
    """All texts are as long as they can be, and take several bytes for each character."""
    long = "ä\ud800" * MAX_REASON
    for _ in range(2000):
        kept.algorithm = long
        kept.note(record("%s", long, name=long, pathname=long, funcName=long, exc_text=long, levelno=10**9, lineno=-1))
    kept.send()
    for logged in sent:
        assert wire.decode(wire.encode(logged), wire.FROM_SLAVE)[0] == logged
    assert sent[0].rows[0].level == MAX_LEVEL


def test_what_was_left_out_is_reported_from_time_to_time(
    kept: TaskLogs, sent: list[Logged], clock: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kept, "_records", Allowance(0, 0))
    kept.note(record())
    kept.send()
    assert [(logged.rows, logged.left_out) for logged in sent] == [([], 1)]
    kept.note(record())
    kept.send()
    assert len(sent) == 1
    assert kept.waiting
    clock[0] += 1.0
    kept.send()
    assert sent[-1].left_out == 1
    kept.note(record())
    kept.send(everything=True)
    assert sent[-1].left_out == 1


def test_a_thread_of_a_task_does_not_send(kept: TaskLogs, sent: list[Logged]) -> None:
    thread = threading.Thread(target=kept.note, args=[record()])
    thread.start()
    thread.join()
    assert kept.waiting
    assert not sent
    kept.send()
    assert len(sent) == 1


def test_what_is_logged_while_records_are_sent_is_sent_later(clock: list[float]) -> None:
    """A finalizer of a task may run at any moment. A message in another one would break both."""
    sent: list[list[str]] = []

    def put(logged: Logged) -> None:
        if not sent:
            mine.note(record("from a finalizer %d"))
        sent.append([row.text for row in logged.rows])

    mine = TaskLogs(cast(Any, End()), 3, cast(RunningTasks, Tasks()), put)
    mine.note(record())
    assert sent == [["text 1"]]
    assert mine.waiting
    mine.send()
    assert sent == [["text 1"], ["from a finalizer 1"]]


def test_a_process_that_a_task_has_forked_sends_nothing(kept: TaskLogs, sent: list[Logged]) -> None:
    kept._end.forked = True  # type: ignore[misc]
    kept.note(record())
    kept.send(everything=True)
    assert not sent


def test_outside_of_a_task_a_record_names_none(kept: TaskLogs, sent: list[Logged]) -> None:
    kept.algorithm = ""
    kept.note(record())
    assert (sent[0].rows[0].task, sent[0].rows[0].algorithm) == (0, "")


def test_a_record_that_cannot_be_formatted_says_why(kept: TaskLogs, sent: list[Logged]) -> None:
    class Wrong:
        def __str__(self) -> str:
            raise ValueError("no text")

    kept.note(record("%s", Wrong()))
    kept.note(record("%d", "x"))
    assert "'%s' % tuple: ValueError: no text" in sent[0].rows[0].text
    assert "TypeError" in sent[1].rows[0].text


def test_an_exception_travels_as_its_traceback(kept: TaskLogs, sent: list[Logged]) -> None:
    try:
        raise KeyError("mine")
    except KeyError as error:
        kept.note(record(exc_info=(type(error), error, error.__traceback__), stack_info="Stack"))
    kept.note(record(exc_text="made before", exc_info=(None, None, None)))
    trace = sent[0].rows[0].trace
    assert trace.startswith("Traceback")
    assert trace.endswith("KeyError: 'mine'\nStack")
    assert sent[1].rows[0].trace == "made before"


def test_a_slave_has_the_levels_of_the_master_and_its_handlers_no_more(loggers: logging.Logger) -> None:
    """A logger that passes nothing on gets the handler of the slave, too. Warnings are records."""
    noted: list[str] = []
    alone, old = logging.getLogger("mw_alone"), logging.NullHandler()
    alone.propagate = False
    alone.addHandler(old)
    try:
        log_handler.install(
            {"": logging.ERROR, "mw_fine": logging.DEBUG}, lambda given: noted.append(given.getMessage())
        )
        assert old not in alone.handlers
        loggers.warning("below")
        logging.getLogger("mw_fine.part").debug("fine")
        alone.error("alone")
        logging.getLogger("py.warnings").setLevel(logging.WARNING)
        with warnings.catch_warnings():
            warnings.simplefilter("always")
            logging.captureWarnings(True)
            warnings.warn("careful", stacklevel=1)
    finally:
        alone.propagate = True
        alone.handlers.clear()
        logging.getLogger("py.warnings").setLevel(logging.NOTSET)
    assert noted[:2] == ["fine", "alone"]
    assert "UserWarning: careful" in noted[2]


def test_a_failure_to_note_a_record_is_no_failure_of_the_task(
    loggers: logging.Logger, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(_: object) -> None:
        raise OSError("the channel is gone")

    log_handler.install({"": logging.INFO}, fail)
    loggers.info("text")
    assert "the channel is gone" in capsys.readouterr().err


def test_the_levels_of_this_process_are_those_that_were_set(
    loggers: logging.Logger, monkeypatch: pytest.MonkeyPatch
) -> None:
    loggers.setLevel(logging.INFO)
    named, unset = logging.getLogger("mw_named.part"), logging.getLogger("mw_unset")
    named.setLevel(logging.DEBUG)
    assert unset.level == logging.NOTSET
    found = log_levels()
    named.setLevel(logging.NOTSET)
    assert found[""] == logging.INFO
    assert found["mw_named.part"] == logging.DEBUG
    assert not {"mw_unset", "mw_named"} & {*found}
    monkeypatch.delitem(__import__("sys").modules, "logging")
    assert log_levels() == {"": logging.WARNING}


def test_records_that_nobody_takes_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """When they are taken, the next ones come, with the count."""
    monkeypatch.setattr(logs, "MOST_BYTES", 2 * (GROUP_BYTES + size_of(ROW)))
    books = Books()
    slave, kept = books.slave(host="node1"), Logs(books.state)
    for _ in range(3):
        kept.receive(slave.agent, Logged(1, [ROW], 5))
        kept.check()
    given = books.state.take_actions().logged
    assert [(group.sid, group.host, group.left_out) for group in given] == [(sid(0), "node1", 5)] * 2
    assert kept.left_out == 6
    kept.handled = given[0].size
    kept.receive(slave.agent, Logged(1, [ROW]))
    [last] = books.state.take_actions().logged
    assert last.left_out == 6


@pytest.fixture
def seen(loggers: logging.Logger) -> Seen:
    handler = Seen()
    loggers.addHandler(handler)
    loggers.setLevel(logging.INFO)
    return handler


def test_a_logger_of_the_master_gets_the_record_with_its_task(seen: Seen) -> None:
    row = LogRow(7, "f", 5.25, logging.INFO, "mw_none.part", "100 %", "/src/app.py", 12, "work", "Traceback")
    log_records.give(LogGroup(sid(4), "node1", [row, ROW], 0, 0))
    [found, _] = seen.records
    assert (found.mw_task, found.mw_algorithm, found.mw_slave, found.mw_host) == (7, "f", "SLAVE-4", "node1")
    assert (found.name, found.levelname, found.getMessage(), found.filename) == (
        "mw_none.part",
        "INFO",
        "100 %",
        "app.py",
    )
    assert (found.created, found.msecs, found.lineno, found.funcName) == (5.25, 250.0, 12, "work")
    assert logging.Formatter("%(message)s").format(found) == "100 %\nTraceback"
    assert "mw_none" not in logging.root.manager.loggerDict


def test_the_levels_and_filters_of_the_master_hold(seen: Seen) -> None:
    """A slave may have levels of its own, because a task may set them."""
    quiet = logging.getLogger("mw_test")
    quiet.setLevel(logging.ERROR)
    try:
        log_records.give(LogGroup(sid(4), "node1", [ROW], 0, 0))
    finally:
        quiet.setLevel(logging.NOTSET)
    assert not seen.records


def test_the_loggers_are_informed_about_what_was_left_out(seen: Seen) -> None:
    log_records.give(LogGroup(sid(4), "node1", [], 3, 0))
    [found] = seen.records
    assert found.getMessage() == "3 log records of tasks left out, because there were too many (SLAVE-4)"
    assert (found.name, found.levelname, found.mw_task, found.mw_slave) == ("mwpy", "WARNING", None, "SLAVE-4")


def test_a_handler_that_raises_stops_nothing(
    seen: Seen, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(_: object) -> None:
        raise RuntimeError("my handler")

    monkeypatch.setattr(seen, "handle", fail)
    log_records.give(LogGroup(sid(4), "node1", [ROW, ROW], 0, 0))
    assert capsys.readouterr().err.count("RuntimeError: my handler") == 2


@pytest.mark.parametrize(
    "row",
    [
        LogRow(-1, "f", 5.0, 20, "a", "t", "p", 1, "w", ""),
        LogRow(1, "f", float("nan"), 20, "a", "t", "p", 1, "w", ""),
        LogRow(1, "f", 5.0, MAX_LEVEL + 1, "a", "t", "p", 1, "w", ""),
        LogRow(1, "f", 5.0, 20, "a", "t" * (MAX_REASON + 1), "p", 1, "w", ""),
    ],
)
def test_a_record_beyond_the_bounds_is_refused(row: LogRow) -> None:
    with pytest.raises(ProtocolError):
        wire.decode(wire.encode(Logged(1, [row])), wire.FROM_AGENT)
