"""The limit of open files, in a process of its own, because the limit belongs to the process."""

from __future__ import annotations

import os
import resource
import subprocess
import sys

import pytest

from mwpy._system import process

RAISE = """if 1:
    import resource, sys
    from mwpy._system import process
    resource.setrlimit(resource.RLIMIT_NOFILE, (int(sys.argv[1]), int(sys.argv[2])))
    print(process.raise_limit(), *resource.getrlimit(resource.RLIMIT_NOFILE))
"""


@pytest.mark.parametrize(("soft", "hard", "raised"), [(64, 200, 200), (64, 64, 64), (100, 10_000, 10_000)])
def test_the_soft_limit_is_raised_to_the_hard_limit(soft: int, hard: int, raised: int) -> None:
    """A limit that is not lower than the hard limit stays as it is."""
    ran = subprocess.run(
        [sys.executable, "-c", RAISE, str(soft), str(hard)], capture_output=True, text=True, check=True
    )
    assert [int(number) for number in ran.stdout.split()] == [raised, raised, hard]


@pytest.mark.parametrize(
    ("limits", "raised"),
    [
        ((1024, resource.RLIM_INFINITY), process.ENOUGH),
        ((1024, 1 << 30), process.ENOUGH),
        ((1 << 20, 1 << 20), 1 << 20),
        ((resource.RLIM_INFINITY, resource.RLIM_INFINITY), process.ENOUGH),
    ],
)
def test_a_very_high_limit_is_not_used_up(
    limits: tuple[int, int], raised: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Programs that close every file that they may have would take minutes."""
    monkeypatch.setattr(resource, "getrlimit", lambda _: limits)
    given: list[tuple[int, int]] = []
    monkeypatch.setattr(resource, "setrlimit", lambda _, new: given.append(new))
    assert process.raise_limit() == raised
    assert given in ([], [(process.ENOUGH, limits[1])])


def test_a_limit_that_the_system_does_not_raise_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise ValueError("not allowed to raise maximum limit")

    monkeypatch.setattr(resource, "getrlimit", lambda _: (256, 1024))
    monkeypatch.setattr(resource, "setrlimit", refuse)
    assert process.raise_limit() == 256


def test_open_files_are_counted() -> None:
    before = process.count_open()
    opened = [os.open(os.devnull, os.O_RDONLY) for _ in range(5)]
    assert process.count_open() == before + 5
    for descriptor in opened:
        os.close(descriptor)
