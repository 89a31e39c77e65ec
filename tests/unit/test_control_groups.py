"""Control groups of version 2, in folders that are laid out as HTCondor and systemd lay them out."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from mwpy._system import memory, process
from mwpy._system.memory import MemoryGroup

CONTROLS = "cgroup.procs", "cgroup.subtree_control", "memory.max", "memory.swap.max", "memory.events"


class Kernel:
    """A folder with control groups. A new group gets its files."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._mkdir = os.mkdir
        self._fill(folder)

    def make(self, path: str) -> None:
        """Make a group."""
        self._mkdir(path)
        self._fill(Path(path))

    def _fill(self, group: Path) -> None:
        for name in CONTROLS:
            (group / name).touch()

    def of_this_process(self, path: str) -> Path:
        """Make the group that this process is in."""
        for above in [*reversed(Path(path).parents), Path(path)][1:]:
            self.make(f"{self.folder}{above}")
        (self.folder / "own").write_text(f"0::{path}\n")
        return Path(f"{self.folder}{path}")


@pytest.fixture
def kernel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Kernel:
    """A machine with control groups of version 2 only."""
    made = Kernel(tmp_path)
    monkeypatch.setattr(memory, "GROUPS", str(tmp_path))
    monkeypatch.setattr(memory, "OWN", str(tmp_path / "own"))
    monkeypatch.setattr(os, "mkdir", made.make)
    return made


def test_a_job_of_htcondor_limits_its_slaves_beside_its_own_group(kernel: Kernel) -> None:
    """The group above has the limits of the job, so nothing escapes them."""
    scope = kernel.of_this_process("/htcondor/slot1_1@host.slice/slot1_1@host.scope")
    group = MemoryGroup("slave")
    group.add([17])
    folder = scope.parent / "slave"
    assert (scope.parent / "cgroup.subtree_control").read_text() == "+memory"
    assert (folder / "cgroup.procs").read_text() == "17"
    for most, written in ((1 << 30, (str(1 << 30), "0")), (None, ("max", "max"))):
        for name in CONTROLS:
            (folder / name).write_text("")
        group.limit(most)
        assert ((folder / "memory.max").read_text(), (folder / "memory.swap.max").read_text()) == written


@pytest.mark.parametrize("path", ["/app.slice/run.scope", "/app.slice/app.service", "/job/step/task", "/"])
def test_elsewhere_a_group_is_made_below_the_own_one(kernel: Kernel, path: str) -> None:
    """The kernel allows this only in a group without processes, and in the root."""
    own = kernel.of_this_process(path)
    MemoryGroup("slave")
    assert (own / "slave").is_dir()


def test_without_control_groups_there_is_no_limit(kernel: Kernel) -> None:
    """Neither if there are none, nor if memory has no group. No file is made."""
    with pytest.raises(OSError, match="no control groups"):
        MemoryGroup("slave")
    own = kernel.of_this_process("/job")
    (own / "cgroup.subtree_control").unlink()
    with pytest.raises(FileNotFoundError):
        MemoryGroup("slave")
    assert not (own / "cgroup.subtree_control").exists()


def test_a_kill_at_the_limit_of_a_group_above_is_not_one_at_its_own(kernel: Kernel) -> None:
    """The kernel counts the killed processes in their own group, whichever group was full."""
    own = kernel.of_this_process("/job")
    group = MemoryGroup("slave")
    for oom, kills in ((0, 0), (1, 1)):
        (own / "slave" / "memory.events").write_text(f"low 0\nhigh 0\nmax 9\noom {oom}\noom_kill 1\noom_group_kill 0\n")
        assert group.kills == kills


def test_a_kill_in_the_group_of_the_job_is_counted(kernel: Kernel) -> None:
    own = kernel.of_this_process("/job")
    (own / "memory.events").write_text("low 0\nhigh 0\nmax 9\noom 1\noom_kill 3\noom_group_kill 1\n")
    assert process._count_kills()[0] == 3
