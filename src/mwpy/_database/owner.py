"""The owner of a run database: one master at a time, on any host.

The operating system locks the file .FILE.lock, and releases the lock when the master ends, in whatever way. This is
sure on one machine, and on a network file system whose server knows the locks. But some of these forget locks, or know
them per host only. So on a network file system the master also writes the file `.FILE.owner`, which names the master,
and writes it again every few seconds. A master that finds such a file

- from another host: watches it. If it changes, its writer is alive. No clocks are compared.
- from its own host: looks for the process. Its number may belong to another process by now, so the start of the process
  and of the machine count, too.

The owner reads the file before it writes it again. If another master has replaced it, because this one was stopped for
a long time, this one stops.
"""

from __future__ import annotations

import json
import os
import platform
from pathlib import Path
from typing import Any

from mwpy._system import clock
from mwpy._system.locks import FileLock, LockHeld, LocksUnsupported
from mwpy._values.errors import RunDatabaseError

__all__ = ["BEAT_S", "WATCH_S", "Owner"]

BEAT_S = 5.0
"""How often the owner writes its file again on a network file system, in seconds."""

WATCH_S = 30.0
"""How long a master watches the file of an owner on another host, in seconds. A client of NFS may see a file as it was
some seconds before, but it asks the server when it opens the file."""

LOOK_S = 0.5


class Owner:
    """The right to write a run database.

    Args:
        database: the run database.
        shared: whether other hosts may see the file.
        watch_s: how long the owner's file is watched, in seconds.

    Raises:
        RunDatabaseError: another master has it, or the file system has no locks.
    """

    def __init__(self, database: Path, *, shared: bool, watch_s: float = WATCH_S) -> None:
        self._database = database
        self._path = database.with_name(f".{database.name}.owner")
        self._beats = 0
        self._shared = shared
        self._identity = {"host": platform.node(), **process_identity(os.getpid())}
        try:
            self._lock = FileLock(database.with_name(f".{database.name}.lock"), clock.date(clock.wall()))
        except LockHeld as error:
            if error.is_here:
                raise RunDatabaseError(
                    f"the run database {database} is used by another master of this process: close that one first "
                    f"(mw.close()), or give another file. A notebook may have it in a variable, in _ or in Out"
                ) from None
            raise self._refusal(str(error)) from None
        except LocksUnsupported as error:
            raise RunDatabaseError(
                f"the run database {database} cannot be protected against a second master, because its file system has "
                f"no locks ({error.strerror}): put it on a local disk, or mount the file system with locks"
            ) from error
        except OSError as error:
            has_folder = database.parent.exists()
            what_to_do = f"make its folder{' writable and free some space' if has_folder else ''}, or give another file"
            raise RunDatabaseError(
                f"cannot open the run database {database}: {error.strerror or error}; {what_to_do}"
            ) from error
        try:
            if shared:
                self._take_over(watch_s)
                self.beat()
        except BaseException:
            self._lock.release()
            raise

    def _refusal(self, holder: str) -> RunDatabaseError:
        return RunDatabaseError(
            f"the run database {self._database} is used by another master: {holder or 'an unknown process'}. Wait for "
            f"its end, or give another file"
        )

    def _take_over(self, watch_s: float) -> None:
        """Wait until it is sure that the last owner is dead."""
        last = self._read()
        if last is None:
            return
        holder = f"process {last.get('pid')} on {last.get('host')}"
        if last.get("host") == self._identity["host"]:
            pid = last.get("pid")
            alive = process_identity(pid) if isinstance(pid, int) else {}
            if alive and alive.items() <= last.items():
                raise self._refusal(holder)
            return
        until = clock.monotonic() + watch_s
        while clock.monotonic() < until:
            clock.sleep(min(LOOK_S, watch_s / 4))
            if self._read() != last:
                raise self._refusal(holder)

    def _read(self) -> dict[str, Any] | None:
        try:
            found = json.loads(self._path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            return None
        except (OSError, ValueError):
            found = {}
        return found if isinstance(found, dict) else {}

    def beat(self) -> None:
        """Show that this master is alive.

        Raises:
            RunDatabaseError: another master has replaced this one, or the file cannot be written.
        """
        if not self._shared:
            return
        if self._beats and self._read() != {**self._identity, "beats": self._beats}:
            raise RunDatabaseError(
                f"another master has taken over the run database {self._database}, because this process was stopped or "
                f"cut off for a long time"
            )
        self._beats += 1
        beside = self._path.with_name(f"{self._path.name}.{os.getpid()}")
        try:
            with beside.open("w", encoding="utf-8") as file:
                json.dump({**self._identity, "beats": self._beats}, file)
                file.flush()
                os.fsync(file.fileno())
            beside.replace(self._path)
        except OSError as error:
            raise RunDatabaseError(f"cannot write {self._path}: {error.strerror or error}") from error

    def release(self) -> None:
        """Let another master have it. The owner's file stays if the file system has failed."""
        try:
            if self._shared and self._read() == {**self._identity, "beats": self._beats}:
                self._path.unlink(missing_ok=True)
        except OSError:
            pass
        finally:
            self._lock.release()


def process_identity(pid: int) -> dict[str, Any]:
    """Return what distinguishes a process from all others of this machine; empty if it does not run."""
    try:
        status = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="utf-8").strip()
    except OSError:
        return {}
    return {"pid": pid, "started": int(status.rpartition(")")[2].split()[19]), "boot": boot}
