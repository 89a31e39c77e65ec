"""The resource file of one master: who may write it, and what happens to a file that others changed."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest
from msgspec.structs import replace

from mwpy import resource_file
from mwpy._roles.network import NOTICE_S, ResourceKeeper
from mwpy._system import clock, locks
from mwpy._values.errors import ResourceFileError
from mwpy.resource_file import FINISHED, IN_PROGRESS, MemberKeys, ResourceFile

KEYS = MemberKeys("a" * 40, "b" * 40, "c" * 40)


def content(generation: str = "10-1", age_s: float = 0.0) -> ResourceFile:
    at = clock.wall() - age_s
    return ResourceFile(IN_PROGRESS, at, 10.0, "m", generation, ("tcp://h:1",), KEYS, 0, 0, 0, "/x", ())


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "app.rsc"


@pytest.fixture
def no_locks(monkeypatch: pytest.MonkeyPatch) -> None:
    """No file system of this machine lacks locks, so the answer of such a file system is imitated."""

    def refuse(*_: object) -> None:
        raise OSError(locks.UNSUPPORTED[0], "No locks available")

    monkeypatch.setattr("fcntl.lockf", refuse)


def offered(keeper: ResourceKeeper, *contents: ResourceFile) -> list[str]:
    """Offer contents, one after the other, and close. Return what the user is notices."""
    notices: list[str] = []
    for each in contents:
        notices += keeper.offer(each, clock.monotonic())
    return notices + keeper.close(contents[-1])


def test_a_file_that_is_deleted_the_moment_it_was_written_is_restored(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = resource_file.write

    def write_in_vain(path: Path, content: ResourceFile) -> None:
        write(path, content)
        path.unlink()

    monkeypatch.setattr(resource_file, "write", write_in_vain)
    keeper = ResourceKeeper(path, content())
    monkeypatch.setattr(resource_file, "write", write)
    assert offered(keeper, content()) == []
    assert path.exists()


def test_a_lock_that_is_a_symbolic_link_is_refused(path: Path) -> None:
    """The link may be another user's, and lead to a file that only this user can write."""
    precious = path.with_name("precious")
    precious.write_text("text")
    for target in (precious, path.with_name("missing")):
        path.with_name(".app.rsc.lock").symlink_to(target)
        with pytest.raises(ResourceFileError, match=r"/\.app\.rsc\.lock is a symbolic link, so delete it"):
            ResourceKeeper(path, content())
        path.with_name(".app.rsc.lock").unlink()
    assert [each.name for each in path.parent.iterdir()] == ["precious"]
    assert precious.read_text() == "text"


def test_a_device_or_a_pipe_is_not_replaced(path: Path) -> None:
    os.mkfifo(path)
    path.with_name("link").symlink_to(path)
    for each in (path, path.with_name("link"), path.parent):
        with pytest.raises(ResourceFileError, match="is no regular file: give another --mw-resource-file"):
            ResourceKeeper(each, content())
    assert path.is_fifo()


def test_a_second_master_in_the_same_process_is_refused_and_leaves_the_lock_in_place(path: Path) -> None:
    """A POSIX lock refuses only other processes, and ends when its process closes the file anywhere."""
    first = ResourceKeeper(path, content())
    for _ in range(2):
        with pytest.raises(ResourceFileError, match=r"belongs to another master \(process \d+ on .*, which runs since"):
            ResourceKeeper(path, content("11-1"))
    assert offered(first, first.template) == []


def test_a_directory_that_cannot_be_written_is_reported_at_the_start(tmp_path: Path) -> None:
    with pytest.raises(ResourceFileError, match=r"beside the resource file .*--mw-resource-file"):
        ResourceKeeper(tmp_path / "missing" / "app.rsc", content())


def test_a_file_of_another_master_is_replaced_by_the_master_that_has_the_lock(path: Path, tmp_path: Path) -> None:
    """For example, somebody copied an old file to its place."""
    keeper = ResourceKeeper(path, content())
    resource_file.write(tmp_path / "old.rsc", replace(content("20-2"), computation_status=FINISHED))
    shutil.copy(tmp_path / "old.rsc", path)
    (notices,) = offered(keeper, keeper.template)
    assert "another process wrote to the resource file" in notices
    assert resource_file.read(path) == keeper.template


def test_the_older_of_two_masters_yields_if_both_have_the_lock(path: Path) -> None:
    """They run on two hosts, and the file system locks only within a host. The lock file of the other one stays."""
    keeper = ResourceKeeper(path, content("10-1"))
    lock = path.with_name(".app.rsc.lock")
    lock.write_text("process 2 on another host\n")
    resource_file.write(path, content("20-2"))
    (notices,) = offered(keeper, content("10-1"), content("10-1", age_s=-100.0))
    assert "another master, of generation 20-2, took the resource file" in notices
    assert resource_file.read(path).generation == "20-2"
    assert lock.read_text() == "process 2 on another host\n"


def test_a_file_that_cannot_be_written_is_reported_after_a_minute_and_at_the_end(path: Path) -> None:
    keeper = ResourceKeeper(path, content())
    shutil.rmtree(path.parent)
    now = clock.monotonic()
    notices = keeper.offer(keeper.template, now)
    assert notices == []
    while "cannot write the resource file" not in "".join(notices):  # the other thread may need some of these minutes
        now += NOTICE_S + 1.0
        notices = keeper.offer(keeper.template, now)
    assert keeper.close(keeper.template) == notices


@pytest.mark.usefixtures("no_locks")
class TestWithoutLocks:
    def test_a_fresh_file_is_a_sign_of_another_master(self, path: Path) -> None:
        resource_file.write(path, content("20-2", age_s=5.0))
        with pytest.raises(ResourceFileError, match=r"5 s ago by a master of generation 20-2: if that master is dead"):
            ResourceKeeper(path, content())

    @pytest.mark.parametrize(
        "old", [content("20-2", age_s=50.0), replace(content("20-2"), computation_status=FINISHED)], ids=lambda _: "old"
    )
    def test_an_old_or_finished_file_is_replaced(self, path: Path, old: ResourceFile) -> None:
        resource_file.write(path, old)
        offered(ResourceKeeper(path, content()), content())
        assert resource_file.read(path).generation == "10-1"

    def test_the_older_of_two_masters_yields(self, path: Path) -> None:
        """It was suspended, and another one was started meanwhile."""
        keeper = ResourceKeeper(path, content("10-1"))
        resource_file.write(path, content("20-2"))
        (notices,) = offered(keeper, content("10-1"), content("10-1", age_s=-100.0))
        assert "another master, of generation 20-2, took the resource file" in notices
        assert resource_file.read(path).generation == "20-2"

    @pytest.mark.parametrize("other", ["f-1", "?"])
    def test_the_newer_of_two_masters_restores_its_file(self, path: Path, other: str) -> None:
        keeper = ResourceKeeper(path, content("10-1"))
        resource_file.write(path, content(other))
        (notices,) = offered(keeper, content("10-1"))
        assert "it is restored" in notices
        assert resource_file.read(path).generation == "10-1"
