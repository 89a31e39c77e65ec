"""What the batch systems of the tests have in common: one machine, users without privileges, start and end.

Each system runs in a mount namespace of its own (`namespace.py`), so it changes nothing on the machine:

- Its users `submit` and `other` exist only there.
- Jobs run as these users, and use the interpreter and the code of the tests. Both may be in a folder that other users
  cannot enter, such as /root. In the namespace, an open folder with only these two replaces such a folder.
- `state` holds all that it writes; it is removed when the system goes down.

Several runs of the tests may use a system at the same time. Each run holds a shared lock during this time. The last one
takes the system down, unless a person has started it by hand.
"""

from __future__ import annotations

import fcntl
import os
import shlex
import stat
import subprocess
import sys
import sysconfig
import tempfile
from abc import ABC, abstractmethod
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Self

from tests.systems.debian import CACHE, check_machine, locked, remove
from tests.systems.namespace import Namespace, SystemFailed, run

ROOT = Path(__file__).parent.parent.parent

STATE = Path(os.environ.get("MWPY_TESTS_STATE", "/var/lib/mwpy-tests"))
"""The folder for the files of running systems."""

USERS = {"submit": 20001, "other": 20002, "root": 0}

COMMAND_S = 300.0
"""How long one command may take."""


RESERVED = Path("/proc/sys/net/ipv4/ip_local_reserved_ports")
PORTS = "12222,16440-16450,16810-16830,19610-19630\n"
"""The ports of all systems, which the kernel shall give to nobody who asks for any free port."""


class System(ABC):
    """A batch system on this machine; calling it runs a command as one of its users.

    Args:
        name: name of the system, of its folders and its locks.
        root: what its processes see as `/`.
        target: the target of the Makefile that runs its tests.
    """

    commands: tuple[str, ...] = ()
    """The commands that its users have, for `wrappers`."""

    def __init__(self, name: str, target: str, root: Path = Path("/")) -> None:
        self.name = name
        self.state = STATE / name
        self.namespace = Namespace(self.state / "holder", root)
        self._target = target
        self._by_hand = self.state / "started-by-hand"
        self._use = ExitStack()

    # What each system implements

    @abstractmethod
    def prepare(self) -> None:
        """Install its software and write its configuration."""

    @abstractmethod
    def start(self) -> None:
        """Start its daemons in the namespace."""

    @abstractmethod
    def restart(self) -> None:
        """Stop its daemons and start them again; what is in its queue stays there."""

    @abstractmethod
    def answers(self) -> bool:
        """Return whether it is ready for work."""

    @abstractmethod
    def logs(self) -> list[Path]:
        """List the files that show why it does not start."""

    def variables(self) -> dict[str, str]:
        """Environment variables that its commands need."""
        return {}

    # Its life.

    def use(self) -> Self:
        """Bring it up for a run of the tests, until `leave`.

        Raises:
            Unavailable: it cannot run on this machine.
            SystemFailed: it does not start.
        """
        check_machine(self._target)
        self._use.enter_context(locked(f"{self.name}-users", fcntl.LOCK_SH))
        try:
            self.up()
        except BaseException:
            self._use.close()
            raise
        return self

    def leave(self) -> None:
        """Take it down, unless another run of the tests uses it or a person has started it."""
        self._use.close()
        try:
            with locked(f"{self.name}-users", fcntl.LOCK_EX | fcntl.LOCK_NB):
                if not self._by_hand.exists():
                    with locked(self.name):
                        self._stop()
        except BlockingIOError:
            pass

    def up(self, by_hand: bool = False) -> None:
        """Bring it up. If it is already up, only mount this checkout in it."""
        check_machine(self._target)
        with suppress(OSError):  # some machines give these ports to any connection
            RESERVED.write_text(PORTS)
        with locked(self.name):
            if not (self.is_up and self.answers()):
                self._stop()
                self._start()
            self.show_tests()
            if by_hand:
                self._by_hand.touch()

    def down(self) -> None:
        """Take down what a person has started; if a run of the tests uses it, the last one takes it down."""
        self._by_hand.unlink(missing_ok=True)
        self.leave()

    @property
    def is_up(self) -> bool:
        return self.namespace.pid != 0

    def _start(self) -> None:
        self.state.mkdir(parents=True)
        for folder, mode in (("home", 0o755), ("work", 0o1777), ("log", 0o755)):
            (self.state / folder).mkdir()
            (self.state / folder).chmod(mode)
        for user, uid in USERS.items():
            home = self.state / "home" / user
            home.mkdir()
            os.chown(home, uid, uid)
        try:
            self.prepare()
            self.namespace.open()
            self.furnish()
            self.show_tests()
            self.start()
        except SystemFailed as error:
            ends = [f"the end of {path}:\n{path.read_text(errors='replace')[-1000:]}" for path in self.logs()]
            self._stop()
            raise type(error)(*error.args, *ends) if type(error) is SystemFailed else error from None
        except BaseException:
            self._stop()
            raise

    def _stop(self) -> None:
        self.namespace.close()
        remove(self.state)

    # What its processes see.

    def furnish(self) -> None:
        """Make the mounts that it needs before it starts. By default, this is a copy of /etc with its users.

        The whole folder is a copy: a file mounted over /etc/passwd would vanish when the installation of a package
        renames a new file to that name. Slurm then runs jobs as `nobody` and requeues them forever.
        """
        run(["cp", "--archive", "/etc", self.state / "etc"])
        self.add_users(self.state / "etc")
        self.namespace.bind(self.state / "etc", Path("/etc"))

    def add_users(self, etc: Path) -> None:
        """Add the users to a copy of /etc."""
        names = {line.split(":")[0] for line in (etc / "passwd").read_text().splitlines()}
        with (etc / "passwd").open("a") as passwd, (etc / "group").open("a") as group:
            for user, uid in USERS.items():
                if user not in names:
                    passwd.write(f"{user}:x:{uid}:{uid}::{self.state / 'home' / user}:/bin/bash\n")
                    group.write(f"{user}:x:{uid}:\n")

    def show_tests(self) -> None:
        """Mount this checkout, this interpreter and its packages, read-only, so that its users can read them."""
        for place in (*places_of_python(), ROOT, Path(sys.prefix)):
            self.show(place)

    def show(self, place: Path) -> None:
        """Mount a file or folder at its own path, so that its users can read it."""
        if (closed := closed_parent(place)) is None:
            return
        kept = self.state / "covered" / str(closed).strip("/").replace("/", "_")
        if not self.namespace.is_mounted(kept):
            self.namespace.bind(closed, kept)
            self.namespace.mount("-t", "tmpfs", "-o", "mode=755", "tmpfs", closed)
        self.namespace.bind(kept / place.relative_to(closed), place, read_only=True)

    # What tests do with it.

    def command(self, *words: object, user: str = "submit", folder: Path | str = "/") -> list[str]:
        """Make the command line that runs a command as one of its users."""
        variables = {
            "HOME": "/root" if user == "root" else str(self.state / "home" / user),
            "USER": user,
            "LOGNAME": user,
            "LANG": "C.UTF-8",
            "PWD": str(folder),  # submit files may use this variable
            "PATH": f"{sys.base_prefix}/bin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
            **self.variables(),
        }
        return self.namespace.command(words, USERS[user], variables, folder)

    def __call__(
        self, *words: object, cwd: Path | str = "/", user: str = "submit", check: bool = True
    ) -> subprocess.CompletedProcess[str]:
        """Run a command as one of its users.

        Raises:
            SystemFailed: the command failed, and `check` is set.
        """
        return run(self.command(*words, user=user, folder=cwd), check=check, timeout_s=COMMAND_S)

    def workdir(self, name: str = "work") -> Path:
        """Make a folder that everybody can write to, at the same path for this machine, users and jobs."""
        folder = Path(tempfile.mkdtemp(prefix=f"{name}.", dir=self.state / "work"))
        os.chown(folder, USERS["submit"], USERS["submit"])
        folder.chmod(0o777)
        return folder

    def wrappers(self, folder: Path) -> dict[str, str]:
        """Write scripts with the names of its commands into a folder; each runs its command as the user `submit`.

        Returns:
            An environment for processes on this machine, with the folder of these scripts in PATH.
        """
        enter = 'cd "$0" 2>/dev/null || cd /tmp; exec "$@"'
        for name in self.commands:
            words = shlex.join(self.command("sh", "-c", enter))
            (folder / name).write_text(f'#!/bin/sh\nexec {words} "$PWD" {name} "$@"\n')
            (folder / name).chmod(0o755)
        return {**os.environ, "PATH": f"{folder}{os.pathsep}{os.environ['PATH']}"}


def places_of_python() -> list[Path]:
    """List the files and folders that this interpreter consists of.

    The files of Debian's own python3 are in many folders below /usr; only its program and its library are listed.
    """
    if sys.base_prefix != "/usr":
        return [Path(sys.base_prefix)]
    return [Path(sys.executable).resolve(), Path(sysconfig.get_path("stdlib"))]


def closed_parent(place: Path) -> Path | None:
    """Find the first folder on the way to a place that other users may not enter."""
    ways = (way for way in reversed(place.parents) if not way.stat().st_mode & stat.S_IXOTH)
    return next(ways, None)


def purge() -> None:
    """Remove the files that are kept for the next run of the tests.

    Raises:
        SystemFailed: a system is up.
    """
    if up := [folder.name for folder in STATE.glob("*")]:
        raise SystemFailed(f"these systems are up: {', '.join(up)}; take them down first")
    remove(CACHE)
