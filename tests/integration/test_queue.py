"""`mwpy queue`, with real keepers, masters, overseers and agents on this machine."""

from __future__ import annotations

import getpass
import json
import os
import pwd
import re
import shutil
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from tests.chaos.machines import compile_clock
from tests.integration.apps.stage import APPS, SOURCES, Running, Stage, until
from tests.systems.debian import Unavailable, install

from mwpy import RunDatabaseError
from mwpy.run_database import RunDatabase

APP = str(APPS / "queued.py")

STUDY = """\
command = "sh work.sh {n}"
inputs = ["work.sh"]
[values]
n = "1..6"
[results]
square = "square=(.*)"
"""


class Queue:
    """A queue in the folder of a stage."""

    def __init__(self, stage: Stage) -> None:
        self.stage = stage
        self.path = stage.folder / "queue"
        self.path.mkdir(mode=0o700)
        self.variables = {"XDG_STATE_HOME": str(stage.folder / "state")}

    def call(self, what: str, *arguments: object, code: int = 0) -> Running:
        program = [sys.executable, "-m", "mwpy", "queue", what, str(self.path)]
        return self.stage.run("", *arguments, program=program, code=code)

    def add(self, *arguments: object, code: int = 0) -> int:
        made = self.call("add", *arguments, "--json", code=code)
        return int(json.loads(made.out)["entry"])

    def keep(self, *arguments: object, max_slaves: int = 2, **variables: str) -> Running:
        program = [sys.executable, "-m", "mwpy", "queue", str(self.path), "--interval", "0.1"]
        own = ["--max", max_slaves, "--oversee=--interval 0.3"]
        variables = {**self.variables, **variables}
        keeper = self.stage.start("", *own, *arguments, program=program, variables=variables)
        until(lambda: "keeps" in keeper.out or keeper.process.poll() is not None, "a keeper")
        return keeper

    def entries(self) -> dict[int, dict[str, Any]]:
        return {each["entry"]: each for each in json.loads(self.call("list", "--json").out)}

    def read(self, number: int, name: str) -> str:
        path = self.path / f"{number:04d}.run" / name
        return path.read_text() if path.exists() else ""

    def state(self, number: int) -> str:
        """The state that its worker has written."""
        return str(json.loads(self.read(number, "state.json") or '{"state": ""}')["state"])

    def until(self, state: str, *numbers: int) -> None:
        def shown() -> str:
            return f"{numbers} {state}, not {[self.state(each) for each in numbers]}"

        until(lambda: all(self.state(each) == state for each in numbers), shown)

    def ran(self, number: int) -> list[tuple[float, int]]:
        """When each task of an entry began, and its number."""
        words = [line.split() for line in self.read(number, "ran.txt").splitlines()]
        return [(float(at), int(task)) for at, task, _ in words]

    def logged(self, what: str) -> list[dict[str, Any]]:
        lines = [json.loads(line) for line in (self.path / "log.jsonl").read_text().splitlines()]
        return [line for line in lines if line["what"] == what]


@pytest.fixture
def queue(stage: Stage) -> Queue:
    return Queue(stage)


def squares(count: int) -> str:
    return "".join(f"{number * number}\n" for number in range(count))


def study_in(folder: Path) -> Path:
    (folder / "work.sh").write_text("echo square=$(($1*$1))\n")
    (folder / "study.toml").write_text(STUDY)
    return folder / "study.toml"


def test_a_sweep_and_scripts_run_in_order_with_tables_and_reports(queue: Queue) -> None:
    """One of them fails, and harms no other. At the end of each, its command reads how it ended."""
    last = queue.add(study_in(queue.stage.folder), "--priority", 2, "--on-end", "cat > ../end.json; cp {report} ../")
    failing = queue.add(APP, 3, 0, "fails", "--priority", 1)
    first = queue.add(APP, 5, 0, "--priority", 0, "--name", "first")
    keeper = queue.keep("--max-running", 1)
    queue.until("done", first, last)
    queue.until("failed", failing)
    assert queue.read(first, "table.txt") == squares(5)
    assert "1,1\n2,4\n3,9\n4,16\n5,25\n6,36\n" in queue.read(last, "study.sweep/results.csv")
    assert [each["entry"] for each in queue.logged("running")] == [first, failing, last]
    found = queue.entries()[failing]
    assert (found["state"], found["reason"]) == ("failed", "exit code 255: ValueError: this study is wrong")
    assert json.loads((queue.path / "end.json").read_text())["state"] == "done"
    assert "<html" in queue.read(last, "report.html")
    assert "this study is wrong" in queue.call("show", failing).out
    keeper.send(signal.SIGTERM)
    assert keeper.end() == 130
    queue.stage.no_process_left()


def test_a_keeper_that_is_killed_five_times_loses_nothing(queue: Queue) -> None:
    """Masters go on without it. Those that were killed continue with their run databases, also after a reboot."""
    numbers = [queue.add(APP, 15, 0.1, "--priority", each % 3) for each in range(4)]

    def has_more(done: int) -> bool:
        ran = [[task for _, task in queue.ran(each)] for each in numbers]
        return sum(map(len, ran)) > done or sum(len({*each}) for each in ran) == 60  # the last masters may be quick

    for kill in range(5):
        keeper = queue.keep("--max-running", 2)
        done = sum(len(queue.ran(each)) for each in numbers)
        until(partial(has_more, done + 3), "more tasks")
        if kill == 2:
            for pid in masters(queue):
                os.kill(pid, signal.SIGKILL)
        for pid in queue.stage.processes() if kill == 3 else [keeper.pid]:  # as a reboot does
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        keeper.end()
    queue.keep("--max-running", 2)
    queue.until("done", *numbers)
    assert [queue.read(each, "table.txt") for each in numbers] == [squares(15)] * 4
    begun = [each["entry"] for each in queue.logged("running")]
    assert sorted(begun) == numbers, "each was started once"
    assert [(number - 1) % 3 for number in begun] == [0, 0, 1, 2]


def masters(queue: Queue) -> list[int]:
    return [int(line.split(":")[0]) for line in queue.stage.commands() if "--mw-master" in line and "sh -c" not in line]


def test_a_second_keeper_says_who_is_there_and_ends(queue: Queue) -> None:
    keeper = queue.keep()
    other = queue.keep()
    assert other.end() == 2
    assert f"a keeper of this queue runs already: process {keeper.pid} on" in other.err
    assert other.err.count("\n") == 1


def test_an_important_entry_gets_places_as_tasks_of_another_one_end(queue: Queue) -> None:
    """The other one uses all places, and would go on for a long time. None of its tasks runs twice."""
    queue.keep("--max-running", 1)
    long = queue.add(APP, 999, 1, "--priority", 2)
    until(lambda: len(queue.ran(long)) >= 2, "both places in use")
    urgent = queue.add(APP, 2, 0.1, "--priority", 0)
    queue.until("done", urgent)
    ran = len(queue.ran(long))
    until(lambda: len(queue.ran(long)) > ran, "more tasks of the other one")
    assert queue.state(long) == "running"
    tasks = [task for _, task in queue.ran(long)]
    assert len(tasks) == len({*tasks})


OPENS = """\
import concurrent.futures, os, sys
import mwpy, helper

def cube(x):
    return helper.cube(x), os.getpid()

if __name__ == "__main__":
    with mwpy.open(slaves=3) as mw:
        found = list(mw.map(cube, range(int(sys.argv[1]))))
    with mwpy.Executor(slaves=3) as executor:
        found += [each.result() for each in concurrent.futures.as_completed([executor.submit(cube, 99)])]
    print(sum(value for value, _ in found), len({pid for _, pid in found} - {os.getpid()}))
"""


def test_a_script_that_opens_its_master_has_the_slaves_of_the_queue(queue: Queue) -> None:
    """It has options of its own, and a module beside it. Its results are in the run database of the entry."""
    (queue.stage.folder / "helper.py").write_text("def cube(x):\n    return x**3\n")
    script = queue.stage.folder / "opens.py"
    script.write_text(OPENS)
    number = queue.add(script, 40, "--input", queue.stage.folder / "helper.py")
    queue.keep(max_slaves=1)
    queue.until("done", number)
    [first, *_] = json.loads(queue.call("show", number, "--json").out)["last_lines"]
    assert first.split()[0] == str(sum(each**3 for each in (*range(40), 99)))
    with RunDatabase(queue.path / f"{number:04d}.run" / "run.db") as run:
        assert len(run.summary()["generations"]) == 2, "one for each master"


def test_the_end_of_an_entry_that_never_ran_is_reported_and_no_end_is_repeated(queue: Queue) -> None:
    """Who removes folders to free space gets no second run. A command that fails is named in the list."""
    mail = f"cat >> {queue.path}/../mail; echo >> {queue.path}/../mail"
    first = queue.add(APP, 1, 0, "fails", "--on-end", "exit 7")
    waits = queue.add(APP, 1, 0, "--after", first, "--on-end", mail)
    silent = queue.call("list").out
    assert "no keeper was started: run `mwpy queue" in silent
    keeper = queue.keep()
    queue.until("refused", waits)
    found = queue.entries()[first]
    assert found["reason"].endswith("this study is wrong; the command at the end failed (exit code 7): exit 7")
    mailed = json.loads((queue.stage.folder / "mail").read_text())
    assert (mailed["entry"], mailed["state"], mailed["reason"]) == (waits, "refused", f"entry {first} is failed")
    keeper.send(signal.SIGKILL)
    keeper.end()
    shutil.rmtree(queue.path / f"{first:04d}.run")
    queue.keep()
    queue.until("done", queue.add(APP, 1, 0))
    assert queue.entries()[first]["state"] == "failed"
    assert not (queue.path / f"{first:04d}.run").exists()
    assert len((queue.stage.folder / "mail").read_text().splitlines()) == 1


def test_an_entry_that_fails_is_cancelled_or_over_its_limit_says_so_and_keeps_what_was_done(queue: Queue) -> None:
    study, line = study_in(queue.stage.folder), "echo square=$(($1*$1)); "
    (queue.stage.folder / "work.sh").write_text(line + "[ $1 -ne 3 ]\n")
    failing = queue.add(study)
    (queue.stage.folder / "work.sh").write_text(line + "[ $1 -lt 3 ] || sleep 600\n")
    hanging = queue.add(study)
    queue.keep(max_slaves=4)
    queue.until("failed", failing)
    assert queue.entries()[failing]["reason"].startswith("exit code 1: failed: n=3: it ended with exit code 1")
    table = queue.path / f"{hanging:04d}.run" / "study.sweep"
    until(lambda: len(ended_in(table / "run.db")) >= 2, "two rows")
    queue.call("cancel", hanging)
    limited = queue.add(APP, 1, 600, "--limit", "2s")
    queue.until("cancelled", hanging)
    for number in failing, hanging:
        assert "1,1\n2,4\n" in queue.read(number, "study.sweep/results.csv")
    queue.until("failed", limited)
    assert queue.entries()[limited]["reason"] == "it was over its limit of 2 s"
    until(lambda: not masters(queue), "the end of all masters")


def ended_in(database: Path) -> list[Any]:
    with suppress(RunDatabaseError), RunDatabase(database) as run:
        return run.query("SELECT * FROM answers")
    return []


def test_entries_can_be_cancelled_and_moved(queue: Queue) -> None:
    queue.keep("--max-running", 1)
    runs = queue.add(APP, 1, 600)
    waits, last = queue.add(APP, 1, 0), queue.add(APP, 1, 0, "--name", "last")
    queue.until("running", runs)
    queue.call("move", "last", "--priority", 0)
    queue.until("done", last)
    queue.call("cancel", waits)
    until(lambda: queue.entries()[waits]["state"] == "cancelled", "the end of what waits")
    queue.call("cancel", runs)
    queue.until("cancelled", runs)
    again = queue.call("cancel", runs, code=2)
    assert f"entry {runs} is cancelled already: by " in again.err
    assert [each["entry"] for each in queue.logged("moved")] == [last]


def test_an_entry_runs_at_its_time_and_after_another(queue: Queue) -> None:
    queue.keep()
    later = queue.add(APP, 1, 0, "--at", "2999-01-01 00:00")
    never = queue.add(APP, 1, 0, "--at", "2999-01-01 00:00")
    failing = queue.add(APP, 1, 0, "fails", "--after", later)
    refused = queue.add(APP, 1, 0, "--after", failing)
    until(lambda: queue.entries()[later]["reason"] == "until 2999-01-01 00:00", "the keeper")
    entry = queue.path / f"{later:04d}" / "entry.json"
    entry.write_text(json.dumps({**json.loads(entry.read_text()), "at": time.time()}))
    queue.until("done", later)
    queue.until("failed", failing)
    until(lambda: queue.entries()[refused]["state"] == "refused", "the refusal")
    found = queue.entries()
    assert found[refused]["reason"] == f"entry {failing} is failed"
    assert (found[never]["state"], found[never]["reason"]) == ("waiting", "until 2999-01-01 00:00")


def test_the_clock_of_the_file_system_counts_and_not_that_of_a_host(queue: Queue) -> None:
    """The clock of the keeper and of its masters is three hours ahead."""
    library, why = compile_clock(queue.stage.folder)
    if library is None:
        pytest.skip(why)
    ahead = queue.stage.folder / "ahead"
    ahead.write_bytes((3 * 3600).to_bytes(8, sys.byteorder))
    soon = datetime.fromtimestamp(time.time() + 3600)
    later = queue.add(APP, 1, 0, "--at", f"{soon:%Y-%m-%d %H:%M}")
    limited = queue.add(APP, 2, 0.2, "--limit", "1h")
    queue.keep(LD_PRELOAD=str(library), CHAOS_CLOCK=str(ahead))
    queue.until("done", limited)
    assert queue.entries()[later]["state"] == "waiting"
    ran_s = json.loads(queue.read(limited, "state.json"))
    assert 0 < ran_s["ended"] - ran_s["began"] < 600


def test_each_new_commit_gets_an_entry(queue: Queue) -> None:
    """Three commits come at once, and their files differ. A commit that lacks the script harms none."""
    repository = queue.stage.folder / "repository"
    git = git_in(repository)
    git("init", "-q")
    for number in range(4):
        (repository / "app.py").write_text(Path(APP).read_text().replace("number * number", f"number + {number}"))
        git("add", "app.py")
        git("commit", "-q", "-m", f"{number}")
        if number == 0:
            watch = queue.add("app.py", 2, 0, "--watch", repository)
    keeper = queue.keep()
    queue.until("done", watch + 1, watch + 2, watch + 3)
    assert [queue.read(watch + each, "table.txt") for each in (1, 2, 3)] == ["1\n2\n", "2\n3\n", "3\n4\n"]
    keeper.send(signal.SIGKILL)
    keeper.end()
    queue.keep()
    until(lambda: queue.entries()[watch]["state"] == "repeats", "another look")
    assert len(queue.entries()) == 4, "no commit has two entries"


def test_an_entry_repeats_at_a_time_of_each_day(queue: Queue) -> None:
    """It was added two days ago, and no keeper has run since: it is made up for once. Another keeper adds no more."""
    now = datetime.now()
    daily = queue.add(APP, 2, 0, "--at", f"{now:%H:%M} daily", "--priority", 0)
    later = queue.add(APP, 2, 0, "--at", f"{now - timedelta(minutes=5):%H:%M} daily", "--name", "not yet")
    ago = time.time() - 2 * 86400
    os.utime(queue.path / f"{daily:04d}", (ago, ago))
    for _ in range(2):
        keeper = queue.keep()
        queue.until("done", later + 1)
        keeper.send(signal.SIGKILL)
        keeper.end()
    assert queue.read(later + 1, "table.txt") == squares(2)
    found = queue.entries()
    assert len(found) == 3
    assert (found[daily]["state"], found[later]["state"], found[3]["made_by"]) == ("repeats", "repeats", daily)
    assert found[3]["priority"] == 0
    queue.call("cancel", daily)
    queue.keep()
    until(lambda: queue.entries()[daily]["state"] == "cancelled", "the end of what repeats")


def git_in(folder: Path) -> Callable[..., None]:
    folder.mkdir()
    name = {"GIT_AUTHOR_NAME": "a", "GIT_AUTHOR_EMAIL": "a@b", "GIT_COMMITTER_NAME": "a", "GIT_COMMITTER_EMAIL": "a@b"}

    def git(*words: str) -> None:
        subprocess.run(["git", *words], cwd=folder, check=True, env={**os.environ, **name})

    return git


def test_a_machine_serves_the_entries_one_after_the_other_and_the_important_ones_first(queue: Queue) -> None:
    """The keeper has no places of its own. The machine leaves an entry for a more important one after its task."""
    queue.keep(max_slaves=0)
    first, second = queue.add(APP, 999, 0.5, "--priority", 2), queue.add(APP, 2, 0, "--priority", 1)
    needing = [queue.path / f"{each:04d}.run" / "app.rsc" for each in (first, second)]
    until(lambda: all(map(Path.exists, needing)), "both masters")
    program = [sys.executable, "-m", "mwpy", "slave", "--queue", str(queue.path), "--mw-slave-processes", "1"]
    machine = queue.stage.start("", program=program, variables=queue.variables)
    until(lambda: len(queue.ran(first)) > 1, "tasks of the first entry")
    urgent = queue.add(APP, 2, 0, "--priority", 0)
    queue.until("done", second, urgent)

    def served() -> list[int]:
        return [int(number) for number in re.findall(r"entry (\d+): submitted", machine.out)]

    until(lambda: served()[-1] == first, lambda: f"the first one again, not {served()}")
    assert [number for number in served() if number != second][-3:] == [first, urgent, first]
    ran = [task for _, task in queue.ran(first)]
    assert len(ran) == len({*ran}), "no task ran twice"
    other = queue.stage.run("", program=program, variables=queue.variables, code=2)
    assert "`mwpy slave` for this queue on this machine runs already: process" in other.err
    assert [*queue.path.glob("host-*.json")]
    machine.send(signal.SIGTERM)
    assert machine.end() == 130
    assert not [*queue.path.glob("host-*.json")]


def test_an_entry_that_is_removed_or_damaged_while_it_runs_ends_and_harms_no_other(queue: Queue) -> None:
    queue.keep()
    removed, damaged, lost = queue.add(APP, 1, 600), queue.add(APP, 1, 600), queue.add(APP, 1, 600)
    queue.until("running", removed, damaged, lost)
    until(lambda: len(masters(queue)) == 3, "all masters")
    shutil.rmtree(queue.path / f"{removed:04d}")
    shutil.rmtree(queue.path / f"{lost:04d}.run")
    (queue.path / f"{damaged:04d}" / "entry.json").write_text("{")
    fine = queue.add(APP, 2, 0)
    queue.until("refused", removed, damaged)
    queue.until("done", fine)
    until(lambda: not masters(queue), "the end of all masters")
    assert "was removed" in queue.read(removed, "state.json")
    assert "damaged: entry.json" in queue.read(damaged, "state.json")
    assert queue.entries()[lost]["reason"].endswith(f"{lost:04d}.run was removed while it ran")


def test_why_no_slaves_can_be_started_is_in_the_list(queue: Queue) -> None:
    (queue.stage.folder / "hosts").write_text("no-such-host.invalid slots=2\n")
    queue.keep("--with", "ssh", "--hosts", queue.stage.folder / "hosts")
    number = queue.add(APP, 1, 0)

    def reason() -> str:
        return str(queue.entries()[number]["reason"])

    until(lambda: reason().startswith("no slaves can be started now: no host of "), reason)
    assert "no-such-host.invalid: " in reason()


def test_what_a_full_disk_has_cut_off_stops_no_other_entry(queue: Queue) -> None:
    """The file that says which process the master is is empty. The next keeper starts all the same."""
    keeper = queue.keep()
    broken = queue.add(APP, 1, 600)
    until(lambda: bool(masters(queue)), "a master")
    [about] = queue.path.glob(f"masters-{os.geteuid()}/{broken:04d}/job-*/about")
    about.write_text("")
    queue.until("done", queue.add(APP, 1, 0))
    keeper.send(signal.SIGKILL)
    keeper.end()
    queue.keep()
    queue.until("done", queue.add(APP, 1, 0))
    queue.call("cancel", broken)
    queue.until("cancelled", broken)
    until(lambda: not masters(queue), "the end of its master")


def test_a_full_disk_delays_a_queue_and_loses_nothing(queue: Queue) -> None:
    """Nothing can be added meanwhile, and nothing of an attempt is left."""
    mount = ["mount", "-t", "tmpfs", "-o", "size=2m,mode=700", "none", str(queue.path)]
    if os.geteuid() != 0 or subprocess.run(mount, check=False, capture_output=True).returncode:
        pytest.skip("only root can mount a small disk")
    try:
        waits = queue.add(APP, 1, 0, "--at", "2999-01-01 00:00")
        keeper = queue.keep()
        until((queue.path / "turn.json").exists, "a decision")
        with suppress(OSError), (queue.path / "filler").open("wb") as file:
            while True:
                file.write(bytes(1 << 12))
                file.flush()
        full = queue.call("add", APP, 1, 0, code=2)
        assert "No space left on device" in full.err
        assert full.err.endswith("; free some space\n")
        assert full.err.count("\n") == 1
        assert keeper.process.poll() is None
        (queue.path / "filler").unlink()
        queue.until("done", queue.add(APP, 1, 0))
        assert queue.entries()[waits]["state"] == "waiting"
        keeper.send(signal.SIGTERM)
        keeper.end()
        queue.stage.no_process_left()
        assert not [each for each in queue.path.iterdir() if each.name.startswith(".")]
    finally:
        subprocess.run(["umount", "--lazy", str(queue.path)], check=True)


# ---- several users ------------------------------------------------------------------------------------------

GROUP, USERS = "mwpy-queue", ("mwpy-anna", "mwpy-berta", "mwpy-clara")


IN_NAMESPACE = """
if [ -n "$0" ]; then
    mount --bind "$1" /mnt && mount -t tmpfs -o mode=755 none "$0" && mkdir -p "$1" && mount --move /mnt "$1" || exit
fi
shift
exec "$@"
"""
"""Runs a program where the folder of this Python can be reached, although a folder above it (`$0`) is closed."""


def in_namespace() -> list[str]:
    """The beginning of a command that runs where all users can reach this Python."""
    base = Path(sys.base_prefix)
    closed = [str(each) for each in reversed(base.parents) if not each.stat().st_mode & 0o001]
    program = ["unshare", "--mount", "--propagation=private", "sh", "-c", IN_NAMESPACE]
    return [*program, *(closed[:1] or [""]), str(base)]


def as_user(user: str) -> list[str]:
    """The beginning of a command that runs as a user."""
    program = [*in_namespace(), "setpriv", f"--reuid={user}", f"--regid={GROUP}", "--init-groups", "--"]
    return [*program, "env", "-u", "XDG_STATE_HOME", f"HOME=/home/{user}", sys.executable, "-m", "mwpy"]


@pytest.fixture(scope="module")
def users() -> Iterator[tuple[str, ...]]:
    """Three Unix users in one group."""
    if os.geteuid() != 0 or shutil.which("useradd") is None:
        pytest.skip("only root can make users")
    subprocess.run(["groupadd", "--force", GROUP], check=True)
    for user in USERS:
        if subprocess.run(["id", user], capture_output=True, check=False).returncode:
            subprocess.run(["useradd", "--create-home", "--password=*", "--gid", GROUP, user], check=True)
    yield USERS
    for user in USERS:
        subprocess.run(["userdel", "--remove", user], check=True, capture_output=True)
    subprocess.run(["groupdel", GROUP], check=False, capture_output=True)


class SharedQueue(Queue):
    """A queue of a group. Its calls are those of a user."""

    def __init__(self, stage: Stage, folder: Path) -> None:
        self.stage = stage
        self.path = folder

    def run(self, user: str, what: str, *arguments: object, waits: bool = True, code: int = 0) -> Running:
        program = [*as_user(user), "queue"]
        program += [] if what == "keep" else [what]
        start = self.stage.run if waits else self.stage.start
        options: dict[str, Any] = {"code": code} if waits else {}
        return start("", str(self.path), *arguments, program=program, **options)

    def add_as(self, user: str, *arguments: object) -> int:
        return int(json.loads(self.run(user, "add", *arguments, "--json").out)["entry"])


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder that all users can reach."""
    with TemporaryDirectory() as made:
        Path(made).chmod(0o755)
        yield Path(made)


@pytest.fixture
def shared(open_folder: Path, stage: Stage, users: tuple[str, ...]) -> SharedQueue:
    """The queue of a group. Its keeper is the first user."""
    folder = open_folder / "queue"
    folder.mkdir()
    shutil.chown(folder, users[0], GROUP)
    folder.chmod(0o3770)
    return SharedQueue(stage, folder)


def until_decided(shared: SharedQueue) -> None:
    until(lambda: (shared.path / "turn.json").exists(), lambda: f"a decision, not {shared.stage.commands()}", 30.0)


SSHD = """\
Port 12223
{addresses}
HostKey {folder}/host
AuthorizedKeysFile {folder}/id.pub
PidFile none
StrictModes no
UsePAM no
UseDNS no
MaxStartups 200
SetEnv MWPY_TEST_MARK={mark} PYTHONPATH={sources}
"""

SSH = """\
Host 127.0.0.*
  Port 12223
  IdentityFile %d/.id-of-queue
  StrictHostKeyChecking no
  UserKnownHostsFile /dev/null
  LogLevel ERROR
  KexAlgorithms curve25519-sha256
"""


@pytest.fixture
def ssh_hosts(shared: SharedQueue) -> Iterator[str]:
    """An sshd on four addresses, for all users: the options of a keeper and of a worker for it."""
    folder = shared.path.parent
    try:
        install("openssh-server", "openssh-client")
    except Unavailable as error:
        pytest.skip(str(error))
    Path("/run/sshd").mkdir(exist_ok=True)
    for name in ("host", "id"):
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", folder / name], check=True)
    for user in USERS:
        shutil.copy(folder / "id", f"/home/{user}/.id-of-queue")
        shutil.chown(f"/home/{user}/.id-of-queue", user)
    addresses = [f"127.0.0.{number}" for number in (1, 2, 3, 4)]
    listen = "\n".join(f"ListenAddress {each}" for each in addresses)
    mark = shared.stage.mark.partition("=")[2]
    (folder / "sshd").write_text(SSHD.format(addresses=listen, folder=folder, mark=mark, sources=SOURCES))
    (folder / "ssh").write_text(SSH)
    (folder / "hosts").write_text("".join(f"{each} slots=1\n" for each in addresses))
    server = shared.stage.start("", program=[*in_namespace(), "/usr/sbin/sshd", "-D", "-e", "-f", str(folder / "sshd")])
    yield f"--oversee=--interval 1.5 --ssh-options='-F {folder}/ssh'"
    server.send(signal.SIGKILL)  # it hides the mark of the stage
    for user in USERS:
        Path(f"/home/{user}/.id-of-queue").unlink()


def test_thirty_entries_of_three_users_run_on_ssh_hosts_in_order(shared: SharedQueue, ssh_hosts: str) -> None:
    """The keeper is killed five times. Those of one user fail, and harm nobody."""
    anna, berta, clara = USERS
    hosts = shared.path.parent / "hosts"

    def keep() -> Running:
        return shared.run(anna, "keep", "--with", "ssh", "--hosts", hosts, "--max-running", 3, ssh_hosts, waits=False)

    def ended() -> int:
        return sum(shared.state(number) in ("done", "failed") for *_, number in added)

    added = []
    for turn in range(10):
        words = [APP, 3, 0.1, "--priority", turn % 3, "--json"]
        adding = {
            user: shared.run(user, "add", *words, *(["fails"] if user == clara else []), waits=False) for user in USERS
        }
        assert [each.end() for each in adding.values()] == [0, 0, 0]
        added += [(user, turn % 3, json.loads(each.out)["entry"]) for user, each in adding.items()]
    keeper = keep()
    until_decided(shared)
    waiting = shared.entries()[next(number for user, _, number in added if user == berta)]
    assert "its user must start `mwpy queue work" in waiting["reason"]
    for user in (berta, clara):
        shared.run(user, "work", ssh_hosts, waits=False)
    for kills in range(1, 6):
        until(lambda count=5 * kills: ended() >= count, f"the end of {5 * kills}")  # type: ignore[misc]
        keeper.send(signal.SIGKILL)
        keeper.end()
        keeper = keep()
    until(lambda: ended() == 30, "the end of all")
    for user in USERS:
        own = [(priority, number) for owner, priority, number in added if owner == user]
        for _, number in own:
            assert shared.state(number) == ("failed" if user == clara else "done")
            assert shared.read(number, "table.txt") == squares(3)
            ran = [line.split() for line in shared.read(number, "ran.txt").splitlines()]
            assert sorted(task for _, task, _ in ran) == ["0", "1", "2"], "no task ran twice"
            assert {uid for *_, uid in ran} == {str(pwd.getpwnam(user).pw_uid)}
        begun = [each["entry"] for each in shared.logged("running") if each["user"] == user]
        assert begun == [number for _, number in sorted(own)], "each began once, in order"


def test_an_important_entry_of_another_user_gets_places_of_ssh_hosts(shared: SharedQueue, ssh_hosts: str) -> None:
    anna, berta, clara = USERS
    shared.run(anna, "keep", "--with", "ssh", "--hosts", shared.path.parent / "hosts", ssh_hosts, waits=False)
    for user in (berta, clara):
        shared.run(user, "work", ssh_hosts, waits=False)
    until_decided(shared)
    long = shared.add_as(berta, APP, 999, 2, "--priority", 2)
    until(lambda: len(shared.ran(long)) >= 4, "all places in use")
    urgent = shared.add_as(clara, APP, 2, 0.1, "--priority", 0)
    shared.until("done", urgent)
    ran = len(shared.ran(long))
    until(lambda: len(shared.ran(long)) > ran, "more tasks of the other one")
    assert shared.state(long) == "running"
    tasks = [task for _, task in shared.ran(long)]
    assert len(tasks) == len({*tasks}), "no task ran twice"


def test_the_places_of_a_worker_that_is_away_are_not_given_to_others(shared: SharedQueue) -> None:
    """Its agents go on. The reason why its entry does not is in the list, and it continues with the next worker."""
    anna, berta, clara = USERS
    options = ("--interval", 0.2, "--oversee=--interval 0.3")
    shared.run(anna, "keep", "--max", 2, *options, waits=False)
    worker = shared.run(berta, "work", *options, waits=False)
    shared.run(clara, "work", *options, waits=False)
    until_decided(shared)
    long = shared.add_as(berta, APP, 999, 0.5)
    until(lambda: len(shared.ran(long)) > 2, "both places in use")
    worker.send(signal.SIGTERM)
    assert worker.end() == 130
    until(lambda: "its user must start `mwpy queue work" in shared.entries()[long]["reason"], "a reason")
    other = shared.add_as(clara, APP, 2, 0)
    shared.until("running", other)
    ran = len(shared.ran(long))
    until(lambda: len(shared.ran(long)) > ran + 2, "more tasks without a worker")
    assert shared.ran(other) == []
    shared.run(berta, "work", *options, waits=False)
    shared.until("done", other)
    assert shared.state(long) == "running"
    tasks = [task for _, task in shared.ran(long)]
    assert len(tasks) == len({*tasks}), "no task ran twice"


def test_only_the_owner_and_the_keeper_may_change_an_entry(shared: SharedQueue) -> None:
    anna, berta, clara = USERS
    shared.run(anna, "keep", "--max", 1, waits=False)
    until_decided(shared)
    own, other = shared.add_as(berta, APP, 1, 0), shared.add_as(berta, APP, 1, 0)
    stranger = [*in_namespace(), "setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "--", sys.executable]
    program = [*stranger, "-m", "mwpy", "queue", "add", str(shared.path), APP]
    outside = shared.stage.run("", program=program, code=2)
    assert outside.err.endswith(f"cannot be read: ask for membership in its group, {GROUP}\n")
    refused = shared.run(clara, "cancel", own, code=2)
    assert f"entry {own} belongs to {berta}: only {berta} and {anna} may change it" in refused.err
    forged = shared.path / f"{own:04d}.request-{pwd.getpwnam(berta).pw_uid}.json"
    forged.write_text('{"cancelled": true}')
    shutil.chown(forged, clara)
    shared.run(anna, "cancel", other)
    until(lambda: shared.entries()[other]["state"] == "cancelled", "the end of an entry")
    assert shared.entries()[own]["state"] == "waiting", "a request counts by the owner of its file"
    forged.unlink()
    shared.run(berta, "cancel", own)
    until(lambda: shared.entries()[own]["state"] == "cancelled", "the end of the other one")


def test_what_another_user_may_write_is_refused(shared: SharedQueue) -> None:
    """Neither a worker nor the keeper runs what was changed, and other entries go on."""
    anna, berta, clara = USERS
    changed, taken, fine = (
        shared.add_as(berta, APP, 1, 0),
        shared.add_as(berta, APP, 1, 0),
        shared.add_as(anna, APP, 1, 0),
    )
    (shared.path / f"{changed:04d}" / "entry.json").chmod(0o660)
    (shared.path / "turn.json").write_text("{}")
    shutil.chown(shared.path / "turn.json", clara)
    refused = shared.run(clara, "keep", waits=False)
    assert refused.end() == 2
    assert refused.err.endswith(f"queue belongs to {anna}: only this user can keep the queue\n")
    (shared.path / "turn.json").unlink()
    (shared.path / f"{taken:04d}.run").mkdir()
    (shared.path / f"{taken:04d}.run" / "state.json").write_text('{"state": "done"}')
    shutil.chown(shared.path / f"{taken:04d}.run", clara)
    shared.run(anna, "keep", "--max", 1, waits=False)
    shared.run(berta, "work", waits=False)
    shared.until("done", fine)
    found = shared.entries()
    assert (found[changed]["state"], found[taken]["state"]) == ("refused", "refused")
    assert found[changed]["reason"] == "others may write entry.json: add it again"
    assert found[taken]["reason"].endswith("belongs to another user: remove it")


def test_a_keeper_runs_the_entries_of_all_users_only_if_it_says_so(shared: SharedQueue) -> None:
    anna, berta, _ = USERS
    number = shared.add_as(berta, APP, 2, 0)
    shared.run(anna, "keep", "--max", 1, "--run-as-keeper", waits=False)
    shared.until("done", number)
    uids = {line.split()[2] for line in shared.read(number, "ran.txt").splitlines()}
    assert uids == {str(pwd.getpwnam(anna).pw_uid)}
    assert shared.entries()[number]["user"] == berta


def test_the_page_shows_entries_users_and_machines(queue: Queue) -> None:
    """The same figures are there as JSON, and a stranger gets neither."""
    number = queue.add(APP, 1, 600, "--name", "<b>long</b>")
    keeper = queue.keep("--page", 0)
    until(lambda: "the page of this queue: " in keeper.out, "an address")
    url = keeper.out.partition("the page of this queue: ")[2].split()[0]
    queue.until("running", number)

    def figures() -> Any:
        return json.loads(fetched(url.replace("/?", "/status.json?")))

    until(lambda: figures()["entries"] and figures()["entries"][0]["state"] == "running", "a running entry")
    until(lambda: figures()["users"][0]["used"] == 1, "a slave")
    found = figures()
    assert (found["entries"][0]["name"], found["users"][0]["user"]) == ("<b>long</b>", getpass.getuser())
    with pytest.raises(urllib.error.HTTPError, match="403"):
        fetched(url.partition("?")[0])
    assert "queue.js" in fetched(url)


def fetched(url: str) -> str:
    opener = urllib.request.build_opener(urllib.request.HTTPCookieProcessor())
    with opener.open(url, timeout=30) as answer:
        return str(answer.read().decode())
