"""A run database that was damaged, or whose first page is torn, opens again."""

from __future__ import annotations

import os
import shutil
import signal
import sqlite3
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
from tests.stored import Failures, algorithm, opened, received, submitted, write

from mwpy._core.master.core import MasterCore
from mwpy._core.master.state import MasterSettings
from mwpy._database import value_files
from mwpy._database.first_page import PAGE_BYTES
from mwpy._database.prune import prune
from mwpy._database.writer import Writer
from mwpy._roles.run_store import RunStore
from mwpy._values import records
from mwpy._values.earlier import EarlierAnswers
from mwpy._values.errors import RunDatabaseError
from mwpy._values.groups import entries
from mwpy._values.options import Options
from mwpy.run_database import RunDatabase

STEPS = "os.rename", "os.remove", "os.link", "os.truncate", "shutil.copyfile"
"""What Python reports before it changes a file."""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "run.db"


def value(number: int) -> str:
    return "x" * 3000 + str(number)


def left_by_a_killed_master(folder: Path, numbers: range) -> Path:
    """A run database whose last results are in its log only."""
    whole, path = folder / "whole.db", folder / "run.db"
    writer = opened(whole)
    write(writer, algorithm())
    for number in numbers:
        write(writer, submitted(number, 1), received({number: value(number)}))
    for suffix in ("", "-wal"):
        shutil.copy(f"{whole}{suffix}", f"{path}{suffix}")
    writer.close()
    return path


def with_a_damaged_page(folder: Path) -> list[int]:
    left_by_a_killed_master(folder, range(1, 21))
    path = left_by_a_killed_master(folder, range(21, 25))
    with path.open("r+b") as file:
        file.seek(path.stat().st_size // 2 + 4096)
        file.write(b"\xff" * 8192)
    return [21, 22, 23, 24]


def new_without_its_first_page(folder: Path) -> list[int]:
    os.truncate(left_by_a_killed_master(folder, range(1, 5)), 100)
    return [1, 2, 3, 4]


def without_its_first_pages(folder: Path) -> list[int]:
    """The names of the tables are lost. The log has the last pages, and would damage a new file."""
    left_by_a_killed_master(folder, range(1, 21))
    os.truncate(left_by_a_killed_master(folder, range(21, 25)), 100)
    return []


def salvaged(path: Path) -> list[int]:
    """Open a run database in which a master finds damage. Return the tasks with answers, which are all right."""
    writer = Writer.opened(path, member_id="squares", on_failure=Failures(), name="")
    try:
        answers = [each for each in writer.earlier() if isinstance(each, EarlierAnswers)]
        for each in answers:
            [number] = each.results.tasks
            assert entries(*writer.frames(each.row))[0] == [value(number)]
        return [each.results.tasks[0] for each in answers]
    finally:
        writer.release()


def killed_at(step: int, path: Path) -> bool:
    """Open a damaged run database in a process that is killed before a step. Return whether there is such a step."""
    child = os.fork()
    if child == 0:
        left = step

        def count(event: str, arguments: tuple[object, ...]) -> None:
            nonlocal left
            if event in STEPS and path.name in str(arguments[0]) and Path(str(arguments[0])).exists():
                left -= 1
                if left == 0:
                    os.kill(os.getpid(), signal.SIGKILL)

        sys.addaudithook(count)
        try:
            salvaged(path)
        finally:
            os._exit(0)
    _, status = os.waitpid(child, 0)
    return os.WIFSIGNALED(status)


def with_nonsense_in_its_first_page(folder: Path) -> list[int]:
    """Without a log, nothing in the file says where the tables begin."""
    left_by_a_killed_master(folder, range(1, 21))
    path = folder / "run.db"
    shutil.copy(folder / "whole.db", path)
    Path(f"{path}-wal").unlink()
    overwrite(path, b"nonsense" * 512)
    return [*range(1, 21)]


def overwrite(path: Path, first: bytes) -> None:
    """Overwrite the beginning of a file."""
    with path.open("r+b") as file:
        file.write(first)


@pytest.mark.parametrize(
    "damage",
    [with_a_damaged_page, new_without_its_first_page, without_its_first_pages, with_nonsense_in_its_first_page],
)
def test_a_kill_at_any_step_of_saving_a_damaged_file_loses_nothing_more(
    in_memory: Path, damage: Callable[[Path], list[int]]
) -> None:
    source = in_memory / "source"
    source.mkdir()
    in_the_log = damage(source)
    expected = salvaged(shutil.copytree(source, in_memory / "at-once") / "run.db")
    assert {*in_the_log} <= {*expected}, "the log was not used"
    assert len(expected) < 24
    step, was_killed = 0, True
    while was_killed:
        step += 1
        path = shutil.copytree(source, in_memory / str(step)) / "run.db"
        was_killed = killed_at(step, path)
        assert path.exists(), f"no file has the name of the run database after step {step}"
        assert salvaged(path) == expected, f"a kill before step {step} lost results"
        assert path.with_name("run.db.damaged").exists()
        assert {each.name for each in path.parent.glob(".*")} == set(), "scratch files are left"
        shutil.rmtree(path.parent)
    assert step > 7


def with_a_changed_value(path: Path) -> None:
    """A run database with two results, of which one is not what was written. This is no damage for SQLite, but the
    checksum is wrong."""
    writer = opened(path)
    write(writer, algorithm(), submitted(1, 2), received({1: value(1)}), received({2: value(2)}))
    writer.close()
    path.write_bytes(path.read_bytes().replace(b"x" * 100, b"y" * 100, 1))


def test_a_damaged_value_is_found_before_a_restart_uses_it(path: Path) -> None:
    """Its task runs again in the same start, and the user gets no error."""
    with_a_changed_value(path)
    store = RunStore.open(Options(run_database=str(path)), str(path), "")
    core = MasterCore(MasterSettings("m", "g"))
    store.read_into(core, Options(run_database=str(path)))
    assert core.reuse is not None
    assert core.reuse.answered == 1
    [lost] = store.writer.lost
    [notice] = [
        each.text for each in core.take_actions().records if isinstance(each, records.Notice) if "parts" in each.text
    ]
    assert lost.startswith("row ")
    assert f"parts of the run database are missing or damaged: {lost}. " in notice
    store.close()


def test_damage_that_is_found_while_values_are_read_is_saved_at_the_next_start(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only the newest values are read at a start."""
    with_a_changed_value(path)
    monkeypatch.setattr(value_files, "CHECKED_BYTES", 1000)
    writer = opened(path)
    rows = [each.row for each in writer.earlier() if isinstance(each, EarlierAnswers)]
    with pytest.raises(RunDatabaseError, match="its checksum is wrong"):
        [writer.frames(row) for row in rows]
    writer.close()
    assert len(salvaged(path)) == 1
    assert path.with_name("run.db.damaged").exists()
    assert not path.with_name(".run.db.damage-found").exists()


def test_damage_that_a_restart_meets_while_it_reads_is_saved_at_once(in_memory: Path) -> None:
    """SQLite notices a damaged page only when it reads the page."""
    whole = in_memory / "whole.db"
    writer = opened(whole)
    write(writer, algorithm())
    for number in range(1, 13):
        write(writer, submitted(number, 1), received({number: value(number)}))
    writer.close()
    remarks, answered = [], []
    for page in range(1, whole.stat().st_size // PAGE_BYTES):
        path = Path(shutil.copy(whole, in_memory / "run.db"))
        with path.open("r+b") as file:
            file.seek(page * PAGE_BYTES)
            file.write(b"\xff" * PAGE_BYTES)
        store = RunStore.open(Options(run_database=str(path)), str(path), "")
        core = MasterCore(MasterSettings("m", "g"))
        store.read_into(core, Options(run_database=str(path)))
        assert core.reuse is not None
        remarks.append(store.writer.remark)
        answered.append(core.reuse.answered)
        store.close()
        for each in in_memory.glob("*run.db*"):
            each.unlink()
    assert any(0 < each < 12 for each in answered)
    assert all(remark or count == 12 for remark, count in zip(remarks, answered, strict=True))


@pytest.mark.parametrize("is_pruned", [False, True])
@pytest.mark.parametrize("has_log", [False, True])
def test_results_of_a_file_whose_first_page_was_overwritten_are_used(
    in_memory: Path, is_pruned: bool, has_log: bool
) -> None:
    """The page is nonsense from its beginning, from the end of its header on, or zeros. A file that was pruned has its
    tables elsewhere."""
    whole, path = in_memory / "whole.db", in_memory / "run.db"
    writer = opened(whole)
    for number in range(1, 25):
        write(writer, algorithm(number), submitted(number, 1, number), received({number: value(number)}))
    writer.close()
    if is_pruned:
        prune(whole)
    log = b""
    if has_log:
        writer = opened(whole)
        write(writer, algorithm(25), submitted(25, 1, 25), received({25: value(25)}))
        log = Path(f"{whole}-wal").read_bytes()
        content = whole.read_bytes()
        writer.close()
    else:
        content = whole.read_bytes()
    for first in (b"nonsense" * 512, content[:100] + b"\xff" * 3996, content[:16] + b"\xff" * 4080, bytes(4096)):
        path.write_bytes(first + content[4096:])
        if has_log:
            Path(f"{path}-wal").write_bytes(log)
        assert salvaged(path) == [*range(1, 26 if has_log else 25)]
        for each in in_memory.glob("*run.db*"):
            each.unlink()


def test_a_file_whose_first_pages_were_overwritten_is_refused_with_what_to_do(path: Path) -> None:
    writer = opened(path)
    write(writer, algorithm(), submitted(1, 1), received({1: value(1)}))
    writer.close()
    overwrite(path, b"nonsense" * 2048)
    content = path.read_bytes()
    with pytest.raises(RunDatabaseError, match="take a copy of it that you have, or move it away"):
        opened(path)
    assert path.read_bytes() == content


def test_a_reader_says_that_no_master_has_written_anything(path: Path) -> None:
    path.touch()
    with pytest.raises(RunDatabaseError, match="is empty: its master has not written anything"):
        RunDatabase(path)


def test_a_reader_says_that_the_first_page_was_overwritten(path: Path) -> None:
    opened(path).close()
    overwrite(path, b"nonsense")
    with pytest.raises(RunDatabaseError, match=r"its first page was overwritten\. A master that opens it saves"):
        RunDatabase(path)


def test_a_file_that_is_cut_off_within_its_first_page_is_replaced_with_a_notice(path: Path) -> None:
    opened(path).close()
    content = path.read_bytes()
    for size in (1, 15, 16, 60, 70, 72, 99, 512, 1000, 4095):
        path.write_bytes(content[:size])
        writer = opened(path)
        assert f"{path} was damaged. Nothing of it could be read. The damaged file is {path}.damaged" in writer.remark
        assert writer.generation == 1
        writer.close()
        assert path.with_name("run.db.damaged").read_bytes() == content[:size]


def test_a_new_file_whose_first_page_is_torn_is_replaced_with_a_notice(tmp_path: Path) -> None:
    """Until the log is copied for the first time, this page names no table, and not mwpy. Any sectors may be zeros."""
    new = tmp_path / "new.db"
    writer = opened(new)
    first = new.read_bytes()
    writer.close()
    assert len(first) == 4096
    for torn in (bytes(512) + first[512:], bytes(4096), bytes(2048), first[:512] + bytes(1000)):
        path = tmp_path / "run.db"
        path.write_bytes(torn)
        for log in (b"", b"the log of something"):
            Path(f"{path}-wal").write_bytes(log)
            writer = opened(path)
            assert writer.generation == 1
            write(writer, algorithm(), submitted(1, 1), received({1: "one"}))
            writer.close()
            assert [*writer.remark] == [] or "Nothing of it could be read" in writer.remark
            path.write_bytes(torn)


def test_a_new_file_without_its_first_page_is_read_from_its_log(tmp_path: Path) -> None:
    new, path = tmp_path / "new.db", tmp_path / "run.db"
    writer = opened(new)
    write(writer, algorithm(), submitted(1, 1), received({1: value(1)}))
    log = Path(f"{new}-wal").read_bytes()
    writer.close()
    for first in (b"", bytes(100), bytes(4096)):
        path.write_bytes(first)
        Path(f"{path}-wal").write_bytes(log)
        assert salvaged(path) == [1]


def test_a_damaged_file_of_another_program_is_refused_by_name_and_left_as_it_is(tmp_path: Path) -> None:
    other = tmp_path / "other.db"
    with closing(sqlite3.connect(other)) as connection:
        connection.execute("CREATE TABLE stars (mass REAL)")
        connection.commit()
    content = other.read_bytes()
    foreign = [content[:1000], content[:4096] + b"\xff" * 4096, bytes(100_000), b"\0\0\0 no zeros follow" * 300]
    for at, begins in enumerate(foreign):
        path = tmp_path / f"run{at}.db"
        path.write_bytes(begins)
        with pytest.raises(RunDatabaseError, match=rf"run{at}\.db .*(give another file|\(file is not a database\))"):
            opened(path)
        assert path.read_bytes() == begins
        assert not list(tmp_path.glob("*damaged*"))
