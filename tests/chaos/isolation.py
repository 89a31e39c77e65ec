"""Namespaces in which a chaos run lives: its faults reach nothing else, and all of it ends with the run.

The run starts itself again in namespaces of its own: network, mounts, processes, host name. A shell is their first
process, because it reaps orphans. When the command that holds the namespaces ends, the kernel kills everything in them,
and with the last process all interfaces and mounts are gone. A user who is not root gets a user namespace, too, if the
kernel allows this.
"""

from __future__ import annotations

import os
import subprocess
import sys

INSIDE = "MWPY_CHAOS_INSIDE"
"""The environment variable that a run in its namespaces has."""

UNSHARE = ("unshare", "--net", "--uts", "--mount", "--propagation=private", "--pid", "--fork", "--kill-child")

FIRST_PROCESS = 'mount -t tmpfs tmpfs /dev/shm; ip link set lo up; "$@"; exit "$?"'


def command() -> list[str]:
    """Make the command that makes the namespaces, and runs the words that follow in them."""
    user = [] if os.geteuid() == 0 else ["--user", "--map-root-user"]
    return [*UNSHARE, *user, "--mount-proc"]


def why_not() -> str:
    """Return why this machine gives no namespaces; empty if it does."""
    test = "ip link add left type veth peer name right && mount -t tmpfs tmpfs /dev/shm"
    try:
        done = subprocess.run([*command(), "sh", "-c", test], capture_output=True, text=True, check=False, timeout=30)
    except OSError as error:
        return str(error)
    return " ".join(done.stderr.split()) if done.returncode else ""


def is_inside() -> bool:
    return INSIDE in os.environ


def enter(arguments: list[str]) -> None:
    """Run the chaos run again, in namespaces. This call does not return."""
    words = [*command(), "sh", "-c", FIRST_PROCESS, "sh", sys.executable, "-m", "tests.chaos", *arguments]
    os.execvpe(words[0], words, {**os.environ, INSIDE: "1"})
