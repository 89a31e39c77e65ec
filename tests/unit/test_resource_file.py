"""The resource file: its content, when it is written, who may write it, and what happens if others change it."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from mwpy import resource_file
from mwpy._roles.network import NOTICE_S, ResourceKeeper
from mwpy._system import clock, locks
from mwpy._values.errors import ResourceFileError
from mwpy.resource_file import (
    FINISHED,
    IN_PROGRESS,
    MemberKeys,
    ResourceFile,
    due,
    is_stale,
    overseer_of,
    read,
    replace_file,
    write,
)

KEYS = MemberKeys("a" * 40, "b" * 40, "c" * 40)
CONTENT = ResourceFile(
    IN_PROGRESS, 100.0, 10.0, "m", "g", ("tcp://h:1", "tcp://[::1]:2"), KEYS, 20, 10, 10, "/x", ("--mw-slave",)
)


def changed(path: Path, **changes: object) -> Path:
    """Write a file in which some keys have other values, or are missing."""
    write(path, CONTENT)
    document = json.loads(path.read_text()) | {key.replace("_", "-"): value for key, value in changes.items()}
    path.write_text(json.dumps({key: value for key, value in document.items() if value is not MISSING}))
    return path


MISSING = object()


def test_a_written_file_is_read_is_private_and_has_nothing_beside_it(tmp_path: Path) -> None:
    path = tmp_path / "rsc"
    path.write_text("old")
    content = replace(
        CONTENT,
        shortest_task=2.5,
        connected_jobs={"17.3": 2, "17.4": 0},
        excluded_hosts={"node1": ["17.3"], "node2": []},
    )
    write(path, content)
    assert read(path) == content
    assert path.stat().st_mode & 0o777 == 0o600
    assert list(tmp_path.iterdir()) == [path]


def test_a_file_that_cannot_be_written_is_reported_with_the_remedy_and_leaves_nothing_beside(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    for path in (tmp_path / "missing" / "rsc", tmp_path / "folder"):
        with pytest.raises(ResourceFileError, match=r"cannot write the resource file .*--mw-resource-file"):
            write(path, CONTENT)
    assert [path.name for path in tmp_path.iterdir()] == ["folder"]


@pytest.mark.parametrize("data", [b"", b"{", b"\xff", b"[]", b"[" * 200_000, b"null"])
def test_a_torn_file_is_an_error_of_the_resource_file(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "rsc"
    path.write_bytes(data)
    with pytest.raises(ResourceFileError, match="rsc"):
        read(path)


def test_a_missing_file_is_named_with_its_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The command was perhaps typed in the wrong folder, or before the master was started."""
    monkeypatch.chdir(tmp_path)
    with pytest.raises(
        ResourceFileError, match=f"{tmp_path}/rsc: No such file .* correct its name, or start the master"
    ):
        read("rsc")


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("format", "other"),
        ("version", 2),
        ("version", True),
        ("computation-status", "odd"),
        ("timestamp", "now"),
        ("update-interval", None),
        ("master-addresses", ["h:1"]),
        ("master-addresses", ["tcp://h:65536"]),
        ("master-addresses", [1]),
        ("keys", {}),
        ("keys", {"server-public": "short", "member-public": "b" * 40, "member-secret": "c" * 40}),
        ("slaves-needed", 1.5),
        ("client-timeout", 0),
        ("connected-jobs", []),
        ("connected-jobs", {"17.3": True}),
        ("excluded-hosts", ["node1"]),
        ("excluded-hosts", {"node1": "17.3"}),
        ("excluded-hosts", {"node1": [17.3]}),
    ],
)
def test_a_wrong_value_is_reported_with_its_key(tmp_path: Path, key: str, value: Any) -> None:
    with pytest.raises(ResourceFileError, match="server-public" if key == "keys" else key):
        read(changed(tmp_path / "rsc", **{key: value}))


def test_a_number_that_no_float_holds_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ResourceFileError, match="has a wrong value"):
        read(changed(tmp_path / "rsc", timestamp=10**400))


def test_unknown_keys_are_ignored_and_a_file_without_jobs_has_none(tmp_path: Path) -> None:
    missing = {"connected-jobs": MISSING, "excluded-hosts": MISSING, "shortest-task": MISSING}
    assert read(changed(tmp_path / "rsc", later=1, **missing)) == CONTENT


WITH_JOBS = replace(CONTENT, update_interval=300.0, connected_jobs={"1.0": 2, "1.1": 0}, excluded_hosts={"n": ["1.0"]})


@pytest.mark.parametrize(
    ("change", "due_s"),
    [
        ({"connected_jobs": {"1.0": 2}}, 5.0),
        ({"connected_jobs": {"1.0": 2, "1.1": 0, "1.2": 0}}, 5.0),
        ({"connected_jobs": {"1.0": 0, "1.1": 0}}, 5.0),
        ({"connected_jobs": {"1.0": 2, "1.1": 0, "1.2": 1}}, 5.0),
        ({"connected_jobs": {"1.0": 1, "1.1": 0}}, 300.0),
        ({"connected_jobs": {"1.0": 2, "1.1": 1}}, 0.0),
        ({"excluded_hosts": {}}, 0.0),
        ({"excluded_hosts": {"n": ["1.0"], "m": []}}, 0.0),
        ({"excluded_hosts": {"n": ["1.1"]}}, 5.0),
    ],
)
def test_changes_of_jobs_and_hosts_are_written_soon_but_not_each_second(change: dict[str, Any], due_s: float) -> None:
    """When a job connects, leaves or becomes idle, but not when it has more or fewer busy slaves. At once when an idle
    job got work, which an overseer would remove, and when a host is excluded: not when its jobs change, because a batch
    system may start them there again and again."""
    new = replace(WITH_JOBS, **change)
    assert due(WITH_JOBS, replace(new, timestamp=100.0 + due_s + 0.1))
    assert not due_s or not due(WITH_JOBS, replace(new, timestamp=99.9 + due_s))


def test_a_file_is_stale_after_three_missed_updates() -> None:
    assert not is_stale(CONTENT, 130.0)
    assert is_stale(CONTENT, 130.5)


@pytest.mark.parametrize(
    ("change", "is_due"),
    [
        ({"timestamp": 109.0}, False),
        ({"timestamp": 110.0}, True),
        ({"timestamp": 99.0}, True),
        ({"slaves_needed": 11}, False),
        ({"slaves_needed": 12}, True),
        ({"computation_status": FINISHED}, True),
    ],
)
def test_a_file_is_due_at_its_interval_or_a_large_change(change: dict[str, Any], is_due: bool) -> None:
    assert due(CONTENT, replace(CONTENT, **change)) is is_due
    assert due(None, CONTENT)


def test_an_interrupt_just_after_the_replacement_stays_an_interrupt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file beside it does not exist any more then. Its absence must not hide the interrupt."""
    really = os.replace

    def interrupted(old: str, new: Path) -> None:
        really(old, new)
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "replace", interrupted)
    with pytest.raises(KeyboardInterrupt):
        replace_file(tmp_path / "app.rsc", b"content")
    assert [path.name for path in tmp_path.iterdir()] == ["app.rsc"]


@pytest.mark.parametrize("content", [None, "", "[]", "{}", '{"messages": 1}', "\\xff"])
def test_a_damaged_file_of_an_overseer_is_as_none(tmp_path: Path, content: str | None) -> None:
    folder = tmp_path / "app.rsc.jobs"
    folder.mkdir()
    if content is not None:
        (folder / "overseer.json").write_text(content, encoding="latin-1")
    assert overseer_of(tmp_path / "app.rsc") is None
    (folder / "overseer.json").write_text('{"messages": ["submits 1 job"]}')
    found = overseer_of(tmp_path / "app.rsc")
    assert found is not None
    assert found["messages"] == ["submits 1 job"]


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


@pytest.mark.parametrize("has_locks", [True, False])
def test_the_older_of_two_masters_yields(path: Path, has_locks: bool, request: pytest.FixtureRequest) -> None:
    """They run on two hosts, and the file system locks only within a host, or not at all. The lock file of the other
    one stays."""
    if not has_locks:
        request.getfixturevalue("no_locks")
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
    def test_a_fresh_file_is_a_sign_of_another_master(self, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        now = clock.wall()
        monkeypatch.setattr(clock, "wall", lambda: now)
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

    @pytest.mark.parametrize("other", ["f-1", "?"])
    def test_the_newer_of_two_masters_restores_its_file(self, path: Path, other: str) -> None:
        keeper = ResourceKeeper(path, content("10-1"))
        resource_file.write(path, content(other))
        (notices,) = offered(keeper, content("10-1"))
        assert "it is restored" in notices
        assert resource_file.read(path).generation == "10-1"
