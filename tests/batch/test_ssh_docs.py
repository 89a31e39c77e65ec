"""Every command that docs/clusters/others.md shows for ssh is run, as a user would."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.batch.test_batch_docs import OTHERS, SCRIPT, follow, write
from tests.systems.ssh import SshNode


@pytest.fixture
def configured(ssh_node: SshNode) -> Iterator[None]:
    """Give the user `submit` a key and a configuration, so that ssh asks nothing."""
    config = ssh_node.config
    report = ssh_node("sh", "-c", "echo $HOME; id -u").stdout.split()
    folder, user = Path(report[0]) / ".ssh", int(report[1])
    shutil.rmtree(folder, ignore_errors=True)  # a run that was killed leaves it
    folder.mkdir(mode=0o700)
    text = config.read_text().replace(str(ssh_node.keys / "id"), str(folder / "id"))
    (folder / "config").write_text(text)
    shutil.copy(ssh_node.keys / "id", folder)
    for path in (folder, folder / "config", folder / "id"):
        os.chown(path, user, user)
    yield
    shutil.rmtree(folder)


def test_the_commands_for_ssh_work(ssh_node: SshNode, ssh_dir: Path, configured: None) -> None:
    """The commands use the script of another page."""
    write(ssh_dir, SCRIPT)
    follow(ssh_node, ssh_dir, OTHERS["Hosts that are reached by ssh"])
