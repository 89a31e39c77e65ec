"""The folder of a queue: what is added, what is damaged, and who may change it."""

from __future__ import annotations

import json
import os
import resource
import shutil
import signal
import time
from pathlib import Path

import pytest
from msgspec.structs import replace

from mwpy import UsageError
from mwpy._queue.entry import Asked, Run, State, Turn
from mwpy._queue.folder import LIVES_S, Announced, Decision, Folder, Work, beat, store
from mwpy._queue.service import locked, loop
from mwpy._queue.submission import submit, timed
from mwpy._system import clock
from mwpy._system.locks import FileLock, LockHeld
from mwpy.cli.queue import parse

ASKED = Asked("app", ["app.py"], "python")

STUDY = """\
command = "python sim.py --config conf/{name}.ini {alpha}"
inputs = { "data.txt" = "data/all.txt" }
validate = "checks.py:valid"
[values]
alpha = "1..3"
name = ["a"]
[results]
e = "E = (.*)"
"""


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    path = tmp_path / "queue"
    path.mkdir(mode=0o700)
    return Folder(path)


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "app.py"
    path.write_text("print(1)\n")
    return path


@pytest.fixture
def added(folder: Folder, script: Path) -> Path:
    """An entry that was added; its path."""
    return submit(folder, replace(ASKED, words=[str(script), "7"]), []).path


def decide(folder: Folder, **turns: Turn) -> None:
    store(folder.path / "turn.json", Decision({int(name[1:]): turn for name, turn in turns.items()}))


def fault(folder: Folder) -> str:
    (entry,) = folder.entries()
    return entry.fault


def test_an_entry_is_a_copy_that_only_its_owner_can_write(folder: Folder, added: Path, script: Path) -> None:
    script.write_text("changed\n")
    (entry,) = folder.entries()
    assert (entry.number, entry.uid, entry.fault) == (1, os.geteuid(), "")
    assert entry.asked.words == ["app.py", "7"]
    assert (added / "input" / "app.py").read_text() == "print(1)\n"
    for path in (added, *added.rglob("*")):
        assert not path.stat().st_mode & 0o022, path
    assert [each.name for each in folder.path.iterdir()] == ["0001"], "nothing is left of its making"


def test_numbers_are_not_used_again(folder: Folder, added: Path, script: Path) -> None:
    assert submit(folder, replace(ASKED, words=[str(script)]), []).number == 2
    shutil.rmtree(folder.path / "0002")
    store(folder.path / "turn.json", Decision(last=2))
    assert submit(folder, replace(ASKED, words=[str(script)]), []).number == 3
    assert added.exists()


def test_a_study_is_copied_with_the_files_that_it_names(folder: Folder, tmp_path: Path) -> None:
    for name in ("sim.py", "conf/a.ini", "data/all.txt", "checks.py", "unused.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("def valid(row, results): return True\n")
    study = tmp_path / "study.toml"
    study.write_text(STUDY)
    entry = submit(folder, replace(ASKED, words=[str(study)]), [tmp_path / "conf"])
    given = entry.path / "input"
    copied = {str(path.relative_to(given)) for path in given.rglob("*") if path.is_file()}
    assert copied == {"study.toml", "sim.py", "conf/a.ini", "data/all.txt", "checks.py"}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("command = ", "is no TOML"),
        ("command = 'a {b}'", "b"),
        ("command = 'a'\nwith = 'slurm'", "the study says with, which the queue decides: remove it"),
        ("command = 'a'\ninputs = ['missing.txt']", "missing.txt"),
    ],
)
def test_a_wrong_study_is_refused_when_it_is_added(folder: Folder, tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "study.toml").write_text(text)
    with pytest.raises(UsageError, match=message):
        submit(folder, replace(ASKED, words=[str(tmp_path / "study.toml")]), [])
    assert [*folder.path.iterdir()] == []


def test_a_file_elsewhere_is_refused(folder: Folder, script: Path) -> None:
    with pytest.raises(UsageError, match="is not below"):
        submit(folder, replace(ASKED, words=[str(script)]), [Path("/etc/hostname")])


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        ("{", "damaged: entry.json: "),
        ('{"name": 1}', "damaged: entry.json: "),
        ("[" * 100_000, "damaged: entry.json: "),
        ('{"name": "a", "words": [], "python": ""}', "damaged: entry.json: "),
        ('{"name": "a", "words": ["app.py"], "python": "", "priority": 7}', "damaged: entry.json: "),
        ('{"name": "a", "words": ["other.py"], "python": ""}', "there is no file other.py in its input"),
    ],
)
def test_a_damaged_entry_has_a_reason_and_harms_no_other(
    folder: Folder, added: Path, script: Path, damage: str, message: str
) -> None:
    other = submit(folder, replace(ASKED, words=[str(script)]), [])
    (added / "entry.json").write_text(damage)
    found = folder.entries()
    assert found[0].fault.startswith(message)
    assert (found[1].number, found[1].fault) == (other.number, "")


def test_entries_that_are_links_half_written_or_removed_are_not_run(folder: Folder, added: Path) -> None:
    (folder.path / ".new-half").mkdir()
    (folder.path / ".new-half" / "entry.json").write_text("{")
    assert fault(folder) == ""
    (added / "entry.json").rename(added / "real.json")
    (added / "entry.json").symlink_to(added / "real.json")
    assert fault(folder) == "damaged: entry.json is no file of a queue"
    (added / "entry.json").unlink()
    assert fault(folder) == f"{added} was removed", "its other files will be gone soon"
    added.with_name("0001.run").mkdir()
    store(added.with_name("0001.run") / "state.json", Run(State.RUNNING))
    shutil.rmtree(added)
    assert fault(folder) == f"{added} was removed"
    shutil.rmtree(added.with_name("0001.run"))
    assert folder.entries() == []


@pytest.mark.parametrize("name", ["", "entry.json", "input"])
def test_an_entry_that_others_may_write_is_refused(folder: Folder, added: Path, name: str) -> None:
    """Its command at the end is not run either: they may have written it."""
    found = json.loads((added / "entry.json").read_text())
    (added / "entry.json").write_text(json.dumps({**found, "on_end": "rm -r *"}))
    assert folder.entries()[0].asked.on_end == "rm -r *"
    (added / name).chmod(0o770)
    assert "others may write" in fault(folder)
    assert folder.entries()[0].asked.on_end == ""


def test_a_folder_in_which_users_could_remove_the_entries_of_others_is_refused(tmp_path: Path) -> None:
    tmp_path.chmod(0o2770)
    with pytest.raises(UsageError, match=r"users could remove the entries of others: run `chmod \+t "):
        Folder(tmp_path)
    tmp_path.chmod(0o3770)
    Folder(tmp_path)
    with pytest.raises(UsageError, match="make this folder first"):
        Folder(tmp_path / "missing")
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="is no folder"):
        Folder(tmp_path / "file")
    with pytest.raises(UsageError, match=r"\(Not a directory\): correct this, and try again"):
        Folder(tmp_path / "file" / "queue")


def test_the_path_of_a_queue_is_for_all_users(folder: Folder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They may not enter the folder in which the keeper was started."""
    (tmp_path / "own").mkdir(mode=0o700)
    monkeypatch.chdir(tmp_path / "own")
    assert f"run `mwpy queue {tmp_path.resolve()}/queue`" in Folder(Path("../queue")).silence()


def test_requests_are_added_up_and_an_ended_entry_takes_none(folder: Folder, added: Path) -> None:
    (entry,) = folder.entries()
    folder.ask(entry, priority=0)
    assert folder.entries()[0].priority == 0
    folder.ask(entry, cancelled=True)
    (entry,) = folder.entries()
    assert (entry.priority, bool(entry.cancelled_by)) == (0, True)
    decide(folder, _1=Turn(State.REFUSED, "too many"))
    with pytest.raises(UsageError, match="entry 1 is refused already: too many"):
        folder.ask(entry, priority=2)
    (added.parent / f"0001.request-{os.geteuid()}.json").write_text("{")
    assert folder.entries()[0].priority == 1, "a damaged request is none"


def test_an_entry_is_found_by_its_number_and_by_its_name(folder: Folder, added: Path, script: Path) -> None:
    """A name is that of the only entry that has not ended, or of the last one. A number counts before a name."""
    second = submit(folder, replace(ASKED, words=[str(script)]), [])
    third = submit(folder, replace(ASKED, words=[str(script)], name="2"), [])
    for text, path in ("2", second.path), ("0002", second.path), ("3", third.path):
        assert folder.entry(text).path == path
    with pytest.raises(UsageError, match="there is no entry 7"):
        folder.entry("7")
    with pytest.raises(UsageError, match=r"several entries have the name app: give the number of one of them \(1, 2\)"):
        folder.entry("app")
    decide(folder, _1=Turn(State.RUNNING), _2=Turn(State.REFUSED))
    assert folder.entry("app").path == added
    decide(folder, _1=Turn(State.DONE), _2=Turn(State.REFUSED))
    assert folder.entry("app").path == second.path


def test_a_queue_without_a_keeper_says_so(folder: Folder) -> None:
    assert folder.silence() == f"no keeper was started: run `mwpy queue {folder.path}`"
    decide(folder)
    assert folder.silence() == ""
    os.utime(folder.path / "turn.json", (1, 1))
    assert folder.silence().startswith("the keeper has looked at nothing since 1970-01-01T00:00:01Z: run `mwpy queue")


def test_workers_and_machines_live_as_long_as_they_say_so(folder: Folder) -> None:
    """Only the clock of the file system counts."""
    path = folder.path / f"work-{os.geteuid()}.json"
    now = beat(path, Work(True, {1: 3}, {1: 2}), None)
    beat(folder.path / "host-a-1.json", Announced("a", "anna", ""), None)
    assert folder.workers(now) == {os.geteuid(): Work(True, {1: 3}, {1: 2})}
    assert [each.host for each in folder.hosts(now)] == ["a"]
    os.utime(path, (now - LIVES_S, now - LIVES_S))
    assert folder.workers(now) == {}
    assert beat(path, Work(True, {1: 3}, {1: 2}), Work(True, {1: 3}, {1: 2})) > now - LIVES_S
    assert folder.workers(now) != {}


def test_times_and_limits_are_read_or_refused() -> None:
    add = ["add", "queue", "app.py", "--limit"]
    assert [parse([*add, text]).limit for text in ("90s", "1.5min", "2h", "1d")] == [90, 90, 7200, 86400]
    for text in ("9", "0s", "-1h", "2 hours", ""):
        with pytest.raises(UsageError, match="write a time as 90s"):
            parse([*add[:-1], f"--limit={text}"])
    assert timed(ASKED, "02:00 daily").daily == "02:00"
    assert timed(ASKED, "2026-12-24 18:00").at > 0
    for text in ("25:00", "02:00 weekly", "2026-12-24 18:00 daily", "daily", ""):
        with pytest.raises(UsageError, match="write '02:00', '02:00 daily'"):
            timed(ASKED, text)


def test_a_second_keeper_is_refused_although_the_first_one_has_looked_at_its_lock(tmp_path: Path) -> None:
    """To close another descriptor of the file would release the lock."""
    lock = FileLock(tmp_path / "keeper.lock", "noon")
    assert lock.is_exclusive()
    child = os.fork()
    if child == 0:
        try:
            locked(tmp_path / "keeper.lock", "a keeper")
        except UsageError as error:
            os._exit(0 if "a keeper runs already: process" in str(error) else 2)
        os._exit(1)
    assert os.waitpid(child, 0)[1] == 0
    with pytest.raises(LockHeld):
        FileLock(tmp_path / "keeper.lock")
    lock.release()


def test_a_lock_that_cannot_be_written_is_held_by_nobody(tmp_path: Path) -> None:
    """As on a full disk. The next attempt succeeds."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, limits[1]))
    try:
        with pytest.raises(OSError, match="File too large"):
            FileLock(tmp_path / "keeper.lock")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    FileLock(tmp_path / "keeper.lock").release()


def test_a_keeper_ends_when_another_host_has_taken_its_lock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Some network file systems lock only within a host."""
    looks = list[int]()
    lock = FileLock(tmp_path / "keeper.lock")
    former = signal.getsignal(signal.SIGTERM)

    monkeypatch.setattr("mwpy._queue.service.PAUSE_S", 0.0)

    def look() -> float:
        looks.append(len(looks))
        if len(looks) == 1:
            raise OSError(28, "No space left on device")
        if len(looks) == 3:
            (tmp_path / "keeper.lock").write_text("process 7 on other\n")
        return 0.0

    assert loop(lock, look, lambda: None) == 3
    signal.signal(signal.SIGTERM, former)
    assert [line.partition(" ")[2] for line in capsys.readouterr().out.splitlines()] == [
        "waits, because the folder cannot be used now: [Errno 28] No space left on device",
        "goes on",
        "ends, because another process has taken its lock: does the file system have locks?",
    ]
    assert (tmp_path / "keeper.lock").read_text() == "process 7 on other\n", "the lock of the other one stays"


def test_a_keeper_waits_for_one_on_another_host_whose_lock_it_may_not_see(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While that one touches its file, it lives. Else the lock is taken."""
    path = tmp_path / "keeper.lock"
    path.write_text("process 7 on other\n")
    os.utime(path, ns=(0, 0))
    monkeypatch.setattr("mwpy._queue.service.LIVES_S", 0.05)
    monkeypatch.setattr("mwpy._queue.service.PAUSE_S", 0.01)
    monkeypatch.setattr(clock, "sleep", lambda _: path.touch())
    with pytest.raises(UsageError, match="a keeper runs already: process 7 on other"):
        locked(path, "a keeper")
    assert path.read_text() == "process 7 on other\n"
    monkeypatch.setattr(clock, "sleep", time.sleep)
    lock = locked(path, "a keeper")
    os.utime(path, ns=(0, 0))
    lock.touch()
    assert path.stat().st_mtime_ns > 0
    lock.release()
