"""Large values beside a run database that are missing or damaged."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.stored import algorithm, opened, received, submitted, write

from mwpy._database import rows
from mwpy._database.rows import LARGE_BYTES
from mwpy._database.store import Writer
from mwpy._values.earlier import EarlierAnswers
from mwpy._values.errors import RunDatabaseError
from mwpy._values.groups import entries

LARGE = "x" * LARGE_BYTES


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A run database with a large value and a small one."""
    path = tmp_path / "run.db"
    writer = opened(path)
    write(writer, algorithm(), submitted(1, 2), received({1: LARGE}), received({2: 4}))
    writer.close()
    return path


def file_of(path: Path) -> Path:
    """The file with the large value."""
    [file] = path.with_name("run.db.values").iterdir()
    return file


def answers(writer: Writer) -> list[EarlierAnswers]:
    return [each for each in writer.stored.earlier() if isinstance(each, EarlierAnswers)]


def missing(file: Path) -> None:
    file.unlink()


def cut_off(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-1])


def changed(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-1] + b"y")


def unreadable(file: Path) -> None:
    file.unlink()
    file.mkdir()


@pytest.mark.parametrize("damage", [missing, cut_off, changed, unreadable])
def test_an_answer_without_its_large_value_is_no_answer(path: Path, damage: object) -> None:
    """Its task runs again. Its value is written again, although it has the same name."""
    file = file_of(path)
    assert callable(damage)
    damage(file)
    writer = opened(path)
    assert [each.results.tasks for each in answers(writer)] == [[2]]
    assert writer.stored.lost == [str(file)]
    write(writer, algorithm(), submitted(1, 1), received({1: LARGE}))
    writer.close()
    writer = opened(path)
    found = answers(writer)
    assert [each.results.tasks for each in found] == [[1], [2], [1]]
    assert [entries(*writer.stored.frames(each.row))[0] for each in found] == [[LARGE], [4], [LARGE]]
    assert not writer.stored.lost
    writer.close()


def test_a_value_of_another_size_is_noticed_although_only_the_newest_files_are_read(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = file_of(path)
    cut_off(file)
    monkeypatch.setattr(rows, "CHECKED_BYTES", -1)
    writer = opened(path)
    assert [each.results.tasks for each in answers(writer)] == [[2]]
    assert writer.stored.lost == [str(file)]
    assert not file.exists()
    writer.close()


def test_a_value_that_is_found_damaged_later_does_not_count_at_the_next_start(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only the newest files are read at a start."""
    file = file_of(path)
    changed(file)
    writer = opened(path)
    write(writer, algorithm(), submitted(1, 1), received({1: "newer" + LARGE}))
    monkeypatch.setattr(rows, "CHECKED_BYTES", 10)
    [old, _] = answers(writer)
    assert not writer.stored.lost
    with pytest.raises(RunDatabaseError, match=f"damaged: {file}. Start again, and its tasks run again"):
        writer.stored.frames(old.row)
    writer.close()
    writer = opened(path)
    assert [each.results.tasks for each in answers(writer)] == [[2], [1]]
    assert writer.stored.lost == [str(file)]
    writer.close()


def test_a_value_that_disappears_while_the_master_runs_is_named(path: Path) -> None:
    writer = opened(path)
    [answer, _] = answers(writer)
    file = file_of(path)
    file.unlink()
    with pytest.raises(RunDatabaseError, match=f"missing: {file}. Put it back; or start again"):
        writer.stored.frames(answer.row)
    writer.close()
