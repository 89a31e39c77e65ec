"""A run database after the machine has lost its power."""

from __future__ import annotations

import fcntl
import os
import shutil
import struct
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from random import Random

import pytest
from tests.integration.apps.stage import Running, Stage, until
from tests.power.computation import value_of
from tests.power.disk import Disk, events_in

from mwpy._database.store import Writer
from mwpy._transport.codec import loads
from mwpy._values.earlier import EarlierAnswers
from mwpy._values.groups import each_task

HERE = Path(__file__).parent
TASKS = 300

PACE_S = {"normal": 0.02, "full": 0.003}
"""How long a task takes, in seconds. With `normal`, the computation must last for some seconds."""

OFTEN = {"LOG_PAGES": "60"}
"""The log is copied into the file many times in a short run. Each copy writes the log to the disk before."""

AGE_TICKS = 6
"""A result that the algorithm got before so many ticks, of a quarter of a second each, is more than a second old."""

CONTINUED = 25
"""Of so many losses, one is followed by a whole run of the computation."""

EXT4_SHUTDOWN, WITHOUT_LOG = 0x8004587D, 2
"""The request `EXT4_IOC_SHUTDOWN` and its flag that writes nothing more, not even the journal."""

FREEZE, THAW = 0xC0045877, 0xC0045878
"""The requests `FIFREEZE` and `FITHAW`: between them, a write to the file system waits."""


@pytest.fixture(scope="session")
def recorder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The library that records what a process writes."""
    library = tmp_path_factory.mktemp("recorder") / "recorder.so"
    try:
        command = ["cc", "-O2", "-shared", "-fPIC", "-o", str(library), str(HERE / "recorder.c"), "-ldl"]
        subprocess.run(command, check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"what a process writes cannot be recorded without a C compiler: {error}")
    return library


def start(stage: Stage, disk: Path, got: Path, sync: str, **variables: str) -> Running:
    """Start the computation, with its run database on a disk."""
    database = "--mw-run-database", disk / "run.db", "--mw-run-database-sync", sync
    program = [sys.executable, str(HERE / "computation.py")]
    return stage.start("", TASKS, got, "--mw-local", 2, *database, program=program, variables=variables)


def must_be_there(got: Sequence[str], sync: str) -> dict[int, int]:
    """The tasks whose results a power loss must leave, by id, with their numbers.

    Args:
        got: the lines of the algorithm until then.
    """
    if sync == "normal":
        ticks = [place for place, line in enumerate(got) if line == "tick"]
        got = got[: ticks[-AGE_TICKS]] if len(ticks) >= AGE_TICKS else []
    return {int(line.split()[0]): int(line.split()[1]) for line in got if line != "tick"}


def answers_in(path: Path, numbers: dict[int, int]) -> set[int]:
    """Open a run database. Return the tasks with answers, after a look at each value."""
    writer = Writer.open(path, member_id="")
    found = set[int]()
    try:
        for entry in writer.stored.earlier():
            if isinstance(entry, EarlierAnswers):
                for place, (task, _) in enumerate(each_task(entry.results)):
                    found.add(task)
                    if task in numbers and place not in entry.results.failed:
                        assert loads(*writer.stored.read(entry.row, place)) == value_of(numbers[task])
        return found
    finally:
        writer.release()


@pytest.mark.parametrize("sync", ["normal", "full"])
def test_a_power_loss_at_any_moment_loses_at_most_the_last_second(
    in_memory: Path, tmp_path: Path, recorder: Path, losses: int, seed: int, sync: str, story: list[str]
) -> None:
    """With `full`, it loses nothing. The computation continues to the same end."""
    disk, record, lost = in_memory / "disk", in_memory / "record", in_memory / "lost"
    disk.mkdir()
    virtual, random, got = Disk(), Random(seed), b""
    promises = 0
    with Stage(tmp_path) as stage:
        recorded = {"LD_PRELOAD": str(recorder), "POWER_FOLDER": str(disk), "POWER_RECORD": str(record)}
        recorded |= OFTEN if sync == "full" else {}  # without a copy, the log is written to the disk once a second
        running = start(stage, disk, disk / "got", sync, PACE_S=str(PACE_S[sync]), **recorded)
        assert running.end() == 0, running.err
        events = [*events_in(record)]
        all_got = must_be_there((disk / "got").read_text().splitlines(), "full")
        assert len(all_got) == TASKS
        moments = [random.randrange(len(events) if random.random() < 0.7 else 100) for _ in range(losses - 1)]
        moments = sorted([*moments, len(events) * 9 // 10])
        for number, (start_at, moment) in enumerate(pairwise([0, *moments])):
            for event in events[start_at:moment]:
                virtual.apply(event)
                got += event.data if event.path == "got" else b""
            lost.mkdir()
            virtual.lose_power(random, lost)
            promised = must_be_there(got.decode().splitlines(), sync)
            promises += len(promised)
            story.append(f"seed {seed}, event {moment} of {len(events)}, {len(promised)} results are promised")
            shutil.copytree(lost, tmp_path / "kept")
            assert not promised.keys() - answers_in(lost / "run.db", all_got), f"the disk had {tmp_path / 'kept'}"
            if number % CONTINUED == CONTINUED - 1:
                running = start(stage, lost, lost / "got-again", sync)
                assert running.end() == 0, running.err
                assert running.out.split() == [str(TASKS), str(TASKS // 10)]
            shutil.rmtree(lost)
            shutil.rmtree(tmp_path / "kept")
    assert promises, "no loss came late enough"


@contextmanager
def mounted(image: Path, folder: Path) -> Iterator[None]:
    """A disk with ext4."""
    try:
        subprocess.run(["mount", "-o", "loop", image, folder], check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"a virtual disk cannot be mounted here: {getattr(error, 'stderr', error)!r}")
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", folder], check=True)


def formatted(folder: Path) -> Path:
    """The image of a disk with ext4, and a folder `disk` to mount it at."""
    image = folder / "image"
    (folder / "disk").mkdir()
    with image.open("wb") as file:
        file.truncate(64 << 20)
    try:
        subprocess.run(["mkfs.ext4", "-q", "-F", image], check=True, capture_output=True)
    except OSError as error:
        pytest.skip(f"no disk can be formatted here: {error}")
    return image


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount a virtual disk")
@pytest.mark.parametrize("sync", ["normal", "full"])
def test_a_disk_that_drops_unsynced_writes_keeps_what_is_promised(in_memory: Path, tmp_path: Path, sync: str) -> None:
    """An ext4 file system is shut down in the middle. The master ends with a message, and the next one continues."""
    image, disk, got = formatted(in_memory), in_memory / "disk", tmp_path / "got"
    with Stage(tmp_path) as stage:
        with mounted(image, disk):
            running = start(stage, disk, got, sync, PACE_S="0.05", **OFTEN)
            until(lambda: got.exists() and got.read_text().count("tick") >= AGE_TICKS + 2, "results of two seconds")
            lines = got.read_text().splitlines()
            handle = os.open(disk, os.O_RDONLY)
            fcntl.ioctl(handle, EXT4_SHUTDOWN, struct.pack("I", WITHOUT_LOG))
            os.close(handle)
            assert running.end() != 0
            assert "run.db" in running.err
            assert "Traceback" not in running.err
        left = in_memory / "left"
        shutil.copyfile(image, left)  # another process may still have the first disk
        with mounted(left, disk):
            all_got = must_be_there(got.read_text().splitlines(), "full")
            promised = all_got if sync == "full" else must_be_there(lines, sync)
            assert promised
            assert not promised.keys() - answers_in(disk / "run.db", all_got)
            running = start(stage, disk, got, sync)
            assert running.end() == 0, running.err
            assert running.out.split() == [str(TASKS), str(TASKS // 10)]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount a virtual disk")
def test_a_disk_that_does_not_answer_is_reported_and_the_run_goes_on_when_it_does(
    in_memory: Path, tmp_path: Path
) -> None:
    """An ext4 file system is frozen in the middle. The master says that it waits for the disk, and gives no other
    reason."""
    image, disk, got = formatted(in_memory), in_memory / "disk", tmp_path / "got"
    with Stage(tmp_path) as stage, mounted(image, disk):
        running = start(stage, disk, got, "normal", PACE_S="0.05")
        until(lambda: got.exists() and got.read_text().count("tick") >= 1, "results")
        handle = os.open(disk, os.O_RDONLY)
        fcntl.ioctl(handle, FREEZE, 0)
        try:
            until(lambda: "has not answered for" in running.err or running.process.poll() is not None, "a message")
        finally:
            fcntl.ioctl(handle, THAW, 0)
            os.close(handle)
        assert running.end() == 0, running.err
        assert f"mwpy: the run database {disk / 'run.db'} has not answered for " in running.err
        assert "nothing has progressed" not in running.err
        assert running.out.split() == [str(TASKS), str(TASKS // 10)]
