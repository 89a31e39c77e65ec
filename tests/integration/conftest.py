"""What many tests need: ends of the link in this process, another network, and a group that counts memory."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.integration.apps.stage import Cable, until
from tests.loopback import Loopback, loopback
from tests.memory_group import own_group


@pytest.fixture
def ends() -> Iterator[Loopback]:
    with loopback() as ends:
        yield ends


@pytest.fixture
def memory_group() -> Iterator[Path]:
    """A control group that counts the memory of its processes."""
    if (above := own_group()) is None:
        pytest.skip("this process may not make control groups")
    group = above / f"test-{os.getpid()}"
    group.mkdir()
    yield group
    until(lambda: not (group / "cgroup.procs").read_text(), "the end of all processes in the group")
    group.rmdir()


@pytest.fixture
def cable() -> Iterator[Cable]:
    if os.geteuid() != 0 or shutil.which("ip") is None:
        pytest.skip("the test needs root and ip(8): run `sudo make test-processes`")
    with Cable() as cable:
        yield cable
