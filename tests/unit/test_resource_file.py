"""Writing, reading and checking the resource file."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

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


def test_a_missing_directory_is_reported_with_the_remedy(tmp_path: Path) -> None:
    with pytest.raises(ResourceFileError, match=r"cannot write the resource file .*--mw-resource-file"):
        write(tmp_path / "missing" / "rsc", CONTENT)


def test_a_failed_replacement_leaves_nothing_beside(tmp_path: Path) -> None:
    (tmp_path / "rsc").mkdir()
    with pytest.raises(ResourceFileError):
        write(tmp_path / "rsc", CONTENT)
    assert [path.name for path in tmp_path.iterdir()] == ["rsc"]


@pytest.mark.parametrize("data", [b"", b"{", b"\xff", b"[]", b"[" * 200_000, b"null"])
def test_a_torn_file_is_an_error_of_the_resource_file(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "rsc"
    path.write_bytes(data)
    with pytest.raises(ResourceFileError, match="rsc"):
        read(path)


def test_a_missing_file_says_to_start_the_master(tmp_path: Path) -> None:
    with pytest.raises(ResourceFileError, match="start the master first"):
        read(tmp_path / "rsc")


def test_a_missing_file_is_named_with_its_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The command was perhaps typed in the wrong folder."""
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ResourceFileError, match=f"file {tmp_path}/rsc: No such file or directory; correct its name"):
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
    path = tmp_path / "rsc"
    write(path, CONTENT)
    path.write_text(json.dumps(json.loads(path.read_text()) | {key: value}))
    with pytest.raises(ResourceFileError, match="server-public" if key == "keys" else key):
        read(path)


def test_a_number_that_no_float_holds_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "rsc"
    write(path, CONTENT)
    path.write_text(json.dumps(json.loads(path.read_text()) | {"timestamp": 10**400}))
    with pytest.raises(ResourceFileError, match="has a wrong value"):
        read(path)


def test_unknown_keys_are_ignored(tmp_path: Path) -> None:
    path = tmp_path / "rsc"
    write(path, CONTENT)
    path.write_text(json.dumps(json.loads(path.read_text()) | {"later": 1}))
    assert read(path) == CONTENT


def test_a_file_without_jobs_has_none(tmp_path: Path) -> None:
    path = tmp_path / "rsc"
    write(path, CONTENT)
    document = json.loads(path.read_text())
    del document["connected-jobs"], document["excluded-hosts"], document["shortest-task"]
    path.write_text(json.dumps(document))
    assert read(path).connected_jobs == {}
    assert read(path).excluded_hosts == {}
    assert read(path).shortest_task == 0.0


def test_changes_of_jobs_are_written_soon_but_not_each_second() -> None:
    """The file changes when a job connects, leaves or becomes idle, but not when it has more or fewer busy slaves."""
    last = replace(CONTENT, update_interval=300.0, connected_jobs={"1.0": 2, "1.1": 0})
    for jobs in ({"1.0": 2}, {"1.0": 2, "1.1": 0, "1.2": 0}, {"1.0": 0, "1.1": 0}, {"1.0": 2, "1.1": 0, "1.2": 1}):
        new = replace(last, connected_jobs=jobs)
        assert not due(last, replace(new, timestamp=104.0))
        assert due(last, replace(new, timestamp=105.0))
    assert not due(last, replace(last, connected_jobs={"1.0": 1, "1.1": 0}, timestamp=399.0))


def test_when_an_idle_job_gets_work_the_file_is_written_at_once() -> None:
    """Otherwise an overseer would remove the job."""
    last = replace(CONTENT, update_interval=300.0, connected_jobs={"1.0": 2, "1.1": 0})
    assert due(last, replace(last, connected_jobs={"1.0": 2, "1.1": 1}, timestamp=100.1))


def test_when_a_host_is_excluded_the_file_is_written_at_once() -> None:
    """Its jobs may change each second, if a batch system starts them there again and again."""
    last = replace(CONTENT, update_interval=300.0, excluded_hosts={"node1": ["1.0"]})
    assert due(last, replace(last, excluded_hosts={}, timestamp=100.1))
    assert due(last, replace(last, excluded_hosts={"node1": ["1.0"], "node2": []}, timestamp=100.1))
    new = replace(last, excluded_hosts={"node1": ["1.1"]})
    assert not due(last, replace(new, timestamp=104.0))
    assert due(last, replace(new, timestamp=105.0))


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
