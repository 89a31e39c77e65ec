"""The files of an agent's shared objects: does what the core decides, and reports what happened."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from msgspec.structs import replace

from mwpy._core.agent.events import (
    DropShare,
    OpenShare,
    ShareNotKept,
    ShareOpened,
    WriteShare,
)
from mwpy._roles.edges import ShareStore

__all__ = ["changed"]


def changed(
    store: ShareStore, changes: Sequence[OpenShare | WriteShare | DropShare]
) -> Iterator[ShareOpened | ShareNotKept]:
    """Change files in this order, and yield what the core must know."""
    for change in changes:
        try:
            match change:
                case OpenShare(share):
                    location, is_complete = store.open(share)
                    yield ShareOpened(replace(share, location=location), is_complete)
                case WriteShare(digest, start, part):
                    store.write(digest, start, part)
                case DropShare(digest):
                    store.drop(digest)
        except OSError as error:
            digest = change.share.digest if isinstance(change, OpenShare) else change.digest
            yield ShareNotKept(digest, f"a shared object cannot be kept at the agent: {error}")
