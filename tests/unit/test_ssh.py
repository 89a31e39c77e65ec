"""Reading a hosts file, and finding the application in a command."""

from __future__ import annotations

import hashlib
import io
import json
import os
import signal
import time
from pathlib import Path

import pytest

from mwpy._batch import BatchUnavailable, Launch, _host
from mwpy._batch.local import Local
from mwpy._batch.ssh import HostLine, Ssh, _Host, read_hosts
from mwpy._values.errors import UsageError
from mwpy._values.jobs import End, Job, JobState


def test_a_hosts_file_names_hosts_with_slots_and_interpreters(tmp_path: Path) -> None:
    """Comments and empty lines are ignored."""
    path = tmp_path / "hosts"
    path.write_text("# ours\n\nnode1\nme@node2  slots=4 # big\nnode3 python=/opt/bin/python3.12 slots=64\n")
    assert read_hosts(path) == [
        HostLine("node1"),
        HostLine("me@node2", 4),
        HostLine("node3", 64, "/opt/bin/python3.12"),
    ]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("ok\n-oProxyCommand=x", "line 2: -oProxyCommand=x is not understood: write HOST"),
        ("slots=3", "line 1: slots=3 is not understood"),
        ("../a", r"line 1: \.\./a is not understood"),
        ("a slots=-1", "line 1: a slots=-1 is not understood"),
        ("a slots", "line 1: a slots is not understood"),
        ("a color=red", "line 1: a color=red is not understood"),
        ("a\n\na slots=2", "line 3: a is there already: give it more slots"),
        ("# none", "names no host: write a line `HOST slots=N` for each"),
    ],
)
def test_a_fault_in_a_hosts_file_is_reported_in_one_line_with_its_place(tmp_path: Path, text: str, words: str) -> None:
    """The line says what to write instead."""
    path = tmp_path / "hosts"
    path.write_text(text)
    with pytest.raises(UsageError, match=words) as caught:
        Ssh(path)
    assert "\n" not in str(caught.value)
    assert str(path) in str(caught.value)


def test_a_missing_hosts_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"cannot read the hosts file .*none: .*No such file"):
        read_hosts(tmp_path / "none")


def test_without_ssh_every_call_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The message names the host; it is said once."""
    (tmp_path / "hosts").write_text("node1")
    monkeypatch.setenv("PATH", str(tmp_path))
    said: list[str] = []
    edge = Ssh(tmp_path / "hosts", (), said.append)
    launch = Launch("m", str(tmp_path / "hosts"), ("true", "--mw-slave"), 1, str(tmp_path))
    for call in (edge.jobs, lambda: edge.submit(launch, 1)):
        with pytest.raises(BatchUnavailable, match="node1: ssh cannot be run: No such file or directory"):
            call()
    edge.remove(["x"])
    assert len(said) == 1


def ask_host(payload: bytes = b"", **request: object) -> None:
    """Do on this machine what a call would do on a host."""
    umask = os.umask(0)
    try:
        _host.main(io.BytesIO(json.dumps({"host": "h", **request}).encode() + b"\n" + payload))
    finally:
        os.umask(umask)


def start(content: bytes, *jobs: str, sent: bool = True) -> str:
    """Start jobs of a copied application. Return its digest."""
    digest = hashlib.sha256(content).hexdigest()
    about = {"mark": "m", "slaves": 1, "app": digest}
    rest = {"command": [_host.APPLICATION], "cwd": "/", "resource_size": 0}
    ask_host(content if sent else b"", do="start", jobs=jobs, about=about, app="/none/app", sent=sent, **rest)
    return digest


def test_copied_applications_that_nobody_uses_are_deleted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are deleted after a month, when another one is copied. A start and a running job use their application."""
    monkeypatch.setenv("HOME", str(tmp_path))
    apps = tmp_path / ".mwpy-ssh" / "apps"
    running = start(b"#!/bin/sh\nexec sleep 60\n", "ssh-1")
    started, unused = start(b"1"), start(b"2")
    for digest in (running, started, unused):
        os.utime(apps / digest, (1.0, 1.0))
    ask_host(do="look", stop=[], known=[])
    start(b"1", sent=False)
    new = start(b"3")
    assert sorted(each.name for each in apps.iterdir()) == sorted([running, started, new])
    ask_host(do="look", stop=["ssh-1"], known=[])


@pytest.mark.parametrize(("slots", "surplus"), [(0, ["old", "young"]), (1, ["young"]), (2, []), (3, [])])
def test_the_youngest_jobs_are_surplus_when_a_host_may_have_fewer(slots: int, surplus: list[str]) -> None:
    host = _Host(HostLine("node1", slots))
    host.placed = {name: Job(name, "m", JobState.RUNNING, ran_s) for name, ran_s in (("young", 1.0), ("old", 9.0))}
    shown = host.shown()
    assert sorted(job.job_id for job in shown) == ["old", "young"]
    assert sorted(job.job_id for job in shown if job.is_surplus) == surplus


def test_a_removed_job_that_ignores_sigterm_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is leaving until then. Jobs on this machine and on hosts are the same program."""
    monkeypatch.setattr(_host, "KILL_S", 0.3)
    local = Local(tmp_path / "jobs")
    command = ("/bin/sh", "-c", f'trap "" TERM; echo up >{tmp_path}/up; while :; do sleep 0.1; done', "--mw-slave")
    os.mkfifo(tmp_path / "up")
    [job] = local.submit(Launch("m", str(tmp_path / "m.rsc"), command, 1, str(tmp_path)), 1)
    assert (tmp_path / "up").read_text() == "up\n"
    local.remove([job])
    assert [each.state for each in local.jobs()] == [JobState.LEAVING]
    assert local.outcome(job) is None
    while local.jobs():
        time.sleep(0.05)
    outcome = local.outcome(job)
    assert outcome is not None
    assert (outcome.description, outcome.exit_code) == ("removed", None)
    assert not [path for path in Path("/proc").glob("[0-9]*") if f"MWPY_JOB={job}" in _host._read(str(path), "environ")]


def test_a_job_is_alive_while_its_program_runs_even_if_its_shell_was_killed(tmp_path: Path) -> None:
    """The program may have changed `MWPY_JOB`."""
    local = Local(tmp_path / "jobs")
    (tmp_path / "jobs").mkdir()
    job = local.start(["/bin/sh", "-c", "unset MWPY_JOB; exec sleep 60"], "m", str(tmp_path))
    group = int((tmp_path / "jobs" / job / "pid").read_text())
    os.kill(group, signal.SIGKILL)
    assert [each.job_id for each in local.jobs()] == [job]
    os.killpg(group, signal.SIGKILL)
    while local.jobs():
        time.sleep(0.05)
    outcome = local.outcome(job)
    assert outcome is not None
    assert outcome.end is End.LOST
