"""Forks that own nothing of their parent. Each test runs in processes of its own."""

from __future__ import annotations

import subprocess
import sys

import pytest

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="agents are forked only on Linux")

BEGIN = """
import atexit, gc, os, signal, sys, threading, weakref
from mwpy._system import clean_fork

def fork(run, **variables):
    child = clean_fork.start(run, b"mwpy-test", environment=variables)
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    return child.poll()

"""


def run(script: str, error: str = "") -> list[str]:
    """Run a script with a buffered output. Return the lines of its output, and check the last line of its errors."""
    ended = subprocess.run(
        [sys.executable, "-c", BEGIN + script], capture_output=True, text=True, env={}, timeout=60, check=False
    )
    assert ended.returncode == 0, ended.stderr
    assert ended.stderr.splitlines()[-1:] == error.split(), ended.stderr
    return ended.stdout.splitlines()


def test_what_its_parent_left_in_buffers_is_written_once_and_the_parents_exit_handlers_run_once() -> None:
    """The same holds for finalizers, and for objects that nothing can reach any more."""
    script = """
class File:
    def __init__(self, name):
        self.name = name
        self.own = self
    def __del__(self):
        os.write(1, f"{self.name}\\n".encode())

gc.disable()
print("buffered")
atexit.register(os.write, 1, b"exit\\n")
weakref.finalize(BaseException, os.write, 1, b"finalizer\\n")
File("unreachable")
def live():
    gc.collect()
    print("alive", gc.isenabled(), flush=True)
    return 3
code = fork(live)
print("ended with", code)
sys.stdout.flush()
gc.collect()
"""
    assert run(script) == ["buffered", "alive True", "ended with 3", "unreachable", "finalizer", "exit"]


def test_what_it_leaves_in_buffers_is_written() -> None:
    assert run("fork(lambda: print('left') or 0)\nprint('after', flush=True)") == ["left", "after"]


def test_it_runs_its_own_exit_handlers() -> None:
    script = "print(fork(lambda: atexit.register(os.write, 1, b'exit\\n') and 4))"
    assert run(script) == ["exit", "4"]


def test_it_has_no_files_of_its_parent_and_nothing_to_read() -> None:
    script = """
file = open("/dev/null")
fds = os.pipe()
def live():
    names = {name: os.readlink(f"/proc/self/fd/{name}") for name in os.listdir("/proc/self/fd") if int(name) != 3}
    print(sorted(names), names["0"], flush=True)
    return 0
child = clean_fork.start(live, b"mwpy-test", environment={}, pass_fds=fds[1:])
os.waitpid(child.pid, 0)
print(fds[1])
"""
    kept, passed = run(script)
    assert kept == f"{sorted(['0', '1', '2', passed])} /dev/null"


def test_it_has_its_own_session_name_and_variables() -> None:
    script = """
def live():
    print(os.getsid(0) == os.getpid(), open("/proc/self/comm").read().strip(), os.environ["GIVEN"], flush=True)
    return 0
fork(live, GIVEN="variable")
print("GIVEN" in os.environ)
"""
    assert run(script) == ["True mwpy-test variable", "False"]


def test_it_reports_signals_and_crashes_to_no_file_of_its_parent() -> None:
    """A crash is reported to its standard error."""
    script = """
import faulthandler
faulthandler.enable(open(os.devnull, "w"))
fd = os.open(os.devnull, os.O_WRONLY | os.O_NONBLOCK)
signal.set_wakeup_fd(fd)
def live():
    print(signal.set_wakeup_fd(-1), flush=True)
    os.dup2(1, 2)
    signal.raise_signal(signal.SIGSEGV)
code = fork(live)
print(code, signal.set_wakeup_fd(-1) == fd)
"""
    lines = run(script)
    assert lines[:2] == ["-1", "Fatal Python error: Segmentation fault"]
    assert lines[-1] == "-11 True"


def test_it_has_the_signals_of_a_program_that_was_started() -> None:
    """The parent keeps its own."""
    script = """
numbers = signal.SIGTERM, signal.SIGPIPE, signal.SIGUSR1, signal.SIGHUP
signal.signal(signal.SIGTERM, print)
signal.signal(signal.SIGPIPE, signal.SIG_DFL)
signal.signal(signal.SIGHUP, signal.SIG_IGN)
def show():
    handlers = (signal.getsignal(each) for each in numbers)
    print(*(getattr(each, "name", "handler") for each in handlers), *signal.pthread_sigmask(0, ()), flush=True)
    return 0
fork(show)
show()
"""
    assert run(script) == ["SIG_DFL SIG_IGN SIG_DFL SIG_IGN", "handler SIG_DFL SIG_DFL SIG_IGN"]


def test_it_writes_to_the_streams_of_the_process_and_is_not_traced() -> None:
    """The parent may have replaced the streams, and may be traced or profiled."""
    script = """
import io
sys.stdout = io.StringIO()
sys.settrace(lambda *_: None)
sys.setprofile(lambda *_: None)
fork(lambda: print(sys.gettrace(), sys.getprofile()) or sys.stdout.flush() or 0)
"""
    assert run(script) == ["None None"]


@pytest.mark.parametrize(
    ("what", "code", "error"),
    [
        ("raise_(KeyboardInterrupt)", 255, "KeyboardInterrupt"),
        ("raise_(OSError)", 255, "OSError"),
        ("sys.exit(7)", 7, ""),
        ("sys.exit()", 0, ""),
        ("sys.exit('why')", 255, "why"),
    ],
)
def test_it_never_returns_into_the_code_of_its_parent(what: str, code: int, error: str) -> None:
    script = f"""
def raise_(kind):
    raise kind
try:
    code = fork(lambda: {what})
finally:
    print("once", flush=True)
print(code)
"""
    assert run(script, error) == ["once", str(code)]


@pytest.mark.parametrize(
    "reason",
    [
        "threading.Thread(target=threading.Event().wait, daemon=True).start()",
        "clean_fork.MOST_BYTES = 1 << 20",
        "sys.__stdout__ = None",
        "os.close(2)",
    ],
)
def test_a_process_that_should_not_be_forked_is_found(reason: str) -> None:
    """It has threads, is large, or has closed a standard stream."""
    assert run(f"before = clean_fork.is_possible()\n{reason}\nprint(before, clean_fork.is_possible())") == [
        "True False"
    ]
