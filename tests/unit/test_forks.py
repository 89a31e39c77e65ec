"""Forks that another process adopts. Each test runs in processes of its own."""

from __future__ import annotations

import subprocess
import sys

import pytest

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="orphans are adopted only on Linux")

ADOPTING = """
import os, sys
from mwpy._system import forks

forks.adopt_orphans()
template = os.fork()
if not template:
    pid = forks.fork_orphan()
    if not pid:
        os.write(1, f"{os.getppid()} {os.getsid(0) == os.getpid()}\\n".encode())
        os._exit(7)
    os.write(1, f"forked\\n".encode())
    os._exit(0)
os.waitpid(template, 0)
"""


def run(script: str, *arguments: str, **variables: str) -> list[str]:
    """Run a script. Return the lines of its output."""
    command = [sys.executable, "-c", script, *arguments]
    ended = subprocess.run(command, capture_output=True, text=True, env={**variables}, timeout=60, check=False)
    assert (ended.returncode, ended.stderr) == (0, "")
    return ended.stdout.splitlines()


def test_an_orphan_has_its_own_session_and_the_adopting_process_learns_how_it_ended() -> None:
    lines = run(f"{ADOPTING}\npid, status = os.waitpid(-1, 0)\nprint(os.getpid(), os.waitstatus_to_exitcode(status))")
    own, code = lines[-1].split()
    assert code == "7"
    assert sorted(lines[:-1]) == [f"{own} True", "forked"]


def test_the_end_of_a_known_child_is_left_to_the_process_that_watches_it() -> None:
    """All others are forgotten."""
    forked = "\n".join(
        (
            "children = [os.fork() or os._exit(3) for _ in range(2)]",
            "for pid in children: os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)",
            "forks.reap_orphans(children)",
            "print(os.waitstatus_to_exitcode(os.waitpid(children[0], 0)[1]))",
            "forks.reap_orphans([])",
            "forks.reap_orphans([])",
            "print(forks.count_children())",
        )
    )
    assert run(f"import os\nfrom mwpy._system import forks\n{forked}") == ["3", "0"]


def test_a_fork_that_is_not_possible_says_why() -> None:
    """Only root may fork beyond the limit of processes, and only the second fork fails here."""
    failing = "\n".join(
        (
            "own, fork = os.getpid(), os.fork",
            "def no_second():",
            "    if os.getpid() != own: raise BlockingIOError(11, 'no')",
            "    return fork()",
            "os.fork = no_second",
            "try: forks.fork_orphan()",
            "except OSError as error: print(error)",
        )
    )
    assert run(f"import os\nfrom mwpy._system import forks\n{failing}") == [
        "[Errno 11] Resource temporarily unavailable"
    ]


def test_what_waits_in_buffers_is_written_once() -> None:
    script = "\n".join(
        (
            "import ctypes, os, sys",
            "from mwpy._system import forks",
            "print('from Python', end='')",
            "ctypes.CDLL(None).printf(b'from C ')",
            "forks.flush()",
            "if not os.fork(): sys.exit()",
            "os.wait()",
        )
    )
    [line] = run(script)
    assert sorted(line.replace("from Python", "P").replace("from C ", "C")) == ["C", "P"]
