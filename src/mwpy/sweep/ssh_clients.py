"""Starts HTTP clients on hosts that have no Python: one call of ssh for each host, for as long as the sweep runs.

The door is forwarded through the same connection, so nothing of the sweep travels openly.
"""

from __future__ import annotations

import shlex
import subprocess
import threading
from collections.abc import Callable, Sequence

OPTIONS = ("-o", "BatchMode=yes", "-o", "ServerAliveInterval=5", "-o", "ServerAliveCountMax=3", "-o", "LogLevel=ERROR")
"""ssh asks for no password, and notices a host that vanished."""

REMOTE = """\
folder=$(mktemp -d) && cd "$folder" || exit 1
number={count}
while [ "$number" -gt 0 ]; do (curl -s {address}/client.sh | sh -s {address} {session}) & number=$((number - 1)); done
wait; rm -rf "$folder"
"""
"""What a host does: it makes runs in a folder of its own until the sweep has ended."""

LOOK_S = 0.5
"""Seconds between two looks at the calls."""

FIRST_PAUSE_S, LONGEST_PAUSE_S = 5.0, 300.0
"""After how many seconds a host is called again. Each pause is twice as long as the one before."""


class SshClients:
    """Starts clients on some hosts, and starts them again when their connections end.

    Args:
        hosts: their names, as ssh knows them. After a space, how many clients a host has; one per processor without.
        ssh: how ssh is called.
        port: that of the door, on this machine and through ssh on the hosts.
        session: the session id.
        say: shows a message.
    """

    def __init__(self, hosts: Sequence[str], ssh: str, port: int, session: str, say: Callable[[str], None]) -> None:
        self._ssh = [*shlex.split(ssh), *OPTIONS, "-R", f"127.0.0.1:{port}:127.0.0.1:{port}"]
        self._address, self._session, self._say = f"http://127.0.0.1:{port}", session, say
        self._is_over = threading.Event()
        self._threads = [threading.Thread(target=self._keep, args=(host,), daemon=True) for host in hosts]
        for thread in self._threads:
            thread.start()

    def close(self) -> None:
        """End the clients."""
        self._is_over.set()
        for thread in self._threads:
            thread.join()

    def _keep(self, host: str) -> None:
        """Let the clients of a host run until the sweep is over."""
        name, _, count = host.strip().partition(" ")
        remote = REMOTE.format(count=count or '"$(nproc)"', address=self._address, session=self._session)
        words = [*self._ssh, name, f"exec sh -c {shlex.quote(remote)}"]
        pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE}
        pause_s = FIRST_PAUSE_S
        while not self._is_over.is_set():
            call = subprocess.Popen(words, text=True, start_new_session=True, **pipes)  # type: ignore[call-overload]
            while call.poll() is None and not self._is_over.wait(LOOK_S):
                pass
            if self._is_over.is_set():
                call.terminate()
                call.wait()
                return
            wrote = call.stderr.read().strip()
            why = wrote.splitlines()[-1] if wrote else f"exit code {call.returncode}"
            self._say(f"the clients on {name} have ended ({why}); it is called again in {pause_s:.0f} s")
            self._is_over.wait(pause_s)
            pause_s = min(LONGEST_PAUSE_S, 2 * pause_s)
