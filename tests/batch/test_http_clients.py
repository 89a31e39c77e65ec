"""`mwpy sweep --http --client HOST` starts clients through a real sshd. They need no Python."""

from __future__ import annotations

import csv
import os
import subprocess
import sys
from pathlib import Path

from tests.batch.systems import until
from tests.systems.ssh import SshNode

STUDY = """\
command = "sh -c 'test -z \\"$(command -v mwpy)\\" && echo square $(( {x} * {x} )) && uname -n > host.txt'"
outputs = ["host.txt"]
ping = 1
[values]
x = "1..12"
[results]
square = 'square (\\d+)'
"""


def test_clients_on_two_hosts_make_a_sweep_and_end_with_it(ssh_node: SshNode, ssh_dir: Path) -> None:
    """A third host does not exist, which is said, and hinders nobody."""
    study = ssh_dir / "study.toml"
    study.write_text(STUDY)
    words = ["--http", "0", "--client", "node1 2", "--client", "node2 1", "--client", "no-such-host"]
    words += ["--ssh", f"ssh -F {ssh_node.config}"]
    command = [sys.executable, "-m", "mwpy", "sweep", str(study), *words]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2] / "src")}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=170, check=False)
    assert done.returncode == 0, done.stderr
    assert "the clients on no-such-host have ended (ssh: Could not resolve hostname no-such-host" in done.stderr
    with (ssh_dir / "study.sweep" / "results.csv").open(newline="") as file:
        assert [(int(row["x"]), int(row["square"])) for row in csv.DictReader(file)] == [
            (x, x * x) for x in range(1, 13)
        ]

    def clients() -> str:
        return ssh_node("sh", "-c", "pgrep -af '[c]lient.sh|[s]h -s http' || true").stdout

    until(lambda: not clients(), lambda: f"no client left, but {clients()}")
