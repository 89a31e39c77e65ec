"""The one wording of how a process ended."""

from __future__ import annotations

import pytest

from mwpy._values.errors import describe_exit, returncode_of_shell
from mwpy._values.jobs import End, Outcome


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


def test_a_job_whose_process_exited_was_killed_or_vanished() -> None:
    assert Outcome.of_process(4, 1.0, "x") == Outcome(End.EXITED, "exit code 4", 4, 1.0, "x")
    killed = Outcome.of_process(-10, 1.0, "x")
    assert killed == Outcome(End.KILLED, "killed by signal 10 (SIGUSR1)", None, 1.0, "x")
    vanished = Outcome.of_vanished(1.0, "x")
    assert vanished == Outcome(End.LOST, "its processes are gone without an exit code", None, 1.0, "x")
