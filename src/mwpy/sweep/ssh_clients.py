"""Starts HTTP clients on hosts that have no Python: one call of ssh for each host, for as long as the sweep runs.

The door is forwarded through the same connection, so nothing of the sweep travels openly.
"""

from __future__ import annotations

import shlex
import subprocess
import threading
from collections.abc import Callable, Sequence

from attrs import Factory, define

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


@define
class _Host:
    """A host, and the call that has started its clients."""

    name: str
    count: str
    """How many clients it has, as the shell reads it."""
    call: subprocess.Popen[str] | None = None
    pause_s: float = FIRST_PAUSE_S
    waits_s: float = 0.0
    """For how long it is not called, from the last look on."""


@define(eq=False)
class SshClients:
    """The clients on some hosts.

    Args:
        hosts: their names, as ssh knows them. After a space, how many clients a host has; one per processor without.
        ssh: how ssh is called.
        port: that of the door, on this machine and through ssh on the hosts.
        session: the session id.
        say: shows a message.
    """

    hosts: Sequence[str]
    ssh: str
    port: int
    session: str
    say: Callable[[str], None]
    _is_over: threading.Event = Factory(threading.Event)
    _thread: threading.Thread | None = None

    def start(self) -> None:
        """Start the clients, and start them again when their connections end."""
        self._thread = threading.Thread(target=self._watch, name="mwpy-ssh-clients", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End the clients."""
        self._is_over.set()
        if self._thread is not None:
            self._thread.join()

    def _watch(self) -> None:
        hosts = [_Host(words[0], words[1] if len(words) > 1 else '"$(nproc)"') for words in map(str.split, self.hosts)]
        while True:
            for host in hosts:
                self._look(host)
            if self._is_over.wait(LOOK_S):
                break
        for host in hosts:
            if host.call is not None:
                host.call.terminate()
                host.call.wait()

    def _look(self, host: _Host) -> None:
        if host.call is None:
            host.waits_s -= LOOK_S
            if host.waits_s <= 0:
                host.call = self._called(host)
        elif host.call.poll() is not None:
            wrote = "" if host.call.stderr is None else host.call.stderr.read().strip()
            why = wrote.splitlines()[-1] if wrote else f"exit code {host.call.returncode}"
            self.say(f"the clients on {host.name} have ended ({why}); it is called again in {host.pause_s:.0f} s")
            host.call, host.waits_s = None, host.pause_s
            host.pause_s = min(LONGEST_PAUSE_S, 2 * host.pause_s)

    def _called(self, host: _Host) -> subprocess.Popen[str]:
        address = f"http://127.0.0.1:{self.port}"
        remote = REMOTE.format(count=host.count, address=address, session=self.session)
        forward = ("-R", f"127.0.0.1:{self.port}:127.0.0.1:{self.port}")
        words = [*shlex.split(self.ssh), *OPTIONS, *forward, host.name, f"exec sh -c {shlex.quote(remote)}"]
        pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE}
        return subprocess.Popen(words, text=True, start_new_session=True, **pipes)  # type: ignore[call-overload,no-any-return]
