"""Jobs as processes of one machine, in folders of one user. `local.py` calls these functions. `ssh.py` sends this
source to a host with each call, where the host's own Python runs it.

It needs Linux and Python 3.7, and nothing installed. A job is a folder, which outlives the process that started it. A
shell stays with the agent and writes its exit code into the folder. A job is alive while a process of the shell's group
has the job's id in its environment, in a variable of its own, because a job may change `MWPY_JOB`. So a process number
that is used again causes no mistake.

A host that is reached by ssh has everything in `~/.mwpy-ssh`, which only the user can read: `apps/DIGEST/NAME` are
copied applications, and `jobs/HOST/` has the jobs. HOST is the name in the hosts file, because several hosts may share
a home directory.
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
from collections.abc import Iterator, Sequence
from typing import IO, Any

RESOURCE, APPLICATION = "<resource file>", "<application>"
"""What is in a command instead of the paths of these files on the machine."""

MARK = "MWPY_JOB_PROCESS"
"""The variable of the processes of a job."""

ANSWER = "MWPY-ANSWER "
"""The start of the line with the answer; a login shell may print other lines."""

KILL_S = 20.0
"""Seconds from the removal of a job until it is killed: more than its grace period, which is 5 s by default."""

KEEP_S = 86400.0
"""The folder of an ended job is kept for this many seconds."""

KEEP_APP_S = 30 * 86400.0
"""Seconds for which a copied application is kept after its last use."""

START_S = 60.0
"""Seconds until the shell of a job must have written its process number."""

STDERR_BYTES = 8192

# $0 is the job's folder. The trap keeps the shell alive for the exit code when its whole group gets SIGTERM.
SCRIPT = (
    'trap : TERM INT; echo $$ >"$0/pid"; "$@"; echo $? >"$0/exit.new"; mv "$0/exit.new" "$0/exit"; '
    'rm -f "$0/resource-file"'
)


def main(standard_input: IO[bytes]) -> None:
    """Execute the request in the first line. The bytes after this line belong to the request."""
    os.umask(0o077)
    request = json.loads(standard_input.readline())
    root = os.path.join(os.path.expanduser("~"), ".mwpy-ssh")
    folder = os.path.join(root, "jobs", request["host"])
    os.makedirs(folder, exist_ok=True)
    if request["do"] == "start":
        answer = _start_all(root, folder, request, standard_input)
    else:
        living, ended = look(folder, request["stop"], request["known"])
        for report in living.values():
            _use(root, report.get("app", ""))
        answer = {"cores": len(os.sched_getaffinity(0)), "living": living, "ended": ended}
    print("\n" + ANSWER + json.dumps(answer), flush=True)


def look(
    folder: str, to_stop: Sequence[str], known: Sequence[str]
) -> tuple[dict[str, dict[str, Any]], dict[str, dict[str, Any]]]:
    """Stop jobs. Report the jobs that are alive, and how the known ones ended. Kill stopped jobs that do not end."""
    living: dict[str, dict[str, Any]] = {}
    ended: dict[str, dict[str, Any]] = {}
    for job in sorted(os.listdir(folder)):
        place = os.path.join(folder, job)
        if _is_alive(place):
            living[job] = _report(place, job in to_stop)
        elif job in known:
            ended[job] = report_end(place)
    return living, ended


def forget_old(folder: str) -> None:
    """Delete the folders of jobs that have ended long ago."""
    for job in os.listdir(folder):
        place = os.path.join(folder, job)
        if time.time() > os.stat(place).st_mtime + KEEP_S and not _is_alive(place):
            shutil.rmtree(place, ignore_errors=True)


def _is_alive(place: str) -> bool:
    pid = _read(place, "pid").strip()
    if not pid or _read(place, "exit"):
        return False
    mine = MARK + "=" + os.path.basename(place)
    return any(mine in _read("/proc/" + each, "environ").split("\0") for each in _group(pid))


def _group(leader: str) -> Iterator[str]:
    """The processes of a group. Others than its leader are searched only if nobody has found what it wants."""
    yield leader
    for name in os.listdir("/proc"):
        stat = _read("/proc/" + name, "stat") if name.isdigit() else ""
        if stat and stat.rpartition(")")[2].split()[2] == leader:
            yield name


def _report(place: str, stop: bool) -> dict[str, Any]:
    removed, group = os.path.join(place, "removed"), int(_read(place, "pid"))
    if stop and not os.path.exists(removed):
        with open(removed, "w"):
            pass
        _signal(group, signal.SIGTERM)
    leaving = os.path.exists(removed)
    if leaving and time.time() > os.stat(removed).st_mtime + KILL_S:
        _signal(group, signal.SIGKILL)
    about = os.path.join(place, "about")
    return dict(_about(place), leaving=leaving, running_s=time.time() - os.stat(about).st_mtime)


def _signal(group: int, number: int) -> None:
    try:
        os.killpg(group, number)
    except ProcessLookupError:
        pass


def report_end(place: str) -> dict[str, Any]:
    """Report how a job ended."""
    code, ran_s = _read(place, "exit").strip(), 0.0
    if code:
        ran_s = os.stat(os.path.join(place, "exit")).st_mtime - os.stat(os.path.join(place, "about")).st_mtime
    removed = os.path.exists(os.path.join(place, "removed"))
    stderr = _tail(_about(place).get("stderr", ""))
    return {"code": int(code) if code else None, "removed": removed, "ran_s": ran_s, "stderr": stderr}


def _about(place: str) -> dict[str, Any]:
    """What was written about a job; nothing if a full disk has damaged the file."""
    try:
        return dict(json.loads(_read(place, "about")))
    except (ValueError, TypeError):
        return {}


def _tail(path: str) -> str:
    try:
        with open(path, "rb") as file:
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


def start(
    place: str, command: Sequence[str], about: dict[str, Any], logs: str, resource: bytes = b"", cwd: str | None = None
) -> int:
    """Start a job, and return the number of its shell.

    Args:
        place: its folder, whose name is its id.
        command: its command, in which `RESOURCE` means the resource file.
        about: what `look` reports about it.
        logs: what the paths of its output files begin with.
        resource: the content of the resource file.
        cwd: its working directory; None for that of this process.
    """
    os.mkdir(place)
    with open(os.path.join(place, "about"), "w") as file:
        json.dump(dict(about, stderr=logs + "err"), file)
    path = os.path.join(place, "resource-file")
    if resource:
        with open(path, "wb") as content:
            content.write(resource)
    with open(logs + "out", "wb") as out, open(logs + "err", "wb") as err:
        shell = subprocess.Popen(
            ["/bin/sh", "-c", SCRIPT, place, *(path if word == RESOURCE else word for word in command)],
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=err,
            cwd=cwd,
            env={**os.environ, "MWPY_JOB": os.path.basename(place), MARK: os.path.basename(place)},
            start_new_session=True,
        )
    until = time.monotonic() + START_S
    while shell.poll() is None and not _is_alive(place):
        if time.monotonic() > until:
            _signal(shell.pid, signal.SIGKILL)
            shell.wait()
            raise OSError("the shell of a job does not write its process number into " + place + ": is the disk full?")
        time.sleep(0.001)  # on a busy machine, the environment of a process is visible only some time after its start
    shell.returncode = 0  # prevents Python's warning: it may outlive this process
    return shell.pid


# Starting jobs on a host that is reached by ssh


def _start_all(root: str, folder: str, request: dict[str, Any], standard_input: IO[bytes]) -> dict[str, Any]:
    """Start jobs. If the application is not here and was not sent, start no job and report that it is missing."""
    forget_old(folder)
    resource = standard_input.read(request["resource_size"])
    app = _app(root, request, standard_input) if request["app"] else ""
    if app is None:
        return {"missing": True}
    command = [app if word == APPLICATION else word for word in request["command"]]
    for job in request["jobs"]:
        place = os.path.join(folder, job)
        cwd = request["cwd"] if os.access(request["cwd"], os.X_OK) else place
        start(place, command, request["about"], place + os.sep, resource, cwd)
    return {"missing": False}


def _app(root: str, request: dict[str, Any], standard_input: IO[bytes]) -> str | None:
    """Return the path of the application: the original if this host shares it, or a copy; None if it is missing."""
    original, digest = request["app"], request["about"]["app"]
    if _digest(original) == digest:
        return str(original)
    apps = os.path.join(root, "apps")
    path = os.path.join(apps, digest, os.path.basename(original))
    if os.path.exists(path):
        _use(root, digest)
        return path
    if not request["sent"]:
        return None
    os.makedirs(os.path.dirname(path), exist_ok=True)
    fd, beside = tempfile.mkstemp(dir=os.path.dirname(path))
    with os.fdopen(fd, "wb") as file:
        file.write(standard_input.read())
    os.chmod(beside, 0o700)
    if _digest(beside) != digest:
        os.unlink(beside)
        raise OSError("the application did not arrive whole")
    os.replace(beside, path)
    for each in os.listdir(apps):
        if time.time() > os.stat(os.path.join(apps, each)).st_mtime + KEEP_APP_S:
            shutil.rmtree(os.path.join(apps, each), ignore_errors=True)
    return path


def _use(root: str, digest: str) -> None:
    """Record that a copied application is in use."""
    try:
        os.utime(os.path.join(root, "apps", digest or "none"))
    except OSError:  # the host sees the original, so there is no copy
        pass


def _digest(path: str) -> str:
    try:
        with open(path, "rb") as file:
            return hashlib.sha256(file.read()).hexdigest()
    except OSError:
        return ""


if __name__ == "__main__":
    main(sys.stdin.buffer)
