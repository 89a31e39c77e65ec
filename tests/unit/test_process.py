"""Children in sessions of their own, and their ends in words."""

from __future__ import annotations

import os
import select
import signal
import sys

import pytest

from mwpy._system import process as _process
from mwpy._system.process import describe_exit, start


def python(code: str, **options: object) -> _process.Child:
    return start([sys.executable, "-c", code], **options)  # type: ignore[arg-type]


def wait(child: _process.Child) -> int:
    """The child's end; a child that does not end is found by the time limit of all tests."""
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    code = child.poll()
    assert code is not None
    child.close()
    return code


def read_all(fd: int) -> bytes:
    data = b""
    while True:
        select.select([fd], [], [])
        chunk = os.read(fd, 65536)
        if not chunk:
            return data
        data += chunk


def test_a_child_that_ends_tells_its_exit_code_every_time() -> None:
    child = python("raise SystemExit(3)")
    assert (wait(child), child.poll(), child.describe_exit()) == (3, 3, "exit code 3")


def test_a_running_child_has_no_end_and_can_be_asked_to_go() -> None:
    child = python("import signal; signal.pause()")
    assert child.poll() is None
    child.terminate()
    assert wait(child) == -signal.SIGTERM
    child.terminate()
    child.kill()


def test_standard_output_and_error_can_be_read_without_waiting() -> None:
    child = python("import sys; sys.stdin.read(); print('out'); sys.exit('last words')", keep_output=True)
    assert not any(os.get_blocking(fd) for fd in child.outputs.values())
    assert read_all(child.outputs[1]) == b"out\n"
    assert read_all(child.outputs[2]) == b"last words\n"
    assert wait(child) == 1


def test_the_peak_memory_is_known_when_the_end_is() -> None:
    child = python("x = bytearray(300 << 20); x[::4096] = x[::4096]; del x; import os; os.kill(os.getpid(), 9)")
    assert child.peak_bytes == 0
    assert wait(child) == -9
    assert 300 << 20 < child.peak_bytes < 400 << 20


def test_a_child_leads_its_own_session_and_inherits_what_it_was_given_and_no_more() -> None:
    reading, writing = os.pipe()
    other = os.dup(writing)
    os.set_inheritable(other, True)
    code = f"""if 1:
        import os
        assert os.getsid(0) == os.getpid()
        os.write({writing}, os.environ["WORD"].encode())
        try: os.write({other}, b"!")
        except OSError: pass"""
    child = python(code, pass_fds=[writing], environment={"WORD": "given"})
    os.close(writing)
    os.close(other)
    assert (read_all(reading), wait(child)) == (b"given", 0)
    os.close(reading)


@pytest.mark.parametrize("by_force", [True, False], ids=["killed", "ends"])
def test_what_a_child_forked_goes_with_it(by_force: bool) -> None:
    reading, writing = os.pipe()
    ending = "signal.pause()" if by_force else ""
    code = f"import os, signal\nif os.fork() == 0: signal.pause()\nos.write({writing}, b'forked')\n{ending}"
    child = python(code, pass_fds=[writing])
    os.close(writing)
    assert os.read(reading, 6) == b"forked"
    if by_force:
        child.kill()
    assert wait(child) == (-signal.SIGKILL if by_force else 0)
    assert read_all(reading) == b""
    os.close(reading)


def test_a_program_that_is_not_there_is_an_error() -> None:
    with pytest.raises(FileNotFoundError):
        start(["/nowhere/python"])


@pytest.mark.parametrize(
    ("returncode", "words"),
    [
        (0, "exit code 0"),
        (-9, "killed by signal 9 (SIGKILL): the kernel's out-of-memory killer, the batch system or somebody's kill"),
        (-11, "killed by signal 11 (SIGSEGV): a crash in native code"),
        (-10, "killed by signal 10 (SIGUSR1)"),
        (-42, "killed by signal 42"),
    ],
)
def test_an_end_in_words(returncode: int, words: str) -> None:
    assert describe_exit(returncode) == words


def test_lack_of_memory_is_named_where_the_kernel_counted_it() -> None:
    assert describe_exit(-9, out_of_memory="out of memory") == "killed by signal 9 (SIGKILL): out of memory"
    assert "memory" not in describe_exit(-11, out_of_memory="out of memory")


def test_a_kernel_that_counts_nothing_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise FileNotFoundError

    monkeypatch.setattr("builtins.open", refuse)
    assert _process._kills() == (0, 0)
