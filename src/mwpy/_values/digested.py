"""Results that travel with their structural digest, because another host computes them, too (`--mw-verify`).

The digest is around the encoded value, as a seed is around a call. So it passes through the journal and the agent like
every other result. The failure of a task has no digest: its type is compared, which everybody can read.
"""

from __future__ import annotations

from msgspec import Struct

from mwpy._values.failures import read_failure
from mwpy._values.messagepack import DIGESTED, FAILURE, Pickled, decoder

__all__ = ["Digested", "mark_of", "read_digested"]


class Digested(Struct, frozen=True, array_like=True):
    """An encoded value and its digest."""

    digest: bytes
    """Empty if the value has no structure."""
    why_not: str
    """Why it has no digest; empty if it has one."""
    value: bytes


read_digested = decoder(Digested)
"""Read an encoded `Digested`. Raises one of `messagepack.MALFORMED` for everything else."""


def mark_of(entry: object, *, again: bool) -> tuple[str, str]:
    """Return what is compared of a result, and why nothing can be compared; one of the two texts is empty.

    Args:
        entry: the entry of a result in its group.
        again: whether it is a failure that another attempt may not have.

    Raises:
        Exception: one of `messagepack.MALFORMED`; the slave's fault.
    """
    if again:
        return "", "it raised an exception that `retry_errors` describes, so another attempt may have another result"
    if type(entry) is Pickled and entry.kind == FAILURE:
        return f"failure: {read_failure(bytes(entry.pickle)).type_name}", ""
    if type(entry) is Pickled and entry.kind == DIGESTED:
        digested = read_digested(bytes(entry.pickle))
        return digested.digest.hex(), digested.why_not
    return "", "its slave sent no digest"
