"""The writer of the run database: what is stored, when, and what a restart reads of it."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
import threading
from contextlib import closing
from pathlib import Path
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
    slave,
    submitted,
    write,
)

from mwpy._database import store
from mwpy._database.rows import LARGE_BYTES
from mwpy._database.schema import VERSION
from mwpy._system import clock
from mwpy._values import records
from mwpy._values.causes import Cause
from mwpy._values.earlier import (
    Given,
)
from mwpy._values.errors import RunDatabaseError
from mwpy._values.groups import entries
from mwpy._values.last_words import NO_WORDS
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


def test_a_second_master_in_the_same_process_is_refused(path: Path) -> None:
    with (
        closing(opened(path)),
        pytest.raises(RunDatabaseError, match="used by another master of this process: close that one first"),
    ):
        opened(path)
    opened(path).close()


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
