"""What `ssh.py` has done on a host: this source is sent there with each call, and run by the host's own Python.

It needs Linux and Python 3.7 there, and nothing installed. All that it keeps is in `~/.mwpy-ssh`, readable by its
user only: `apps/DIGEST/NAME` are copied applications, `jobs/HOST/JOB/` is a job, under the name that the hosts file
has for the host, since several hosts may share a home directory. A shell stays with the agent and writes its exit code
there. A job lives while a process of the shell's group has the job's id in its environment; so no process number is
ever mistaken for another's, and a job is found whoever started it and whatever was killed.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from typing import IO, Any

RESOURCE = "<resource file>"
"""The word of a command that stands for the resource file."""

ANSWER = "MWPY-ANSWER "
"""What the line with the answer begins with: a login shell may print lines of its own."""

KILL_S = 20.0
"""Seconds after its removal that a job is killed: more than its grace period, which is 5 s if nobody says otherwise."""

KEEP_S = 86400.0
"""Seconds for which is kept what became of a job."""

STDERR_BYTES = 8192

# $0 is the job's folder. The trap keeps the shell for the exit code when all of its group is told to go.
SCRIPT = 'trap : TERM INT; "$@"; echo $? >"$0/exit.new"; mv "$0/exit.new" "$0/exit"; rm -f "$0/resource-file"'


def main(given: IO[bytes]) -> None:
    """Do what the first line asks, with the bytes that follow it."""
    os.umask(0o077)
    asked = json.loads(given.readline())
    root = os.path.join(os.path.expanduser("~"), ".mwpy-ssh")
    folder = os.path.join(root, "jobs", asked["host"])
    os.makedirs(folder, exist_ok=True)
    answer = start(root, folder, asked, given) if asked["do"] == "start" else look(root, folder, asked)
    print("\n" + ANSWER + json.dumps(answer), flush=True)


# Looking


def look(root: str, folder: str, asked: dict[str, Any]) -> dict[str, Any]:
    """Stop the jobs under `stop`, and tell which live, and what became of those under `known` that do not."""
    groups = _groups()
    living: dict[str, dict[str, Any]] = {}
    ended: dict[str, dict[str, Any]] = {}
    for job in sorted(os.listdir(folder)):
        place = os.path.join(folder, job)
        about = _read(place, "about")
        pid = json.loads(about)["pid"] if about else 0
        if about and _lives(job, groups.get(pid, [])):
            if job in asked["stop"]:
                _stop(place, pid)
            living[job] = _told(place, json.loads(about), pid)
        elif job in asked["known"]:
            ended[job] = _outcome(place)
        elif time.time() > os.stat(place).st_mtime + KEEP_S:
            shutil.rmtree(place, ignore_errors=True)
    return {"home": _name_of_home(root), "cores": len(os.sched_getaffinity(0)), "living": living, "ended": ended}


def _groups() -> dict[int, list[int]]:
    """The processes of each process group on this machine."""
    groups: dict[int, list[int]] = {}
    for name in os.listdir("/proc"):
        text = _read("/proc/" + name, "stat") if name.isdigit() else ""
        if text:
            groups.setdefault(int(text.rpartition(")")[2].split()[2]), []).append(int(name))
    return groups


def _lives(job: str, pids: list[int]) -> bool:
    return any("MWPY_JOB=" + job in _read(f"/proc/{pid}", "environ").split("\0") for pid in pids)


def _told(place: str, about: dict[str, Any], pid: int) -> dict[str, Any]:
    removed = os.path.join(place, "removed")
    leaving = os.path.exists(removed)
    if leaving and time.time() > os.stat(removed).st_mtime + KILL_S:
        _signal(pid, signal.SIGKILL)
    running_s = time.time() - os.stat(os.path.join(place, "about")).st_mtime
    return {"mark": about["mark"], "slaves": about["slaves"], "leaving": leaving, "running_s": running_s}


def _stop(place: str, pid: int) -> None:
    removed = os.path.join(place, "removed")
    if not os.path.exists(removed):
        with open(removed, "w"):
            pass
        _signal(pid, signal.SIGTERM)


def _signal(group: int, number: int) -> None:
    try:
        os.killpg(group, number)
    except ProcessLookupError:
        pass


def _outcome(place: str) -> dict[str, Any]:
    code = _read(place, "exit").strip()
    ran_s = 0.0
    if code:
        ran_s = os.stat(os.path.join(place, "exit")).st_mtime - os.stat(os.path.join(place, "about")).st_mtime
    removed = os.path.exists(os.path.join(place, "removed"))
    return {"code": int(code) if code else None, "removed": removed, "ran_s": ran_s, "stderr": _tail(place)}


def _tail(place: str) -> str:
    try:
        with open(os.path.join(place, "err"), "rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - STDERR_BYTES))
            return file.read().decode(errors="replace").strip()
    except OSError:
        return ""


def _read(place: str, name: str) -> str:
    """The text of a file, or nothing if it is not there or not ours."""
    try:
        with open(os.path.join(place, name), errors="replace") as file:
            return file.read()
    except OSError:
        return ""


def _name_of_home(root: str) -> str:
    """What tells this home directory from others: a word that the first who came wrote into it."""
    path = os.path.join(root, "home")
    if not os.path.exists(path):
        beside = _beside(root, os.urandom(8).hex().encode())
        try:
            os.link(beside, path)
        except FileExistsError:
            pass
        os.unlink(beside)
    return _read(root, "home")


# Starting


def start(root: str, folder: str, asked: dict[str, Any], given: IO[bytes]) -> dict[str, Any]:
    """Start jobs; tell that the application is missing, and start none, if it is neither here nor sent."""
    resource = given.read(asked["resource_size"])
    command = list(asked["command"])
    app = asked["app"]
    if app is not None:
        path = _app(root, app, given)
        if path is None:
            return {"missing": True}
        command[app["index"]] = path
    for job in asked["jobs"]:
        _start(os.path.join(folder, job), job, command, resource, asked)
    return {"missing": False}


def _app(root: str, app: dict[str, Any], given: IO[bytes]) -> str | None:
    """The path of the application on this host: where it is at home, if that is shared, or a copy."""
    if _digest(app["path"]) == app["digest"]:
        return str(app["path"])
    folder = os.path.join(root, "apps", app["digest"])
    path = os.path.join(folder, os.path.basename(app["path"]))
    if os.path.exists(path):
        return path
    if not app["sent"]:
        return None
    os.makedirs(folder, exist_ok=True)
    beside = _beside(folder, given.read())
    os.chmod(beside, 0o700)
    if _digest(beside) != app["digest"]:
        os.unlink(beside)
        raise OSError("the application came here torn")
    os.replace(beside, path)
    return path


def _start(place: str, job: str, command: list[str], resource: bytes, asked: dict[str, Any]) -> None:
    """Start one job; a call that is made twice starts it once."""
    try:
        os.mkdir(place)
    except FileExistsError:
        return
    path = os.path.join(place, "resource-file")
    with open(path, "wb") as file:
        file.write(resource)
    words = [path if word == RESOURCE else word for word in command]
    cwd = asked["cwd"] if os.access(asked["cwd"], os.X_OK) else place
    with open(os.path.join(place, "out"), "wb") as out, open(os.path.join(place, "err"), "wb") as err:
        shell = subprocess.Popen(
            ["/bin/sh", "-c", SCRIPT, place, *words],
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=err,
            cwd=cwd,
            env=dict(os.environ, MWPY_JOB=job),
            start_new_session=True,
        )
    about = {"mark": asked["mark"], "slaves": asked["slaves"], "pid": shell.pid}
    os.replace(_beside(place, json.dumps(about).encode()), os.path.join(place, "about"))
    shell.returncode = 0  # it is left to itself, and nobody is to be warned of that


def _digest(path: str) -> str:
    try:
        with open(path, "rb") as file:
            return hashlib.sha256(file.read()).hexdigest()
    except OSError:
        return ""


def _beside(folder: str, data: bytes) -> str:
    fd, path = tempfile.mkstemp(dir=folder)
    with os.fdopen(fd, "wb") as file:
        file.write(data)
    return path


if __name__ == "__main__":
    main(sys.stdin.buffer)
