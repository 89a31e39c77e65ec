"""Clients that have only curl make the runs of a sweep, some of them badly."""

from __future__ import annotations

import csv
import json
import os
import re
import shutil
import signal
import sys
import urllib.error
import urllib.request
from pathlib import Path

import pytest
from tests.integration.apps.stage import SOURCES, Running, Stage, kill, until

from mwpy import UsageError
from mwpy.cli import sweep as command_line
from mwpy.sweep.door import Job, results_in, section, task_text, why_not_text

CLIENT = Path(__file__).parent.parent.parent / "examples" / "http_client" / "client.sh"

PROGRAM = """\
#!/bin/sh
echo "$1 $(basename "$PWD")" >> "$RAN"
while [ -e "$HOLD" ] && [ ! -e "$HOLD.go" ]; do sleep 0.05; done
echo "square $(( $1 * $1 ))"
cat params.txt > out.txt
"""

STUDY = """\
command = "./solve.sh {x}"
templates = { "params.txt" = "params.tmpl" }
outputs = ["out.txt"]
ping = 1
[values]
x = "1..ROWS"
[results]
square = 'square (\\d+)'
given = { file = "out.txt", pattern = 'x is (\\d+)' }
"""


class Sweep:
    """A sweep whose runs wait for clients."""

    def __init__(self, stage: Stage, rows: int, study: str = STUDY, *words: str) -> None:
        self.stage, self.rows = stage, rows
        for name, text in (("solve.sh", PROGRAM), ("params.tmpl", "x is {x}\n"), ("study.toml", study)):
            (stage.folder / name).write_text(text.replace("ROWS", str(rows)))
        (stage.folder / "solve.sh").chmod(0o755)
        options = "-m", "mwpy", "sweep", "study.toml", "--http", "0", *words
        self.running = stage.start("", *options, program=[sys.executable], variables={"PYTHONPATH": os.fspath(SOURCES)})
        pattern = r"the address (\S+) and the session id (\w+)"
        process = self.running.process
        until(
            lambda: bool(re.search(pattern, self.running.out)) or process.poll() is not None, "the address of the door"
        )
        found = re.search(pattern, self.running.out)
        assert found is not None, self.running.err
        self.address, self.session = found.groups()
        self.clients = 0

    def client(self, session: str = "") -> Running:
        """Start a client, in a folder of its own. It can be held in its first run."""
        self.clients += 1
        folder = self.stage.folder / f"client{self.clients}"
        folder.mkdir(exist_ok=True)
        hold = self.stage.folder / f"hold{self.clients}"
        variables = {"HOLD": str(hold), "RAN": str(self.stage.folder / f"ran{self.clients}")}
        words = "cd", str(folder), "&&", "exec", "sh", str(CLIENT), self.address, session or self.session
        return self.stage.start("", program=["sh", "-c", " ".join(words)], variables=variables)

    def ask(self, path: str, body: bytes | None = None, session: str = "", **parameters: object) -> tuple[int, str]:
        """Send a request. Return the code and the content."""
        query = "".join(f"&{name}={value}" for name, value in parameters.items())
        url = f"{self.address}/{path}?sessionid={session or self.session}{query}"
        try:
            with urllib.request.urlopen(urllib.request.Request(url, body), timeout=60) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()

    def task(self, client: str = "hand") -> tuple[int, int, str]:
        """Fetch a task. Return its ticket, its parameter and its text."""
        code, text = self.ask("task", client=client)
        assert code == 200, text
        found = re.search(r"^Ticket=(\d+)\nCommandLine=./solve.sh (\d+)$", text, re.MULTILINE)
        assert found is not None
        return int(found[1]), int(found[2]), text

    def complete(self, ticket: int, x: int) -> tuple[int, str]:
        contents = ("STDOUT", f"square {x * x}\n"), ("out.txt", f"x is {x}\n")
        body = "".join(
            f"[Result]\nName={name}\nContent=<<ENDOFCONTENT\n{text}ENDOFCONTENT\n" for name, text in contents
        )
        return self.ask("complete", body.encode(), ticket=ticket, client="hand")

    def check_table(self) -> None:
        """Each row has its own results, which came through a file and through the standard output."""
        assert self.running.end() == 0, self.running.err
        with (self.stage.folder / "study.sweep" / "results.csv").open(newline="") as file:
            table = [(int(row["x"]), int(row["square"]), int(row["given"])) for row in csv.DictReader(file)]
        assert table == [(x, x * x, x) for x in range(1, self.rows + 1)]

    def begun(self, client: int) -> list[str]:
        """What a client has begun: the number and the folder of each run."""
        path = self.stage.folder / f"ran{client}"
        return path.read_text().splitlines() if path.exists() else []


@pytest.fixture(autouse=True, scope="module")
def needs_curl() -> None:
    if shutil.which("curl") is None:
        pytest.skip("there is no curl")


def pids_of(stage: Stage, name: str) -> list[int]:
    """The processes that have a file or folder of this name as their folder, or below it."""
    found = []
    for pid in stage.processes():
        try:
            folder = str(Path(f"/proc/{pid}/cwd").readlink())
        except OSError:
            continue
        if f"/{name}" in folder:
            found.append(pid)
    return found


def test_three_clients_make_a_sweep_although_one_is_killed_and_one_is_stopped(stage: Stage) -> None:
    """A third one has an old session id. The page says what each client did."""
    for number in (1, 2):
        (stage.folder / f"hold{number}").touch()
    sweep = Sweep(stage, 40)
    killed, stopped = sweep.client(), sweep.client()
    until(lambda: bool(sweep.begun(1) and sweep.begun(2)), "a run at each client")
    for pid in pids_of(stage, "client1"):
        kill(pid, signal.SIGKILL)
    for pid in pids_of(stage, "client2"):
        kill(pid, signal.SIGSTOP)
    old = sweep.client(session="0" * 32)
    assert old.end() == 1
    assert "it may be an old one" in old.err
    good = sweep.client()
    until(lambda: len(sweep.begun(4)) > 5, "runs of the fourth client")
    for pid in pids_of(stage, "client2"):
        kill(pid, signal.SIGCONT)
    (stage.folder / "hold2.go").touch()
    sweep.check_table()
    folders = [line for client in (1, 2, 4) for line in sweep.begun(client)]
    assert len({line.split()[1] for line in folders}) == len(folders), "two runs had the same folder"
    assert all(line.split()[1].startswith(sweep.session) for line in folders)
    assert killed.end() == -signal.SIGKILL
    for client in (stopped, good):
        assert client.end() == 0, client.err
    assert [path.name for path in (stage.folder / "client4").iterdir()] == []


def test_each_code_of_the_protocol(stage: Stage) -> None:
    """A run that was lost is given to another client. The first results count."""
    sweep = Sweep(stage, 3)
    assert sweep.ask("task", session="wrong")[0] == 403
    code, text = sweep.ask("config", platform="Linux", client="hand")
    assert code == 200
    settings = dict(line.split("=", 1) for line in text.splitlines())
    assert [*settings] == ["Worker", "MD5", "DeleteWorker", "DeleteClient", "DeleteResults", "Ping"]
    assert (settings["Worker"], settings["Ping"]) == ("solve.sh", "1")
    assert sweep.ask("config", platform="WinNT")[0] == 415
    assert sweep.ask("worker") == (200, PROGRAM)
    ticket, x, text = sweep.task()
    assert text == (
        f"[Task]\nTicket={ticket}\nCommandLine=./solve.sh {x}\n"
        f'[Input parameters.json]\nContent=<<ENDOFCONTENT\n{{"x": "{x}"}}\nENDOFCONTENT\n'
        f"[Input params.txt]\nContent=<<ENDOFCONTENT\nx is {x}\nENDOFCONTENT\n"
        "[Result STDOUT]\nName=STDOUT\n[Result out.txt]\nName=out.txt\n"
    )
    assert sweep.ask("ping", ticket=ticket)[0] == 204
    assert sweep.complete(ticket, x) == (200, "thank you\n")
    assert sweep.ask("ping", ticket=ticket)[0] == 205
    assert sweep.complete(ticket, 7) == (200, "somebody else has done this\n")
    lost, lost_x, _ = sweep.task("lost")
    malformed, other_x, _ = sweep.task("third")
    assert sweep.ask("complete", b"[Result]\nName=STDOUT\nno content", ticket=malformed, client="third") == (
        415,
        "line 1: write [Result], Name=..., Content=<<ENDOFCONTENT, the content and ENDOFCONTENT\n",
    )
    _, again_x, _ = sweep.task("fourth")
    assert again_x == lost_x, "the only run that is left"
    assert sweep.ask("ping", ticket=lost)[0] == 205
    assert sweep.ask("failed", ticket=lost, client="lost")[0] == 200
    with urllib.request.urlopen(page_of(sweep)) as answer:
        clients = {row["name"]: row for row in json.load(answer)["clients"]}
    assert (clients["hand"]["done"], clients["third"]["failed"], clients["lost"]["lost"]) == (1, 1, 1)
    assert sweep.complete(lost, lost_x) == (200, "thank you\n")
    assert sweep.ask("task")[0] == 503
    assert sweep.running.end() == 1
    failures = (stage.folder / "study.sweep" / "failed.csv").read_text()
    assert "the results of the HTTP client third cannot be read: line 1" in failures
    assert {x, lost_x, other_x} == {1, 2, 3}


def page_of(sweep: Sweep) -> str:
    until(lambda: "?token=" in sweep.running.err, "the address of the page")
    url = next(word for word in sweep.running.err.split() if "?token=" in word)
    return url.replace("/?", "/status.json?")


def test_a_client_that_waits_learns_that_there_is_no_task(stage: Stage) -> None:
    """The folder of the sweep is given relative to the present one."""
    sweep = Sweep(stage, 1, STUDY, "--folder", "study.sweep")
    ticket, x, _ = sweep.task()
    assert sweep.complete(ticket, x)[0] == 200
    code, _ = sweep.ask("task")
    assert code == 503
    sweep.check_table()


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ('before = "module load gcc"', "before cannot be used with --http"),
        ('memory-max = "1 GB"', "memory-max cannot be used with --http"),
        ('outputs = ["*.txt"]', "an output that is a pattern cannot be used with --http"),
    ],
)
def test_settings_that_cannot_hold_at_clients_are_refused(tmp_path: Path, setting: str, words: str) -> None:
    (tmp_path / "study.toml").write_text(f'command = "echo {{x}}"\n{setting}\n[values]\nx = "1..2"\n')
    with pytest.raises(UsageError, match=words):
        command_line.main([str(tmp_path / "study.toml"), "--http", "0"])


def test_a_run_that_takes_too_long_fails(stage: Stage) -> None:
    (stage.folder / "hold1").touch()
    sweep = Sweep(stage, 1, STUDY.replace("ping = 1", "ping = 1\nseconds-max = 1"))
    sweep.client()
    assert sweep.running.end() == 1
    failures = (stage.folder / "study.sweep" / "failed.csv").read_text()
    assert "it ran for more than 1 s (seconds-max) at the HTTP client" in failures


# ---- the texts of the protocol -------------------------------------------------------------------------------------


def test_contents_come_back_as_they_were() -> None:
    text = "".join(section("Result", "").replace("[Result]\n", f"[Result]\nName={name}\n") for name in ("a", "b"))
    assert results_in(text) == {"a": "", "b": ""}
    assert results_in("[Result]\nName=x y\nContent=<<ENDOFCONTENT\n1\n\n[Result]\nENDOFCONTENT\n") == {
        "x y": "1\n\n[Result]\n"
    }


@pytest.mark.parametrize("text", ["hello", "[Result]\n", "[Result]\nName=a\nContent=<<ENDOFCONTENT\nnever ends\n"])
def test_what_has_another_form_is_an_error(text: str) -> None:
    with pytest.raises(ValueError, match=r"line|the last line"):
        results_in(text)


@pytest.mark.parametrize(
    ("content", "words"),
    [("a\nENDOFCONTENT\nb", "has a line ENDOFCONTENT"), ("\udcff", "is not text, and binary content is not supported")],
)
def test_what_cannot_travel_is_named(content: str, words: str) -> None:
    assert why_not_text("params.txt", content) == f"params.txt {words}" + (
        ", which ends a content in this protocol" if "line" in words else ""
    )


def test_the_changes_of_the_environment_are_in_the_command_line() -> None:
    job = Job(["echo", "a b"], {"N": "1"}, {"worker.sh": "x"}, "in", ["STDOUT"])
    assert task_text(job, 7, "worker.sh") == (
        "[Task]\nTicket=7\nCommandLine=env N=1 echo 'a b'\n"
        "[Input STDIN]\nContent=<<ENDOFCONTENT\nin\nENDOFCONTENT\n[Result STDOUT]\nName=STDOUT\n"
    )
