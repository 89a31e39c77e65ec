"""A real sshd on this machine, with keys of its own; on four addresses, it looks like four hosts."""

from __future__ import annotations

import sys
from pathlib import Path

from tests.systems.debian import install
from tests.systems.namespace import run, start_daemon, wait_until
from tests.systems.system import System

PORT = 12222
HOSTS = {f"node{number}": f"127.0.0.{number}" for number in (1, 2, 3, 4)}

SERVER = """\
Port {port}
{addresses}
HostKey {keys}/host
AuthorizedKeysFile {keys}/id.pub
PidFile none
StrictModes no
UsePAM no
PasswordAuthentication no
KbdInteractiveAuthentication no
PermitRootLogin prohibit-password
MaxStartups 200
MaxSessions 200
UseDNS no
PrintMotd no
SetEnv PATH={python}/bin:/usr/local/bin:/usr/bin:/bin
"""

CLIENT = """\
{hosts}
Host *
  Port {port}
  User submit
  IdentityFile {keys}/id
  IdentitiesOnly yes
  UserKnownHostsFile {keys}/known_hosts
  GlobalKnownHostsFile /dev/null
  StrictHostKeyChecking yes
  BatchMode yes
  ConnectTimeout 5
  LogLevel ERROR
  KexAlgorithms curve25519-sha256
"""
"""Overseers in tests connect to each host twice a second. The key exchange that ssh prefers takes 130 ms of processor
time, and this one a tenth of that."""


class SshNode(System):
    """An sshd; `ssh -F CONFIG node1` logs in as the user `submit` on the first of the four hosts."""

    def __init__(self) -> None:
        super().__init__("ssh", "test-batch")
        self.keys = self.state / "keys"
        self.config = self.state / "ssh_config"
        """The path of the client's configuration."""

    def prepare(self) -> None:
        install("openssh-server", "openssh-client")
        Path("/run/sshd").mkdir(exist_ok=True)  # sshd requires this folder; it is empty
        self.keys.mkdir()
        for name in ("host", "id"):
            run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "", "-f", self.keys / name])
        host_key = (self.keys / "host.pub").read_text().strip()
        known = "".join(f"[{address}]:{PORT} {host_key}\n" for address in HOSTS.values())
        (self.keys / "known_hosts").write_text(known)
        addresses = "\n".join(f"ListenAddress {address}" for address in HOSTS.values())
        server = SERVER.format(port=PORT, addresses=addresses, keys=self.keys, python=sys.base_prefix)
        (self.state / "sshd_config").write_text(server)
        hosts = "\n".join(f"Host {name}\n  HostName {address}" for name, address in HOSTS.items())
        self.config.write_text(CLIENT.format(hosts=hosts, port=PORT, keys=self.keys))

    def start(self) -> None:
        words = ("/usr/sbin/sshd", "-D", "-E", self.state / "log" / "sshd", "-f", self.state / "sshd_config")
        start_daemon(self.command(*words, user="root"), self.state / "log" / "sshd.out")
        wait_until(self.answers, "the start of sshd")

    def restart(self) -> None:
        self.namespace.kill()
        self.start()

    def answers(self) -> bool:
        return run(["ssh", "-F", self.config, "node1", "true"], check=False).returncode == 0

    def logs(self) -> list[Path]:
        return list(self.state.glob("log/*"))
