"""Where a file is: on a disk of this machine, or on a network file system.

SQLite's readers and writers share memory (the file with the suffix `-shm`), and need locks that all of them see.
Hosts do not share memory. So on a network file system, one connection only has the run database open.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

_NETWORK = frozenset(
    (
        *("nfs", "nfs4", "cifs", "smb3", "smbfs", "smb2", "afs", "coda", "ncpfs", "9p", "ceph", "lustre", "gpfs"),
        *("beegfs", "beegfs_nodev", "panfs", "pvfs2", "orangefs", "glusterfs", "ocfs2", "gfs", "gfs2", "wekafs"),
        *("virtiofs", "vboxsf", "vmhgfs", "prl_fs", "acfs", "pxfs", "mfs", "moosefs", "shfs", "fuse"),
    )
)
"""File systems that several machines can use at once."""


_LOCAL_FUSE = frozenset(
    f"fuse.{name}" for name in ("fuse-overlayfs", "gocryptfs", "encfs", "ntfs", "ntfs-3g", "exfat", "portal", "zfs")
)
"""File systems of user space that only this machine uses. All others of user space may be on a network."""


_ESCAPED = re.compile(r"\\([0-7]{3})")


def real_path(path: str | Path) -> Path:
    """Return the file to which a symbolic link leads: the lock and the large values of the file are beside it."""
    return Path(os.path.realpath(path)) if os.path.islink(path) else Path(path)


def is_network(kind: str) -> bool:
    """Whether several machines may use a file system of this kind at once."""
    return kind in _NETWORK or (kind.startswith("fuse.") and kind not in _LOCAL_FUSE)


def kind_of_file_system(folder: Path, mounts: str | None = None) -> str:
    """Return the kind of the file system that holds a folder, such as `ext4` or `nfs4`; empty if it is unknown.

    Args:
        mounts: the content of `/proc/self/mountinfo`, if it is known.
    """
    if mounts is None:
        try:
            mounts = Path("/proc/self/mountinfo").read_text(encoding="utf-8", errors="surrogateescape")
        except OSError:
            return ""
    where = folder.resolve()
    longest, kind = -1, ""
    for line in mounts.splitlines():
        left, _, right = line.partition(" - ")
        point = Path(_ESCAPED.sub(lambda found: chr(int(found[1], 8)), left.split(" ")[4]))
        if len(point.parts) >= longest and (point == where or point in where.parents):
            longest, kind = len(point.parts), right.split(" ")[0]  # a later mount hides an earlier one
    return kind
