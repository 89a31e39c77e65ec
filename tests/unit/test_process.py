"""Child processes: watched children and short commands."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest

from mwpy._system.memory import resident_bytes, used_by
from mwpy._system.process import UNKNOWN, Child, TimedOut, run, start


def python(code: str, **options: object) -> Child:
    return start([sys.executable, "-c", code], **options)  # type: ignore[arg-type]


def wait(child: Child) -> int:
    """Wait for the end of a child and return it. If the child does not end, the test exceeds its time limit."""
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


def test_a_python_process_that_is_aborted_writes_where_it_is() -> None:
    """It needs the fault handler. A child that has ended cannot be aborted, and this is no error."""
    script = "import signal\ndef here():\n    print(flush=True)\n    signal.pause()\nhere()"
    child = python(script, environment={"PYTHONFAULTHANDLER": "1"}, keep_output=True)
    select.select([child.outputs[1]], [], [])
    child.abort()
    assert b" in here" in read_all(child.outputs[2])
    assert wait(child) == -signal.SIGABRT
    child.abort()


def test_a_child_leads_its_own_session_and_inherits_only_what_is_passed_to_it() -> None:
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
def test_processes_that_a_child_forked_end_with_it(by_force: bool) -> None:
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


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux names the descendants of a process")
def test_processes_in_sessions_of_their_own_end_with_a_child_that_is_killed() -> None:
    reading, writing = os.pipe()
    code = f"""
        import os, signal
        for _ in range(3):
            if os.fork(): signal.pause()
            os.setsid()
        os.write({writing}, b'forked')
        signal.pause()"""
    child = python(textwrap.dedent(code), pass_fds=[writing])
    os.close(writing)
    assert os.read(reading, 6) == b"forked"
    child.kill()
    assert wait(child) == -signal.SIGKILL
    assert read_all(reading) == b""
    os.close(reading)


def test_a_detached_child_leaves_what_it_forked_running() -> None:
    """A job outlives the shell that started it."""
    reading, writing = os.pipe()
    code = f"import os, signal\nif os.fork() == 0: signal.pause()\nos.write({writing}, b'forked')"
    child = python(code, pass_fds=[writing], detached=True)
    os.close(writing)
    assert os.read(reading, 6) == b"forked"
    assert wait(child) == 0
    assert select.select([reading], [], [], 0)[0] == []
    os.killpg(child.pid, signal.SIGKILL)
    assert read_all(reading) == b""
    os.close(reading)


def test_a_child_that_other_code_has_waited_for_has_ended() -> None:
    """The master algorithm may call `os.wait()`, and so take the end of the agent from the thread that watches it."""
    child = python("")
    os.waitpid(child.pid, 0)
    assert (child.poll(), child.describe_exit()) == (UNKNOWN, "exit code 255")


@pytest.mark.parametrize("end", [Child.kill, Child.abort, Child.terminate])
def test_a_number_that_may_be_that_of_another_process_gets_no_signal(
    end: Callable[[Child], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The child has ended, and other code has waited for it, so the kernel may give its number to another process."""
    child = python("")
    os.waitpid(child.pid, 0)
    signalled: list[int] = []
    monkeypatch.setattr(os, "kill", lambda pid, number: signalled.append(pid))
    monkeypatch.setattr(os, "killpg", lambda pid, number: signalled.append(pid))
    end(child)
    assert signalled == []


def test_a_program_that_does_not_exist_is_an_error() -> None:
    for begin in (start, lambda command: run(command, timeout_s=1.0)):
        with pytest.raises(FileNotFoundError):
            begin(["/nowhere/python"])


def test_a_command_is_run_to_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """The command reads its input. Its environment is that of this process, with some variables set or removed."""
    monkeypatch.setenv("OLD", "old")
    code = "import os, sys; print(sys.stdin.read(), *map(os.environ.get, ['NEW', 'OLD'])); sys.exit(' a\\n\\nb\\n b')"
    environment = {"NEW": "new", "OLD": None}
    ran = run([sys.executable, "-c", code], timeout_s=60.0, standard_input=b"input", environment=environment)
    assert (ran.returncode, ran.end, ran.out) == (1, "exit code 1", "input new None\n")
    assert (ran.complaint, ran.last_complaint) == ("a; b", "b")
    assert run(["false"], timeout_s=60.0).complaint == "nothing (exit code 1)"


def test_a_command_that_takes_too_long_is_killed_with_all_that_it_forked() -> None:
    """The error contains what the command had written to standard error."""
    code = "echo started >&2; sleep 600 & sleep 600"
    with pytest.raises(TimedOut, match="no answer within 1 s") as caught:
        run(["sh", "-c", code], timeout_s=1.0)
    assert caught.value.err == "started\n"


def test_an_interrupt_during_a_command_is_not_lost() -> None:
    """This also holds if the command ends at the same moment, before it can be killed."""

    def interrupt(_number: int, _frame: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        for rest in ("", "; sleep 600"):
            with pytest.raises(KeyboardInterrupt):
                run(["sh", "-c", f"cat; kill -TERM $PPID{rest}"], timeout_s=60.0, standard_input=b"input")
    finally:
        signal.signal(signal.SIGTERM, before)


def test_the_memory_of_a_child_and_of_what_it_has_started_is_measured() -> None:
    """Up to a bound, a rough number is enough. A child that has ended uses nothing."""
    uses = f"kept = b'x' * {100 << 20}; print(len(kept), flush=True); import signal; signal.pause()"
    child = python(f"import subprocess, sys; subprocess.run([sys.executable, '-c', {uses!r}])", keep_output=True)
    select.select([child.outputs[1]], [], [])
    rough, exact = child.used_memory(1 << 40), child.used_memory(0)
    assert 100 << 20 <= exact <= rough < 200 << 20
    child.kill()
    assert wait(child) == -signal.SIGKILL
    assert child.used_memory(0) == 0


def test_shared_memory_counts_once_and_mapped_files_do_not_count(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(bytes(100 << 20))
    code = (
        "import mmap, os, signal, sys\n"
        "file = open(sys.argv[1], 'r+b')\n"
        "mapped, shared = mmap.mmap(file.fileno(), 0), mmap.mmap(-1, 50 << 20)\n"
        "shared.write(bytes(50 << 20))\n"
        "read = mapped.find(b'x'), os.fork(), shared.find(b'x')\n"
        "print('.', end='', flush=True)\n"
        "signal.pause()\n"
    )
    child = start([sys.executable, "-c", code, str(tmp_path / "file")], keep_output=True)
    os.set_blocking(child.outputs[1], True)
    assert os.read(child.outputs[1], 1) + os.read(child.outputs[1], 1) == b".."
    assert 50 << 20 <= child.used_memory(0) < 100 << 20
    child.kill()
    wait(child)


def test_a_child_over_its_limit_of_memory_is_killed_by_the_kernel() -> None:
    """If this process cannot make a control group, nothing happens. The group is removed with the child."""
    reading, writing = os.pipe()
    child = python(f"import os; os.read({reading}, 1); kept = b'x' * {300 << 20}", pass_fds=[reading])
    for limit in (100 << 20, None, 200 << 20):
        child.limit_memory(limit)
    folders = Path("/sys/fs/cgroup").glob(f"**/mwpy-{os.getpid()}-{child.pid}")
    group = next(folders, None)
    limited = group is not None
    os.write(writing, b"x")
    code = wait(child)
    assert code == (-signal.SIGKILL if limited else 0)
    assert ("at its own limit" in child.describe_exit()) == limited == bool(child.limit_kills)
    assert child.out_of_memory or not limited
    assert group is None or not group.exists()
    os.close(reading)
    os.close(writing)


MEGABYTE = 1 << 20

FORKING = """
import os, signal
shared = bytearray(b"x") * (200 << 20)
if os.fork():
    os.wait()
own = bytearray(b"y") * (50 << 20)
os.write(1, f"{os.getpid()}\\n".encode())
signal.pause()
"""


def test_the_memory_of_this_process_grows_with_what_it_holds() -> None:
    before = resident_bytes()
    held = b"x" * (200 << 20)
    grown = resident_bytes() - before
    assert len(held) * 0.9 < grown < len(held) * 1.5


def test_pages_that_a_fork_shares_do_not_count_for_it_alone() -> None:
    """Together, the two processes have them once."""
    with subprocess.Popen([sys.executable, "-c", FORKING], stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            fork = int(process.stdout.readline())
            assert used_by(fork, 1 << 40) > 250 * MEGABYTE, "the rough number has everything"
            assert 50 * MEGABYTE < used_by(fork, 0) < 90 * MEGABYTE
            assert 250 * MEGABYTE < used_by(process.pid, 0) < 300 * MEGABYTE
        finally:
            os.kill(fork, 9)
            process.kill()
