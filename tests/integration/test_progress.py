"""The progress of real computations, on a terminal, in a pipe and in a log file."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.integration.apps.stage import PATIENCE_S, SOURCES
from tests.screen import Screen

MAP = """
import logging
import mwpy

def double(number):
    print("task", number)
    return 2 * number

with mwpy.local_master(slaves=2) as mw:
    for value in mw.map(double, range(20), progress=True):
        print("value", value)
        if value == 10:
            logging.warning("ten")
"""


def on_terminal(script: Path, *arguments: str) -> str:
    """Run a script on a terminal. Return everything that was written there."""
    terminal, side = os.openpty()
    environment = os.environ | {"PYTHONPATH": str(SOURCES), "TERM": "xterm"}
    process = subprocess.Popen(
        [sys.executable, str(script), *arguments], env=environment, stdin=side, stdout=side, stderr=side
    )
    os.close(side)
    written = b""
    try:
        while chunk := os.read(terminal, 65536):
            written += chunk
    except OSError:  # the last process has closed it
        pass
    finally:
        os.close(terminal)
        if process.poll() is None:
            process.wait(PATIENCE_S)
    assert process.returncode == 0, written.decode()
    return written.decode()


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "computation.py"
    path.write_text(MAP)
    return path


def test_prints_of_tasks_and_of_the_master_do_not_break_the_line(script: Path) -> None:
    """Each of them is a line of its own. The last line has the last figures. The width of this terminal is 0."""
    written = on_terminal(script)
    *lines, last = Screen().feed(written).lines
    expected = [*(f"task {x}" for x in range(20)), *(f"value {2 * x}" for x in range(20)), "WARNING:root:ten"]
    assert sorted(lines) == sorted(expected), written
    assert last.startswith("mwpy: double: 100%|"), written
    assert "| 20/20 [" in last
    assert "2 slaves" in last


def test_a_pipe_gets_nothing(script: Path) -> None:
    environment = os.environ | {"PYTHONPATH": str(SOURCES)}
    done = subprocess.run([sys.executable, str(script)], env=environment, capture_output=True, text=True, check=True)
    assert "double" not in done.stderr
