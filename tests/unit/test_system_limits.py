"""How an error that follows from a limit of the system is explained."""

from __future__ import annotations

import errno
import re

import pytest

from mwpy._system.process import Background, explained, named
from mwpy._values.errors import CannotRun, ExitCode


@pytest.mark.parametrize(
    ("error", "remedy"),
    [
        (OSError(errno.EMFILE, ""), r"only \d+ open files here: raise this limit \(ulimit -n\)"),
        (OSError(errno.ENFILE, ""), "all processes of this machine"),
        (BlockingIOError(errno.EAGAIN, ""), r"this user may have (\d+|unlimited) of them \(ulimit -u\)"),
        (RuntimeError("can't start new thread"), r"this user may have (\d+|unlimited) of them \(ulimit -u\)"),
        (OSError(errno.ENOMEM, ""), r"no memory is left for another process or thread \(ulimit -v"),
        (MemoryError(), r"no memory is left for another process or thread \(ulimit -v"),
    ],
)
def test_a_limit_is_named_with_its_remedy(error: Exception, remedy: str) -> None:
    assert re.search(remedy, named(error))
    with pytest.raises(CannotRun, match=f"^it cannot start: .*{remedy}") as raised, explained("it cannot start"):
        raise error
    assert raised.value.exit_code is ExitCode.CANNOT_START


@pytest.mark.parametrize("error", [OSError(errno.ENOENT, "no file"), RuntimeError("other"), ValueError("other")])
def test_other_errors_stay_as_they_are(error: Exception) -> None:
    assert named(error) == ""
    with pytest.raises(type(error), match=str(error.args[-1])), explained("it cannot start"):
        raise error


def test_what_no_thread_can_do_in_the_background_is_done_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The next item tries again to start a thread."""

    def refuse(*_: object) -> None:
        raise RuntimeError("can't start new thread")

    done: list[int] = []
    background = Background(done.append, "writer")
    with monkeypatch.context() as patch:
        patch.setattr("threading.Thread.start", refuse)
        background.give(1)
    assert done == [1]
    background.give(2)
    assert background.close(60.0)
    assert done == [1, 2]
