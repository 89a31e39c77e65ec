"""A virtual disk that loses its power: it drops, keeps or tears at random what no process has synced.

It gets the calls that `recorder.c` has recorded, in their order. What a file had at its last fsync is on the disk. Of
the later writes, each is kept, lost, or torn: some of its sectors are kept and others are not. Names that were made,
renamed or deleted are on the disk after an fsync of their folder. Of the later changes of names, the first ones are
kept. A file system may keep more. One that keeps less breaks the rules of SQLite, too.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path
from random import Random

from attrs import define, field, frozen

__all__ = ["Disk", "Event", "events_in"]

SECTOR_BYTES = 512
"""What a disk writes as a whole, in bytes."""

_HEAD = struct.Struct("<cHHqQ")


@frozen
class Event:
    """A call that changed a file or a name, or made the disk keep it."""

    kind: str
    """`w`: write; `t`: truncate; `s`: sync; `c`: create; `e`: create or empty; `u`: unlink; `r`: rename; `m`: mkdir."""
    path: str
    """Relative to the folder; empty for the folder itself."""
    to: str
    offset: int
    """Where a write begins, or the size after a truncation, in bytes."""
    data: bytes


def events_in(record: Path) -> Iterator[Event]:
    """Read a record."""
    content, at = record.read_bytes(), 0
    while at < len(content):
        kind, path_size, to_size, offset, size = _HEAD.unpack_from(content, at)
        start = at + _HEAD.size
        middle = start + path_size
        end = middle + to_size
        path, to = content[start:middle].decode()[1:], content[middle:end].decode()[1:]
        at = end + (size if kind == b"w" else 0)
        yield Event(kind.decode(), path, to, offset, content[end:at])


@define(eq=False)
class _File:
    """A file, or a folder if `content` is None."""

    content: bytearray | None = field(factory=bytearray)
    """What the disk has."""
    waiting: list[tuple[int, bytes | None]] = field(factory=list)
    """Writes since the last sync: where each begins, and what it writes; None truncates the file there."""


@define(eq=False)
class Disk:
    """The folder of a process, as its disk has it."""

    _names: dict[str, _File] = field(factory=dict)
    """The files as processes see them."""
    _kept: dict[str, _File] = field(factory=dict)
    """The files under the names that are on the disk."""
    _changes: list[tuple[str, str, _File | None]] = field(factory=list)
    """Changes of names since the last sync of their folder: the folder, the name, and its file from then on."""

    def apply(self, event: Event) -> None:
        """A process has made a call."""
        match event.kind:
            case "w":
                self._names[event.path].waiting.append((event.offset, event.data))
            case "t":
                self._names[event.path].waiting.append((event.offset, None))
            case "e" if event.path in self._names:
                self._names[event.path].waiting.append((0, None))
            case "c" | "e":
                if event.path not in self._names:
                    self._name(event.path, _File())
            case "m":
                self._name(event.path, _File(None))
            case "u":
                self._name(event.path, None)
            case "r":
                file = self._names[event.path]
                self._name(event.path, None)
                self._name(event.to, file)
            case "s":
                self._sync(event.path)

    def _name(self, path: str, file: _File | None) -> None:
        _set(self._names, path, file)
        self._changes.append((_folder_of(path), path, file))

    def _sync(self, path: str) -> None:
        file = self._names.get(path)
        if file is not None and file.content is not None:
            for offset, data in file.waiting:
                _write(file.content, offset, data)
            file.waiting.clear()
            return
        for folder, name, renamed in self._changes:
            if folder == path:
                _set(self._kept, name, renamed)
        self._changes = [change for change in self._changes if change[0] != path]

    def lose_power(self, random: Random, folder: Path) -> None:
        """Write what is left after a power loss into an empty folder. The disk itself goes on."""
        kept = dict(self._kept)
        for _, name, file in self._changes[: random.randint(0, len(self._changes))]:
            _set(kept, name, file)
        for name in sorted(kept):
            content = kept[name].content
            if content is None:
                (folder / name).mkdir(exist_ok=True)
            elif not _folder_of(name) or _folder_of(name) in kept:
                (folder / name).write_bytes(_torn(random, content, kept[name].waiting))


def _set(names: dict[str, _File], path: str, file: _File | None) -> None:
    if file is None:
        names.pop(path, None)
    else:
        names[path] = file


def _folder_of(path: str) -> str:
    return path.rpartition("/")[0]


def _write(content: bytearray, offset: int, data: bytes | None) -> None:
    if data is None:
        del content[offset:]
    content.extend(bytes(max(0, offset - len(content))))
    if data is not None:
        content[offset : offset + len(data)] = data


def _torn(random: Random, content: bytearray, waiting: list[tuple[int, bytes | None]]) -> bytes:
    """What is left of a file: each write that waits is kept, lost or torn, and the size may grow all the same."""
    left, chance = bytearray(content), random.choice((0.0, 0.1, 0.5, 0.9, 1.0))
    for offset, data in waiting:
        if data is None:
            if random.random() < chance:
                _write(left, offset, None)
            continue
        end = offset + len(data)
        for start in range(offset - offset % SECTOR_BYTES, end, SECTOR_BYTES):
            first, last = max(start, offset), min(start + SECTOR_BYTES, end)
            if random.random() < chance:
                _write(left, first, data[first - offset : last - offset])
        if random.random() < 0.5:
            left.extend(bytes(max(0, end - len(left))))
    return bytes(left)
