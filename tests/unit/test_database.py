"""The writer of the run database: what is stored and when, what a restart reads of it, and faults of file and disk."""

from __future__ import annotations

import ctypes
import errno
import os
import shutil
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from pathlib import Path
from random import Random
from typing import Any

import pytest
from msgspec.structs import astuple, replace
from tests.stored import (
    NOON,
    SLAVE,
    Failures,
    algorithm,
    allocated,
    answers,
    brought,
    named,
    opened,
    received,
    run,
    sample,
    slave,
    submitted,
    write,
)

from mwpy._core.master.core import MasterCore
from mwpy._core.master.state import MasterSettings
from mwpy._database import opening, store
from mwpy._database import rows as stored_rows
from mwpy._database.rows import LARGE_BYTES
from mwpy._database.schema import VERSION
from mwpy._database.store import Writer
from mwpy._roles.run_store import open_writer, read_into
from mwpy._system import clock, locks
from mwpy._system.locks import LocksUnsupported
from mwpy._values import records
from mwpy._values.causes import Cause
from mwpy._values.earlier import (
    KEY_BYTES,
    EarlierAnswers,
    EarlierTasks,
    Given,
)
from mwpy._values.errors import RunDatabaseError
from mwpy._values.groups import each_task, entries
from mwpy._values.last_words import NO_WORDS
from mwpy._values.options import Options
from mwpy.run_database import RunDatabase


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "run.db"


def asked(path: Path, query: str) -> list[Any]:
    """Ask the file as any program can."""
    with closing(sqlite3.connect(path)) as connection:
        return connection.execute(query).fetchall()


def test_results_are_read_as_they_were_written(path: Path) -> None:
    """Those of a slave, with each of their fields."""
    record = received({1: 1, 2: ValueError("odd")})
    written = replace(record.results, slave=3, buffers=[0, 0], again=[1], plain=True)
    run(path, algorithm(), *slave(), submitted(1, 2), replace(record, results=written))
    [answer] = answers(path)
    with closing(opened(path)) as writer:
        read, frames = writer.stored.frames(answer.row)
    for found in answer.results, read:
        assert [getattr(found, name) for name in written.__struct_fields__] == [*astuple(written)]
    assert frames == record.frames


def test_the_host_of_results_that_an_agent_brings_is_known_although_the_file_lacks_their_slave(path: Path) -> None:
    """The former master was killed before it stored that the slave had connected."""
    run(path, algorithm(), submitted(1, 3))
    run(path, brought({3: 9}))
    [answer] = answers(path)
    assert (answer.generation, answer.host, answer.results.tasks) == (1, "node1", [3])


def test_a_task_that_must_not_run_twice_is_on_the_disk_before_it_leaves(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[int] = []
    monkeypatch.setattr(os, "fdatasync", synced.append)
    monkeypatch.setattr(store, "SYNC_S", 1000.0)
    writer = opened(path)
    write(writer, algorithm(), submitted(1, 2), allocated(named(1)))
    assert not synced
    write(writer, allocated(replace(named(2), once=True)))
    writer.close()
    assert synced


def test_the_log_is_written_to_the_disk_a_second_after_a_commit(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced = threading.Event()
    monkeypatch.setattr(os, "fdatasync", lambda _: synced.set())
    with closing(opened(path)) as writer:
        write(writer, algorithm())
        assert not synced.is_set()
        assert synced.wait(30)


def test_records_are_in_the_file_before_what_follows_is_called(path: Path) -> None:
    writer, found, done = opened(path), [], threading.Event()

    def look() -> None:
        found.extend(asked(path, "SELECT first, count FROM submissions"))
        done.set()

    writer.write(Given([algorithm(), submitted(7, 2)], NOON, look))
    assert done.wait(30)
    writer.close()
    assert found == [(7, 2)]


def test_a_start_waits_for_a_master_that_was_just_killed(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The operating system gives back the locks of a killed process one after the other."""
    hold = "import sys; from pathlib import Path; from mwpy._system.locks import FileLock\n"
    hold += "lock = FileLock(Path(sys.argv[1])); print('locked', flush=True); sys.stdin.read()"
    command = [sys.executable, "-c", hold, f"{path.parent}/.{path.name}.lock"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as former:
        assert former.stdout is not None
        assert former.stdout.readline() == b"locked\n"

        def end(seconds: float) -> None:
            former.kill()
            former.wait()

        monkeypatch.setattr(clock, "sleep", end)
        opened(path).close()


def test_a_symbolic_link_to_a_run_database_lets_no_second_master_in(path: Path) -> None:
    """The lock is beside the file, not beside the link. So are large values."""
    link = path.with_name("link.db")
    link.symlink_to(path.name)
    large = "x" * LARGE_BYTES
    with closing(opened(link)) as writer:
        write(writer, algorithm(), submitted(1, 1), received({1: large}))
        with pytest.raises(RunDatabaseError, match="used by another master"):
            opened(path)
    assert {each.name for each in path.parent.iterdir() if "link" in each.name} == {"link.db"}
    [answer] = answers(path)
    with closing(opened(path)) as writer:
        assert entries(*writer.stored.frames(answer.row))[0] == [large]


@pytest.mark.parametrize("version", [9, 1000])
def test_a_file_of_another_version_is_refused_by_name(path: Path, version: int) -> None:
    run(path)
    asked(path, f"PRAGMA user_version = {version}")
    with pytest.raises(
        RunDatabaseError, match=rf"run\.db is of version {version}, and this mwpy reads version {VERSION}"
    ):
        opened(path)


def test_a_missing_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(RunDatabaseError, match="No such file or directory; make its folder, or give"):
        opened(tmp_path / "missing" / "run.db")


def test_a_folder_is_refused(tmp_path: Path) -> None:
    for path in (tmp_path, Path(), Path("/")):
        with pytest.raises(RunDatabaseError, match=r"is a folder: give a file, such as .*run\.db"):
            opened(path)


def test_if_it_cannot_write_it_says_so_once_and_calls_nothing(path: Path) -> None:
    failures, called = Failures(), list[int]()
    writer = opened(path, on_failure=failures)
    asked(path, "DROP TABLE records")
    writer.write(Given([records.Notice("one")], NOON, lambda: called.append(1)))
    assert failures.happened.wait(30)
    writer.write(Given([submitted(1, 1)], NOON, lambda: called.append(2)))
    writer.close()
    assert len(failures) == 1
    assert f"the run database {path} cannot be used: no such table: records" in failures[0]
    assert called == []
    assert writer.delay_s() == 0.0  # nobody waits for the disk any more


def test_a_text_with_half_a_surrogate_pair_is_stored(path: Path) -> None:
    ended = records.SlaveEnded(SLAVE, Cause.CRASH, "cannot read \udcff.txt", "task 1", NO_WORDS)
    run(path, *slave(host="n\udcffde"), *slave("SLAVE-1", "AGENT-1", "nöde"), ended)
    with RunDatabase(path) as database:
        [one, two] = database.query("SELECT host FROM agents ORDER BY seq")
        [reason] = database.query("SELECT reason FROM slaves WHERE ended")
    assert one["host"].startswith("n\N{REPLACEMENT CHARACTER}")
    assert two["host"] == "nöde"
    assert reason["reason"] == "cannot read ?.txt"


# A file that is damaged, or of another program

KILLED = """
import os, signal, sys
from tests.stored import *
writer = opened(Path(sys.argv[1]))
write(writer, algorithm())
for number in range(1, 13):
    write(writer, submitted(number, 1), received({number: "x" * 3000 + str(number)}))
os.kill(os.getpid(), signal.SIGKILL)
"""


def values_in(path: Path) -> list[object]:
    """Open a run database and return the value of each answer."""
    found = answers(path)
    with closing(opened(path)) as writer:
        return [entries(*writer.stored.frames(each.row))[0][0] for each in found]


def test_a_log_that_was_cut_off_anywhere_has_the_first_commits(tmp_path: Path) -> None:
    """The log of a killed master is cut at 30 places. What is read is always the beginning of what was written."""
    whole = tmp_path / "whole.db"
    subprocess.run([sys.executable, "-c", KILLED, str(whole)], check=False)
    log = Path(f"{whole}-wal").read_bytes()
    expected = ["x" * 3000 + str(number) for number in range(1, 13)]
    counts = []
    for step in range(31):
        cut = tmp_path / f"cut{step}.db"
        shutil.copy(whole, cut)
        Path(f"{cut}-wal").write_bytes(log[: len(log) * step // 30 - step % 7 * (step < 30)])
        found = values_in(cut)
        assert found == expected[: len(found)]
        counts.append(len(found))
    assert counts == sorted(counts)
    assert (counts[0], counts[-1]) == (0, 12)


def value(number: int) -> str:
    return "x" * 3000 + str(number)


def whole(path: Path, count: int = 40) -> bytes:
    """Write a run database with a result for each task. Return its bytes."""
    with closing(opened(path)) as writer:
        write(writer, algorithm())
        for number in range(1, count + 1):
            write(writer, submitted(number, 1), received({number: value(number)}))
    return path.read_bytes()


def nonsense_at(content: bytes, start: int, size: int = 4096) -> bytes:
    return content[:start] + b"\xff" * size + content[start + size :]


def cut_off(content: bytes) -> bytes:
    return content[:-12288]


def with_a_damaged_page(content: bytes) -> bytes:
    """SQLite notices it only when it reads the page."""
    return nonsense_at(content, len(content) * 3 // 4 // 4096 * 4096)


def read(path: Path) -> None:
    """Read a run database as a master does before its generation begins."""
    with closing(Writer.open(path, member_id="m")) as writer:
        writer.start()
        list(writer.stored.earlier())


def saved(message: str, folder: Path) -> Path:
    """Run the commands that a message gives. Return the new file that it names."""
    commands, _, rest = message.partition("To save what can be read: ")[2].partition(". Then give the file ")
    subprocess.run(commands, shell=True, cwd=folder, check=True, capture_output=True)
    return folder / rest.partition(";")[0]


@pytest.mark.skipif(shutil.which("sqlite3") is None, reason="the shell of SQLite is not installed")
@pytest.mark.parametrize("damaged", [cut_off, with_a_damaged_page])
def test_a_damaged_file_is_kept_and_refused_with_the_commands_that_save_what_can_be_read(
    tmp_path: Path, damaged: Callable[[bytes], bytes]
) -> None:
    """A restart with the new file has nothing but right values, and those of large values, too."""
    path = tmp_path / "my run.db"
    run(path, algorithm(), submitted(100, 1), received({100: "x" * LARGE_BYTES}))
    path.write_bytes(left := damaged(whole(path)))
    with pytest.raises(RunDatabaseError, match=r"is damaged .*It is kept, and not used") as caught:
        read(path)
    assert "\n" not in str(caught.value)
    assert path.read_bytes() == left
    found = values_in(saved(str(caught.value), tmp_path))
    assert found[0] == "x" * LARGE_BYTES
    assert {*found[1:]} <= {value(number) for number in range(1, 41)}
    assert len(found) > 30


def test_a_file_that_was_cut_off_is_refused_and_left_as_it_is(tmp_path: Path) -> None:
    """The file is cut at 19 places."""
    content = whole(tmp_path / "whole.db")
    for step in range(3, 40, 2):
        cut = tmp_path / f"cut{step}.db"
        cut.write_bytes(left := content[: len(content) * step // 40 - step % 5])
        with pytest.raises(RunDatabaseError, match=r"It is kept, and not used\. To save what can be read: "):
            opened(cut)
        assert cut.read_bytes() == left


def test_a_file_of_another_program_or_without_its_beginning_is_refused_and_left_as_it_is(tmp_path: Path) -> None:
    content = whole(tmp_path / "whole.db", 1)
    other = tmp_path / "other.db"
    with closing(sqlite3.connect(other)) as connection:
        connection.execute("CREATE TABLE stars (mass REAL)")
        connection.commit()
    foreign = [b"mass,", b"mass,spin\n" * 10_000, bytes(100_000), other.read_bytes()]
    torn = [nonsense_at(content, 0), nonsense_at(content, 0, 16), *(content[:size] for size in (15, 70, 100, 4095))]
    for at, begins in enumerate(foreign + torn):
        path = tmp_path / f"run{at}.db"
        path.write_bytes(begins)
        for opens in (opened, RunDatabase):
            with pytest.raises(RunDatabaseError, match=rf"run{at}\.db .*give (another|a new) file"):
                opens(path)
        assert path.read_bytes() == begins


def test_a_log_whose_file_was_deleted_is_not_lost(path: Path, tmp_path: Path) -> None:
    """SQLite would delete it."""
    with closing(opened(path)) as writer:
        write(writer, algorithm())
        log = Path(f"{path}-wal").read_bytes()
    for other in (tmp_path / "deleted.db", tmp_path / "empty.db"):
        Path(f"{other}-wal").write_bytes(log)
        if other.name == "empty.db":
            other.touch()
        with pytest.raises(RunDatabaseError, match=f"is empty or was deleted, but its log {other}-wal is there"):
            opened(other)
        assert Path(f"{other}-wal").read_bytes() == log


def test_a_reader_says_that_no_master_has_written_anything(path: Path) -> None:
    path.touch()
    with pytest.raises(RunDatabaseError, match="is empty: its master has not written anything"):
        RunDatabase(path)


def with_a_changed_value(path: Path) -> None:
    """A run database with two results, of which one is not what was written. This is no damage for SQLite, but the
    checksum is wrong."""
    content = whole(path, 2)
    path.write_bytes(content.replace(b"x" * 100, b"y" * 100, 1))


def test_a_damaged_value_is_found_before_a_restart_uses_it(path: Path) -> None:
    """Its task runs again in the same start, and the user gets no error."""
    with_a_changed_value(path)
    writer = open_writer(Options(run_database=str(path)), str(path), "")
    core = MasterCore(MasterSettings("m", "g"))
    read_into(core, writer, Options(run_database=str(path)))
    assert core.reuse is not None
    assert core.reuse.answered == 1
    [lost] = writer.stored.lost
    [notice] = [
        each.text for each in core.take_actions().records if isinstance(each, records.Notice) if "parts" in each.text
    ]
    assert lost.startswith("row ")
    assert f"parts of the run database are missing or damaged: {lost}. " in notice
    writer.close()


def test_a_value_that_is_found_damaged_while_it_is_read_does_not_count_at_the_next_start(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only the newest values are read at a start."""
    with_a_changed_value(path)
    monkeypatch.setattr(stored_rows, "CHECKED_BYTES", 1000)
    with closing(opened(path)) as writer:
        rows = [each.row for each in writer.stored.earlier() if isinstance(each, EarlierAnswers)]
        with pytest.raises(RunDatabaseError, match=r"is damaged: row \d+\. Start again, and its tasks run again"):
            [writer.stored.frames(row) for row in rows]
    lost: list[str] = []
    assert len(answers_of(path, lost)) == 1
    assert [name.partition(" of ")[2] for name in lost] == ["results"]


def answers_of(path: Path, lost: list[str]) -> dict[bytes, Any]:
    """What a restart takes from a file: the value of each key. The names of what it leaves out are added to `lost`."""
    with closing(opened(path)) as writer:
        keys: dict[tuple[int, int], bytes] = {}
        values: dict[bytes, Any] = {}
        for each in writer.stored.earlier():
            if isinstance(each, EarlierTasks):
                own = (each.keys[at : at + KEY_BYTES] for at in range(0, len(each.keys), KEY_BYTES))
                keys |= {(each.generation, each.first + at): key for at, key in enumerate(own)}
            elif isinstance(each, EarlierAnswers):
                tasks = (task for task, _ in each_task(each.results))
                found = entries(*writer.stored.frames(each.row))[0]
                values |= {
                    keys[each.generation, task]: value
                    for task, value in zip(tasks, found, strict=True)
                    if (each.generation, task) in keys
                }
        lost += writer.stored.lost
    return values


def test_a_flipped_bit_gives_no_task_the_value_of_another_one(in_memory: Path) -> None:
    """300 files have one wrong bit each. What is left out is named, unless SQLite has noticed the damage itself."""
    whole, path = in_memory / "whole.db", in_memory / "run.db"
    for _ in range(2):
        with closing(opened(whole)) as writer:
            write(writer, algorithm())
            for number in range(writer.generation * 100, writer.generation * 100 + 30, 2):
                write(writer, submitted(number, 2), received({number: number * 7, number + 1: number * 7 + 7}))
    content, random, named = whole.read_bytes(), Random(5), 0
    right = answers_of(whole, [])
    assert right == {
        number.to_bytes(16, "big"): number * 7 for first in (100, 200) for number in range(first, first + 30)
    }
    for _ in range(300):
        changed = bytearray(content)
        bit = random.randrange(8 * len(content))
        changed[bit // 8] ^= 1 << bit % 8
        path.write_bytes(changed)
        lost: list[str] = []
        with suppress(RunDatabaseError):
            assert answers_of(path, lost).items() <= right.items()
        named += bool(lost)
        for each in in_memory.glob("*run.db*"):
            each.unlink()
    assert named


@pytest.mark.parametrize("table", ["algorithms", "submissions", "results"])
def test_a_row_without_its_checksum_does_not_count_and_is_named(path: Path, table: str) -> None:
    """What refers to a damaged algorithm does not count either."""
    run(path, algorithm(), submitted(1, 2), received({1: 7, 2: 14}))
    with closing(sqlite3.connect(path)) as connection:
        connection.execute(f"UPDATE records SET checksum = 0 WHERE kind = '{table}'")
        connection.commit()
    lost: list[str] = []
    assert not answers_of(path, lost)
    assert [name.partition(" of ")[2] for name in lost] == [table]


@pytest.mark.parametrize("kind", ["generations", "agents", "slaves", "losses", "submissions", "results"])
def test_a_record_that_cannot_be_read_is_left_out_and_named(path: Path, kind: str) -> None:
    """Everything else is used and shown."""
    sample(path)
    with closing(sqlite3.connect(path)) as connection:
        [row] = connection.execute(f"SELECT min(seq) FROM records WHERE kind = '{kind}'").fetchone()
        connection.execute("UPDATE records SET body = substr(body, 2) WHERE seq = ?", (row,))
        connection.commit()
    lost: list[str] = []
    answers_of(path, lost)
    assert lost == [f"row {row} of {kind}"]
    with RunDatabase(path) as database:
        database.summary()
        list(database.attempts(generation=1))
        assert len(list(database.tasks(generation=1))) == (0 if kind == "submissions" else 12)


def test_a_generation_that_only_its_rows_show_has_its_number(path: Path) -> None:
    """The row of a generation may be lost with a damaged page."""
    run(path, algorithm(), submitted(1, 1), received({1: 1}))
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("DELETE FROM records WHERE kind = 'generations'")
        connection.commit()
    with closing(opened(path)) as writer:
        assert writer.generation == 2
        assert len(list(writer.stored.earlier())) == 3


# Large values that are missing or damaged

LARGE = "x" * LARGE_BYTES


@pytest.fixture
def file(path: Path) -> Path:
    """The file with the large value of a run database that also has a small one."""
    run(path, algorithm(), submitted(1, 2), received({1: LARGE}), received({2: 4}))
    [file] = path.with_name("run.db.values").iterdir()
    return file


def missing(file: Path) -> None:
    file.unlink()


def shortened(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-1])


def changed(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-1] + b"y")


def unreadable(file: Path) -> None:
    file.unlink()
    file.mkdir()


@pytest.mark.parametrize("damage", [missing, shortened, changed, unreadable])
def test_an_answer_without_its_large_value_is_no_answer(path: Path, file: Path, damage: object) -> None:
    """Its task runs again."""
    assert callable(damage)
    damage(file)
    lost: list[str] = []
    assert [*answers_of(path, lost).values()] == [4]
    assert lost == [str(file)]
    run(path, algorithm(), submitted(1, 1), received({1: LARGE}))
    assert values_in(path) == [4, LARGE]


def test_a_value_of_another_size_is_noticed_although_only_the_newest_files_are_read(
    path: Path, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shortened(file)
    monkeypatch.setattr(stored_rows, "CHECKED_BYTES", -1)
    lost: list[str] = []
    assert [*answers_of(path, lost).values()] == [4]
    assert lost == [str(file)]


def test_a_value_that_disappears_while_the_master_runs_is_named(path: Path, file: Path) -> None:
    [answer, _] = answers(path)
    file.unlink()
    with (
        closing(opened(path)) as writer,
        pytest.raises(RunDatabaseError, match=f"missing: {file}. Put it back; or start again"),
    ):
        writer.stored.frames(answer.row)


# A full disk


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of one megabyte."""
    folder = tmp_path / "disk"
    folder.mkdir()
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.mount(b"tmpfs", str(folder).encode(), b"tmpfs", 0, b"size=1m") != 0:
        pytest.skip(f"cannot mount a small file system: {os.strerror(ctypes.get_errno())}")
    yield folder
    libc.umount2(str(folder).encode(), 2)


def test_a_full_disk_stops_the_writer_and_the_file_stays_right(
    small_disk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store, "BATCH_BYTES", 20_000)
    path, failures, stored = small_disk / "run.db", Failures(), list[int]()
    writer = opened(path, on_failure=failures)
    write(writer, algorithm())
    for number in range(1, 1000):
        result = received({number: "x" * 5000})
        writer.write(Given([submitted(number, 1), result], NOON, lambda number=number: stored.append(number)))  # type: ignore[misc]
    assert failures.happened.wait(30)
    writer.close()
    assert len(failures) == 1
    assert "disk is full" in failures[0]
    with RunDatabase(path) as database:
        done = [each["task"] for each in database.query("SELECT base AS task FROM results ORDER BY seq")]
    assert done[: len(stored)] == stored == [*range(1, len(stored) + 1)]
    assert stored


def test_a_large_value_without_room_stops_the_writer(small_disk: Path) -> None:
    path, failures, called = small_disk / "run.db", Failures(), list[int]()
    writer = opened(path, on_failure=failures)
    write(writer, algorithm(), submitted(1, 1))
    writer.write(Given([received({1: "x" * 3_000_000})], NOON, lambda: called.append(1)))
    assert failures.happened.wait(30)
    writer.close()
    assert f"cannot write a large value to {path}.values: {os.strerror(errno.ENOSPC)}" in failures[0]
    assert not called
    with RunDatabase(path) as database:
        assert database.summary()["tasks"]["not ended"] == 1


# The lock


def test_a_second_master_is_refused_with_the_process_and_the_host_of_the_first(path: Path) -> None:
    """A lock file without a text names nobody."""
    code = "import sys; from tests.stored import *; opened(Path(sys.argv[1]))"
    with closing(opened(path)):
        command = [sys.executable, "-c", code, str(path)]
        first = subprocess.run(command, check=False, capture_output=True, text=True).stderr
        os.truncate(path.with_name(".run.db.lock"), 0)
        second = subprocess.run(command, check=False, capture_output=True, text=True).stderr
    assert f"used by another master: process {os.getpid()} on {os.uname().nodename}, which runs since " in first
    assert "used by another master: an unknown process. Wait for its end" in second


def test_a_file_system_without_locks_is_refused_with_the_reason(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise LocksUnsupported(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(opening, "FileLock", refuse)
    with pytest.raises(RunDatabaseError, match=r"its file system has no locks.*put it on a local disk"):
        opened(path)


# Network file systems


def test_on_a_network_file_system_a_notice_says_that_only_the_master_has_the_file(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mwpy._database.opening.kind_of_file_system", lambda _: "nfs4")
    writer = open_writer(Options(run_database=str(path)), str(path), "")
    core = MasterCore(MasterSettings("m", "g"))
    read_into(core, writer, Options(run_database=str(path)))
    [notice] = [each for each in core.take_actions().records if isinstance(each, records.Notice)]
    assert f"{path} is on a network file system (nfs4), so nothing else can open it until" in notice.text
    writer.close()


def test_on_a_network_file_system_only_the_master_has_the_file(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No memory is shared, so there is no file for it; readers in other processes are refused, and say why."""
    monkeypatch.setattr("mwpy._database.opening.kind_of_file_system", lambda _: "nfs4")
    writer = opened(path)
    write(writer, algorithm(), submitted(1, 1), received({1: "one"}), records.Notice("hello"))
    assert not Path(f"{path}-shm").exists()
    monkeypatch.setattr("mwpy._database.opening.WAIT_S", 0.1)
    with pytest.raises(RunDatabaseError, match="On a network file system only the master can open it"):
        RunDatabase(path)
    writer.close()
    assert values_in(path) == ["one"]


def test_network_file_systems_are_known() -> None:
    on_a_disk = ("ext4", "xfs", "tmpfs", "overlay", "fuse.gocryptfs", "")
    assert not any(map(locks.is_network, on_a_disk))
    assert all(map(locks.is_network, ("nfs4", "lustre", "gpfs", "fuse.sshfs", "cifs")))


def test_a_second_master_in_the_same_process_is_refused(path: Path) -> None:
    with (
        closing(opened(path)),
        pytest.raises(RunDatabaseError, match="used by another master of this process: close that one first"),
    ):
        opened(path)
    opened(path).close()
