"""The resource files of an overseer: finding, locking, reading, and the command of their agents."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from mwpy import resource_file
from mwpy._core.overseer import OverseerSettings
from mwpy._roles import overseer
from mwpy._roles.overseer import OverseenFiles, OverseerOptions, agent_command, mark_of, paths_of
from mwpy._values.errors import MasterUnreachable, ResourceFileError, UsageError
from mwpy.resource_file import FINISHED, IN_PROGRESS, MemberKeys, ResourceFile

Overseen = Callable[..., OverseenFiles]

KEYS = MemberKeys("a" * 40, "b" * 40, "c" * 40)
CONTENT = ResourceFile(
    IN_PROGRESS,
    100.0,
    10.0,
    "m",
    "g",
    ("tcp://h:1",),
    KEYS,
    1,
    0,
    1,
    "/env/bin/python",
    ("app.py", "--mw-slave", "--mw-resource-file", "/there/app.rsc", "own", "--", "--mw-x"),
)


@pytest.fixture
def overseen() -> Iterator[Overseen]:
    """Makes the files of an overseer; their locks are released at the end."""
    made = []

    def make(paths: list[Path], said: list[str] | None = None, **options: Any) -> OverseenFiles:
        made.append(OverseenFiles(OverseerOptions(paths, **options), ([] if said is None else said).append))
        return made[-1]

    yield make
    for files in made:
        files.close()


def test_a_mark_is_readable_and_depends_on_the_absolute_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    mark = mark_of(Path("my app.rsc"))
    assert mark.startswith("my-app-")
    assert mark == mark_of(tmp_path / "my app.rsc")
    assert mark != mark_of(tmp_path / "other" / "my app.rsc")
    assert mark_of(Path("äö.rsc")).startswith("mwpy-")


def test_directories_are_searched_and_each_file_is_found_once(tmp_path: Path) -> None:
    for name in ("b.rsc", "a.rsc", "a.txt"):
        (tmp_path / name).touch()
    found = paths_of([tmp_path / "a.rsc", tmp_path, tmp_path / "missing.rsc"])
    assert [path.name for path in found] == ["a.rsc", "b.rsc", "missing.rsc"]


def test_an_agent_runs_what_the_resource_file_names_or_another_program() -> None:
    """The application's own arguments stay; the path of the resource file is left to the batch system."""
    own = ("--mw-slave", "--mw-slave-processes", "4", "own", "--", "--mw-x")
    assert agent_command(CONTENT, (), 4) == ("/env/bin/python", "app.py", *own)
    assert agent_command(CONTENT, ("packed.pex",), 4) == ("packed.pex", *own)
    plain = replace(CONTENT, slave_arguments=("app.py",))
    assert agent_command(plain, (), 1) == ("/env/bin/python", "app.py", "--mw-slave", "--mw-slave-processes", "1")


def test_a_computation_is_found_once_with_its_priority(overseen: Overseen, tmp_path: Path) -> None:
    a, b = tmp_path / "a.rsc", tmp_path / "b.rsc"
    resource_file.write(a, CONTENT)
    files = overseen([a, b], priorities={"a.rsc": 1, str(b): 2}, slaves_per_job=4, extra=("x",))
    found = files.find()
    assert [(each.name, each.priority, each.slaves_per_job) for each in found] == [("a.rsc", 1, 4), ("b.rsc", 2, 4)]
    assert files.find() == []
    assert not files.more_may_come
    first, second = (each.mark for each in found)
    assert files.read(first) == CONTENT
    with pytest.raises(ResourceFileError):
        files.read(second)
    launch = files.launch(first, CONTENT)
    assert (launch.mark, launch.resource_path, launch.slaves, launch.extra) == (first, str(a), 4, ("x",))
    assert Path(launch.log_dir) == tmp_path / "a.rsc.jobs"
    assert Path(launch.log_dir).is_dir()


def test_a_computation_of_another_overseer_is_taken_over_at_its_end(overseen: Overseen, tmp_path: Path) -> None:
    """That it is ignored until then is said once."""
    resource_file.write(tmp_path / "a.rsc", CONTENT)
    said: list[str] = []
    first, second = overseen([tmp_path]), overseen([tmp_path], said)
    assert [each.name for each in first.find()] == ["a.rsc"]
    assert [*second.find(), *second.find()] == []
    assert len(said) == 1
    assert said[0].startswith("a.rsc: is ignored until that one ends, because another overseer watches ")
    assert first.follow([]) == [mark_of(tmp_path / "a.rsc")]
    assert [each.name for each in second.find()] == ["a.rsc"]


def test_a_computation_that_is_left_leaves_no_thread(overseen: Overseen, tmp_path: Path) -> None:
    """A queue oversees thousands of them, one after the other."""
    resource_file.write(tmp_path / "a.rsc", CONTENT)
    before = set(threading.enumerate())
    files = overseen([])
    for _ in range(3):
        files.follow([tmp_path / "a.rsc"])
        [found] = files.find()
        files.read(found.mark)
        files.follow([])
    for thread in set(threading.enumerate()) - before:
        thread.join(60.0)
        assert not thread.is_alive()


def test_a_master_that_hangs_is_not_waited_for(
    overseen: Overseen, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer = threading.Event()
    monkeypatch.setattr("mwpy._roles.join.ask", lambda *_, **__: answer.wait())
    monkeypatch.setattr("mwpy._roles.overseer.ANSWER_S", 0.05)
    resource_file.write(tmp_path / "a.rsc", CONTENT)
    files = overseen([tmp_path / "a.rsc"])
    [found] = files.find()
    with pytest.raises(MasterUnreachable, match="gave no answer"):
        files.drain(found.mark, ["1.0"])
    answer.set()
    monkeypatch.setattr("mwpy._roles.overseer.ANSWER_S", 60.0)
    files.drain(found.mark, ["1.0"])


def test_the_master_of_a_computation_that_has_just_finished_is_not_asked(overseen: Overseen, tmp_path: Path) -> None:
    resource_file.write(tmp_path / "a.rsc", replace(CONTENT, computation_status=FINISHED))
    files = overseen([tmp_path / "a.rsc"])
    [found] = files.find()
    files.drain(found.mark, ["1.0"])


def test_a_path_that_hangs_is_reported_once(
    overseen: Overseen, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hanging = threading.Event()
    find = overseer._find

    def slow(path: Path) -> tuple[bool, list[Path]]:
        assert path.name != "a.rsc" or hanging.wait(60)
        return find(path)

    monkeypatch.setattr("mwpy._roles.overseer._find", slow)
    monkeypatch.setattr("mwpy._roles.overseer.PATIENCE_S", 0.5)
    said: list[str] = []
    files = overseen([tmp_path / "a.rsc", tmp_path / "b.rsc"], said)
    assert [each.name for each in files.find()] == ["b.rsc"]
    assert files.more_may_come
    assert files.find() == []
    assert said == [f"{tmp_path}/a.rsc: does not answer. Does its file system hang? The other computations go on"]
    hanging.set()
    found: list[str] = []
    while not found:
        found = [each.name for each in files.find()]
    assert (found, files.more_may_come) == (["a.rsc"], False)


def test_old_output_of_the_jobs_is_deleted(overseen: Overseen, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Output is old after a month, or if there is much newer output. Files of others in the same folder stay."""
    path, logs = tmp_path / "a.rsc", tmp_path / "logs"
    monkeypatch.setattr("mwpy._roles.overseer.KEPT_FILES", 3)
    logs.mkdir()
    mark = mark_of(path)
    names = [f"{mark}.{number}.0.err" for number in range(6)] + [f"doctor-7-{mark}.9.0.out", f"{mark}x.out", "my.out"]
    now = time.time()
    for age_days, name in enumerate(names):
        (logs / name).touch()
        os.utime(logs / name, (now - 86400 * age_days,) * 2)
    for name in (f"{mark}.0.0.err", "my.out", f"{mark}x.out"):
        os.utime(logs / name, (now - 86400 * 31,) * 2)
    files = overseen([path], log_dir=logs, settings=OverseerSettings(max_jobs=0))
    files.find()
    files.launch(mark, CONTENT)
    left = sorted(each.name for each in logs.iterdir())
    assert left == sorted([*names[1:4], f"{mark}x.out", "my.out", f"{mark}.lock"])


def test_old_output_of_other_computations_is_deleted(overseen: Overseen, tmp_path: Path) -> None:
    """Perhaps nobody runs them again. Folders that become empty are deleted, too."""
    old = time.time() - 86400 * 31
    for name, at in (("gone", old), ("shared", old), ("recent", old + 86400 * 2)):
        logs = tmp_path / f"{name}.rsc.jobs"
        logs.mkdir()
        output = logs / f"{mark_of(tmp_path / f'{name}.rsc')}.1.0.err"
        output.touch()
        os.utime(output, (at, at))
    (tmp_path / "shared.rsc.jobs" / "my.out").touch()
    (tmp_path / "empty.rsc.jobs").mkdir()
    files = overseen([tmp_path / "a.rsc"])
    files.find()
    files.launch(mark_of(tmp_path / "a.rsc"), CONTENT)
    left = {folder.name.partition(".")[0]: len(list(folder.iterdir())) for folder in tmp_path.glob("*.rsc.jobs")}
    assert left == {"a": 1, "shared": 1, "recent": 1, "empty": 0}


def test_a_folder_that_cannot_be_written_is_an_error(overseen: Overseen, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(UsageError, match="give another --log-dir"):
        overseen([tmp_path / "a.rsc"], log_dir=tmp_path / "file" / "logs").find()
