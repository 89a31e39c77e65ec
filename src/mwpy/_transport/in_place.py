"""Content of reused files that its last receiver maps instead of copying it.

The receiver maps the file privately (`MAP_PRIVATE`). What it writes is its own, because the kernel then copies the
page. The sender does not write the file again until the receiver releases it. Then the mapping stays for the next
content: its pages are those of the file, so they show what the sender has written meanwhile, and reading them costs no
page fault.

Only pages that the receiver has written are copies, and would show the former content. The kernel says which these are
(`/proc/self/pagemap`): 5 µs for 1 MB. If there are any, the mapping drops its pages. In a virtual machine, the kernel
needs 800 µs to copy the pages of 1 MB, ten times as long as a copy into memory that was used before. So after such a
write, a process copies for a while what it receives.

A process that keeps what it receives would take all files of the sender. So it maps only a limited amount at the same
time, and copies the rest.

A fork of the process may read the content at any time. So a file that was mapped at a fork is not released. This does
not find a fork that native code makes without Python.
"""

from __future__ import annotations

import mmap
import os

from msgspec import Struct, field

from mwpy._transport.mappings import Mapping, Pages, drop_pages

__all__ = ["IN_PLACE"]

IN_PLACE_FROM = 256 << 10
"""The smallest file that is mapped. A smaller content is copied as quickly."""

IN_PLACE_BYTES = 16 << 20
"""The size of all files that a process maps in this way at the same time."""

COPIES = 64
"""How many contents are copied after this process has written into one that was mapped."""

_OF_FILE = frozenset({0xA0, 0xA1})
"""The highest byte of what the kernel says about a page if it is a page of the file: the page is present (bit 63), it
belongs to a file (bit 61), and perhaps no other process has mapped it (bit 56)."""

_NOT_WRITTEN = _OF_FILE | {0}
"""What this byte is if the process has not written the page. It is 0 if the process has not read it, either."""


class InPlace(Struct, eq=False):
    """The private mappings of this process that are in use."""

    num_forks: int = 0
    """How often this process has forked."""
    _sizes: dict[int, int] = field(default_factory=dict)
    """The sizes of the mappings, by their addresses."""
    _num_copies: int = 0
    """How many contents to copy before one is mapped again."""
    _is_doubtful: bool = False
    """Whether this process has written into the content that was returned last. Then only one is mapped at a time."""
    _page_map: int | None = None
    """A descriptor of what the kernel says about the pages of this process; -1 if it says nothing."""

    def is_possible(self, mapping: Mapping, fd: int) -> bool:
        """Whether to map the content of a file instead of copying it.

        Raises:
            OSError: as for `Mapping.private`.
        """
        if mapping.size < IN_PLACE_FROM or mapping.size + sum([*self._sizes.values()]) > IN_PLACE_BYTES:
            return False
        if self._is_doubtful and (self._sizes or self._num_copies):
            self._num_copies -= self._num_copies > 0
            return False
        return self.look_up() and mapping.private(fd).address not in self._sizes

    def look_up(self) -> bool:
        """Return whether the kernel says something about the pages of this process."""
        if self._page_map is None:
            try:
                self._page_map = os.open("/proc/self/pagemap", os.O_RDONLY)
            except OSError:
                self._page_map = -1
        return self._page_map != -1

    def take(self, mapping: Mapping, fd: int) -> Pages:
        """Use the private mapping of a file."""
        pages = mapping.private(fd)
        self._sizes[pages.address] = pages.size
        return pages

    def give_back(self, pages: Pages) -> None:
        """Return a private mapping. It shows the file again."""
        del self._sizes[pages.address]
        assert self._page_map is not None, "it was opened first"
        count = pages.size // mmap.PAGESIZE
        try:
            kinds = {*os.pread(self._page_map, 8 * count, 8 * pages.address // mmap.PAGESIZE)[7::8]}
        except OSError:  # some code of this process has closed the file
            kinds = set()
        self._is_doubtful = not kinds <= _NOT_WRITTEN
        if self._is_doubtful or kinds.isdisjoint(_OF_FILE):  # then it is perhaps another file that was read
            drop_pages(pages)
        if self._is_doubtful:
            self._num_copies = COPIES

    def about_to_fork(self) -> None:
        """The fork will have all that is mapped now."""
        self.num_forks += 1

    def leave_to_parent(self) -> None:
        """In a fork: it has mapped nothing, and what the kernel says about the parent process is of no use."""
        self._sizes.clear()
        if self._page_map not in (None, -1):
            os.close(self._page_map)
        self._page_map = None


IN_PLACE = InPlace()
