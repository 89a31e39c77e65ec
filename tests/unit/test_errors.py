"""Errors: whose fault it is, the exit code that says so, and the message."""

from __future__ import annotations

import pickle
import sys
import traceback
from types import SimpleNamespace

import pytest

import mwpy
from mwpy._values.errors import TaskFailed, UsageError, describe_exit, returncode_of_shell
from mwpy._values.options import parse
from mwpy.executor import Future, exception_of


def test_an_argument_that_cannot_be_pickled_is_a_type_error_too() -> None:
    assert issubclass(mwpy.ArgumentNotPicklable, TypeError)


def test_a_failed_task_survives_pickling_with_all_its_texts() -> None:
    error = TaskFailed("f", "SLAVE-0", "ValueError", "seven", "Traceback\n")
    back = pickle.loads(pickle.dumps(error))
    assert (back.args, vars(back), str(back)) == (error.args, vars(error), str(error))
    assert str(back) == "task f failed on SLAVE-0: ValueError: seven\nTraceback"


EXPORTED = [
    value for name in mwpy.__all__ if isinstance(value := getattr(mwpy, name), type) and issubclass(value, Exception)
]


@pytest.mark.parametrize("kind", EXPORTED)
def test_an_exported_exception_has_the_name_under_which_users_catch_it(kind: type[Exception]) -> None:
    """Tracebacks and pickles have that name."""
    assert (kind.__module__, getattr(mwpy, kind.__name__)) == ("mwpy", kind)
    arguments: dict[type[Exception], tuple[object, ...]] = {
        mwpy.TooManyFailures: ("5%", 10, 100, (), []),
        mwpy.OutOfTime: (2.5, 3),
    }
    by_default = ("f", None, "ValueError", "seven") if issubclass(kind, mwpy.TaskFailed) else ("text",)
    error = kind(*arguments.get(kind, by_default))
    assert traceback.format_exception_only(error)[0].startswith(f"mwpy.{kind.__name__}: ")
    back = pickle.loads(pickle.dumps(error))
    assert (type(back), str(back)) == (kind, str(error))


@pytest.fixture
def ipython(monkeypatch: pytest.MonkeyPatch) -> None:
    shell = SimpleNamespace(InteractiveTB=SimpleNamespace(structured_traceback=traceback.format_exception))
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: shell))


@pytest.mark.usefixtures("ipython")
def test_ipython_shows_only_the_frames_of_the_user() -> None:
    """Also of the causes of an error, and if causes form a circle."""
    with pytest.raises(UsageError) as caught:
        parse(["--mw-nonsense"], {})
    cause = ValueError("the cause")
    cause.__context__ = caught.value
    caught.value.__cause__ = cause
    shown = "\n".join(caught.value._render_traceback_())
    assert "the cause" in shown
    assert "test_errors.py" in shown
    assert "mwpy/_values" not in shown


class Own(Exception):
    """An exception of a task."""


def _failed(raised: BaseException) -> Future[None]:
    """A future of a task that has raised an exception of its own."""
    failure = TaskFailed("f", "SLAVE-0", "Own", "seven", "Traceback of the slave")
    failure.__cause__ = raised
    future = Future[None](None)
    future.end(error=exception_of(failure))
    return future


@pytest.mark.usefixtures("ipython")
def test_ipython_shows_only_the_frames_of_the_user_when_a_task_raised_an_exception_of_its_own() -> None:
    """The traceback of the slave is there, too, and the exception can still be pickled."""
    with pytest.raises(Own) as caught:
        _failed(Own("seven")).result()
    shown = "\n".join(caught.value._render_traceback_())  # type: ignore[attr-defined]
    assert "Traceback of the slave" in shown
    assert "test_errors.py" in shown
    assert "concurrent/futures" not in shown
    back = pickle.loads(pickle.dumps(caught.value))
    assert (type(back), back.args) == (Own, ("seven",))


def test_an_exception_of_a_task_has_its_own_attributes_only() -> None:
    """If IPython does not run the code."""
    raised = Own("seven")
    assert _failed(raised).exception() is raised
    assert vars(raised) == {}


@pytest.mark.parametrize(
    ("returncode", "text"),
    [
        (0, "exit code 0"),
        (
            -9,
            "killed by signal 9 (SIGKILL): the kernel's out-of-memory killer, the batch system or a person's kill "
            "command",
        ),
        (-11, "killed by signal 11 (SIGSEGV): a crash in native code"),
        (-10, "killed by signal 10 (SIGUSR1)"),
        (-42, "killed by signal 42"),
    ],
)
def test_an_end_in_words(returncode: int, text: str) -> None:
    assert describe_exit(returncode) == text


def test_a_known_cause_replaces_the_usual_ones_of_sigkill_only() -> None:
    assert describe_exit(-9, cause="out of memory") == "killed by signal 9 (SIGKILL): out of memory"
    assert "memory" not in describe_exit(-11, cause="out of memory")


@pytest.mark.parametrize(
    ("code", "returncode"), [(0, 0), (6, 6), (128, 128), (137, -9), (192, -64), (193, 193), (130, 130), (255, 255)]
)
def test_a_shell_adds_128_to_the_number_of_a_signal(code: int, returncode: int) -> None:
    """mwpy's own exit codes 130 and 255 stay exit codes."""
    assert returncode_of_shell(code) == returncode
