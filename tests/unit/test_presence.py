"""Unit tests of the watch over the files of a run database."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.integration.apps.stage import until
from tests.stored import algorithm, opened, write

from mwpy._database.presence import Presence
from mwpy._roles.run_store import RunStore
from mwpy._roles.store_watch import StoreWatch


@pytest.fixture
def path(tmp_path: Path) -> Path:
    (tmp_path / "folder").mkdir()
    return tmp_path / "folder" / "run.db"


def deleted(path: Path) -> Path:
    path.unlink()
    return path


def without_its_log(path: Path) -> Path:
    log = path.with_name("run.db-wal")
    log.unlink()
    return log


def replaced(path: Path) -> Path:
    shutil.copy(path, path.with_name("copy.db"))
    path.with_name("copy.db").replace(path)
    return path


def in_a_folder_that_was_renamed(path: Path) -> Path:
    path.parent.rename(path.parent.with_name("renamed"))
    return path


@pytest.mark.parametrize("change", [deleted, without_its_log, replaced, in_a_folder_that_was_renamed])
def test_a_file_that_is_not_where_it_was_is_named(path: Path, change: Callable[[Path], Path]) -> None:
    writer = opened(path)
    write(writer, algorithm())
    presence = Presence(path)
    presence.look()
    found = [presence.missing]
    missing = change(path)
    presence.look()
    found.append(presence.missing)
    assert found == [None, missing]
    writer.close()


def test_the_user_learns_once_that_the_run_database_was_deleted(path: Path) -> None:
    writer = opened(path)
    notices: list[str] = []
    watch = StoreWatch(RunStore(path, lambda _: writer), notices.append)
    assert not watch.look()
    assert notices == []
    path.unlink()
    until(lambda: writer.missing() is not None, "the second thread of the writer to look")
    for _ in range(2):
        assert not watch.look()
    [notice] = notices
    assert notice.startswith(f"{path} was deleted, renamed or replaced while the master uses it. The master goes on")
    writer.close()
