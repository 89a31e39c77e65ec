"""The memory of this process."""

from __future__ import annotations

from mwpy._system.memory import resident_bytes


def test_the_memory_of_this_process_grows_with_what_it_holds() -> None:
    before = resident_bytes()
    held = b"x" * (200 << 20)
    grown = resident_bytes() - before
    assert len(held) * 0.9 < grown < len(held) * 1.5
