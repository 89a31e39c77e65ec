"""Tests run the same in the background of a shell: what they start has default handling of signals."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

INHERITED = "SigBlk:\t0000000000000000\nSigIgn:\t0000000000000000\n"
"""No signal is blocked or ignored."""


def test_a_process_that_a_test_starts_ignores_no_signal() -> None:
    done = subprocess.run(
        ["grep", "-E", "SigBlk|SigIgn", "/proc/self/status"], capture_output=True, text=True, check=False
    )
    assert done.stdout == INHERITED


def test_so_it_is_when_the_tests_themselves_were_started_with_signals_ignored() -> None:
    """As by `make test &` in a script, under nohup."""
    name = test_a_process_that_a_test_starts_ignores_no_signal.__name__
    again = [sys.executable, "-m", "pytest", "-q", f"{__file__}::{name}"]
    ignoring = ["sh", "-c", 'trap "" INT QUIT HUP TERM; exec "$@"', "sh"]
    done = subprocess.run(
        [*ignoring, *again], cwd=Path(__file__).parent.parent, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "1 passed" in done.stdout
