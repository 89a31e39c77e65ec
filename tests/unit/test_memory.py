"""The memory of this process."""

from __future__ import annotations

import os
import subprocess
import sys

from mwpy._system.memory import resident_bytes, used_by

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
