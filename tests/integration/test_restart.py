"""A master that was killed, and is started again with its run database."""

from __future__ import annotations

import math
import os
import sqlite3
import subprocess
import time
from collections import Counter
from collections.abc import Callable
from functools import partial
from operator import attrgetter, mul
from pathlib import Path
from typing import Any

import pytest
from tests.integration.apps.stage import Running, Stage, fetched, until

import mwpy
from mwpy._database import rows

OPTIONS = ("--mw-local", "2", "--mw-run-database", "run.db")


def _has_seen(stage: Stage, count: int) -> bool:
    return len(stage.lines("seen")) >= count


def _start(stage: Stage, *arguments: object) -> Running:
    return stage.start("restarted.py", *arguments, *OPTIONS)


def _expected(count: int) -> dict[str, int]:
    squares = [number * number for number in range(count) if number % 10 != 7]
    return {"total": sum(squares), "failed": count - len(squares), "sizes": 7 * count, "sum": 5}


def test_a_master_that_is_killed_at_several_moments_gives_the_exact_result(stage: Stage) -> None:
    """No task runs again whose result the master algorithm has seen. At the end, a restart runs nothing."""
    count, seen = 120, set[str]()
    for moment in (20, 60, 100):
        before = Counter(stage.lines("ran"))
        running = _start(stage, count, 5)
        until(partial(_has_seen, stage, moment), f"{moment} results")
        running.kill()
        stage.no_process_left()
        again = Counter(stage.lines("ran")) - before
        assert not seen & again.keys(), "a task ran again although its result had been handed out"
        seen = {*stage.lines("seen")}
        (stage.folder / "seen").unlink()
    running = _start(stage, count, 5).finish()
    report = running.report
    ran = report.pop("ran")
    assert report == _expected(count)
    running = _start(stage, count, 5).finish()
    assert running.report == {**_expected(count), "ran": ran}
    assert "has the results of" in running.err
    assert "Those of them that this run submits again are not computed again" in running.err


def test_a_master_refuses_a_run_database_that_was_cut_off_with_one_line(stage: Stage) -> None:
    running = _start(stage, 60, 1).finish()
    path = stage.folder / "run.db"
    os.truncate(path, path.stat().st_size - 3 * 4096)
    left = path.read_bytes()
    running = _start(stage, 60, 1)
    assert running.end() == 2, running.err
    [line] = running.err.splitlines()
    assert "the run database run.db is damaged (database disk image is malformed). It is kept, and not used" in line
    assert path.read_bytes() == left


def test_failed_tasks_run_again_only_if_this_is_asked_for(stage: Stage) -> None:
    for arguments, ran in (((), 23), ((), 23), (("--mw-rerun", "failed"), 24)):
        running = _start(stage, 10, 0, *arguments).finish()
        assert running.report == {**_expected(10), "ran": ran}


SCRIPT = """
import sys, mwpy
from tests.integration.apps.restarted import append
FACTOR = 2
def scaled(x):
    append("ran", x)
    return FACTOR * x
@mwpy.master_algorithm
def master(mw, argv):
    print(sum(mw.map(scaled, range(10))))
    return 0
sys.exit(mwpy.main())
"""


def test_results_of_changed_code_are_not_used_and_a_notice_says_what_changed(stage: Stage) -> None:
    def run(script: str, *options: str) -> tuple[str, str]:
        running = stage.script(*OPTIONS, *options, text=script).finish()
        return running.out.strip(), running.err

    assert run(SCRIPT)[0] == "90"
    assert run(SCRIPT + "# a comment that changes nothing\n")[0] == "90"
    assert len(stage.lines("ran")) == 10
    assert run(SCRIPT.replace("FACTOR = 2", "FACTOR = 4"), "--mw-reuse-changed-code")[0] == "90"
    assert len(stage.lines("ran")) == 10
    out, notices = run(SCRIPT.replace("FACTOR = 2", "FACTOR = 3"))
    assert out == "135"
    assert "scaled has answers in the run database from other code: " in notices
    assert "FACTOR changed from 2 to 3" in notices
    assert len(stage.lines("ran")) == 20


WITH_SET_UP = """
import os, sys, mwpy
@mwpy.agent_setup
def prepare():
    return {"FACTOR": "2"}
@mwpy.slave_algorithm
def slave(mw, argv):
    global shift
    shift = 1
    return mw.loop_simple()
def scaled(x):
    return int(os.environ["FACTOR"]) * x + shift
@mwpy.master_algorithm
def master(mw, argv):
    print(*mw.map(scaled, range(3)))
sys.exit(mwpy.main())
"""


@pytest.mark.parametrize(
    ("old", "new", "expected", "changed"),
    [('"2"', '"4"', "1 5 9", "function script.prepare"), ("shift = 1", "shift = 5", "5 7 9", "function script.slave")],
)
def test_results_of_a_changed_set_up_are_not_used(
    stage: Stage, old: str, new: str, expected: str, changed: str
) -> None:
    assert stage.script(*OPTIONS, text=WITH_SET_UP).finish().out == "1 3 5\n"
    again = stage.script(*OPTIONS, text=WITH_SET_UP.replace(old, new)).finish()
    assert again.out == f"{expected}\n"
    assert f"{changed} changed" in again.err


# ---- in this process -----------------------------------------------------------------------------------------------


@pytest.fixture
def ran(tmp_path: Path) -> Callable[[], int]:
    """How many tasks have run."""

    def count() -> int:
        return len((tmp_path / "ran").read_text()) if (tmp_path / "ran").exists() else 0

    return count


def _mark(path: str) -> None:
    with Path(path).open("a") as file:
        file.write("x")


def test_keys_are_recognised(tmp_path: Path, ran: Callable[[], int]) -> None:
    """A task with a key is the same whatever its arguments are."""
    mark = str(tmp_path / "ran")

    def timed(moment: float, name: str) -> str:
        _mark(mark)
        return name

    for start in range(2):
        with mwpy.local_master(slaves=1, run_database=tmp_path / "run.db") as mw:
            mw.submit(mwpy.task(timed, float(start), "a"), key="a")
            named = mw.map_results(timed, [float(start)], ["b"], key=lambda _, name: name)
            assert [result.value for result in named] == ["b"]
            assert [result.value for result in fetched(mw, 1)] == ["a"]
        assert ran() == 2


def test_functions_that_differ_in_what_they_have_captured_keep_their_own_results(tmp_path: Path) -> None:
    """Also if results of other code are wanted, in whatever order the functions are used after a restart."""
    for factors in ([3], [4, 3, 2]):
        with mwpy.local_master(slaves=1, run_database=tmp_path / "run.db", reuse_changed_code=True) as mw:
            for factor in factors:
                assert [*mw.map(_default_times(factor), [1, 2])] == [factor, 2 * factor]
                assert [*mw.map(_times(factor), [1, 2])] == [factor, 2 * factor]
                assert [*mw.map(partial(mul, factor), [1, 2])] == [factor, 2 * factor]
                assert [*mw.map(Scaling(factor).scaled, [1, 2])] == [factor, 2 * factor]
            summary = mw.summary()
    assert "8 tasks answered from the run database" in summary


def _times(factor: int) -> Callable[[int], int]:
    return lambda x: factor * x


def _default_times(factor: int) -> Callable[[int], int]:
    def times(x: int, by: int = factor) -> int:
        return by * x

    return times


class Scaling:
    """Multiplies by its factor."""

    def __init__(self, factor: int) -> None:
        self.factor = factor

    def scaled(self, x: int) -> int:
        """Multiply."""
        return self.factor * x


def test_an_answer_from_the_file_has_its_old_provenance_and_outlives_the_master(tmp_path: Path) -> None:
    def at_end(count: int) -> list[Any]:
        with mwpy.open(slaves=1, run_database=tmp_path / "run.db") as mw:
            return list(mw.map_results(bytes, range(count), ordered=True))

    first, second = at_end(5), at_end(6)
    for old, new in zip(first, second, strict=False):
        assert (old.value, old.sid, old.host, old.attempts) == (new.value, new.sid, new.host, new.attempts)
        assert new.compute_seconds == pytest.approx(old.compute_seconds)
        assert new.finished == pytest.approx(old.finished, abs=1e-3)


def test_a_restart_says_how_many_tasks_were_answered_from_the_file(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """In the progress of a map and of the whole computation, and in the summary; failures count, too."""
    for count in (5, 7):
        capfd.readouterr()
        with mwpy.local_master(slaves=1, run_database=tmp_path / "run.db") as mw:
            mw.progress("text")
            items = [[number] for number in range(count)]
            assert sum(not each.ok for each in mw.map_results(_made_of, items, progress="text")) == 1
            summary = mw.summary()
    shown = capfd.readouterr().err
    assert "mwpy: _made_of: 7 of 7 items" in shown
    assert shown.count(", 5 from the run database, 1 slave") == 2
    assert "5 tasks answered from the run database" in summary


def _made_of(items: list[int]) -> int:
    if items == [3]:
        raise ValueError("no list of threes")
    return len(items)


def test_large_values_and_seeds_are_recognised(tmp_path: Path, ran: Callable[[], int]) -> None:
    mark = str(tmp_path / "ran")

    def drawn(count: int) -> tuple[int, bytes]:
        _mark(mark)
        return mwpy.task_seed(), bytes(count)

    values = []
    for seed in (1, 1, 2):
        with mwpy.local_master(slaves=1, run_database=tmp_path / "run.db", seed=seed) as mw:
            values.append(list(mw.map(drawn, [10, 10, 3_000_000])))
    assert values[0] == values[1] != values[2]
    assert ran() == 6


def test_a_task_whose_large_value_is_damaged_runs_again_with_a_notice(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], ran: Callable[[], int]
) -> None:
    mark = str(tmp_path / "ran")

    def large(number: int) -> bytes:
        _mark(mark)
        return bytes([number]) * 1_000_000

    for times in (2, 3, 3):
        with mwpy.local_master(slaves=1, run_database=tmp_path / "run.db") as mw:
            for number in (1, 2):
                assert [*mw.map(large, [number])] == [bytes([number]) * 1_000_000]
        assert ran() == times
        if times == 2:
            first, _ = sorted((tmp_path / "run.db.values").iterdir(), key=lambda each: int(each.name))
            first.write_bytes(first.read_bytes()[:-512] + bytes(512))
    notices = capfd.readouterr().err
    assert notices.count(f"are missing or damaged: {first}. The results in them do not count") == 2


def test_a_restart_reads_a_value_only_for_a_task_that_runs_and_needs_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If it is damaged, this task fails, and the next start computes both."""
    read: dict[str, None] = {}
    unwatched = rows.ValueFiles.read

    def watched(files: rows.ValueFiles, name: str) -> bytes:
        read[name] = None
        return unwatched(files, name)

    monkeypatch.setattr(rows.ValueFiles, "read", watched)
    monkeypatch.setattr(rows, "CHECKED_BYTES", -1)

    def large(number: int) -> bytes:
        return bytes([number]) * 1_000_000

    def first(value: bytes, place: int) -> int:
        return value[place]

    def pipeline(place: int) -> list[Any]:
        read.clear()
        ended: list[Any] = []
        with mwpy.local_master(slaves=1, run_database=tmp_path / "run.db") as mw:
            for number in (1, 2):
                made = mw.submit(mwpy.task(large, number))
                mw.submit(mwpy.task(first, mwpy.result(made), 0), tag=number)
                mw.submit(mwpy.task(first, mwpy.result(made), place if number == 2 else 0), tag=number)
            while len(ended) < 6:
                mw.loop()
                ended += mw.results()
            # those of large are never asked for
            return [each.error or each.value for each in sorted(ended, key=attrgetter("task_id")) if each.tag]

    assert (pipeline(0), len(read)) == ([1, 1, 2, 2], 0)
    assert (pipeline(0), len(read)) == ([1, 1, 2, 2], 0)
    assert (pipeline(7), len(read)) == ([1, 1, 2, 2], 1)
    damaged = tmp_path / "run.db.values" / next(iter(read))
    damaged.write_bytes(bytes(damaged.stat().st_size))
    *others, error = pipeline(8)
    assert (others, len(read)) == ([1, 1, 2], 1)
    assert isinstance(error, mwpy.DependencyFailed)
    assert f"cannot be read: a value of the run database is damaged: {damaged}. Start again" in error.cause
    assert (pipeline(8), len(read)) == ([1, 1, 2, 2], 0)


def test_an_executor_continues(tmp_path: Path, ran: Callable[[], int]) -> None:
    mark = str(tmp_path / "ran")

    def square(number: int) -> int:
        _mark(mark)
        return number * number

    for _ in range(2):
        with mwpy.Executor(slaves=1, run_database=tmp_path / "run.db") as executor:
            assert list(executor.map(square, range(5))) == [0, 1, 4, 9, 16]
            first = executor.submit(square, 5)
            assert executor.submit(square, first).result() == 625  # type: ignore[arg-type]  # a future stands for its value
        assert ran() == 7


def test_an_executor_with_an_initializer_continues(tmp_path: Path, ran: Callable[[], int]) -> None:
    mark = str(tmp_path / "ran")

    def prepare(size: int) -> None:
        os.environ["MWPY_TEST_SIZE"] = str(size)

    def scaled(number: int) -> int:
        _mark(mark)
        return number * int(os.environ["MWPY_TEST_SIZE"])

    for size, expected in ((2, 5), (2, 5), (3, 10)):
        database = tmp_path / "run.db"
        with mwpy.Executor(slaves=1, run_database=database, initializer=prepare, initargs=(size,)) as executor:
            assert list(executor.map(scaled, range(5))) == [size * number for number in range(5)]
        assert ran() == expected


def test_a_task_that_cannot_be_compared_runs_again_and_a_notice_says_why(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], ran: Callable[[], int]
) -> None:
    mark = str(tmp_path / "ran")

    def taken(_: Any) -> int:
        _mark(mark)
        return 1

    for times in (1, 2):
        with mwpy.local_master(slaves=1, run_database=tmp_path / "run.db") as mw:
            assert list(mw.map(taken, [math])) == [1]
        assert ran() == times
    shown = capfd.readouterr().err
    assert "run again at each start, because their arguments cannot be compared with those of an earlier run: " in shown
    assert "the module math is no value" in shown


def test_the_master_algorithm_gets_only_what_is_in_the_file(tmp_path: Path) -> None:
    """Each result that arrives can be read from the file by another process at that moment."""
    database = tmp_path / "run.db"
    with mwpy.local_master(slaves=2, run_database=database) as mw:
        ids = [mw.submit(mwpy.task(pow, number, 2)) for number in range(200)]
        got = 0
        while got < len(ids):
            mw.loop()
            got += len(mw.results())
            reading = sqlite3.connect(f"file:{database}?mode=ro", uri=True)
            [(stored,)] = reading.execute("SELECT sum(count) FROM results")
            reading.close()
            assert stored >= got


def test_a_map_refuses_a_key_that_is_the_same_for_all_items(tmp_path: Path) -> None:
    with (
        mwpy.local_master(slaves=1, run_database=tmp_path / "run.db") as mw,
        pytest.raises(mwpy.UsageError, match="a map needs a function"),
    ):
        mw.map(abs, [1], key="one")


def test_tasks_in_the_process_of_the_master_have_no_run_database(tmp_path: Path) -> None:
    with pytest.raises(mwpy.UsageError, match="a run database needs a slave"):
        mwpy.local_master(slaves=0, run_database=tmp_path / "run.db")


def test_a_second_master_on_the_same_file_is_refused(tmp_path: Path) -> None:
    database = tmp_path / "run.db"
    with (
        mwpy.local_master(slaves=1, run_database=database),
        pytest.raises(mwpy.RunDatabaseError, match="another master"),
    ):
        mwpy.local_master(slaves=1, run_database=database)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount a small disk")
def test_a_full_disk_ends_the_computation_and_a_restart_continues(tmp_path: Path) -> None:
    """What the algorithm got before is in the file, so it does not run again."""
    mark, disk, got = str(tmp_path / "ran"), tmp_path / "disk", list[int]()
    go = str(tmp_path / "go")
    disk.mkdir()

    def large(number: int) -> bytes:
        while number >= 5 and not Path(go).exists():
            time.sleep(0.01)
        with Path(mark).open("ab") as file:
            file.write(bytes([number]))
        return bytes([number]) * 200_000

    def fetch(mw: mwpy.Master) -> None:
        for result in mw.map_results(large, range(200)):
            got.append(result.tag)
            if len(got) == 5:
                Path(go).touch()

    full = r"because the disk is full|a large value"
    with Mounted(disk, "6m"):
        database = disk / "run.db"
        with mwpy.local_master(slaves=1, run_database=database) as mw, pytest.raises(mwpy.RunDatabaseError, match=full):
            fetch(mw)
        before = Path(mark).stat().st_size
        Mounted.resize(disk, "200m")
        with mwpy.local_master(slaves=1, run_database=disk / "run.db") as mw:
            values = list(mw.map(large, range(200)))
        assert values == [bytes([number]) * 200_000 for number in range(200)]
        assert len(got) >= 5
        assert not {*got} & {*Path(mark).read_bytes()[before:]}


class Mounted:
    """A disk in memory."""

    def __init__(self, folder: Path, size: str) -> None:
        self.folder = folder
        subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", folder], check=True)

    @staticmethod
    def resize(folder: Path, size: str) -> None:
        subprocess.run(["mount", "-o", f"remount,size={size}", folder], check=True)

    def __enter__(self) -> None:
        pass

    def __exit__(self, *_: object) -> None:
        subprocess.run(["umount", "-l", self.folder], check=True)
