"""The program that `ssh.py` runs on a host: its source is sent there with each call, and the host's own Python runs it.

It needs Linux and Python 3.7 on the host, and nothing installed. It keeps everything in `~/.mwpy-ssh`, which only the
user can read: `apps/DIGEST/NAME` are copied applications, and `jobs/HOST/JOB/` is a job. HOST is the name in the hosts
file, because several hosts may share a home directory. A shell stays with the agent and writes its exit code into the
job's folder. A job is alive while a process of the shell's group has the job's id in its environment. So a process
number that is used again causes no mistake, and a job is found even if the process that started it is gone.
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
"""The placeholder for the resource file in a command."""

ANSWER = "MWPY-ANSWER "
"""The start of the line with the answer; a login shell may print other lines."""

KILL_S = 20.0
"""Seconds from the removal of a job until it is killed: more than its grace period, which is 5 s by default."""

KEEP_S = 86400.0
"""The folder of an ended job is kept for this many seconds."""

KEEP_APP_S = 30 * 86400.0
"""Seconds for which a copied application is kept after its last use."""

STDERR_BYTES = 8192

# $0 is the job's folder. The trap keeps the shell alive for the exit code when its whole group gets SIGTERM.
SCRIPT = 'trap : TERM INT; "$@"; echo $? >"$0/exit.new"; mv "$0/exit.new" "$0/exit"; rm -f "$0/resource-file"'


def main(standard_input: IO[bytes]) -> None:
    """Execute the request in the first line. The bytes after this line belong to the request."""
    os.umask(0o077)
    request = json.loads(standard_input.readline())
    root = os.path.join(os.path.expanduser("~"), ".mwpy-ssh")
    folder = os.path.join(root, "jobs", request["host"])
    os.makedirs(folder, exist_ok=True)
    starts = request["do"] == "start"
    answer = start(root, folder, request, standard_input) if starts else look(root, folder, request)
    print("\n" + ANSWER + json.dumps(answer), flush=True)


# Looking


def look(root: str, folder: str, request: dict[str, Any]) -> dict[str, Any]:
    """Stop the jobs under `stop`. Report the jobs that are alive. Report how the jobs under `known` ended."""
    groups = _groups()
    living: dict[str, dict[str, Any]] = {}
    ended: dict[str, dict[str, Any]] = {}
    for job in sorted(os.listdir(folder)):
        place = os.path.join(folder, job)
        about = _read(place, "about")
        pid = json.loads(about)["pid"] if about else 0
        if about and _is_alive(job, groups.get(pid, [])):
            if job in request["stop"]:
                _stop(place, pid)
            living[job] = _report(place, json.loads(about), pid)
            _use(root, json.loads(about).get("app", ""))
        elif job in request["known"]:
            ended[job] = _report_end(place)
        elif time.time() > os.stat(place).st_mtime + KEEP_S:
            shutil.rmtree(place, ignore_errors=True)
    return {"home": _id_of_home(root), "cores": len(os.sched_getaffinity(0)), "living": living, "ended": ended}


def _groups() -> dict[int, list[int]]:
    """Return the processes of each process group on this machine."""
    groups: dict[int, list[int]] = {}
    for name in os.listdir("/proc"):
        text = _read("/proc/" + name, "stat") if name.isdigit() else ""
        if text:
            groups.setdefault(int(text.rpartition(")")[2].split()[2]), []).append(int(name))
    return groups


def _is_alive(job: str, pids: list[int]) -> bool:
    return any("MWPY_JOB=" + job in _read(f"/proc/{pid}", "environ").split("\0") for pid in pids)


def _report(place: str, about: dict[str, Any], pid: int) -> dict[str, Any]:
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


def _report_end(place: str) -> dict[str, Any]:
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
    """Return the text of a file; empty if there is none, or if it belongs to another user."""
    try:
        with open(os.path.join(place, name), errors="replace") as file:
            return file.read()
    except OSError:
        return ""


def _id_of_home(root: str) -> str:
    """Return the id of this home directory: a random text that the first call wrote into it."""
    path = os.path.join(root, "home")
    if not os.path.exists(path):
        beside = _write_beside(root, os.urandom(8).hex().encode())
        try:
            os.link(beside, path)
        except FileExistsError:
            pass
        os.unlink(beside)
    return _read(root, "home")


# Starting


def start(root: str, folder: str, request: dict[str, Any], standard_input: IO[bytes]) -> dict[str, Any]:
    """Start jobs. If the application is not here and was not sent, start no job and report that it is missing."""
    resource = standard_input.read(request["resource_size"])
    command = list(request["command"])
    app = request["app"]
    if app is not None:
        path = _app(root, app, standard_input)
        if path is None:
            return {"missing": True}
        command[app["index"]] = path
    for job in request["jobs"]:
        _start(os.path.join(folder, job), job, command, resource, request)
    return {"missing": False}


def _app(root: str, app: dict[str, Any], standard_input: IO[bytes]) -> str | None:
    """Return the path of the application: the original if this host shares it, or a copy; None if it is missing."""
    if _digest(app["path"]) == app["digest"]:
        return str(app["path"])
    folder = os.path.join(root, "apps", app["digest"])
    path = os.path.join(folder, os.path.basename(app["path"]))
    if os.path.exists(path):
        _use(root, app["digest"])
        return path
    if not app["sent"]:
        return None
    os.makedirs(folder, exist_ok=True)
    beside = _write_beside(folder, standard_input.read())
    os.chmod(beside, 0o700)
    if _digest(beside) != app["digest"]:
        os.unlink(beside)
        raise OSError("the application did not arrive whole")
    os.replace(beside, path)
    for digest in os.listdir(os.path.join(root, "apps")):
        if time.time() > os.stat(os.path.join(root, "apps", digest)).st_mtime + KEEP_APP_S:
            shutil.rmtree(os.path.join(root, "apps", digest), ignore_errors=True)
    return path


def _use(root: str, digest: str) -> None:
    """Record that a copied application is in use."""
    try:
        os.utime(os.path.join(root, "apps", digest or "none"))
    except OSError:  # the host sees the original, so there is no copy
        pass


def _start(place: str, job: str, command: list[str], resource: bytes, request: dict[str, Any]) -> None:
    """Start one job. A second call for the same job does nothing."""
    try:
        os.mkdir(place)
    except FileExistsError:
        return
    path = os.path.join(place, "resource-file")
    with open(path, "wb") as file:
        file.write(resource)
    words = [path if word == RESOURCE else word for word in command]
    cwd = request["cwd"] if os.access(request["cwd"], os.X_OK) else place
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
    while shell.poll() is None and not _is_alive(job, [shell.pid]):
        time.sleep(0.001)  # on a busy machine, the environment of a process is visible only some time after its start
    digest = request["app"]["digest"] if request["app"] is not None else ""
    about = {"mark": request["mark"], "slaves": request["slaves"], "pid": shell.pid, "app": digest}
    os.replace(_write_beside(place, json.dumps(about).encode()), os.path.join(place, "about"))
    shell.returncode = 0  # prevents Python's warning: the shell outlives this process


def _digest(path: str) -> str:
    try:
        with open(path, "rb") as file:
            return hashlib.sha256(file.read()).hexdigest()
    except OSError:
        return ""


def _write_beside(folder: str, data: bytes) -> str:
    fd, path = tempfile.mkstemp(dir=folder)
    with os.fdopen(fd, "wb") as file:
        file.write(data)
    return path


if __name__ == "__main__":
    main(sys.stdin.buffer)
